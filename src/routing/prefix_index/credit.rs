//! What a replica's hits are worth, by its reports of cached tokens.
//!
//! An engine finds less than our bytes promise where running sequences, other gateways or a draft model take a share of its
//! cache, where a chat template rewrites history, or where caching is off. Each report is held against the prediction; a
//! lasting shortfall takes credit from every later one. A report can only lower a prediction or confirm it: an engine that claims
//! more than it was sent gains nothing.

use crate::routing::tuning::{memories, priors};

/// Mean share of what was promised that a replica found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Credit(f64);

impl Default for Credit {
    fn default() -> Self {
        Self(1.0)
    }
}

impl Credit {
    /// The part of a hit in the index that is worth believing.
    pub(super) fn get(self) -> f64 {
        if self.0 > BELIEVED { 1.0 } else { self.0 }
    }

    /// A replica reported how many tokens of a prediction it found.
    pub(super) fn reported(&mut self, predicted: u64, cached: u64) {
        if predicted == 0 {
            return;
        }
        let (confirmed, predicted) = (cached.min(predicted) as f64, predicted as f64);
        let is_short = confirmed < predicted * (1.0 - priors::ALIKE) - LARGEST_BLOCK;
        let found = if is_short { confirmed / predicted } else { 1.0 };
        self.0 += memories::LEARNED * (found - self.0);
    }
}

/// Above this a hit is taken at its word: one report in twenty.
const BELIEVED: f64 = 1.0 - memories::LEARNED;
/// Tokens: less than a block may be missing of any hit.
const LARGEST_BLOCK: f64 = 128.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn after(reports: impl IntoIterator<Item = (u64, u64)>) -> f64 {
        let mut credit = Credit::default();
        for (predicted, cached) in reports {
            credit.reported(predicted, cached);
        }
        credit.get()
    }

    #[test]
    fn shortfalls_take_credit_and_confirmations_give_it_back() {
        assert!(after([(4096, 0); 10]) < 0.7);
        assert_eq!(after([(4096, 0); 10].into_iter().chain([(4096, 4096); 100])), 1.0);
    }

    #[test]
    fn estimates_that_are_a_little_off_are_no_shortfall() {
        for (predicted, cached) in [(1000, 880), (100, 0), (64, 64), (0, 5000)] {
            assert_eq!(after([(predicted, cached); 50]), 1.0, "{predicted} {cached}");
        }
    }

    #[test]
    fn a_replica_that_never_hits_loses_its_credit_within_a_few_answers() {
        assert!(after([(4000, 0); 40]) < 0.15);
    }

    #[test]
    fn claims_beyond_what_was_sent_gain_nothing() {
        assert_eq!(after([(1000, u64::MAX); 1000]), 1.0);
    }
}
