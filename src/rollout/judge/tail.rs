//! One quantile of one latency: is the canary's more than `ratio` times the baseline's?
//!
//! Per prompt class, the threshold is the baseline's own quantile of now ([`super::baseline`]). The baseline exceeds it, the canary
//! exceeds `ratio` times it; if the canary is within its bound it does so no more often. Among all exceedances of a block its fraction is then no
//! more than its share of the requests, at any load: both ran through the same second. That is what is bet on, over all classes
//! together and on each alone, for what is slow with long prompts only.

use serde::{Deserialize, Serialize};

use super::baseline::Baseline;
use super::wealth::{Block, LEVELS, LONGER_TAIL, Odds, SLOWER, Wealth};
use super::{Arm, CLASSES, Observed};

/// What a tail test is about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bound {
    /// Quantile, 0 to 1.
    pub(super) quantile: f64,
    /// Multiple of the baseline's.
    pub(super) ratio: f64,
}

impl Bound {
    /// Thresholds, from the bound's own on. How far a value is beyond a tail's bound tells more than that it is; beyond a median
    /// it tells of the tail.
    fn quantiles(self) -> [Option<f64>; LEVELS] {
        let beyond = |share| self.is_tail().then_some(1.0 - (1.0 - self.quantile) * share);
        [Some(self.quantile), beyond(0.3), beyond(0.1)]
    }

    fn odds(self) -> &'static Odds {
        if self.is_tail() { &LONGER_TAIL } else { &SLOWER }
    }

    fn is_tail(self) -> bool {
        self.quantile > 0.9
    }
}

/// Counts of one block in one class.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    requests: [f64; 2],
    /// By arm and by the highest threshold that was exceeded.
    exceeded: [[f64; LEVELS]; 2],
}

/// A running test.
#[derive(Clone, Debug)]
pub(super) struct TailTest {
    bound: Bound,
    /// By class; those of quantiles of too few values are infinite.
    thresholds: [Option<[f64; LEVELS]>; CLASSES],
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
        let (Some(Some(thresholds)), Some(counts)) = (self.thresholds.get(class), self.block.get_mut(class))
        else {
            return;
        };
        let value = match observed.arm {
            Arm::Baseline => observed.value,
            Arm::Canary => observed.value / self.bound.ratio,
        };
        let exceeded = thresholds.iter().take_while(|threshold| value > **threshold).count();
        // What ended before its bound without an answer tells nothing.
        if observed.is_censored && exceeded == 0 {
            return;
        }
        let arm = observed.arm as usize;
        let (requests, by_level) = (counts.requests.get_mut(arm), counts.exceeded.get_mut(arm));
        if let (Some(requests), Some(by_level)) = (requests, by_level) {
            *requests += observed.count;
            if let Some(count) = exceeded.checked_sub(1).and_then(|level| by_level.get_mut(level)) {
                *count += observed.count;
            }
        }
    }

    /// Ends the block and takes thresholds for the next one from what the baseline did up to now.
    pub(super) fn close(&mut self, baseline: &Baseline) {
        let odds = self.bound.odds();
        let mut pooled = Block::default();
        for (counts, wealth) in self.block.iter_mut().zip(&mut self.wealth.by_class) {
            // Without both of them nothing is compared: with little traffic a block lasts until both have come.
            if counts.requests.contains(&0.0) {
                continue;
            }
            let Counts { requests: [baseline, canary], exceeded } = std::mem::take(counts);
            let block = Block::of(exceeded, canary / (baseline + canary));
            wealth.bet_on_odds(&block, odds);
            pooled.add(&block);
        }
        self.wealth.pooled.bet_on_odds(&pooled, odds);
        let quantiles = self.bound.quantiles();
        for (class, thresholds) in self.thresholds.iter_mut().enumerate() {
            if baseline.threshold(class, self.bound.quantile).is_some() {
                *thresholds = Some(quantiles.map(|quantile| {
                    quantile.and_then(|quantile| baseline.threshold(class, quantile)).unwrap_or(f64::INFINITY)
                }));
            }
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
