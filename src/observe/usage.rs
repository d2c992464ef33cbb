//! Usage for the bill: requests, tokens and engine seconds by tenant, model and API key, by hour and, later, by day (UTC).
//!
//! Counted where the metrics of tenants are, so the figures add up with theirs. Pure: time is an argument. Bounded: an hour
//! with too many rows counts further keys as `other`, and beyond [`MAX_ROWS`] of days the oldest day is dropped.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::rfc3339;
use super::stages::{self, Stage, StageTime};
use crate::clock::{since_epoch, wall_second};
use crate::labels::{LabelHasher, OTHER};
use crate::record::Record;

/// What was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Used {
    /// Requests that were let in.
    pub requests: u64,
    /// Prompt tokens, cached ones included.
    pub input: u64,
    /// Prompt tokens that the engine had cached.
    pub cached: u64,
    /// Tokens of answers.
    pub output: u64,
    /// Microseconds in the engine's prefill.
    pub prefill_us: u64,
    /// Microseconds in its decode.
    pub decode_us: u64,
    /// Microseconds of whole answers for which it reports neither.
    #[serde(default)]
    pub engine_other_us: u64,
}

impl Used {
    /// Adds another amount.
    pub fn add(&mut self, other: &Self) {
        for (own, more) in [
            (&mut self.requests, other.requests),
            (&mut self.input, other.input),
            (&mut self.cached, other.cached),
            (&mut self.output, other.output),
            (&mut self.prefill_us, other.prefill_us),
            (&mut self.decode_us, other.decode_us),
            (&mut self.engine_other_us, other.engine_other_us),
        ] {
            *own = own.saturating_add(more);
        }
    }
}

/// Who used it, and of what.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Payer {
    /// Label `tenant`.
    pub tenant: Arc<str>,
    /// Label `model`.
    pub model: Arc<str>,
    /// Name of the API key; `none` for a token, a certificate or a trusted header.
    pub key: Arc<str>,
}

/// What was used in one hour, or in one day.
#[derive(Clone, Debug, Default)]
pub struct Span {
    /// By payer.
    pub rows: HashMap<Payer, Used, LabelHasher>,
}

/// By first second of the day, or 0, and payer.
pub type Sums = BTreeMap<(u64, Payer), Used>;

/// All usage that is kept.
#[derive(Debug, Default)]
pub struct Usage {
    /// What requests count into, by hour: taken whole, so that a reader never holds them up.
    live: Mutex<BTreeMap<u64, Span>>,
    spans: Mutex<Spans>,
    /// Held while they are shown: one writer at a time.
    showing: Mutex<()>,
}

/// Spans by their first second since 1970.
#[derive(Clone, Debug, Default)]
pub struct Spans {
    /// Whole days that are over.
    pub days: BTreeMap<u64, Span>,
    /// Hours since then.
    pub hours: BTreeMap<u64, Span>,
    /// How often hours were folded into days.
    pub folds: u64,
    /// Hours and days have changed since the last look.
    has_new: bool,
    has_folded: bool,
}

impl Usage {
    /// Counts a request that ended at `at`, and its time at the engine as far as known. One that was refused is none, nor is one that
    /// no route took.
    pub(super) fn count(&self, record: &Record, stages: &[StageTime], at: SystemTime) {
        if record.is_refused() || record.has_no_route() {
            return;
        }
        let charged = record.charged_tokens();
        let [input, cached, output] =
            [charged.input, charged.cached, charged.output].map(|count| count.unwrap_or_default().0);
        self.add(record, at, &Used { requests: 1, input, cached, output, ..engine_time(record, stages) });
    }

    /// Counts its time at the engine, which was not known at its end.
    pub(super) fn count_engine(&self, record: &Record, stages: &[StageTime], at: SystemTime) {
        self.add(record, at, &engine_time(record, stages));
    }

    fn add(&self, record: &Record, at: SystemTime, used: &Used) {
        let payer = Payer {
            tenant: Arc::clone(&record.tenant),
            model: Arc::clone(&record.model),
            key: Arc::clone(&record.key),
        };
        let hour = since_epoch(at).as_secs() / HOUR * HOUR;
        self.live.lock().entry(hour).or_default().add(payer, used);
    }

    /// Folds the hours of days long over into days, and shows a copy of what has changed since the last call: with whether hours and
    /// days have. `show` may wait for a disk, and no reader waits for it.
    pub fn fold<T>(&self, now: SystemTime, show: impl FnOnce(&Spans, bool, bool) -> T) -> T {
        let _one_at_a_time = self.showing.lock();
        let mut spans = self.spans.lock();
        spans.take(&self.live);
        let days_changed = spans.fold(since_epoch(now).as_secs()) | std::mem::take(&mut spans.has_folded);
        let hours_changed = std::mem::take(&mut spans.has_new) || days_changed;
        let copy =
            |of: &BTreeMap<u64, Span>, has_changed| if has_changed { of.clone() } else { BTreeMap::new() };
        let changed =
            Spans::new(copy(&spans.days, days_changed), copy(&spans.hours, hours_changed), spans.folds);
        drop(spans);
        show(&changed, hours_changed, days_changed)
    }

    /// What was shown as changed could not be written: it is shown again.
    pub fn not_kept(&self, hours: bool, days: bool) {
        let mut spans = self.spans.lock();
        spans.has_new |= hours;
        spans.has_folded |= days;
    }

    /// Continues from an earlier process.
    pub fn restore(&self, kept: Spans) {
        *self.spans.lock() = kept;
    }

    /// Sums of the spans that hold a moment from `since` up to `until`, by day and payer as `asked` names them, and when the first of
    /// them begins and the last ends.
    pub fn sum(
        &self,
        since: SystemTime,
        until: SystemTime,
        asked: impl Fn(u64, &Payer) -> (u64, Payer),
    ) -> (Sums, Option<Range<u64>>) {
        let (since, until) = (since_epoch(since).as_secs(), since_epoch(until).as_secs());
        let mut spans = self.spans.lock();
        spans.take(&self.live);
        let days = spans.days.iter().map(|(from, span)| (*from, DAY, span));
        let hours = spans.hours.iter().map(|(from, span)| (*from, HOUR, span));
        let inside = |(from, length, _): &(u64, u64, &Span)| from + length > since && *from < until;
        let (mut sums, mut counted) = (Sums::new(), None);
        for (from, length, span) in days.chain(hours).filter(inside) {
            counted = Some(counted.map_or(from, |counted: Range<u64>| counted.start)..from + length);
            for (payer, used) in &span.rows {
                sums.entry(asked(from / DAY * DAY, payer)).or_default().add(used);
            }
        }
        (sums, counted)
    }
}

fn engine_time(record: &Record, stages: &[StageTime]) -> Used {
    let mut used = Used::default();
    for time in stages::charged(record, stages) {
        let us = u64::try_from(time.duration.as_micros()).unwrap_or(u64::MAX);
        match time.stage {
            Stage::Prefill => used.prefill_us = us,
            Stage::Decode => used.decode_us = us,
            _ => used.engine_other_us = us,
        }
    }
    used
}

impl Span {
    fn merge(&mut self, other: Self) {
        other.rows.into_iter().for_each(|(payer, used)| self.add(payer, &used));
    }

    fn add(&mut self, mut payer: Payer, used: &Used) {
        if self.rows.len() >= MAX_ROWS_A_SPAN && !self.rows.contains_key(&payer) {
            payer.key = OTHER.into();
            if self.rows.len() >= 2 * MAX_ROWS_A_SPAN && !self.rows.contains_key(&payer) {
                payer = Payer { tenant: OTHER.into(), model: OTHER.into(), key: OTHER.into() };
            }
        }
        self.rows.entry(payer).or_default().add(used);
    }
}

impl Spans {
    /// Those of an earlier process.
    pub fn new(days: BTreeMap<u64, Span>, hours: BTreeMap<u64, Span>, folds: u64) -> Self {
        Self { days, hours, folds, ..Self::default() }
    }

    fn take(&mut self, live: &Mutex<BTreeMap<u64, Span>>) {
        let taken = std::mem::take(&mut *live.lock());
        self.has_new |= !taken.is_empty();
        for (hour, span) in taken {
            match self.hours.entry(hour) {
                Entry::Vacant(new) => {
                    new.insert(span);
                }
                Entry::Occupied(own) => own.into_mut().merge(span),
            }
        }
    }

    /// Folds hours of days that ended [`HOURS_KEPT`] ago; whether there were any, or a span was dropped.
    fn fold(&mut self, now: u64) -> bool {
        let first = now.saturating_sub(HOURS_KEPT) / DAY * DAY;
        let later = self.hours.split_off(&first);
        let over = std::mem::replace(&mut self.hours, later);
        let mut has_changed = !over.is_empty();
        self.folds += u64::from(has_changed);
        for (from, span) in over {
            self.days.entry(from / DAY * DAY).or_default().merge(span);
        }
        let mut rows: usize = self.days.values().map(|span| span.rows.len()).sum();
        let oldest = now.saturating_sub(DAYS_KEPT);
        while let Some(day) = self.days.first_entry()
            && (rows > MAX_ROWS || *day.key() < oldest)
        {
            let (from, span) = day.remove_entry();
            if from >= oldest {
                let day = rfc3339::utc(wall_second(from));
                tracing::warn!(
                    day,
                    rows,
                    "usage of the oldest day is dropped: all days have {MAX_ROWS} rows"
                );
            }
            rows -= span.rows.len();
            has_changed = true;
        }
        has_changed
    }
}

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
/// For invoices of the last months.
const DAYS_KEPT: u64 = 400 * DAY;
const HOURS_KEPT: u64 = 2 * DAY;
const MAX_ROWS_A_SPAN: usize = 20_000;
/// Of all days; about 40 MB. Those of hours are no reason to drop a day: a bill needs it.
const MAX_ROWS: usize = 250_000;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::observe::fixture;
    use crate::units::Tokens;

    fn record(tenant: &str, key: &str, output: u64) -> Record {
        let mut record = Record { tenant: tenant.into(), key: key.into(), ..fixture::stream() };
        record.tokens.output = Some(Tokens(output));
        record
    }

    fn day(days: u64, hours: u64) -> SystemTime {
        wall_second(20_000 * DAY + days * DAY + hours * HOUR)
    }

    fn output_of(usage: &Usage, since: SystemTime, until: SystemTime) -> Vec<(String, u64)> {
        let by_tenant = |_, payer: &Payer| {
            let none = || Arc::from("");
            (0, Payer { tenant: Arc::clone(&payer.tenant), model: none(), key: none() })
        };
        let (sums, _) = usage.sum(since, until, by_tenant);
        sums.into_iter().map(|((_, payer), used)| (payer.tenant.to_string(), used.output)).collect()
    }

    #[test]
    fn hours_become_days_and_sums_stay() {
        let usage = Usage::default();
        for (days, hours, tenant, output) in
            [(0, 3, "a", 1), (0, 22, "a", 2), (0, 22, "b", 4), (1, 5, "a", 8), (3, 0, "b", 16)]
        {
            usage.count(&record(tenant, "ci", output), &[], day(days, hours));
        }
        let all = [("a".to_owned(), 11), ("b".to_owned(), 20)];
        assert_eq!(output_of(&usage, day(0, 0), day(4, 0)), all);
        assert_eq!(output_of(&usage, day(0, 23), day(3, 0)), [("a".to_owned(), 8)], "by the hour");
        let spans = usage.fold(day(3, 1), |spans, hours, days| {
            assert!(hours && days && spans.days.len() == 1, "the first day is over for two");
            spans.clone()
        });
        assert_eq!(spans.hours.len(), 2);
        assert_eq!(usage.fold(day(3, 1), |_, hours, days| (hours, days)), (false, false), "nothing is new");
        assert_eq!(output_of(&usage, day(0, 0), day(4, 0)), all);
        assert_eq!(output_of(&usage, day(0, 23), day(1, 0)).len(), 2, "of a day long over all of it");
        usage.not_kept(true, false);
        assert_eq!(usage.fold(day(3, 1), |_, hours, days| (hours, days)), (true, false), "once more");
        assert_eq!(spans.folds, 1);
        let after = Usage::default();
        after.restore(spans);
        assert_eq!(output_of(&after, day(0, 0), day(4, 0)), all);
        let until = day(3, 0) + Duration::from_secs(60);
        let (_, counted) = after.sum(day(0, 5), until, |day, payer| (day, payer.clone()));
        let whole = 20_000 * DAY..20_003 * DAY + HOUR;
        assert_eq!(counted, Some(whole), "from the first span's beginning to the last one's end");
        assert!(after.fold(day(500, 0), |spans, _, _| spans.days.is_empty()), "kept for 400 days");
    }

    #[test]
    fn busy_hours_take_no_earlier_day() {
        let of = |rows: usize| {
            let mut span = Span::default();
            let payer = |i| Payer { tenant: format!("t{i}").into(), model: "m".into(), key: "k".into() };
            (0..rows).for_each(|i| span.add(payer(i), &Used { requests: 1, ..Used::default() }));
            span
        };
        let first = 20_000 * DAY;
        let (an_hour, a_day) = (of(MAX_ROWS_A_SPAN), of(5));
        let hours =
            (0..=MAX_ROWS / MAX_ROWS_A_SPAN).map(|hour| (first + hour as u64 * HOUR, an_hour.clone()));
        let days = (1..=3).map(|before| (first - before * DAY, a_day.clone()));
        let usage = Usage::default();
        usage.restore(Spans::new(days.collect(), hours.collect(), 0));
        usage.fold(day(0, 13), |_, _, _| ());
        assert_eq!(usage.spans.lock().days.len(), 3);
        let full = of(2 * MAX_ROWS_A_SPAN);
        let days = (1..=8).map(|before| (first - before * DAY, full.clone()));
        usage.restore(Spans::new(days.collect(), BTreeMap::new(), 0));
        let kept = usage.fold(day(0, 13), |spans, _, _| spans.days.keys().copied().collect::<Vec<_>>());
        assert_eq!(kept, [6, 5, 4, 3, 2, 1].map(|before| first - before * DAY), "the newest that fit");
    }

    #[test]
    fn what_was_not_let_in_is_no_request() {
        let usage = Usage::default();
        let unknown = Record { route: "none".into(), status: 404, ..record("none", "none", 0) };
        usage.count(&unknown, &[], day(0, 0));
        assert!(output_of(&usage, day(0, 0), day(1, 0)).is_empty());
    }

    #[test]
    fn an_hour_with_too_many_keys_counts_further_ones_as_other() {
        let usage = Usage::default();
        for i in 0..MAX_ROWS_A_SPAN as u64 + 5 {
            usage.count(&record("a", &format!("key-{i}"), 1), &[], day(0, 0));
        }
        let (sums, _) = usage.sum(day(0, 0), day(1, 0), |_, payer| (0, payer.clone()));
        let of = |key: &str| sums.iter().find(|((_, payer), _)| &*payer.key == key).map(|(_, u)| u.requests);
        assert_eq!((sums.len(), of("key-0"), of(OTHER)), (MAX_ROWS_A_SPAN + 1, Some(1), Some(5)));
    }

    #[test]
    fn a_disk_that_hangs_keeps_no_reader_waiting() {
        let usage = Arc::new(Usage::default());
        usage.count(&record("a", "ci", 1), &[], day(0, 0));
        let (read, was_read) = std::sync::mpsc::channel();
        let reader = Arc::clone(&usage);
        usage.fold(day(0, 1), move |_, _, _| {
            std::thread::spawn(move || read.send(output_of(&reader, day(0, 0), day(1, 0))));
            // The write lasts until it was read.
            let sums = was_read.recv_timeout(Duration::from_secs(10));
            assert_eq!(sums.unwrap(), [("a".to_owned(), 1)]);
        });
    }
}
