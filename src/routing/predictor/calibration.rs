//! How well predictions fit what came: over the last answers of a replica or of a pool.
//!
//! Accuracy as people ask it: how far off is the middle one, how far the worst tenth, does it lean to one side, and does the
//! bound that nine of ten should keep hold for nine of ten. Learning goes by its own sums; nothing is corrected here.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::routing::tuning::memories;
use crate::stats::{lower_quantile, upper_quantile};

/// How well predictions fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Calibration {
    /// Answers that were compared.
    pub answers: usize,
    /// Median of actual / predicted: 1 leans to neither side.
    pub bias: f64,
    /// Share of answers within the bound that nine of ten were expected to keep.
    pub coverage: f64,
    /// Median of |actual - predicted| / actual.
    pub median_error: f64,
    /// The same, exceeded by one in ten.
    pub p90_error: f64,
}

/// Actual over predicted and the seconds between the two, of the last answers, the oldest first.
#[derive(Debug, Default)]
pub(in crate::routing) struct Ledger(VecDeque<[f32; 2]>);

impl Ledger {
    pub(super) fn note(&mut self, predicted: Duration, actual: Duration) {
        let (predicted, actual) = (predicted.as_secs_f64(), actual.as_secs_f64());
        if predicted <= 0.0 || actual <= 0.0 {
            return;
        }
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back([(actual / predicted) as f32, (actual - predicted) as f32]);
    }

    /// The ratio of actual to predicted that this share of answers stays within; `None` where too few have come.
    pub(in crate::routing) fn ratio_within(&self, share: f64) -> Option<f64> {
        if self.0.len() < memories::ENOUGH_ANSWERS as usize {
            return None;
        }
        upper_quantile(&mut self.ratios(), share)
    }

    /// By how much nine of ten first tokens come later than predicted at most, of a prompt that takes `own` seconds itself: in
    /// proportion, or by the seconds of others, whichever is less. What small prompts wait for a place is many times their own time, and
    /// says nothing of what a long one takes.
    pub(in crate::routing) fn late_by(&self, own: f64) -> Option<f64> {
        let in_proportion = own * (self.ratio_within(0.9)? - 1.0);
        let mut seconds: Vec<f64> = self.0.iter().map(|[_, seconds]| f64::from(*seconds)).collect();
        Some(in_proportion.min(upper_quantile(&mut seconds, 0.9)?).max(0.0))
    }

    fn ratios(&self) -> Vec<f64> {
        self.0.iter().map(|[ratio, _]| f64::from(*ratio)).collect()
    }

    pub(super) fn read(&self) -> Option<Calibration> {
        let mut ratios = self.ratios();
        let mut errors: Vec<f64> = ratios.iter().map(|ratio| (1.0 - 1.0 / ratio).abs()).collect();
        // What the older half of them would have promised, held against the newer half.
        let half = ratios.len() / 2;
        let (older, newer) = ratios.split_at_mut(half);
        let bound = upper_quantile(older, 0.9).unwrap_or(f64::INFINITY);
        let coverage = newer.iter().filter(|ratio| **ratio <= bound).count() as f64 / newer.len() as f64;
        Some(Calibration {
            answers: ratios.len(),
            median_error: lower_quantile(&mut errors, 0.5)?,
            p90_error: lower_quantile(&mut errors, 0.9)?,
            bias: lower_quantile(&mut ratios, 0.5)?,
            coverage,
        })
    }
}

/// Predictions that are compared: enough for a p90, few enough to follow a change.
const REMEMBERED: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(ratios: impl IntoIterator<Item = f64>) -> Option<Calibration> {
        let mut ledger = Ledger::default();
        for ratio in ratios {
            ledger.note(Duration::from_millis(100), Duration::from_secs_f64(0.1 * ratio));
        }
        ledger.read()
    }

    #[test]
    fn says_how_far_off_and_to_which_side() {
        assert_eq!(read([]), None);
        let fair = read((0..100).map(|i| if i % 2 == 0 { 1.25 } else { 0.8 })).unwrap();
        assert!((fair.median_error - 0.2).abs() < 0.01 && (fair.p90_error - 0.25).abs() < 0.01, "{fair:?}");
        let slow = read((0..100).map(|_| 2.0)).unwrap();
        assert!((slow.bias - 2.0).abs() < 1e-3 && (slow.median_error - 0.5).abs() < 1e-3, "{slow:?}");
    }

    #[test]
    fn only_the_last_answers_count_and_nine_of_ten_are_covered() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut noisy = || (0.5 * (random.f64() + random.f64() - 1.0)).exp();
        let all = read((0..20_000).map(|i| if i < 15_000 { 9.0 } else { noisy() })).unwrap();
        assert_eq!(all.answers, REMEMBERED);
        assert!((0.9..1.1).contains(&all.bias) && (0.84..=0.96).contains(&all.coverage), "{all:?}");
    }

    #[test]
    fn a_share_of_answers_stays_within_a_multiple_of_its_prediction() {
        let mut ledger = Ledger::default();
        for percent in 1..=100_u64 {
            assert_eq!(ledger.ratio_within(0.9).is_some(), percent > 32);
            ledger.note(Duration::from_millis(100), Duration::from_millis(percent));
        }
        for (share, expected) in [(0.5, 0.51), (0.99, 1.0), (0.999, 1.0), (1.0, 1.0)] {
            let ratio = ledger.ratio_within(share).unwrap();
            assert!((ratio - expected).abs() < 1e-6, "{share}: {ratio}");
        }
    }

    #[test]
    fn what_small_prompts_wait_is_not_multiplied_onto_long_ones() {
        let late_by = |predicted, actual, own| {
            let mut ledger = Ledger::default();
            (0..100)
                .for_each(|_| ledger.note(Duration::from_millis(predicted), Duration::from_millis(actual)));
            (1e3 * ledger.late_by(own).unwrap()).round()
        };
        assert_eq!(late_by(100, 400, 0.5), 300.0, "they wait 300 ms for a place, whatever they are");
        assert_eq!(late_by(1_000, 1_500, 0.1), 50.0, "engines are slower than they are known");
        assert_eq!(late_by(400, 100, 0.5), 0.0);
        assert_eq!(Ledger::default().late_by(0.5), None);
    }

    #[test]
    fn nothing_is_made_of_nothing() {
        let mut ledger = Ledger::default();
        ledger.note(Duration::ZERO, Duration::from_secs(1));
        ledger.note(Duration::from_secs(1), Duration::ZERO);
        assert_eq!(ledger.read(), None);
    }
}
