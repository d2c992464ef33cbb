//! The last decisions, for `/api/decisions`: why did this request go there?
//!
//! Keeps records, not copies: a record is whole, so that the page can set the prediction beside what came of it. At
//! most one ring a second: nobody reads more, and the memory of a record that is not kept is used again at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::record::Record;

/// A ring of records whose request was routed.
#[derive(Default)]
pub struct Decisions(Mutex<VecDeque<Arc<Record>>>);

impl Decisions {
    /// Takes a record in, if a decision was made for it.
    pub fn record(&self, record: &Arc<Record>) {
        let Some(decision) = &record.decision else { return };
        // Of a flood only some are explained, about as many as are kept.
        let is_explained = decision.predicted_ttft.is_none() || !decision.weighed.is_empty();
        let mut ring = self.0.lock();
        let is_young = |oldest: &Arc<Record>| record.at.end.since(oldest.at.end) < RING_LASTS;
        if ring.len() >= KEPT && (!is_explained || ring.front().is_some_and(is_young)) {
            return;
        }
        let oldest = if ring.len() >= KEPT { ring.pop_front() } else { None };
        ring.push_back(Arc::clone(record));
        drop(ring);
        // Freed outside of the lock.
        drop(oldest);
    }

    /// The kept ones, newest first.
    #[must_use]
    pub fn latest(&self) -> Vec<Arc<Record>> {
        self.0.lock().iter().rev().cloned().collect()
    }
}

const KEPT: usize = 200;
const RING_LASTS: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Stamp;
    use crate::observe::fixture;

    /// Whose decision says why the others lost, or not.
    fn record(ended_ms: u64, is_explained: bool) -> Arc<Record> {
        let mut record = fixture::stream();
        record.at.end = Stamp::default().after(Duration::from_millis(ended_ms));
        record.bytes_out = ended_ms;
        if let Some(decision) = record.decision.as_mut().filter(|_| is_explained) {
            decision.weighed = Box::new([fixture::weighed()]);
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
