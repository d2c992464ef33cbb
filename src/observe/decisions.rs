//! The last decisions, for `/api/decisions`: why did this request go there?
//!
//! Keeps records, not copies: a record is whole, so that the page can set the prediction beside what came of it.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::record::Record;

/// A ring of records whose request was routed.
#[derive(Default)]
pub struct Decisions(Mutex<VecDeque<Arc<Record>>>);

impl Decisions {
    /// Takes a record in, if a decision was made for it.
    pub fn record(&self, record: &Arc<Record>) {
        if record.decision.is_none() {
            return;
        }
        let mut ring = self.0.lock();
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
