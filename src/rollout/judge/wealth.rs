//! Test martingales: wealth that bets against "the canary is within its bound".
//!
//! If the null holds, wealth is not expected to grow, whatever the load does, and by Ville's inequality it ever reaches
//! 1 / alpha with probability alpha at most: so it may be looked at after every block. Several bets of different sizes run side
//! by side; their mean is a test martingale as well and does nearly as well as the best of them.

use serde::{Deserialize, Serialize};

/// Wealth of four bets, as logarithms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Wealth([f64; 4]);

impl Wealth {
    /// One block of exceedances: `fraction` of them is the canary's, which makes `share` of the requests. A bet on odds `o` pays
    /// `o / (share * o + 1 - share)` for the canary's and `1 / (share * o + 1 - share)` for the baseline's: 1 on average where both
    /// exceed alike. A block counts once, however many exceedances it has: those of one stall are one event.
    pub(super) fn bet_on_odds(&mut self, fraction: f64, share: f64, odds: &[f64; 4]) {
        for (log, odds) in self.0.iter_mut().zip(odds) {
            *log += ((odds - 1.0) * (fraction - share) / (share * odds + 1.0 - share)).ln_1p();
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

/// Odds of bets that the canary is slower.
pub(super) const SLOWER: [f64; 4] = [1.5, 2.5, 4.0, 8.0];
/// Stakes on differences, below 1.
pub(super) const STAKES: [f64; 4] = [0.1, 0.3, 0.6, 0.95];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fair_split_has_an_expected_payoff_of_one() {
        for share in [0.05, 0.1, 0.5, 0.9] {
            let payoff = |fraction| {
                let mut wealth = Wealth::default();
                wealth.bet_on_odds(fraction, share, &SLOWER);
                wealth.0.map(f64::exp)
            };
            let (canary, baseline) = (payoff(1.0), payoff(0.0));
            for (up, down) in canary.iter().zip(baseline) {
                assert!((share * up + (1.0 - share) * down - 1.0).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn the_mean_of_wealths_begins_at_one_and_follows_the_best() {
        let (poor, mut rich) = (Wealth::default(), Wealth::default());
        assert!(Wealth::mean([(0.5, &poor), (0.5, &rich)].into_iter()).abs() < 1e-12);
        for _ in 0..100 {
            rich.bet_on_odds(1.0, 0.1, &SLOWER);
        }
        let mean = Wealth::mean([(0.5, &poor), (0.5, &rich)].into_iter());
        assert!(mean > rich.0[3] - 3.0, "{mean} {rich:?}");
    }
}
