//! The last routing decisions, for `/api/decisions`.
//!
//! Keeps whole records, so that the page can compare predictions with results. At most one ring's worth of records is
//! kept per second, so that under load most records' memory is reused at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::record::Record;

/// The last [`KEPT`] records with a decision.
#[derive(Default)]
pub struct Decisions(Mutex<VecDeque<Arc<Record>>>);

impl Decisions {
    /// Adds a record, if a decision was made for it.
    pub fn record(&self, record: &Arc<Record>) {
        let Some(decision) = &record.decision else { return };
        // Under load only some decisions list their candidates; those replace the others.
        let is_explained = decision.predicted_ttft.is_none() || !decision.weighed.is_empty();
        let mut ring = self.0.lock();
        let is_young = |oldest: &Arc<Record>| record.at.end.since(oldest.at.end) < MIN_RING_AGE;
        if ring.len() >= KEPT && (!is_explained || ring.front().is_some_and(is_young)) {
            return;
        }
        let oldest = if ring.len() >= KEPT { ring.pop_front() } else { None };
        ring.push_back(Arc::clone(record));
        drop(ring);
        // Freed outside of the lock.
        drop(oldest);
    }

    /// Newest first.
    pub fn latest(&self) -> Vec<Arc<Record>> {
        self.0.lock().iter().rev().cloned().collect()
    }
}

pub(crate) const KEPT: usize = 200;
const MIN_RING_AGE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Stamp;
    use crate::observe::fixture;
    use crate::record::Weighed;
    use crate::units::Tokens;

    fn weighed() -> Weighed {
        Weighed {
            replica: "a".into(),
            predicted_ttft: Duration::from_millis(150),
            predicted_hit: Tokens(64),
            is_chosen: true,
            ..Weighed::default()
        }
    }

    /// A record whose decision lists its candidates, or not.
    fn record(ended_ms: u64, is_explained: bool) -> Arc<Record> {
        let mut record = fixture::stream();
        record.at.end = Stamp::default().after(Duration::from_millis(ended_ms));
        record.bytes_out = ended_ms;
        if let Some(decision) = record.decision.as_mut().filter(|_| is_explained) {
            decision.weighed = Box::new([weighed()]);
        }
        Arc::new(record)
    }

    #[test]
    fn a_flood_replaces_the_ring_once_a_second_at_most() {
        let decisions = Decisions::default();
        (0..1000).for_each(|i| decisions.record(&record(2 * i, true)));
        let kept: Vec<u64> = decisions.latest().iter().map(|record| record.bytes_out).collect();
        assert_eq!(kept.len(), KEPT);
        assert!(kept.is_sorted_by(|newer, older| newer > older), "newest first");
        assert!(kept.iter().all(|i| (1000..1400).contains(i)), "the second ring, from one second on");
    }

    #[test]
    fn what_is_not_explained_replaces_nothing() {
        let decisions = Decisions::default();
        (0..KEPT as u64).for_each(|i| decisions.record(&record(i, false)));
        assert_eq!(decisions.latest().len(), KEPT, "better than nothing");
        (2000..2400).for_each(|i| decisions.record(&record(i, i % 2 == 0)));
        let kept: Vec<u64> = decisions.latest().iter().map(|record| record.bytes_out).collect();
        assert!(kept.iter().all(|i| *i >= 2000 && i % 2 == 0), "{kept:?}");
    }
}
