//! What was found, for whoever asks: findings that hold, and the last ones.
//!
//! Also which series have a drift window: while a finding holds, and some minutes more, the traces of its series are
//! worth keeping. A finding of days holds for weeks, so that its window ends after an hour. Asked for every request, so
//! that it is a snapshot beside the lock, and empty most of the time.

use std::collections::VecDeque;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::drift::detectors::{Finding, SeriesName};
use crate::record::Record;

/// Findings of a running gateway.
#[derive(Debug, Default)]
pub struct Board {
    found: Mutex<Found>,
    windows: ArcSwap<Vec<Window>>,
}

/// A series whose traces are worth keeping.
#[derive(Clone, Debug, PartialEq)]
struct Window {
    series: SeriesName,
    until: f64,
}

/// Findings at one moment.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Those that hold.
    pub active: Vec<Finding>,
    /// The last ones, newest first, whether they hold or not.
    pub recent: VecDeque<Finding>,
    /// How many series are watched.
    pub series: usize,
}

impl Board {
    /// Findings now.
    #[must_use]
    pub fn read(&self) -> Found {
        self.found.lock().clone()
    }

    /// A new one.
    pub(super) fn found(&self, finding: Finding) {
        let mut found = self.found.lock();
        found.recent.push_front(finding);
        found.recent.truncate(RECENT);
    }

    /// Takes those that hold; returns those that hold no more.
    pub(super) fn settle(&self, active: Vec<Finding>, series: usize, now: f64) -> Vec<Finding> {
        self.open(&active, now);
        let mut found = self.found.lock();
        found.series = series;
        let before = std::mem::replace(&mut found.active, active);
        let still =
            |old: &Finding| found.active.iter().any(|new| new.kind == old.kind && new.series == old.series);
        before.into_iter().filter(|old| !still(old)).collect()
    }

    /// Whether the series of a request that ended at `at` has a drift window.
    pub(super) fn is_drifting(&self, record: &Record, at: impl Fn() -> f64) -> bool {
        let windows = self.windows.load();
        windows.iter().any(|window| window.is_of(record) && at() < window.until)
    }

    fn open(&self, active: &[Finding], now: f64) {
        let before = self.windows.load();
        if active.is_empty() && before.is_empty() {
            return;
        }
        let until = |finding: &Finding| {
            if finding.kind.is_of_days() { finding.at + AT_MOST } else { now + AFTER }
        };
        let held = active.iter().map(|f| Window { series: f.series.clone(), until: until(f) });
        let left = before.iter().filter(|window| active.iter().all(|f| f.series != window.series)).cloned();
        let windows: Vec<Window> = held.chain(left).filter(|window| now < window.until).collect();
        self.windows.store(windows.into());
    }
}

impl Window {
    fn is_of(&self, record: &Record) -> bool {
        let series = &self.series;
        let is_served_there = || {
            let served = record.served();
            let revision = served.map_or("none", |served| &served.revision);
            let replica = served.map(|served| &served.replica);
            *series.revision == *revision && (series.replica.is_none() || series.replica.as_ref() == replica)
        };
        *series.route == *record.route && is_served_there()
    }
}

/// Seconds for which traces are kept after a finding has ended.
const AFTER: f64 = 300.0;
/// And after a finding of days was made.
const AT_MOST: f64 = 3600.0;

const RECENT: usize = 100;
