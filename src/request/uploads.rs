//! Uploads under way, so that the slowest can be ended where others wait for memory.
//!
//! An upload is judged by what it holds against what it brought over the last seconds: memory that a pause or a trickle
//! keeps from others is given to bodies that move, before anybody is refused. Time in which an upload waits for the
//! gateway does not count against it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, Stamp};

/// Every upload of more than one piece.
#[derive(Debug)]
pub(super) struct Uploads {
    clock: Clock,
    entries: Mutex<Vec<Arc<Entry>>>,
}

/// A budget that an upload is charged to, by its address: the charge keeps it alive for as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BudgetId(pub(super) usize);

/// The place of one upload in the table; dropped, it leaves.
#[derive(Debug)]
pub(super) struct UploadEntry {
    entry: Arc<Entry>,
    uploads: Arc<Uploads>,
}

#[derive(Debug)]
struct Entry {
    budgets: SmallVec<[BudgetId; 3]>,
    pace: Mutex<Pace>,
    evicted: CancellationToken,
}

/// What one upload holds, and how fast it came.
#[derive(Debug)]
struct Pace {
    held: f64,
    /// Bytes received, each weighed down by its age.
    recent: f64,
    at: Stamp,
    waits_for_gateway: bool,
}

impl Uploads {
    pub(super) fn new(clock: Clock) -> Arc<Self> {
        Arc::new(Self { clock, entries: Mutex::default() })
    }

    /// Adds an upload that is charged to these budgets.
    pub(super) fn enter(self: &Arc<Self>, budgets: SmallVec<[BudgetId; 3]>) -> UploadEntry {
        let pace = Pace { held: 0.0, recent: 0.0, at: self.clock.now(), waits_for_gateway: false };
        let entry = Arc::new(Entry { budgets, pace: Mutex::new(pace), evicted: CancellationToken::new() });
        self.entries.lock().push(Arc::clone(&entry));
        UploadEntry { entry, uploads: Arc::clone(self) }
    }

    /// Ends the slowest upload that is charged to `budget`, if it is slow; one at a time.
    pub(super) fn evict_slowest(&self, budget: BudgetId) {
        let now = self.clock.now();
        let entries = self.entries.lock();
        let mut slowest: Option<(&Entry, f64)> = None;
        for entry in entries.iter().filter(|entry| entry.budgets.contains(&budget)) {
            if entry.evicted.is_cancelled() {
                // Its memory is on its way back.
                return;
            }
            let seconds = entry.pace.lock().seconds(now);
            if seconds >= SLOW && slowest.is_none_or(|(_, most)| seconds > most) {
                slowest = Some((entry, seconds));
            }
        }
        if let Some((entry, _)) = slowest {
            entry.evicted.cancel();
        }
    }
}

impl UploadEntry {
    /// A piece came.
    pub(super) fn received(&self, bytes: usize) {
        self.entry.pace.lock().received(bytes, self.uploads.clock.now());
    }

    /// The upload waits for the gateway, or for its client again.
    pub(super) fn waits_for_gateway(&self, waits: bool) {
        self.entry.pace.lock().waits_for_gateway(waits, self.uploads.clock.now());
    }

    /// Cancelled when the upload is to end.
    pub(super) fn evicted(&self) -> &CancellationToken {
        &self.entry.evicted
    }
}

impl Drop for UploadEntry {
    fn drop(&mut self) {
        let mut entries = self.uploads.entries.lock();
        if let Some(at) = entries.iter().position(|entry| Arc::ptr_eq(entry, &self.entry)) {
            entries.swap_remove(at);
        }
    }
}

impl Pace {
    fn received(&mut self, bytes: usize, now: Stamp) {
        self.recent = self.recent_at(now) + bytes as f64;
        self.held += bytes as f64;
        self.at = now;
    }

    fn waits_for_gateway(&mut self, waits: bool, now: Stamp) {
        self.recent = self.recent_at(now);
        self.at = now;
        self.waits_for_gateway = waits;
    }

    fn recent_at(&self, now: Stamp) -> f64 {
        let age = if self.waits_for_gateway { Duration::ZERO } else { now.since(self.at) };
        self.recent * (-age.as_secs_f64() / WINDOW).exp()
    }

    /// How long what it holds would take at its recent rate; 0 while it waits for the gateway.
    fn seconds(&self, now: Stamp) -> f64 {
        if self.waits_for_gateway { 0.0 } else { self.held * WINDOW / self.recent_at(now) }
    }
}

/// Seconds over which a rate is taken: the weight of a byte falls to 1/e.
const WINDOW: f64 = 5.0;
/// In seconds. An upload that came at once and paused reaches this after 7 s.
const SLOW: f64 = 20.0;

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// Pieces of `bytes` every `every` ms for `seconds`, then a pause.
    fn after(bytes: usize, every: u64, seconds: u64, pause: u64) -> f64 {
        let at = |ms| Stamp::default().after(Duration::from_millis(ms));
        let mut pace = Pace { held: 0.0, recent: 0.0, at: at(0), waits_for_gateway: false };
        for ms in (0..=seconds * 1000).step_by(every as usize) {
            pace.received(bytes, at(ms));
        }
        pace.seconds(at((seconds + pause) * 1000))
    }

    #[test]
    fn an_upload_is_slow_by_what_it_holds_against_its_last_seconds() {
        for (what, seconds, is_slow) in [
            ("came at once", after(31 * MIB, 1000, 0, 0), false),
            ("pauses for a moment", after(31 * MIB, 1000, 0, 5), false),
            ("pauses", after(31 * MIB, 1000, 0, 8), true),
            ("a fast line", after(MIB, 100, 3, 0), false),
            ("a small body over a slow line", after(4096, 200, 15, 0), false),
            ("a large body over a slow line", after(4096, 200, 600, 0), true),
        ] {
            assert_eq!(seconds >= SLOW, is_slow, "{what}: {seconds}");
        }
    }

    #[test]
    fn waiting_for_the_gateway_is_no_slowness() {
        let at = |seconds| Stamp::default().after(Duration::from_secs(seconds));
        let mut pace = Pace { held: 0.0, recent: 0.0, at: at(0), waits_for_gateway: false };
        pace.received(MIB, at(0));
        pace.waits_for_gateway(true, at(1));
        assert_eq!(pace.seconds(at(60)), 0.0);
        pace.waits_for_gateway(false, at(60));
        assert!(pace.seconds(at(62)) < SLOW && pace.seconds(at(70)) >= SLOW);
    }
}
