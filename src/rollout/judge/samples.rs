//! The last values of one arm in one class, for thresholds and for the report.

use std::collections::VecDeque;

/// The last `MAX` values.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples<const MAX: usize = 4096> {
    values: VecDeque<f32>,
    since: u32,
    /// Sorted, of some values ago.
    sorted: Vec<f32>,
}

impl<const MAX: usize> Samples<MAX> {
    #[allow(clippy::cast_possible_truncation, reason = "seven digits of a latency are enough")]
    pub(super) fn add(&mut self, value: f64) {
        if self.values.len() == MAX {
            self.values.pop_front();
        }
        self.values.push_back(value as f32);
        self.since += 1;
    }

    /// Sorts what has come, where that is enough to change something.
    pub(super) fn refresh(&mut self) {
        let is_enough = self.since as usize >= REFRESH_EVERY.max(self.sorted.len() / 8);
        if self.since > 0 && (is_enough || self.sorted.len() < MIN) {
            self.sort();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    pub(super) fn sort(&mut self) {
        self.since = 0;
        self.sorted.clear();
        self.sorted.extend(&self.values);
        self.sorted.sort_unstable_by(f32::total_cmp);
    }

    /// A quantile as of the last [`refresh`](Self::refresh); `None` of too few values: a 99th percentile needs fifty.
    pub(super) fn quantile(&self, quantile: f64) -> Option<f64> {
        let needed = (0.5 / (1.0 - quantile)).max(MIN as f64);
        if (self.sorted.len() as f64) < needed { None } else { self.rank(quantile) }
    }

    /// A quantile of whatever there is.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rank within the list")]
    pub(super) fn rank(&self, quantile: f64) -> Option<f64> {
        let last = self.sorted.len().checked_sub(1)?;
        let at = (quantile * last as f64).round() as usize;
        self.sorted.get(at.min(last)).map(|value| f64::from(*value))
    }
}

/// What a median needs. A threshold may be rough: both are held against the same one.
const MIN: usize = 16;
const REFRESH_EVERY: usize = 128;
