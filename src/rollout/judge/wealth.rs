//! Test martingales: wealth that bets against "the canary is within its bound".
//!
//! If the null holds, wealth is not expected to grow, whatever the load does, and by Ville's inequality it ever reaches
//! 1 / alpha with probability alpha at most: so it may be looked at after every block. Several bets of different sizes run side
//! by side; their mean is a test martingale as well and does nearly as well as the best of them.

use serde::{Deserialize, Serialize};

/// Wealth of four bets, as logarithms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Wealth([f64; 4]);

/// What exceeded thresholds in one block, by the highest of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Block {
    exceeded: [f64; LEVELS],
    /// The canary's exceedances above its fair share of them.
    surplus: [f64; LEVELS],
    /// The fair share, a mean over the classes.
    share: [f64; LEVELS],
}

impl Block {
    /// A block of baseline's and canary's exceedances, where the canary had `share` of the requests.
    pub(super) fn of([baseline, canary]: [[f64; LEVELS]; 2], share: f64) -> Self {
        let mut block = Self { share: [share; LEVELS], ..Self::default() };
        for (((exceeded, surplus), baseline), canary) in
            block.exceeded.iter_mut().zip(&mut block.surplus).zip(baseline).zip(canary)
        {
            *exceeded = baseline + canary;
            *surplus = canary - share * *exceeded;
        }
        block
    }

    /// Takes another class in.
    pub(super) fn add(&mut self, other: &Self) {
        let own = self.exceeded.iter_mut().zip(&mut self.surplus).zip(&mut self.share);
        let others = other.exceeded.iter().zip(&other.surplus).zip(&other.share);
        for (((exceeded, surplus), share), ((more, its_surplus), its_share)) in own.zip(others) {
            let total = *exceeded + more;
            if total > 0.0 {
                *share = (*share * *exceeded + its_share * more) / total;
            }
            *exceeded = total;
            *surplus += its_surplus;
        }
    }
}

impl Wealth {
    /// One block of exceedances. A bet on odds `o` pays `o / (share * o + 1 - share)` for one of the canary's, which makes `share` of
    /// the requests, and `1 / (share * o + 1 - share)` for one of the baseline's: 1 on average where both exceed alike. A block
    /// counts once, however many exceedances it has: those of one stall are one event.
    pub(super) fn bet_on_odds(&mut self, block: &Block, odds: &Odds) {
        let total: f64 = block.exceeded.iter().sum();
        if total <= 0.0 {
            return;
        }
        for (log, odds) in self.0.iter_mut().zip(odds) {
            let mut gain = 0.0;
            for ((surplus, share), odds) in block.surplus.iter().zip(block.share).zip(odds) {
                gain += (odds - 1.0) * surplus / (share * odds + 1.0 - share);
            }
            *log += (gain / total).ln_1p();
        }
    }

    /// One block's difference, -1 to 1, whose mean is not above 0 under the null.
    pub(super) fn bet_on_mean(&mut self, difference: f64, stakes: &[f64; 4]) {
        for (log, stake) in self.0.iter_mut().zip(stakes) {
            *log += (stake * difference).ln_1p();
        }
    }

    /// Logarithm of the mean of several wealths with these weights, which add up to 1.
    pub(super) fn mean<'w>(weighted: impl Iterator<Item = (f64, &'w Self)> + Clone) -> f64 {
        let terms = weighted.flat_map(|(weight, wealth)| wealth.0.map(|log| log + (weight / 4.0).ln()));
        let terms: Vec<f64> = terms.collect();
        let top = terms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        top + terms.iter().map(|term| (term - top).exp()).sum::<f64>().ln()
    }
}

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
        both.add(&Block::of([[0.0; 3], [0.0, 0.0, 1.0]], 0.5));
        wealth.bet_on_odds(&both, &LONGER_TAIL);
        assert!(wealth.0.iter().all(|log| *log > 0.0), "{wealth:?}");
    }

    #[test]
    fn the_mean_of_wealths_begins_at_one_and_follows_the_best() {
        let (poor, mut rich) = (Wealth::default(), Wealth::default());
        assert!(Wealth::mean([(0.5, &poor), (0.5, &rich)].into_iter()).abs() < 1e-12);
        for _ in 0..100 {
            rich.bet_on_odds(&one(true, 0.1), &SLOWER);
        }
        let mean = Wealth::mean([(0.5, &poor), (0.5, &rich)].into_iter());
        assert!(mean > rich.0[3] - 3.0, "{mean} {rich:?}");
    }
}
