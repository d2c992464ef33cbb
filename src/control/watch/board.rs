//! What was found, for whoever asks: findings that hold, and the last ones.

use std::collections::VecDeque;

use parking_lot::Mutex;

use crate::control::drift::Finding;

/// Findings of a running gateway.
#[derive(Debug, Default)]
pub struct Board(Mutex<Found>);

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
        self.0.lock().clone()
    }

    /// A new one.
    pub(super) fn found(&self, finding: Finding) {
        let mut found = self.0.lock();
        found.recent.push_front(finding);
        found.recent.truncate(RECENT);
    }

    /// Takes those that hold; returns those that hold no more.
    pub(super) fn settle(&self, active: Vec<Finding>, series: usize) -> Vec<Finding> {
        let mut found = self.0.lock();
        found.series = series;
        let before = std::mem::replace(&mut found.active, active);
        let still =
            |old: &Finding| found.active.iter().any(|new| new.kind == old.kind && new.series == old.series);
        before.into_iter().filter(|old| !still(old)).collect()
    }
}

const RECENT: usize = 100;
