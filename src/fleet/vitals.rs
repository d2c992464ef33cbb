//! The evidence about one replica that live streams and the prober share.
//!
//! Streams say when they move and when they are suspiciously silent; the prober says whether the replica
//! refuses connections or leaves a completion unanswered. Only both together end a stream early: busy is not
//! down, and green is not up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Stamp;

/// Shared evidence; every field is written without locks.
#[derive(Debug, Default)]
pub struct Vitals {
    last_progress: AtomicU64,
    last_answer: AtomicU64,
    refused_at: AtomicU64,
    frozen_at: AtomicU64,
    suspected_at: AtomicU64,
    /// Wakes the prober out of turn.
    pub check_now: Notify,
}

impl Vitals {
    /// A stream of the replica had a content event.
    pub fn progressed(&self, now: Stamp) {
        self.last_progress.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// A whole answer or a first token came: as good as a probe.
    pub fn answered(&self, now: Stamp) {
        self.last_answer.store(now.as_nanos(), Ordering::Relaxed);
        self.last_progress.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// When a live answer last proved the replica.
    #[must_use]
    pub fn last_answer(&self) -> Stamp {
        Stamp::from_nanos(self.last_answer.load(Ordering::Relaxed))
    }

    /// When any stream last moved.
    #[must_use]
    pub fn last_progress(&self) -> Stamp {
        Stamp::from_nanos(self.last_progress.load(Ordering::Relaxed))
    }

    /// A connect was refused: the listener is gone.
    pub fn refused(&self, now: Stamp) {
        self.refused_at.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// A probe completion did not come back, asked for because of silence.
    pub fn frozen(&self, now: Stamp) {
        self.frozen_at.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// A stream is suspiciously silent: the prober looks now, unless it was asked to a moment ago.
    pub fn suspect(&self, now: Stamp) {
        let before = Stamp::from_nanos(self.suspected_at.load(Ordering::Relaxed));
        if now.since(before) >= ASK_AGAIN {
            self.suspected_at.store(now.as_nanos(), Ordering::Relaxed);
            self.check_now.notify_one();
        }
    }

    /// A connect succeeded or a probe came back: earlier evidence is void.
    pub fn cleared(&self) {
        self.refused_at.store(0, Ordering::Relaxed);
        self.frozen_at.store(0, Ordering::Relaxed);
    }

    /// When connects were last refused, if they still are.
    #[must_use]
    pub fn refused_since(&self) -> Option<Stamp> {
        nonzero(&self.refused_at)
    }

    /// When a probe last stayed unanswered, unless one came back or a stream moved since.
    #[must_use]
    pub fn frozen_since(&self) -> Option<Stamp> {
        nonzero(&self.frozen_at).filter(|at| self.last_progress() < *at)
    }
}

/// Every look at every silent stream would ask; one probe is enough for all of them.
const ASK_AGAIN: Duration = Duration::from_secs(1);

fn nonzero(cell: &AtomicU64) -> Option<Stamp> {
    Some(cell.load(Ordering::Relaxed)).filter(|n| *n != 0).map(Stamp::from_nanos)
}
