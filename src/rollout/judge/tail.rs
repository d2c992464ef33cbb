//! One quantile of one latency: is the canary's more than `ratio` times the baseline's?
//!
//! Per prompt class, the threshold is the baseline's own quantile of late. The baseline exceeds it, the canary exceeds `ratio`
//! times it; if the canary is within its bound it does so no more often. Among all exceedances of a block its fraction is then no
//! more than its share of the requests, at any load: both ran through the same second. That is what is bet on, over all classes
//! together and on each alone, for what is slow with long prompts only.

use serde::{Deserialize, Serialize};

use super::samples::Samples;
use super::wealth::{SLOWER, Wealth};
use super::{Arm, CLASSES, Observed};

/// What a tail test is about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bound {
    /// Quantile, 0 to 1.
    pub(super) quantile: f64,
    /// Multiple of the baseline's.
    pub(super) ratio: f64,
}

/// Counts of one block in one class.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    requests: [f64; 2],
    exceeded: [f64; 2],
}

/// A running test.
#[derive(Clone, Debug)]
pub(super) struct TailTest {
    bound: Bound,
    thresholds: [Option<f64>; CLASSES],
    block: [Counts; CLASSES],
    wealth: TailWealth,
}

/// What is kept over restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct TailWealth {
    pooled: Wealth,
    by_class: [Wealth; CLASSES],
}

impl TailTest {
    pub(super) fn new(bound: Bound, wealth: TailWealth) -> Self {
        Self { bound, thresholds: [None; CLASSES], block: Default::default(), wealth }
    }

    pub(super) fn observe(&mut self, class: usize, observed: Observed) {
        let (Some(Some(threshold)), Some(counts)) = (self.thresholds.get(class), self.block.get_mut(class))
        else {
            return;
        };
        let bound = match observed.arm {
            Arm::Baseline => *threshold,
            Arm::Canary => *threshold * self.bound.ratio,
        };
        let exceeds = observed.value > bound;
        // What ended before its bound without an answer tells nothing.
        if observed.is_censored && !exceeds {
            return;
        }
        let arm = observed.arm as usize;
        if let (Some(requests), Some(exceeded)) = (counts.requests.get_mut(arm), counts.exceeded.get_mut(arm))
        {
            *requests += observed.count;
            *exceeded += if exceeds { observed.count } else { 0.0 };
        }
    }

    /// Ends the block and takes thresholds for the next one from what the baseline did up to now.
    pub(super) fn close(&mut self, baseline: &[Samples; CLASSES]) {
        let (mut canary, mut total, mut expected) = (0.0, 0.0, 0.0);
        for (counts, wealth) in std::mem::take(&mut self.block).iter().zip(&mut self.wealth.by_class) {
            let exceeded = counts.exceeded[0] + counts.exceeded[1];
            let share = counts.requests[1] / (counts.requests[0] + counts.requests[1]);
            // Without both of them nothing is compared.
            if exceeded > 0.0 && share > 0.0 && share < 1.0 {
                wealth.bet_on_odds(counts.exceeded[1] / exceeded, share, &SLOWER);
                canary += counts.exceeded[1];
                total += exceeded;
                expected += exceeded * share;
            }
        }
        if total > 0.0 {
            self.wealth.pooled.bet_on_odds(canary / total, expected / total, &SLOWER);
        }
        for (threshold, samples) in self.thresholds.iter_mut().zip(baseline) {
            *threshold = samples.quantile(self.bound.quantile).or(*threshold);
        }
    }

    /// Logarithm of the evidence against the canary.
    pub(super) fn evidence(&self) -> f64 {
        let by_class = self.wealth.by_class.iter().map(|wealth| (0.4 / CLASSES as f64, wealth));
        Wealth::mean(std::iter::once((0.6, &self.wealth.pooled)).chain(by_class))
    }

    pub(super) fn wealth(&self) -> TailWealth {
        self.wealth
    }
}
