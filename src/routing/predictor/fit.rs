//! Base latency and time per token of one replica, learned from its first tokens.
//!
//! A line through (tokens ahead and own, time to first token), by least squares with forgetting. Errors count
//! relative to what was expected, since the noise of a queue grows with its length. A prior stands in for what
//! has not been seen: prompts of one size cannot tell base from rate. One outlier moves the line little; several
//! in a row on the same side are no outliers but a change, and the past is let go.

/// A straight line: seconds to first token by tokens to compute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Line {
    pub(super) base: f64,
    pub(super) per_token: f64,
}

impl Line {
    pub(super) fn at(&self, tokens: f64) -> f64 {
        self.base + self.per_token * tokens
    }

    /// `share` of this line, the rest of the other.
    pub(super) fn blend(&self, other: &Self, share: f64) -> Self {
        let mix = |own: f64, others: f64| own * share + others * (1.0 - share);
        Self { base: mix(self.base, other.base), per_token: mix(self.per_token, other.per_token) }
    }
}

/// Decayed sums of weighted observations.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fit {
    weight: f64,
    x: f64,
    xx: f64,
    y: f64,
    xy: f64,
    observed: u32,
    /// Outliers in a row: above the line positive, below it negative.
    streak: i32,
}

impl Fit {
    /// Learns that `tokens` took `seconds`.
    pub(super) fn observe(&mut self, tokens: f64, seconds: f64, prior: &Line) {
        let expected = self.line(prior).at(tokens);
        let seconds = self.tame(seconds, expected);
        let scale = expected.max(seconds) + JITTER;
        let weight = 1.0 / (scale * scale);
        for sum in [&mut self.weight, &mut self.x, &mut self.xx, &mut self.y, &mut self.xy] {
            *sum *= KEPT;
        }
        self.weight += weight;
        self.x += weight * tokens;
        self.xx += weight * tokens * tokens;
        self.y += weight * seconds;
        self.xy += weight * tokens * seconds;
        self.observed = self.observed.saturating_add(1);
    }

    /// The line that explains what was seen and departs from the prior no more than it must.
    pub(super) fn line(&self, prior: &Line) -> Line {
        if self.weight <= 0.0 {
            return *prior;
        }
        let prior = self.rescaled(prior);
        let base_pull = PRIOR_WEIGHT / (prior.base * prior.base);
        let rate_pull = PRIOR_WEIGHT / (prior.per_token * prior.per_token);
        let (a, b, d) = (self.weight + base_pull, self.x, self.xx + rate_pull);
        let (u, v) = (self.y + base_pull * prior.base, self.xy + rate_pull * prior.per_token);
        let determinant = a * d - b * b;
        let line = Line { base: (u * d - v * b) / determinant, per_token: (a * v - b * u) / determinant };
        // Neither may be negative; the other one then explains all.
        if line.base < LEAST_BASE {
            Line { base: LEAST_BASE, per_token: ((v - b * LEAST_BASE) / d).max(LEAST_PER_TOKEN) }
        } else if line.per_token < LEAST_PER_TOKEN {
            Line { base: ((u - b * LEAST_PER_TOKEN) / a).max(LEAST_BASE), per_token: LEAST_PER_TOKEN }
        } else {
            line
        }
    }

    /// The prior's shape at this replica's speed: it may be a hundred times off and still know how much of a
    /// TTFT is base and how much is rate.
    fn rescaled(&self, prior: &Line) -> Line {
        let (tokens, seconds) = (self.x / self.weight, self.y / self.weight);
        let expected = prior.at(tokens);
        let scale = expected.max(seconds) + JITTER;
        let pull = SCALE_WEIGHT / (scale * scale);
        let factor = (self.y + pull * expected) / ((self.weight + pull) * expected);
        let factor = factor.max(LEAST_FACTOR);
        Line { base: prior.base * factor, per_token: prior.per_token * factor }
    }

    fn tame(&mut self, seconds: f64, expected: f64) -> f64 {
        let (low, high) = (expected / OUTLIER, expected * OUTLIER);
        if self.observed < FREE_OBSERVATIONS || (low..=high).contains(&seconds) {
            self.streak = 0;
            return seconds;
        }
        let side = if seconds > high { 1 } else { -1 };
        self.streak = if self.streak.signum() == side { self.streak + side } else { side };
        if self.streak.abs() < CHANGE {
            return seconds.clamp(low, high);
        }
        *self = Self::default();
        seconds
    }
}

/// An answer older than some twenty others counts for a third.
const KEPT: f64 = 0.95;
/// The prior's shape counts like a tenth of an answer, ...
const PRIOR_WEIGHT: f64 = 0.1;
/// ... and its speed like a quarter of an answer.
const SCALE_WEIGHT: f64 = 0.25;
/// Keeps the prior above zero when all answers come at once.
const LEAST_FACTOR: f64 = 1e-4;
/// An answer further off than this factor is cut to it, ...
const OUTLIER: f64 = 2.0;
/// ... except when so many come in a row: then the replica has changed, and learning starts anew.
const CHANGE: i32 = 3;
/// The first answers are never cut: the prior may be off by far more than an outlier.
const FREE_OBSERVATIONS: u32 = 4;
/// Seconds that say nothing: scheduling, the network. Keeps the weight of tiny answers in bounds.
const JITTER: f64 = 0.005;
/// A tenth of a millisecond.
const LEAST_BASE: f64 = 1e-4;
/// Ten million tokens a second.
const LEAST_PER_TOKEN: f64 = 1e-7;

#[cfg(test)]
mod tests {
    use super::*;

    const PRIOR: Line = Line { base: 0.05, per_token: 1e-4 };

    fn learned(answers: impl IntoIterator<Item = (f64, f64)>) -> Line {
        let mut fit = Fit::default();
        for (tokens, seconds) in answers {
            fit.observe(tokens, seconds, &PRIOR);
        }
        fit.line(&PRIOR)
    }

    /// Prompts of 16 to 4096 tokens on a replica with this line.
    fn answers(truth: Line) -> impl Iterator<Item = (f64, f64)> {
        (0..60).map(move |i| {
            let tokens = f64::from(16 << (i % 9));
            (tokens, truth.at(tokens))
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
        for truth in [
            Line { base: 0.012, per_token: 1.0 / 60_000.0 },
            Line { base: 0.05, per_token: 1.0 / 15_900.0 },
            Line { base: 0.3, per_token: 1.0 / 400.0 },
        ] {
            let line = learned(answers(truth));
            for tokens in [64.0, 512.0, 4096.0] {
                assert_near(line.at(tokens), truth.at(tokens), 0.1);
            }
        }
    }

    #[test]
    fn prompts_of_one_size_are_predicted_at_that_size() {
        let line = learned((0..40).map(|_| (500.0, 0.9)));
        assert_near(line.at(500.0), 0.9, 0.05);
        assert!(line.base > 0.0 && line.per_token > 0.0);
    }

    #[test]
    fn a_single_outlier_moves_little() {
        let truth = Line { base: 0.05, per_token: 1e-4 };
        let line = learned(answers(truth).chain([(500.0, 60.0)]));
        assert_near(line.at(500.0), truth.at(500.0), 0.1);
    }

    #[test]
    fn a_change_is_followed_within_a_few_answers() {
        let before = Line { base: 0.05, per_token: 1e-4 };
        for factor in [6.0, 1.0 / 6.0] {
            let after = Line { base: before.base * factor, per_token: before.per_token * factor };
            let line = learned(answers(before).chain(answers(after).take(9)));
            assert_near(line.at(1000.0), after.at(1000.0), 0.3);
        }
    }

    #[test]
    fn degenerate_answers_leave_a_usable_line() {
        for (tokens, seconds) in [(0.0, 0.0), (0.0, 1e6), (1e12, 0.0), (1e12, 1e6)] {
            let line = learned((0..50).map(|_| (tokens, seconds)));
            assert!(line.base >= LEAST_BASE && line.base.is_finite(), "{line:?}");
            assert!(line.per_token >= LEAST_PER_TOKEN && line.per_token.is_finite(), "{line:?}");
        }
    }
}
