//! What a gateway without a broker keeps for its own next start: its last decisions, and what it learned of replicas' speed.
//!
//! A file of hashes, never of prompts, written every half minute and at the end. As with the broker's journal a replica whose process
//! started after a decision has lost that prompt.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::places::Places;
use super::{fingerprint, wait_for_pages, wire};
use crate::clock::{Clock, since_epoch, ticks};
use crate::config::Secret;
use crate::digits;
use crate::fleet::registry::Fleet;
use crate::fleet::speeds::PoolSpeeds;
use crate::routing::notice::{Notice, Outbox, queue};
use crate::state_file::{self, Version};

/// The file, and what will be in it.
#[derive(Debug)]
pub struct Snapshot {
    path: PathBuf,
    fleet: Arc<Fleet>,
    clock: Clock,
    head: wire::Head,
    outbox: Arc<Outbox>,
    notices: Mutex<Receiver<Notice>>,
    entries: Mutex<Entries>,
}

/// Batches of decisions, the oldest first.
#[derive(Debug, Default)]
struct Entries {
    all: VecDeque<Entry>,
    bytes: usize,
    has_news: bool,
    /// What the file had is among them: before that it is not written.
    is_whole: bool,
}

#[derive(Debug)]
struct Entry {
    /// Since 1970.
    written: Duration,
    batch: Vec<u8>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
struct Kept {
    version: Version<1>,
    /// Milliseconds since 1970, and a batch in hexadecimal digits.
    decisions: Vec<(u64, String)>,
    /// By pool.
    speeds: BTreeMap<String, PoolSpeeds>,
}

impl Snapshot {
    /// Begins to note decisions; [`Self::run`] does the rest.
    pub fn start(path: PathBuf, seed: &Secret, fleet: &Arc<Fleet>, clock: Clock) -> Arc<Self> {
        let (outbox, notices) = queue(MAX_QUEUED, false);
        Places::announce(&fleet.pools(), &outbox);
        let head = wire::Head { sender: fastrand::u64(..), sequence: 0, seed: fingerprint(seed) };
        let (fleet, notices, entries) = (Arc::clone(fleet), Mutex::new(notices), Mutex::default());
        Arc::new(Self { path, fleet, clock, head, outbox, notices, entries })
    }

    /// Takes over what was kept, then notes decisions and writes them, forever.
    pub async fn run(self: Arc<Self>) {
        let own = Arc::clone(&self);
        let read = move || {
            state_file::restore(&own.path, "routing begins anew: what was cached where cannot be read")
        };
        let kept: Option<Kept> = tokio::task::spawn_blocking(read).await.ok().flatten();
        if let Some(kept) = kept {
            wait_for_pages(&self.fleet).await;
            self.take(&kept);
        }
        self.entries.lock().is_whole = true;
        let mut ticks = ticks(DRAIN_EVERY);
        for tick in 1u32.. {
            ticks.tick().await;
            if tick.is_multiple_of(RENEW_EVERY) {
                Places::announce(&self.fleet.pools(), &self.outbox);
            }
            self.drain();
            if tick.is_multiple_of(KEEP_EVERY) {
                let own = Arc::clone(&self);
                let _ = tokio::task::spawn_blocking(move || own.keep()).await;
            }
        }
    }

    /// Writes what is new. Waits for the disk.
    pub fn keep(&self) {
        self.drain();
        let Some(decisions) = self.news() else { return };
        let now = self.clock.now();
        let pools = self.fleet.pools();
        let speeds = pools.iter().filter_map(|pool| Some((pool.name.to_string(), pool.speeds(now)?)));
        let kept = Kept { version: Version, decisions, speeds: speeds.collect() };
        state_file::keep(&self.path, &kept, "what is cached where cannot be kept over a restart");
    }

    fn news(&self) -> Option<Vec<(u64, String)>> {
        let mut entries = self.entries.lock();
        if !entries.is_whole || !std::mem::take(&mut entries.has_news) {
            return None;
        }
        let of = |entry: &Entry| (entry.written.as_millis() as u64, digits::hex_of(&entry.batch));
        Some(entries.all.iter().map(of).collect())
    }

    fn take(&self, kept: &Kept) {
        let (now, pools) = (self.clock.now(), self.fleet.pools());
        // Sizes of caches in text are known by these.
        let taken = pools.iter().filter_map(|pool| pool.take_speeds(kept.speeds.get(&*pool.name)?, now));
        let replicas: usize = taken.sum();
        let places = Places::known(&pools);
        let oldest = self.wall().saturating_sub(KEPT);
        let mut before = Entries::default();
        let mut decisions = 0;
        for (written, hex) in &kept.decisions {
            let written = Duration::from_millis(*written);
            let Some(batch) = digits::bytes_of(hex).filter(|_| written >= oldest) else { continue };
            if let Some(count) = places.replay(&batch, &self.head, written, now) {
                decisions += count;
                before.push(Entry { written, batch });
            }
        }
        self.entries.lock().follow(before);
        if decisions + replicas > 0 {
            tracing::info!(
                decisions,
                replicas,
                "cached prompts and speeds are known from before the restart"
            );
        }
    }

    /// Makes an entry of what was decided since the last one.
    fn drain(&self) {
        let (now, mut batch) = (self.clock.now(), Vec::new());
        for notice in self.notices.lock().try_iter().take(MAX_QUEUED) {
            if batch.is_empty() {
                wire::begin(&self.head, &mut batch);
            }
            wire::push(&notice, now, &mut batch);
        }
        if !batch.is_empty() {
            let mut entries = self.entries.lock();
            entries.push(Entry { written: self.wall(), batch });
            entries.has_news = true;
        }
    }

    fn wall(&self) -> Duration {
        since_epoch(self.clock.wall(self.clock.now()))
    }
}

impl Entries {
    fn push(&mut self, entry: Entry) {
        self.bytes += entry.batch.len();
        self.all.push_back(entry);
        while self.bytes > MAX_BYTES
            && let Some(oldest) = self.all.pop_front()
        {
            self.bytes -= oldest.batch.len();
        }
    }

    /// Puts these after older ones.
    fn follow(&mut self, before: Self) {
        let after = std::mem::replace(self, before);
        after.all.into_iter().for_each(|entry| self.push(entry));
        self.has_news |= after.has_news;
    }
}

/// Between two looks at what was decided: a decision's age is written in tenths of a millisecond, to 6.5 s.
const DRAIN_EVERY: Duration = Duration::from_millis(200);
/// Looks at decisions between two at which pools there are: one second.
const RENEW_EVERY: u32 = 5;
/// Looks at decisions between two writes, half a minute: what a gateway that is killed loses.
const KEEP_EVERY: u32 = 150;
/// Decisions between two looks: 40,000 a second.
const MAX_QUEUED: usize = 8192;
/// Bytes of all batches: some 38,000 decisions, in a file of 4 MiB.
const MAX_BYTES: usize = 2 << 20;
/// No engine's cache is older.
const KEPT: Duration = Duration::from_secs(24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_decisions_make_room() {
        let mut entries = Entries::default();
        for second in 0..40 {
            entries.push(Entry { written: Duration::from_secs(second), batch: vec![0; 64 * 1024] });
        }
        assert_eq!(entries.bytes, MAX_BYTES);
        assert_eq!(entries.all.front().map(|entry| entry.written), Some(Duration::from_secs(8)));
        let mut newer = Entries::default();
        newer.push(Entry { written: Duration::from_secs(50), batch: vec![0; 64 * 1024] });
        newer.follow(entries);
        let ends = [newer.all.front(), newer.all.back()].map(|entry| entry.unwrap().written.as_secs());
        assert_eq!((ends, newer.bytes), ([9, 50], MAX_BYTES));
    }
}
