//! Findings of a running gateway: those that hold and the last ones, for the admin API.
//!
//! Also the series whose traces are kept: while a finding holds, and five minutes more; for a finding over days, which
//! holds for weeks, one hour. That is asked for every request, so it is a snapshot beside the lock, empty most of the time.

use std::collections::VecDeque;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::drift::detectors::table::{HOUR, MAX_FINDINGS, WINDOW};
use crate::drift::detectors::{Finding, Mute, NOT_SERVED, SeriesName};
use crate::record::Record;

/// Findings of a running gateway.
#[derive(Debug, Default)]
pub struct Board {
    found: Mutex<Found>,
    windows: ArcSwap<Vec<TraceWindow>>,
}

/// A series whose traces are kept.
#[derive(Clone, Debug, PartialEq)]
struct TraceWindow {
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
    /// The number of series with a baseline.
    pub series: usize,
    /// What nobody is told of, for a while.
    pub mutes: Vec<Mute>,
}

impl Board {
    /// Findings now.
    pub fn read(&self) -> Found {
        self.found.lock().clone()
    }

    pub(super) fn found(&self, finding: Finding) {
        let mut found = self.found.lock();
        found.recent.push_front(finding);
        found.recent.truncate(MAX_FINDINGS);
    }

    pub(super) fn muted(&self, mutes: Vec<Mute>) {
        self.found.lock().mutes = mutes;
    }

    pub(super) fn settle(&self, active: Vec<Finding>, series: usize, now: f64) {
        self.open_windows(&active, now);
        let mut found = self.found.lock();
        (found.series, found.active) = (series, active);
    }

    /// Whether traces of the request's series are kept at `at`.
    pub(super) fn is_drifting(&self, record: &Record, at: impl Fn() -> f64) -> bool {
        let windows = self.windows.load();
        windows.iter().any(|window| window.covers(record) && at() < window.until)
    }

    fn open_windows(&self, active: &[Finding], now: f64) {
        let before = self.windows.load();
        if active.is_empty() && before.is_empty() {
            return;
        }
        let until = |finding: &Finding| {
            if finding.kind.is_of_days() { finding.at + HOUR } else { now + WINDOW }
        };
        let held = active.iter().map(|f| TraceWindow { series: f.series.clone(), until: until(f) });
        let left = before.iter().filter(|window| active.iter().all(|f| f.series != window.series)).cloned();
        let windows: Vec<TraceWindow> = held.chain(left).filter(|window| now < window.until).collect();
        self.windows.store(windows.into());
    }
}

impl TraceWindow {
    fn covers(&self, record: &Record) -> bool {
        let series = &self.series;
        let is_served_there = || {
            let served = record.served();
            let revision = served.map_or(NOT_SERVED, |served| &served.revision);
            let replica = served.map(|served| &served.replica);
            *series.revision == *revision && (series.replica.is_none() || series.replica.as_ref() == replica)
        };
        *series.route == *record.route && is_served_there()
    }
}
