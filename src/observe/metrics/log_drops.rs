//! Lines of the log on stderr that were not written; counted before there are metrics, and taken over with each page.

use std::sync::atomic::{AtomicU64, Ordering};

/// Lines that were not written since the last page.
#[derive(Debug, Default)]
pub struct LogDrops {
    /// The writer could not keep up.
    pub queue_full: AtomicU64,
    /// stderr is closed, or its disk is full.
    pub write_failed: AtomicU64,
    /// More lines of one place in the code than its rate limit allows.
    pub rate: AtomicU64,
}

impl LogDrops {
    pub(super) const LABELS: &[&str] = &["queue_full", "write_failed", "rate"];

    pub(super) fn take(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let drops = [&self.queue_full, &self.write_failed, &self.rate];
        let drops = drops.map(|lines| lines.swap(0, Ordering::Relaxed));
        Self::LABELS.iter().copied().zip(drops)
    }
}
