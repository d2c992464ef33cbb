//! The slowest and the failed requests of the last hour, of one route.
//!
//! Of each five minutes a few of either kind, so that an incident does not push out the one before it.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Stamp;
use crate::labels::labels;
use crate::observe::judgement::Judgement;
use crate::record::{Outcome, Record};
use crate::stats::Ring;

labels! {
    /// Why a request is kept.
    pub enum Why {
        /// Among the slowest.
        Slow = "slow",
        /// No answer, or a broken one.
        Failed = "failed",
        /// Refused by the gateway.
        Refused = "refused",
    }
}

/// A kept request.
#[derive(Clone, Debug)]
pub struct Kept {
    /// All that is known of it.
    pub record: Arc<Record>,
    /// Largest ratio of a time to its bound; without bounds, seconds of TTFT or of the whole.
    pub slow: f64,
    /// Why it is kept.
    pub why: Why,
}

/// Kept requests by slots of five minutes, oldest first.
#[derive(Default)]
pub(super) struct Worst(Ring<Vec<Kept>>);

impl Worst {
    /// Keeps the record if it is bad enough; returns what no longer is kept, to be freed outside of a lock.
    pub(super) fn record(&mut self, record: &Arc<Record>, judgement: &Judgement) -> Vec<Kept> {
        let why = match record.outcome {
            Outcome::Failed => Why::Failed,
            Outcome::Refused => Why::Refused,
            Outcome::Ok if record.dialect.is_tunnel() => return Vec::new(),
            Outcome::Ok => Why::Slow,
            Outcome::Canceled if judgement.missed().is_some() => Why::Slow,
            Outcome::Canceled | Outcome::ClientError => return Vec::new(),
        };
        let number = number(record.at.end);
        let mut dropped = self.0.pop_before(number - SLOTS + 1).unwrap_or_default();
        let slot = self.0.at(number, SLOTS);
        let kept = Kept { record: Arc::clone(record), slow: slowness(record), why };
        if slot.iter().filter(|kept| kept.why == why).count() < KEPT_OF_A_KIND {
            slot.push(kept);
            return dropped;
        }
        let of_kind = slot.iter_mut().filter(|kept| kept.why == why);
        let least = match why {
            Why::Slow => {
                of_kind.min_by(|a, b| a.slow.total_cmp(&b.slow)).filter(|least| least.slow < kept.slow)
            }
            // The oldest: what fails now is what is looked for.
            Why::Failed | Why::Refused => of_kind.min_by_key(|kept| kept.record.at.end),
        };
        if let Some(least) = least {
            dropped.push(std::mem::replace(least, kept));
        }
        dropped
    }

    /// Keeps a record as its engine measured it in place of the one that is kept.
    pub(super) fn correct(&mut self, record: &Arc<Record>) {
        let slot = self.0.get_mut(number(record.at.end));
        let same = |kept: &&mut Kept| kept.record.trace.root == record.trace.root;
        if let Some(kept) = slot.and_then(|slot| slot.iter_mut().find(same)) {
            kept.record = Arc::clone(record);
        }
    }

    pub(super) fn read(&self, now: Stamp) -> Vec<Kept> {
        let newest = number(now);
        self.0.range(newest - SLOTS + 1, i64::MAX).flat_map(|(_, slot)| slot.iter().cloned()).collect()
    }
}

fn slowness(record: &Record) -> f64 {
    let over = |value: Option<Duration>, bound: Option<Duration>| {
        Some(value?.as_secs_f64() / bound?.as_secs_f64().max(1e-6))
    };
    let slo = &record.slo;
    let waited = || Some(record.at.end.since(record.at.read?));
    let ttft = record.ttft().or_else(|| if record.is_stream { waited() } else { None });
    let itl = record.itl_missed.and_then(|missed| {
        let bound = slo.itl.iter().find(|(percent, _)| *percent == missed).map(|(_, bound)| bound);
        // The percentile itself is not kept; it was over its bound.
        Some(over(Some(record.longest_gap), bound)?.max(1.0))
    });
    let ratios =
        [over(ttft, slo.ttft), itl, over(record.tpot(), slo.tpot), over(Some(record.duration()), slo.e2e)];
    let worst = ratios.into_iter().flatten().max_by(f64::total_cmp);
    worst.unwrap_or_else(|| ttft.unwrap_or(record.duration()).as_secs_f64())
}

/// Number of the slot of a stamp.
fn number(at: Stamp) -> i64 {
    (at.as_nanos() / SLOT_NANOS).cast_signed()
}

const SLOT_NANOS: u64 = 300_000_000_000;
/// An hour, and the current one.
const SLOTS: i64 = 13;
const KEPT_OF_A_KIND: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::fixture;
    use crate::record::SloBounds;

    fn record(ttft_ms: u64, ended_s: u64, outcome: Outcome) -> Arc<Record> {
        let mut record = fixture::stream();
        record.slo = SloBounds { ttft: Some(Duration::from_millis(100)), ..SloBounds::default() };
        record.at.first_token = record.at.read.map(|read| read.after(Duration::from_millis(ttft_ms)));
        record.at.end = Stamp::from_nanos(ended_s * 1_000_000_000);
        record.outcome = outcome;
        Arc::new(record)
    }

    fn add(worst: &mut Worst, record: &Arc<Record>) {
        worst.record(record, &Judgement::of(record));
    }

    #[test]
    fn of_each_five_minutes_the_slowest_are_kept() {
        let mut worst = Worst::default();
        (1..=100).for_each(|ms| add(&mut worst, &record(ms * 10, 10, Outcome::Ok)));
        add(&mut worst, &record(20, 400, Outcome::Ok));
        let kept = worst.read(Stamp::from_nanos(400_000_000_000));
        assert_eq!(kept.len(), KEPT_OF_A_KIND + 1);
        let slow: Vec<f64> = kept.iter().map(|kept| kept.slow).collect();
        assert!(slow[..KEPT_OF_A_KIND].iter().all(|slow| *slow > 9.0), "{slow:?}");
    }

    #[test]
    fn a_flood_of_refusals_pushes_out_no_failure() {
        let mut worst = Worst::default();
        add(&mut worst, &record(50, 1, Outcome::Failed));
        (0..1000).for_each(|i| add(&mut worst, &record(50, 2 + i / 10, Outcome::Refused)));
        let kept = worst.read(Stamp::from_nanos(100_000_000_000));
        assert_eq!(kept.iter().filter(|kept| kept.why == Why::Failed).count(), 1);
        let refused: Vec<_> = kept.iter().filter(|kept| kept.why == Why::Refused).collect();
        assert_eq!(refused.len(), KEPT_OF_A_KIND);
        assert!(
            refused.iter().all(|kept| kept.record.at.end.as_nanos() > 99_000_000_000),
            "the last of them"
        );
    }
}
