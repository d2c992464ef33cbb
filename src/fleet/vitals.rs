//! Evidence about one replica, shared by its streams and its prober.
//!
//! Streams report progress and suspicious silence; the prober reports refused connections and unanswered completions.
//! Only both together end a stream early: busy is not down, and healthy is not working.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Stamp;

/// Times of the last evidence of each kind; lock-free.
#[derive(Debug, Default)]
pub struct Vitals {
    last_progress: AtomicU64,
    last_answer: AtomicU64,
    refused_at: AtomicU64,
    frozen_at: AtomicU64,
    suspected_at: AtomicU64,
    /// Wakes the prober ahead of its interval.
    pub check_now: Notify,
}

impl Vitals {
    /// A stream had a content event.
    pub fn progressed(&self, now: Stamp) {
        self.last_progress.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// A complete response or a first token arrived, which proves as much as a probe.
    pub fn answered(&self, now: Stamp) {
        self.last_answer.store(now.as_nanos(), Ordering::Relaxed);
        self.last_progress.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Last [`Vitals::answered`].
    pub fn last_answer(&self) -> Stamp {
        Stamp::from_nanos(self.last_answer.load(Ordering::Relaxed))
    }

    /// Last content event of any stream.
    pub fn last_progress(&self) -> Stamp {
        Stamp::from_nanos(self.last_progress.load(Ordering::Relaxed))
    }

    /// A connect was refused: no process listens.
    pub fn refused(&self, now: Stamp) {
        self.refused_at.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// A probe completion timed out.
    pub fn frozen(&self, now: Stamp) {
        self.frozen_at.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// A stream is suspiciously silent: probes at once, at most every [`MIN_CHECK_INTERVAL`].
    pub fn suspect(&self, now: Stamp) {
        let before = Stamp::from_nanos(self.suspected_at.load(Ordering::Relaxed));
        if now.since(before) >= MIN_CHECK_INTERVAL {
            self.suspected_at.store(now.as_nanos(), Ordering::Relaxed);
            self.check_now.notify_one();
        }
    }

    /// A connect or probe succeeded: clears earlier evidence.
    pub fn cleared(&self) {
        self.refused_at.store(0, Ordering::Relaxed);
        self.frozen_at.store(0, Ordering::Relaxed);
    }

    /// Last refused connect, unless one succeeded since.
    pub fn refused_since(&self) -> Option<Stamp> {
        nonzero(&self.refused_at)
    }

    /// Last probe timeout, unless a probe succeeded or a stream progressed since.
    pub fn frozen_since(&self) -> Option<Stamp> {
        nonzero(&self.frozen_at).filter(|at| self.last_progress() < *at)
    }
}

/// Every check of every silent stream asks for a probe; one serves them all.
const MIN_CHECK_INTERVAL: Duration = Duration::from_secs(1);

fn nonzero(cell: &AtomicU64) -> Option<Stamp> {
    Some(cell.load(Ordering::Relaxed)).filter(|n| *n != 0).map(Stamp::from_nanos)
}
