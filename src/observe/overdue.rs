//! Requests in flight that have already missed a bound of their SLO. Their records count only at the end.
//!
//! Requests to a hung engine do not end while their clients wait, and streams that decode too slowly last the longer. The page and
//! `/api/v1/slo` count them as misses at once, and `tokenway_requests_overdue` those that still wait for what is past its bound.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::slo::Missed;
use super::stages::Whole;
use crate::clock::Stamp;
use crate::labels::LabelHasher;
use crate::record::{Attempt, Gaps, Record, Served};
use crate::request::class::Class;
use crate::request::dialect::Dialect;
use crate::stage::Stage;

/// Requests in flight that have a bound on their first token, their pace or their duration.
#[derive(Debug, Default)]
pub struct Overdue {
    // By number of the request; shards keep the workers apart.
    shards: [Arc<Shard>; SHARDS],
    next: AtomicUsize,
}

type Shard = Mutex<HashMap<usize, Waiting, LabelHasher>>;

impl Overdue {
    /// Follows the bounds of a request until the guard is dropped; `None` without any.
    pub(super) fn watch(&self, record: &Record) -> Option<BoundGuard> {
        let since = record.at.read?;
        let ttft = record.slo.ttft.filter(|_| record.is_stream).map(|bound| since.after(bound));
        let tpot = record.slo.tpot.filter(|_| record.is_stream);
        let e2e = record.slo.e2e.map(|bound| record.at.head.after(bound));
        if ttft.is_none() && tpot.is_none() && e2e.is_none() {
            return None;
        }
        let waiting = Waiting {
            route: Arc::clone(&record.route),
            tenant: Arc::clone(&record.tenant),
            class: record.class,
            since,
            ttft,
            first_token: None,
            tpot,
            pace: Pace::default(),
            e2e,
            is_stream: record.is_stream,
            dialect: record.dialect,
            asked: None,
            asked_at: None,
        };
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let shard = self.shards.get(id % SHARDS)?;
        shard.lock().insert(id, waiting);
        Some(BoundGuard { shard: Arc::clone(shard), id, has_tpot: tpot.is_some() })
    }

    /// Those that are past a bound at `now`, by route.
    pub fn by_route(&self, now: Stamp) -> HashMap<Arc<str>, Vec<Late>> {
        let mut routes: HashMap<Arc<str>, Vec<Late>> = HashMap::new();
        for shard in &self.shards {
            for waiting in shard.lock().values() {
                if let Some(late) = waiting.late(now) {
                    routes.entry(Arc::clone(&waiting.route)).or_default().push(late);
                }
            }
        }
        routes
    }
}

/// A request that has missed a bound and has not ended.
#[derive(Clone, Debug)]
pub struct Late {
    /// Which bound, the first of them.
    pub missed: Missed,
    /// The bound of what it still waits for; `None` where its first token came late, or its tokens do, and the answer has time yet.
    pub waits_for: Option<Missed>,
    /// Since when it waits: its request was read.
    pub since: Stamp,
    /// For how long that bound has passed; else by how much its first token was late, or its last one is.
    pub by: Duration,
    /// Label `tenant`.
    pub tenant: Arc<str>,
    /// Label `class`.
    pub class: Class,
    /// Where it was sent to last; `None` while it waits in the gateway.
    pub asked: Option<Arc<Served>>,
    /// The stage with most of the time that its bound covers so far.
    pub stage: Stage,
}

/// Follows the bounds of one request while it lives.
#[derive(Debug)]
pub(super) struct BoundGuard {
    shard: Arc<Shard>,
    id: usize,
    has_tpot: bool,
}

impl BoundGuard {
    /// The request goes to this replica.
    pub(super) fn asks(&self, made: &Attempt, now: Stamp) {
        self.update(|waiting| {
            waiting.asked = Some(made.clone());
            waiting.asked_at.get_or_insert(now);
        });
    }

    /// Its first token came: from here on the bound on its duration is what is left to miss.
    pub(super) fn first_token(&self, at: Stamp) {
        self.update(|waiting| waiting.first_token = Some(at));
    }

    /// A batch of gaps between content events, of each of which `per_event` tokens are usual.
    pub(super) fn gaps(&self, gaps: &Gaps<'_>, per_event: impl FnOnce() -> Option<f64>) {
        if self.has_tpot {
            let per_event = per_event();
            self.update(|waiting| waiting.pace.take(gaps, per_event));
        }
    }

    fn update(&self, change: impl FnOnce(&mut Waiting)) {
        self.shard.lock().get_mut(&self.id).map(change);
    }
}

impl Drop for BoundGuard {
    fn drop(&mut self) {
        self.shard.lock().remove(&self.id);
    }
}

#[derive(Debug)]
struct Waiting {
    route: Arc<str>,
    tenant: Arc<str>,
    class: Class,
    since: Stamp,
    ttft: Option<Stamp>,
    first_token: Option<Stamp>,
    tpot: Option<Duration>,
    pace: Pace,
    e2e: Option<Stamp>,
    is_stream: bool,
    dialect: Dialect,
    /// The last attempt.
    asked: Option<Attempt>,
    /// When it was sent to the first.
    asked_at: Option<Stamp>,
}

impl Waiting {
    fn late(&self, now: Stamp) -> Option<Late> {
        let by =
            |bound: Option<Stamp>, at: Stamp| bound.filter(|bound| at > *bound).map(|bound| at.since(bound));
        let ttft = by(self.ttft, self.first_token.unwrap_or(now));
        let (tpot, e2e) = (self.tpot.and_then(|bound| self.pace.behind(bound)), by(self.e2e, now));
        let missed = match (ttft, tpot) {
            (Some(_), _) => Missed::Ttft,
            (None, Some(_)) => Missed::Tpot,
            (None, None) => Missed::E2e,
        };
        let (by, waits_for) = match (self.first_token, ttft.or(tpot), e2e) {
            (None, Some(by), _) => (by, Some(Missed::Ttft)),
            (_, _, Some(by)) => (by, Some(Missed::E2e)),
            (Some(_), Some(by), None) => (by, None),
            (_, None, None) => return None,
        };
        let asked = self.asked.as_ref().map(|made| Arc::clone(&made.served));
        let (tenant, stage) = (Arc::clone(&self.tenant), self.stage(missed, now));
        Some(Late { missed, waits_for, since: self.since, by, tenant, class: self.class, asked, stage })
    }

    /// As its record will have it, as far as is known.
    fn stage(&self, missed: Missed, now: Stamp) -> Stage {
        let Some(asked_at) = self.asked_at else { return Stage::Admit };
        let first_token = self.first_token.unwrap_or(now);
        let wait = first_token.since(asked_at);
        let whole = self
            .asked
            .as_ref()
            .filter(|_| !self.is_stream)
            .and_then(|made| Whole { computes: self.dialect.computes(), made, tokens: None }.parts(wait));
        let at_engine = if self.is_stream { Stage::Prefill } else { Stage::EngineOther };
        let outside = [
            (Stage::Admit, asked_at.since(self.since)),
            (at_engine, if whole.is_some() { Duration::ZERO } else { wait }),
            (Stage::Decode, now.since(first_token)),
        ];
        let stages = outside.into_iter().chain(whole.into_iter().flatten());
        let covered = stages.filter(|(stage, _)| missed.may_be_in(*stage));
        covered.max_by_key(|(_, time)| *time).map_or(at_engine, |(stage, _)| stage)
    }
}

/// The gaps of a stream so far, but for those in which a slow client held it up.
#[derive(Debug, Default)]
struct Pace {
    took: Duration,
    /// Tokens that the engine counted in the stream.
    tokens: u64,
    /// Content events whose tokens it counts at the end alone.
    uncounted: u64,
    /// Usual tokens of one; `None` where that is not known.
    per_event: Option<f64>,
}

impl Pace {
    fn take(&mut self, gaps: &Gaps<'_>, per_event: Option<f64>) {
        self.per_event = per_event;
        for gap in gaps.gaps {
            self.took += gap.length;
            match gap.tokens {
                Some(tokens) => self.tokens += u64::from(tokens),
                None => self.uncounted += 1,
            }
        }
    }

    /// How far its tokens are behind that many seconds for each. Each choice has gaps of its own.
    fn behind(&self, bound: Duration) -> Option<Duration> {
        let uncounted = if self.uncounted == 0 { 0.0 } else { self.uncounted as f64 * self.per_event? };
        let tokens = self.tokens as f64 + uncounted;
        let is_known = tokens >= MIN_TOKENS;
        is_known.then(|| self.took.saturating_sub(bound.mul_f64(tokens))).filter(|by| !by.is_zero())
    }
}

const SHARDS: usize = 16;
/// Fewer are soon made up for.
const MIN_TOKENS: f64 = 32.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::millis as ms;
    use crate::observe::fixture;
    use crate::record::{ExpectedWait, Gap, SloBounds};

    fn of_route(overdue: &Overdue, route: &str, now: Stamp) -> Vec<Late> {
        overdue.by_route(now).remove(route).unwrap_or_default()
    }

    /// Read at 0 ms; first token due within 100 ms, the end within 1 s.
    fn record() -> Record {
        let bound = |n| Some(Duration::from_millis(n));
        let slo = SloBounds { ttft: bound(100), e2e: bound(1000), ..SloBounds::default() };
        let mut record = Record { slo, ..fixture::stream() };
        (record.at.head, record.at.read) = (ms(0), Some(ms(0)));
        record
    }

    #[test]
    fn a_request_is_late_from_its_bound_until_its_first_token_and_again_when_it_lasts_too_long() {
        let (overdue, record) = (Overdue::default(), record());
        let guard = overdue.watch(&record).unwrap();
        let missed =
            |at| of_route(&overdue, &record.route, ms(at)).pop().map(|late| (late.missed, late.stage));
        assert_eq!(missed(100), None);
        assert_eq!(missed(101), Some((Missed::Ttft, Stage::Admit)));
        guard.asks(&record.attempts[0], ms(60));
        assert_eq!(missed(101), Some((Missed::Ttft, Stage::Admit)), "most of it before it was sent");
        assert_eq!(missed(130), Some((Missed::Ttft, Stage::Prefill)));
        let late = of_route(&overdue, &record.route, ms(101)).pop().unwrap();
        assert_eq!(late.by, Duration::from_millis(1));
        assert_eq!(late.asked.unwrap().replica, record.attempts[0].served.replica);
        guard.first_token(ms(100));
        assert_eq!(missed(999), None, "it came in time");
        assert_eq!(missed(1001), Some((Missed::E2e, Stage::Decode)));
        assert!(of_route(&overdue, "another", ms(1001)).is_empty());
        drop(guard);
        assert_eq!(missed(1001), None);
    }

    #[test]
    fn a_first_token_that_came_late_was_missed_and_is_no_longer_waited_for() {
        let (overdue, record) = (Overdue::default(), record());
        let guard = overdue.watch(&record).unwrap();
        let late = |at| {
            of_route(&overdue, &record.route, ms(at)).pop().map(|late| (late.missed, late.waits_for, late.by))
        };
        assert_eq!(late(150), Some((Missed::Ttft, Some(Missed::Ttft), Duration::from_millis(50))));
        guard.first_token(ms(170));
        assert_eq!(late(999), Some((Missed::Ttft, None, Duration::from_millis(70))));
        assert_eq!(late(1001), Some((Missed::Ttft, Some(Missed::E2e), Duration::from_millis(1))));
    }

    #[test]
    fn a_stream_is_late_while_its_tokens_come_more_slowly_than_its_bound() {
        let tpot = Some(Duration::from_millis(40));
        let gaps = |n, millis, tokens| vec![Gap { length: Duration::from_millis(millis), tokens }; n];
        let (calm, slow) = (gaps(40, 20, None), gaps(40, 100, None));
        for (name, per_event, batches, expected) in [
            ("within its bound", Some(1.0), vec![&calm], None),
            ("over it", Some(1.0), vec![&slow], Some(2400)),
            ("too few to tell", Some(1.0), vec![&slow[..31].to_vec()], None),
            ("events of several tokens", Some(3.0), vec![&slow], None),
            ("of how many is not known", None, vec![&slow], None),
            ("it recovered", Some(1.0), vec![&slow, &calm, &calm, &calm, &calm], None),
            ("counted as they came", None, vec![&gaps(20, 100, Some(2))], Some(400)),
        ] {
            let (overdue, record) = (Overdue::default(), record());
            let slo = SloBounds { tpot, ..SloBounds::default() };
            let record = Record { slo, ..record };
            let guard = overdue.watch(&record).unwrap();
            guard.asks(&record.attempts[0], ms(1));
            guard.first_token(ms(50));
            for gaps in batches {
                guard.gaps(&Gaps { gaps, late_itl: &[], is_filling: false }, || per_event);
            }
            let late = of_route(&overdue, &record.route, ms(60)).pop();
            let found = late.map(|late| (late.missed, late.stage, late.waits_for, late.by));
            let expected = expected.map(|by| (Missed::Tpot, Stage::Decode, None, Duration::from_millis(by)));
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn answers_without_a_stream_have_no_first_token_to_wait_for_and_nothing_is_watched_without_a_bound() {
        let overdue = Overdue::default();
        let unary = Record { is_stream: false, ..record() };
        let guard = overdue.watch(&unary).unwrap();
        assert!(of_route(&overdue, &unary.route, ms(999)).is_empty());
        guard.asks(&unary.attempts[0], ms(5));
        let late: Vec<_> = of_route(&overdue, &unary.route, ms(1001)).iter().map(|late| late.stage).collect();
        assert_eq!(late, [Stage::EngineOther]);
        let bound = Duration::from_millis(200);
        let expected = ExpectedWait { queue: bound, prefill: bound, per_token: bound / 10 };
        guard.asks(&Attempt { expected: Some(expected), ..unary.attempts[0].clone() }, ms(5));
        let late: Vec<_> = of_route(&overdue, &unary.route, ms(1001)).iter().map(|late| late.stage).collect();
        assert_eq!(late, [Stage::Decode], "as its record will have it");
        drop(guard);
        let unbound = Record { slo: SloBounds::default(), ..record() };
        assert!(overdue.watch(&unbound).is_none());
    }
}
