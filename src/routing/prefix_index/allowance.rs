//! How much of what a replica was sent it is believed to hold still: its engine's capacity, corrected by its reports.
//!
//! An engine's cache is smaller than its size where running sequences, other gateways or a draft model take their share,
//! and finds less than our bytes promise where a chat template rewrites history. Each report of cached tokens is held
//! against the prediction: what is lacking shrinks the capacity by up to two per cent, what is there lets it grow back a fifth
//! as fast. So a fifth of what is promised may be gone before anything is forgotten: prompts that wait long find less than when
//! they were sent, and forgetting what is still there costs more than a promise that is not kept. Lasting shortfall,
//! whatever its cause (caching may be switched off), takes credit from every later prediction. A report can only lower a
//! prediction or confirm it: who claims more than he was sent gains nothing.

/// One replica's allowance. Weights are in fine blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    /// The whole cache, as the engine tells.
    nominal: u64,
    share: f64,
    credit: f64,
}

impl Allowance {
    pub(super) fn new(nominal: u64) -> Self {
        Self { nominal, share: 1.0, credit: 1.0 }
    }

    pub(super) fn set_nominal(&mut self, nominal: u64) {
        self.nominal = nominal;
    }

    /// What it may hold.
    pub(super) fn weight(&self) -> u64 {
        (self.nominal as f64 * self.share) as u64
    }

    /// The part of a hit in the index that is worth believing.
    pub(super) fn credit(&self) -> f64 {
        if self.nominal == 0 {
            return 0.0;
        }
        if self.credit > BELIEVED { 1.0 } else { self.credit }
    }

    /// A replica reported how much of a prediction it found.
    pub(super) fn reported(&mut self, predicted: u64, cached: u64) {
        if predicted == 0 {
            return;
        }
        let confirmed = cached.min(predicted) as f64;
        let predicted = predicted as f64;
        let is_short = confirmed < predicted * EXACT - SLACK;
        let found = if is_short { confirmed / predicted } else { 1.0 };
        self.credit += LEARNED * (found - self.credit);
        self.share = if is_short {
            (self.share * (1.0 - SHRINK * (1.0 - found))).max(LEAST_SHARE)
        } else {
            (self.share + SHRINK * TOLERATED).min(1.0)
        };
    }

    /// It starts anew with an empty cache.
    pub(super) fn forget(&mut self) {
        *self = Self::new(self.nominal);
    }
}

/// Estimated tokens are within a sixth of the engine's, ...
const EXACT: f64 = 0.85;
/// ... give or take a block of the largest engines.
const SLACK: f64 = 128.0;
/// What a report of nothing shrinks the capacity by.
const SHRINK: f64 = 0.02;
/// The share of predicted tokens that may be lacking for ever without the capacity shrinking.
const TOLERATED: f64 = 0.2;
/// Below this it is not the capacity that is wrong: credit does the rest.
const LEAST_SHARE: f64 = 0.25;
/// Above this a hit is taken at its word.
const BELIEVED: f64 = 0.95;
/// Share of a report in the running mean.
const LEARNED: f64 = 0.05;

#[cfg(test)]
mod tests {
    use super::*;

    fn after(reports: impl IntoIterator<Item = (u64, u64)>) -> Allowance {
        let mut allowance = Allowance::new(10_000);
        for (predicted, cached) in reports {
            allowance.reported(predicted, cached);
        }
        allowance
    }

    #[test]
    fn shortfalls_shrink_and_confirmations_let_it_grow_back() {
        let short = after([(4096, 0); 10]);
        assert!((8100..8300).contains(&short.weight()), "{short:?}");
        let again = after([(4096, 0); 10].into_iter().chain([(4096, 4096); 2000]));
        assert_eq!(again.weight(), 10_000);
        assert!((again.credit() - 1.0).abs() < 1e-9, "{again:?}");
    }

    #[test]
    fn a_tenth_that_is_always_gone_costs_nothing_and_a_third_costs_capacity() {
        let lacking =
            |every: usize| after((0..3000).map(|report| (4000, if report % every == 0 { 0 } else { 4000 })));
        assert!(lacking(10).weight() > 9_500, "{:?}", lacking(10));
        assert!(lacking(3).weight() < 5_000, "{:?}", lacking(3));
    }

    #[test]
    fn estimates_that_are_a_little_off_are_no_shortfall() {
        for (predicted, cached) in [(1000, 880), (100, 0), (64, 64), (0, 5000)] {
            let same = after([(predicted, cached); 50]);
            assert_eq!((same.weight(), same.credit()), (10_000, 1.0), "{predicted} {cached}");
        }
    }

    #[test]
    fn a_replica_that_never_hits_loses_its_credit_within_a_few_answers() {
        let off = after([(4000, 0); 40]);
        assert!(off.credit() < 0.15, "{off:?}");
        assert!(off.weight() >= 2_500);
    }

    #[test]
    fn claims_beyond_what_was_sent_gain_nothing() {
        let liar = after([(1000, u64::MAX); 1000]);
        assert_eq!((liar.weight(), liar.credit()), (10_000, 1.0));
    }
}
