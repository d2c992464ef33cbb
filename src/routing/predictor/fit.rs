//! Rates learned from what was observed: how many seconds each of a few causes takes.
//!
//! Seconds are a sum of causes times rates, none negative; least squares with forgetting. Errors count relative to
//! what was expected, since noise grows with the work. A prior stands in for what has not been seen (prompts of one size
//! cannot tell base from rate), and gives only the shape: its speed is scaled to what was seen. One outlier moves little;
//! several in a row on the same side are no outliers but a change, and the past is let go.

use std::array::from_fn;

use super::saved::{SavedFit, are_sound};
use crate::routing::tuning::priors;

/// Learns `N` rates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fit<const N: usize> {
    /// Weighted sums of products of causes, and of causes with seconds.
    causes: [[f64; N]; N],
    seconds: [f64; N],
    /// Observations, older ones for less.
    pub(super) count: f64,
    observed: u32,
    /// Outliers in a row: above the expectation positive, below it negative.
    streak: i32,
    /// As they were last asked for.
    solved: Option<[f64; N]>,
    /// Observed since then.
    has_more: bool,
    /// What is kept of the past at each observation.
    kept: f64,
}

impl<const N: usize> Fit<N> {
    pub(super) fn new(kept: f64) -> Self {
        let (causes, seconds) = ([[0.0; N]; N], [0.0; N]);
        Self { causes, seconds, count: 0.0, observed: 0, streak: 0, solved: None, has_more: false, kept }
    }

    pub(super) fn save(&self) -> SavedFit {
        let causes = self.causes.iter().flatten().copied().collect();
        SavedFit { causes, seconds: self.seconds.to_vec(), count: self.count, observed: self.observed }
    }

    /// `None` where it is no such fit.
    pub(super) fn restored(kept: f64, saved: &SavedFit) -> Option<Self> {
        let SavedFit { causes, seconds, count, observed } = saved;
        let is_sound =
            causes.len() == N * N && are_sound(causes) && are_sound(seconds) && are_sound(&[*count]);
        let mut fit = Self { count: *count, observed: *observed, ..Self::new(kept) };
        fit.seconds = seconds.as_slice().try_into().ok().filter(|_| is_sound)?;
        for (row, saved) in fit.causes.iter_mut().zip(causes.chunks_exact(N)) {
            row.copy_from_slice(saved);
        }
        // Without weight nothing can be solved.
        (*observed == 0 || *count > 0.0).then_some(fit)
    }

    /// Learns that these causes took `seconds`.
    pub(super) fn observe(&mut self, causes: &[f64; N], seconds: f64, prior: &[f64; N]) {
        let expected = dot(&self.rates(prior), causes);
        let seconds = self.tame(seconds, expected);
        let scale = expected.max(seconds) + priors::JITTER;
        self.add(causes, seconds, 1.0 / (scale * scale));
    }

    /// Learns with an explicit weight, outliers and all.
    pub(super) fn add(&mut self, causes: &[f64; N], seconds: f64, weight: f64) {
        for ((row, sum), cause) in self.causes.iter_mut().zip(&mut self.seconds).zip(causes) {
            for (cell, other) in row.iter_mut().zip(causes) {
                *cell = *cell * self.kept + weight * cause * other;
            }
            *sum = *sum * self.kept + weight * cause * seconds;
        }
        self.count = self.count * self.kept + 1.0;
        self.observed = self.observed.saturating_add(1);
        self.has_more = true;
    }

    /// What was seen counts this share of what it did.
    pub(super) fn fade(&mut self, share: f64) {
        self.causes.iter_mut().flatten().chain(&mut self.seconds).for_each(|sum| *sum *= share);
        self.count *= share;
        self.has_more = true;
    }

    /// The rates that explain what was seen and depart from the prior no more than they must. Solved once an observation: a prior
    /// that has moved since then counts from the next one on.
    pub(super) fn rates(&mut self, prior: &[f64; N]) -> [f64; N] {
        if self.observed == 0 {
            return *prior;
        }
        match self.solved {
            Some(rates) if !self.has_more => rates,
            _ => {
                let rates = self.solve(prior);
                (self.solved, self.has_more) = (Some(rates), false);
                rates
            }
        }
    }

    fn solve(&self, prior: &[f64; N]) -> [f64; N] {
        let factor = self.factor(prior);
        let prior = prior.map(|rate| (rate * factor).max(LEAST));
        let pull = prior.map(|rate| priors::LESSONS / (rate * rate));
        let due: [f64; N] = from_fn(|i| self.seconds[i] + pull[i] * prior[i]);
        let step: [f64; N] = from_fn(|i| 1.0 / (self.causes[i][i] + pull[i]));
        // Coordinate descent on a convex problem: never negative, never far from the prior without a reason. One more answer moves the
        // rates little, so it begins with the last ones: two or three rounds in place of two dozen.
        let mut rates = self.solved.unwrap_or(prior);
        for _ in 0..ROUNDS {
            let mut moved = 0.0_f64;
            for i in 0..N {
                let others: f64 = (0..N).filter(|j| *j != i).map(|j| self.causes[i][j] * rates[j]).sum();
                let rate = ((due[i] - others) * step[i]).max(0.0);
                moved = moved.max((rate - rates[i]).abs() / rate.max(rates[i]).max(LEAST));
                rates[i] = rate;
            }
            if moved < SETTLED {
                break;
            }
        }
        rates
    }

    /// How much slower than the prior what was seen is: it may be a hundred times off and still know how the causes
    /// compare.
    fn factor(&self, prior: &[f64; N]) -> f64 {
        let expected: f64 = (0..N).map(|i| prior[i] * self.seconds[i]).sum();
        let squared: f64 = (0..N).map(|i| prior[i] * dot(&self.causes[i], prior)).sum();
        let doubt = priors::LESSONS / self.count;
        let factor = (expected / squared.max(f64::MIN_POSITIVE) + doubt) / (1.0 + doubt);
        if factor.is_finite() { factor.clamp(LEAST_FACTOR, 1.0 / LEAST_FACTOR) } else { 1.0 }
    }

    /// The observation, cut to what is no outlier. The first one is none: the prior may be off by any factor.
    fn tame(&mut self, seconds: f64, expected: f64) -> f64 {
        let (low, high) =
            (expected / priors::OUTLIER - priors::JITTER, expected * priors::OUTLIER + priors::JITTER);
        if self.observed == 0 || (low..=high).contains(&seconds) {
            self.streak = 0;
            return seconds;
        }
        if !expected.is_finite() {
            *self = Self::new(self.kept);
            return seconds;
        }
        let side = if seconds > high { 1 } else { -1 };
        self.streak = if self.streak.signum() == side { self.streak + side } else { side };
        if self.streak.abs() < priors::CHANGE {
            return seconds.clamp(low.max(0.0), high);
        }
        *self = Self::new(self.kept);
        seconds
    }
}

pub(super) fn dot<const N: usize>(a: &[f64; N], b: &[f64; N]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Enough for rates to settle within a percent or two.
const ROUNDS: usize = 24;
/// Relative change of a round in which they have.
const SETTLED: f64 = 1e-3;
/// Keeps the prior above zero when all answers come at once.
const LEAST_FACTOR: f64 = 1e-4;
/// A prior of nothing would forbid to learn anything.
const LEAST: f64 = 1e-12;

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds of base, seconds per thousand tokens.
    const PRIOR: [f64; 2] = [0.05, 0.1];

    fn learned(answers: impl IntoIterator<Item = ([f64; 2], f64)>) -> [f64; 2] {
        let mut fit = Fit::new(0.95);
        answers.into_iter().for_each(|(causes, seconds)| fit.observe(&causes, seconds, &PRIOR));
        fit.rates(&PRIOR)
    }

    /// Prompts of 16 to 4096 tokens on a replica with these rates.
    fn answers(truth: [f64; 2]) -> impl Iterator<Item = ([f64; 2], f64)> {
        (0..60).map(move |i| {
            let causes = [1.0, f64::from(16 << (i % 9)) / 1000.0];
            (causes, dot(&truth, &causes))
        })
    }

    fn assert_near(found: f64, truth: f64, share: f64) {
        assert!((found / truth - 1.0).abs() < share, "{found} is not within {share} of {truth}");
    }

    #[test]
    fn is_the_prior_before_the_first_answer() {
        assert_eq!(learned([]), PRIOR);
    }

    #[test]
    fn finds_base_and_rate_of_very_different_engines() {
        for truth in [[0.012, 1.0 / 60.0], [0.05, 1.0 / 15.9], [0.3, 1.0 / 0.4]] {
            let rates = learned(answers(truth));
            for tokens in [0.064, 0.512, 4.096] {
                assert_near(dot(&rates, &[1.0, tokens]), dot(&truth, &[1.0, tokens]), 0.15);
            }
        }
    }

    #[test]
    fn prompts_of_one_size_are_predicted_at_that_size() {
        let rates = learned((0..40).map(|_| ([1.0, 0.5], 0.9)));
        assert_near(dot(&rates, &[1.0, 0.5]), 0.9, 0.05);
        assert!(rates.iter().all(|rate| *rate > 0.0));
    }

    #[test]
    fn a_single_outlier_moves_little() {
        let rates = learned(answers(PRIOR).chain([([1.0, 0.5], 60.0)]));
        assert_near(dot(&rates, &[1.0, 0.5]), 0.1, 0.1);
    }

    #[test]
    fn a_change_is_followed_within_a_few_answers() {
        for factor in [6.0, 1.0 / 6.0] {
            let after = PRIOR.map(|rate| rate * factor);
            let rates = learned(answers(PRIOR).chain(answers(after).take(9)));
            assert_near(dot(&rates, &[1.0, 1.0]), dot(&after, &[1.0, 1.0]), 0.3);
        }
    }

    #[test]
    fn degenerate_answers_leave_usable_rates() {
        for (tokens, seconds) in [(0.0, 0.0), (0.0, 1e6), (1e12, 0.0), (1e12, 1e6)] {
            let rates = learned((0..50).map(|_| ([1.0, tokens], seconds)));
            assert!(rates.iter().all(|rate| *rate >= 0.0 && rate.is_finite()), "{rates:?}");
        }
    }
}
