//! One quantile of one latency: is the canary's more than `ratio` times the baseline's?
//!
//! Per prompt class, the threshold is the baseline's own quantile of now ([`super::baseline`]). The baseline exceeds it, the canary
//! exceeds `ratio` times it; if the canary is within its bound it does so no more often. Among all exceedances of a block its fraction is then no
//! more than its share of the requests, at any load: both ran through the same second. That is what is bet on, over all classes
//! together and on each alone, for what is slow with long prompts only.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::baseline::Baseline;
use super::wealth::{Block, Conversations, LEVELS, LONGER_TAIL, MIDDLE, Odds, Restarts, SLOWER, Wealth};
use super::{Arm, GROUPS, Observed};

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

    pub(super) fn is_tail(self) -> bool {
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

/// How many of one replica's requests exceeded just before: those of one stall are one event over many blocks, on either side.
#[derive(Clone, Copy, Debug)]
struct Stall {
    /// Requests and those that exceeded, in the open block.
    block: [f64; 2],
    /// The same before it, faded with [`STALL`].
    recent: [f64; 2],
    /// Weight of its requests in the open block, 0 to 1.
    weight: f64,
}

impl Default for Stall {
    fn default() -> Self {
        Self { block: [0.0; 2], recent: [0.0; 2], weight: 1.0 }
    }
}

impl Stall {
    fn observe(&mut self, weight: f64, is_exceeded: bool) {
        let [requests, exceeded] = &mut self.block;
        *requests += weight;
        *exceeded += if is_exceeded { weight } else { 0.0 };
    }

    /// Ends a block; the next one's weight is by a bound that a share of `expected` exceeds. It rests on the blocks before alone, and
    /// on the same rule for both sides, so bets stay fair.
    fn close(&mut self, passed: f64, expected: f64) {
        let keep = (-passed / STALL).exp();
        let [requests, exceeded] = self.recent.map(|count| count * keep);
        let ordinary = CHANCE + OVER_EXPECTED * expected * requests;
        let [more, of_them] = std::mem::take(&mut self.block);
        self.recent = [requests + more, exceeded + of_them];
        self.weight = if exceeded > ordinary { (ordinary / exceeded).max(MIN_WEIGHT) } else { 1.0 };
    }

    fn is_over(&self) -> bool {
        self.recent[0] < FORGOTTEN
    }
}

#[derive(Clone, Debug)]
pub(super) struct TailTest {
    bound: Bound,
    shift: Shift,
    /// The same by group, of a trial: what brings a canary that is faster up to the baseline.
    levels: [f64; GROUPS],
    /// By group; those of quantiles of too few values are infinite.
    thresholds: [Option<[f64; LEVELS]>; GROUPS],
    block: [Counts; GROUPS],
    wealth: TailWealth,
    /// By group.
    conversations: [Conversations; GROUPS],
    /// By replica.
    stalls: HashMap<u64, Stall>,
}

/// What is made of the canary's values.
#[derive(Clone, Copy, Debug)]
enum Shift {
    /// All are multiplied.
    Times(f64),
    /// One in so many exceeds the bound, as the baseline's longest do; of which that was this many ago.
    Lift { every: u32, seen: u32, lifted: usize },
}

impl Shift {
    /// How many thresholds it takes this one above, at least.
    fn lift(&mut self) -> usize {
        let Self::Lift { every, seen, lifted } = self else { return 0 };
        *seen += 1;
        if seen < every {
            return 0;
        }
        *seen = 0;
        *lifted += 1;
        HEIGHTS.get(*lifted % HEIGHTS.len()).copied().unwrap_or(1)
    }

    fn factor(self) -> f64 {
        match self {
            Self::Times(factor) => factor,
            Self::Lift { .. } => 1.0,
        }
    }
}

/// What is kept over restarts of the gateway.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct TailWealth {
    pooled: Wealth,
    /// By group.
    by_class: [Wealth; GROUPS],
    restarts: Restarts,
    restarts_by_class: [Restarts; GROUPS],
}

impl TailTest {
    /// Whether the canary, its values multiplied by `factor`, exceeds the baseline's thresholds more often.
    pub(super) fn new(bound: Bound, factor: f64, wealth: TailWealth) -> Self {
        Self::shifted(bound, Shift::Times(factor), wealth)
    }

    /// The same of a canary that is beyond the bound. One whose middle is `ratio` above it, or of which as many more exceed a tail's:
    /// where answers differ little a longer tail is seen long after a higher middle.
    pub(super) fn trial(bound: Bound, ratio: f64) -> Self {
        let every = (1.0 / (MORE_EXCEED * (1.0 - bound.quantile))).round() as u32;
        let shift =
            if bound.is_tail() { Shift::Lift { every, seen: 0, lifted: 0 } } else { Shift::Times(ratio) };
        Self::shifted(bound, shift, TailWealth::default())
    }

    fn shifted(bound: Bound, shift: Shift, wealth: TailWealth) -> Self {
        Self {
            bound,
            shift,
            levels: [1.0; GROUPS],
            thresholds: [None; GROUPS],
            block: Default::default(),
            wealth,
            conversations: Default::default(),
            stalls: HashMap::new(),
        }
    }

    /// The same test without evidence, by the thresholds of now.
    pub(super) fn again(&self) -> Self {
        let new = Self::shifted(self.bound, self.shift, TailWealth::default());
        Self { thresholds: self.thresholds, levels: self.levels, ..new }
    }

    /// Sets what the canary's values of each group are multiplied by, besides the factor.
    pub(super) fn level(&mut self, levels: [f64; GROUPS]) {
        self.levels = levels;
    }

    pub(super) fn observe(&mut self, group: usize, observed: Observed) {
        let (Some(Some(thresholds)), Some(counts), Some(conversations)) =
            (self.thresholds.get(group), self.block.get_mut(group), self.conversations.get_mut(group))
        else {
            return;
        };
        let (value, lift) = match observed.arm {
            Arm::Baseline => (observed.value, 0),
            Arm::Canary => {
                let level = self.levels.get(group).unwrap_or(&1.0);
                (observed.value * self.shift.factor() * level, self.shift.lift())
            }
        };
        let exceeded = thresholds.iter().take_while(|threshold| value > **threshold).count().max(lift);
        // What ended before its bound without an answer tells nothing.
        if observed.is_censored && exceeded == 0 {
            return;
        }
        // Squared, so that one conversation, however long, counts less than twice: what is slow about it stays so.
        let weight = observed.count * conversations.weight(observed.conversation).powi(2);
        let stall = self.stalls.entry(observed.replica).or_default();
        stall.observe(weight, exceeded > 0);
        let weight = weight * stall.weight;
        let arm = observed.arm as usize;
        let (requests, by_level) = (counts.requests.get_mut(arm), counts.exceeded.get_mut(arm));
        if let (Some(requests), Some(by_level)) = (requests, by_level) {
            *requests += weight;
            if let Some(count) = exceeded.checked_sub(1).and_then(|level| by_level.get_mut(level)) {
                *count += weight;
            }
        }
    }

    /// Ends a block that took `passed` seconds, and takes thresholds for the next one from what the baseline did up to now.
    pub(super) fn close(&mut self, baseline: &Baseline, passed: f64) {
        let odds = self.bound.odds();
        let expected = 1.0 - self.bound.quantile;
        self.stalls.values_mut().for_each(|stall| stall.close(passed, expected));
        self.stalls.retain(|_, stall| !stall.is_over());
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
        self.restart();
    }

    /// Begins anew what has lost most of its wealth, each bet for itself: what is slow about one class alone is seen over many starts of
    /// the others.
    fn restart(&mut self) {
        let TailWealth { pooled, by_class, restarts, restarts_by_class } = &mut self.wealth;
        let own = |wealth: &Wealth| Wealth::mean(&MIDDLE, std::iter::once((1.0, wealth)));
        if restarts.is_due(own(pooled)) {
            *pooled = Wealth::default();
        }
        for ((wealth, restarts), conversations) in
            by_class.iter_mut().zip(restarts_by_class).zip(&mut self.conversations)
        {
            if restarts.is_due(own(wealth)) {
                *wealth = Wealth::default();
                conversations.clear();
            }
        }
    }

    /// Evidence against the canary as a fraction of what stops it at an error rate of `exp(-limit)`. Each bet has a part of the error
    /// rate, and each of its starts a part of that.
    pub(super) fn evidence(&self, limit: f64) -> f64 {
        let TailWealth { pooled, by_class, restarts, restarts_by_class } = &self.wealth;
        let part = |weight: f64, restarts: &Restarts| weight * (-restarts.price()).exp();
        let of_class = (1.0 - POOLED) / GROUPS as f64;
        let by_class = by_class.iter().zip(restarts_by_class);
        let by_class = by_class.map(|(wealth, restarts)| (part(of_class, restarts), wealth));
        let all = std::iter::once((part(POOLED, restarts), pooled)).chain(by_class);
        let price = -all.clone().map(|(part, _)| part).sum::<f64>().ln();
        (Wealth::mean(&MIDDLE, all) + price) / (limit + price)
    }

    pub(super) fn wealth(&self) -> &TailWealth {
        &self.wealth
    }
}

/// A trial's canary exceeds a tail's bound so many times as often again as it may.
const MORE_EXCEED: f64 = 3.0;
/// By how many thresholds, in turn: about as far as the baseline's own, of which three in ten exceed the second, and one the third.
const HEIGHTS: [usize; 10] = [1, 1, 2, 1, 1, 3, 1, 2, 1, 1];
/// Weight of the bets on all classes together; the rest is on each alone.
const POOLED: f64 = 0.85;
/// Seconds in which requests that exceed belong together: stalls last for seconds.
const STALL: f64 = 4.0;
/// Exceedances of a replica within it that chance brings at any rate.
const CHANCE: f64 = 0.5;
/// Multiple of the expected exceedances that are no stall.
const OVER_EXPECTED: f64 = 2.0;
/// What is seen in a stall of whatever length is worth a little: one that does not end is a breach. More of it lets two stalls of the
/// canary within some minutes pass for one.
const MIN_WEIGHT: f64 = 0.04;
/// Faded requests of a replica that has had none for a minute.
const FORGOTTEN: f64 = 1e-6;
