//! A share of requests: is the canary's more than `increase` above the baseline's?
//!
//! Per block, the canary's share minus the baseline's in the same classes minus the allowance: its mean is not above zero
//! while the canary is within its bound.

use super::wealth::{STAKES, Wealth};
use super::{Arm, CLASSES};

/// A running test.
#[derive(Clone, Debug)]
pub(super) struct RateTest {
    increase: f64,
    /// Requests and bad ones, by class and arm.
    block: [[(f64, f64); 2]; CLASSES],
    wealth: Wealth,
}

impl RateTest {
    pub(super) fn new(increase: f64, wealth: Wealth) -> Self {
        Self { increase, block: Default::default(), wealth }
    }

    pub(super) fn observe(&mut self, class: usize, arm: Arm, is_bad: bool) {
        let counts = self.block.get_mut(class).and_then(|arms| arms.get_mut(arm as usize));
        if let Some((requests, bad)) = counts {
            *requests += 1.0;
            *bad += f64::from(u8::from(is_bad));
        }
    }

    pub(super) fn close(&mut self) {
        let (mut requests, mut excess) = (0.0, 0.0);
        for arms in &mut self.block {
            // With little traffic a block lasts until both have come.
            if arms.iter().all(|(requests, _)| *requests > 0.0) {
                let [baseline, canary] = std::mem::take(arms);
                requests += canary.0;
                excess += canary.1 - canary.0 * baseline.1 / baseline.0;
            }
        }
        if requests > 0.0 {
            // At most 1 below zero, whatever the allowance is: no block is a bet of everything.
            let difference = (excess / requests - self.increase) / (1.0 + self.increase);
            self.wealth.bet_on_mean(difference, &STAKES);
        }
    }

    pub(super) fn evidence(&self) -> f64 {
        Wealth::mean(std::iter::once((1.0, &self.wealth)))
    }

    pub(super) fn wealth(&self) -> Wealth {
        self.wealth
    }
}
