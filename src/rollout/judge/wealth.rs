//! Test martingales: wealth that bets against "the canary is within its bound".
//!
//! If the null holds, wealth is not expected to grow, whatever the load does, and by Ville's inequality it ever reaches
//! 1 / alpha with probability alpha at most: so it may be looked at after every block. Several bets of different sizes run side
//! by side; their weighted mean is a test martingale as well and does nearly as well as the best of them.
//!
//! Wealth that was lost over a good day would have to be won back first. So a test restarts when it has lost most of its wealth, and
//! each start has its own part of alpha, by a prior on the start at which a breach begins (Shiryaev 1963; e-detectors:
//! Shin, Ramdas, Rinaldo 2024): the parts add up to alpha, and so do the chances of a false alarm.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// Wealth of four bets, as logarithms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Wealth([f64; 4]);

/// What exceeded thresholds in one block, by the highest of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Block {
    /// Of baseline and canary.
    exceeded: [[f64; LEVELS]; 2],
    /// The canary's fair share of them, a mean over the classes.
    share: [f64; LEVELS],
}

impl Block {
    /// A block of baseline's and canary's exceedances, where the canary had `share` of the requests.
    pub(super) fn of(exceeded: [[f64; LEVELS]; 2], share: f64) -> Self {
        Self { exceeded, share: [share; LEVELS] }
    }

    /// Takes another class in.
    pub(super) fn add(&mut self, other: &Self) {
        for level in 0..LEVELS {
            let total = |block: &Self| block.exceeded.iter().filter_map(|arm| arm.get(level)).sum::<f64>();
            let (own, more) = (total(self), total(other));
            let (Some(share), Some(its)) = (self.share.get_mut(level), other.share.get(level)) else {
                continue;
            };
            if own + more > 0.0 {
                *share = (*share * own + its * more) / (own + more);
            }
        }
        for (own, more) in self.exceeded.iter_mut().flatten().zip(other.exceeded.iter().flatten()) {
            *own += more;
        }
    }
}

impl Wealth {
    /// One block of exceedances. A bet on odds `o` pays `o / (share * o + 1 - share)` for one of the canary's, which makes `share` of
    /// the requests, and `1 / (share * o + 1 - share)` for one of the baseline's: 1 on average where both exceed alike. A block
    /// counts once, however many exceedances it has: those of one stall are one event.
    pub(super) fn bet_on_odds(&mut self, block: &Block, odds: &Odds) {
        let [baseline, canary] = block.exceeded;
        let total: f64 = block.exceeded.iter().flatten().sum();
        for (log, odds) in self.0.iter_mut().zip(odds) {
            let mut gain = 0.0;
            for (((baseline, canary), share), odds) in baseline.iter().zip(canary).zip(block.share).zip(odds)
            {
                let surplus = canary - share * (baseline + canary);
                gain += (odds - 1.0) * surplus / (share * odds + 1.0 - share);
            }
            // Below one where all that exceeded was of conversations that had been seen.
            *log += (gain / total.max(1.0)).ln_1p();
        }
    }

    /// One block's difference, -1 to 1, whose mean is not above 0 under the null.
    pub(super) fn bet_on_mean(&mut self, difference: f64, stakes: &[f64; 4]) {
        for (log, stake) in self.0.iter_mut().zip(stakes) {
            *log += (stake * difference).ln_1p();
        }
    }

    /// Logarithm of the mean of several wealths with these weights, which add up to 1, and with these parts of the bets in each.
    pub(super) fn mean<'w>(bets: &[f64; 4], weighted: impl Iterator<Item = (f64, &'w Self)> + Clone) -> f64 {
        let of_bets = |(weight, wealth): (f64, &Self)| {
            wealth.0.into_iter().zip(bets).map(move |(log, bet)| log + (weight * bet).ln())
        };
        let terms: Vec<f64> = weighted.flat_map(of_bets).collect();
        let top = terms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        top + terms.iter().map(|term| (term - top).exp()).sum::<f64>().ln()
    }
}

/// How often a test has begun anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Restarts(u32);

impl Restarts {
    /// Counts a restart where `evidence`, a logarithm, has sunk so far.
    pub(super) fn is_due(&mut self, evidence: f64) -> bool {
        let is_due = evidence < FLOOR;
        self.0 += u32::from(is_due);
        is_due
    }

    /// Logarithm of what this start needs beyond 1 / alpha. Its part of alpha is a prior on the start at which a breach begins, which
    /// adds up to 1 at most: most of it the first, the rest by `1 / k` for the starts of a day.
    pub(super) fn price(self) -> f64 {
        let k = f64::from(self.0);
        let part = match self.0 {
            0 => FIRST,
            1..=LAST => LATER / k,
            _ => BEYOND / (k * (k + 1.0)),
        };
        -part.ln()
    }
}

/// How much more often a revision that is worse than the baseline may be stopped within its bounds than one that is not: what sets a
/// p99 of 1.5 times the baseline's from 1.2 times is little, and the rest of the error rate would be waited for.
pub(super) const WITHIN: f64 = 10.0;
/// And how often at most.
const MAX_WITHIN: f64 = 0.5;
/// Parts of the wealth that the four bets on odds begin with: tails are seldom as little or as much longer as the outer ones fit.
pub(super) const MIDDLE: [f64; 4] = [0.1, 0.4, 0.4, 0.1];
/// Those on differences.
pub(super) const EVEN: [f64; 4] = [0.25; 4];
/// Logarithm of the evidence at which a test restarts. The more it may sink, the later a breach is found; the less, the more starts
/// share alpha.
const FLOOR: f64 = -1.0;
/// Part of the prior that is the first start's: a canary is most often bad from the beginning. With more of it, a breach that begins
/// later takes over twice as many requests to see.
const FIRST: f64 = 0.25;
/// Restarts of about a day.
const LAST: u32 = 2048;
/// Seven tenths of the prior over the harmonic number of [`LAST`], 8.20.
const LATER: f64 = 0.7 / 8.202;
/// The rest over all that follow, whose `1 / (k (k + 1))` add up to `1 / (LAST + 1)`.
const BEYOND: f64 = 0.05 * 2049.0;

/// Logarithms of the evidence that stops a canary: both have to be reached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// That it is worse than the baseline.
    pub(super) alike: f64,
    /// That it is beyond its bound.
    pub(super) within: f64,
}

impl Limits {
    /// Of a test with this part of `false_rollback_rate`.
    pub(super) fn of(part: f64, rate: f64) -> Self {
        let limit = |rate: f64| -(part * rate).ln();
        Self { alike: limit(rate), within: limit((WITHIN * rate).min(MAX_WITHIN)) }
    }

    /// Evidence of both tests as a fraction of what stops the canary, not below 0; `judges` is the logarithm of how many judge it.
    pub(super) fn share(self, judges: f64, test: impl Fn(f64) -> f64, alike: impl Fn(f64) -> f64) -> f64 {
        test(self.within + judges).min(alike(self.alike + judges)).max(0.0)
    }
}

/// What repeats of one conversation count: of a test that restarts when its counts are forgotten.
#[derive(Clone, Debug, Default)]
pub(super) struct Conversations(HashMap<u64, f64>);

impl Conversations {
    /// The weight of another observation of this conversation: one that is known says less each time, because what is slow about it
    /// (a long prompt) is dealt to one revision once.
    pub(super) fn weight(&mut self, conversation: Option<u64>) -> f64 {
        let Some(conversation) = conversation else { return 1.0 };
        if self.0.len() >= MAX_CONVERSATIONS && !self.0.contains_key(&conversation) {
            self.0.clear();
        }
        let seen = self.0.entry(conversation).or_default();
        *seen += 1.0;
        seen.recip()
    }

    /// A turn of this conversation went well: several of them make up for one that did not.
    pub(super) fn went_well(&mut self, conversation: Option<u64>) {
        let Some(conversation) = conversation else { return };
        if let Some(seen) = self.0.get_mut(&conversation) {
            *seen -= FORGIVEN;
            if *seen <= 0.0 {
                self.0.remove(&conversation);
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

const MAX_CONVERSATIONS: usize = 8192;
/// The part of a bad turn that a good one makes up for: a client that goes wrong at every other turn is one event, an engine that fails
/// one request in ten is not.
const FORGIVEN: f64 = 0.1;

/// Odds of bets that the canary is slower, by threshold: the more so the farther out. For bounds on a median, which have one.
pub(super) const SLOWER: Odds = [[1.5; LEVELS], [2.5; LEVELS], [4.0; LEVELS], [8.0; LEVELS]];
/// For bounds on a tail.
pub(super) const LONGER_TAIL: Odds = [[1.3, 1.6, 2.2], [1.6, 2.4, 4.0], [2.0, 3.2, 6.0], [3.0, 6.0, 10.0]];
/// Odds of four bets.
pub(super) type Odds = [[f64; LEVELS]; 4];
/// Thresholds of a test.
pub(super) const LEVELS: usize = 3;
/// Stakes on differences, below 1.
pub(super) const STAKES: [f64; 4] = [0.1, 0.3, 0.6, 0.95];

#[cfg(test)]
mod tests {
    use super::*;

    /// One exceedance of the farthest threshold.
    fn one(is_canary: bool, share: f64) -> Block {
        let (none, one) = ([0.0; LEVELS], [0.0, 0.0, 1.0]);
        Block::of(if is_canary { [none, one] } else { [one, none] }, share)
    }

    #[test]
    fn a_fair_split_has_an_expected_payoff_of_one() {
        for share in [0.05, 0.1, 0.5, 0.9] {
            for odds in [&SLOWER, &LONGER_TAIL] {
                let payoff = |is_canary| {
                    let mut wealth = Wealth::default();
                    wealth.bet_on_odds(&one(is_canary, share), odds);
                    wealth.0.map(f64::exp)
                };
                for (up, down) in payoff(true).iter().zip(payoff(false)) {
                    assert!((share * up + (1.0 - share) * down - 1.0).abs() < 1e-12);
                }
            }
        }
    }

    #[test]
    fn classes_add_up_with_a_fair_share_of_their_own() {
        let mut both = Block::of([[3.0, 0.0, 0.0], [1.0, 0.0, 0.0]], 0.25);
        both.add(&Block::of([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]], 0.5));
        let mut wealth = Wealth::default();
        wealth.bet_on_odds(&both, &LONGER_TAIL);
        assert_eq!(wealth, Wealth::default(), "both had their share");
        let mut worse = Wealth::default();
        both.add(&Block::of([[0.0; 3], [0.0, 0.0, 1.0]], 0.5));
        worse.bet_on_odds(&both, &LONGER_TAIL);
        assert!(worse.0.iter().zip(wealth.0).all(|(worse, fair)| *worse > fair), "{worse:?}");
    }

    #[test]
    fn many_that_exceed_at_once_pay_no_more_on_average_than_one() {
        for (n, share) in [(2_u32, 0.1_f64), (5, 0.1), (20, 0.1), (10, 0.5), (3, 0.9), (40, 0.3)] {
            for odds in [&SLOWER, &LONGER_TAIL] {
                let mut mean = [0.0; 4];
                let mut chance = (1.0 - share).powi(n as i32);
                for canary in 0..=n {
                    let exceeded = [[f64::from(n - canary), 0.0, 0.0], [f64::from(canary), 0.0, 0.0]];
                    let mut wealth = Wealth::default();
                    wealth.bet_on_odds(&Block::of(exceeded, share), odds);
                    mean.iter_mut().zip(wealth.0).for_each(|(mean, log)| *mean += chance * log.exp());
                    chance *= f64::from(n - canary) / f64::from(canary + 1) * share / (1.0 - share);
                }
                assert!(mean.iter().all(|mean| *mean < 1.0 + 1e-9), "{n} {share}: {mean:?}");
            }
        }
    }

    #[test]
    fn worse_than_the_baseline_needs_more_evidence_than_beyond_a_bound_at_any_error_rate() {
        for (part, rate) in [(0.05, 1e-6), (0.3, 0.01), (0.3, 0.2), (1.0, 0.5)] {
            let Limits { alike, within } = Limits::of(part, rate);
            assert!(alike >= within && within > 0.0, "{part} {rate}: {alike} {within}");
        }
        let usual = Limits::of(1.0, 0.01);
        assert!((usual.alike - usual.within - WITHIN.ln()).abs() < 1e-12);
    }

    #[test]
    fn the_parts_of_all_starts_add_up_to_one() {
        let sum: f64 = (0..100_000).map(|k| (-Restarts(k).price()).exp()).sum();
        assert!((0.99..=1.0).contains(&sum), "{sum}");
    }

    #[test]
    fn the_mean_of_wealths_begins_at_one_and_follows_the_best() {
        let (poor, mut rich) = (Wealth::default(), Wealth::default());
        assert!(Wealth::mean(&EVEN, [(0.5, &poor), (0.5, &rich)].into_iter()).abs() < 1e-12);
        for _ in 0..100 {
            rich.bet_on_odds(&one(true, 0.1), &SLOWER);
        }
        let mean = Wealth::mean(&EVEN, [(0.5, &poor), (0.5, &rich)].into_iter());
        assert!(mean > rich.0[3] - 3.0, "{mean} {rich:?}");
    }
}
