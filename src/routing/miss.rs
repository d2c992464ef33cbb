//! What it is worth that a request is predicted to use so much of a bound: the chance that it misses it, and by how much.
//!
//! A prediction errs, so a bound is missed more or less likely around it (logistic). What misses it for certain may miss it by
//! more: were that free, it would be put wherever it can do others no harm, however long it waits there.

use super::tuning::{prices, priors};

/// The price of a prediction, as a multiple of its bound.
#[derive(Clone, Copy)]
pub(super) struct MissCurve {
    /// Part of the bound that is missed as often as kept.
    midpoint: f64,
    /// Parts of it over which a miss becomes e times as likely.
    width: f64,
    /// Missed bounds that each bound of excess is worth.
    excess: f64,
}

/// How a bound is missed.
pub(super) struct Missed {
    /// The chance that it is.
    pub(super) chance: f64,
    /// By how many bounds, where it is expected to be.
    by: f64,
    curve: MissCurve,
}

impl MissCurve {
    /// Of the first token: predictions err by a tenth, and more often come too early.
    pub(super) const TTFT: Self = Self { midpoint: 1.0 - priors::ERROR, width: priors::ERROR, excess: 1.0 };

    /// Of the time per token: a mean over many steps, which leans to neither side.
    pub(super) const TPOT: Self =
        Self { midpoint: 1.0, width: prices::TPOT_WIDTH, excess: prices::TPOT_EXCESS };

    /// By a prediction of so many times the bound.
    #[inline]
    pub(super) fn missed(self, used: f64) -> Missed {
        let far = (self.midpoint - used) / self.width;
        // Far below the bound there is nothing to work out, and most are.
        let chance = if far > SURELY_KEPT { 0.0 } else { 1.0 / (1.0 + far.exp()) };
        Missed { chance, by: if used > 1.0 { used - 1.0 } else { 0.0 }, curve: self }
    }
}

impl Missed {
    /// In missed bounds.
    #[inline]
    pub(super) fn price(&self) -> f64 {
        self.chance + self.curve.excess * self.by
    }

    /// How much more that is for a bound more.
    #[inline]
    pub(super) fn slope(&self) -> f64 {
        let by_more = if self.by > 0.0 { self.curve.excess } else { 0.0 };
        self.chance * (1.0 - self.chance) / self.curve.width + by_more
    }
}

/// Widths before the midpoint at which less than one in a thousand misses.
const SURELY_KEPT: f64 = 7.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_miss_is_a_matter_of_degree() {
        for (used, least, most) in
            [(0.0, 0.0, 0.001), (0.5, 0.0, 0.05), (0.9, 0.49, 0.51), (1.0, 0.7, 0.8), (9.0, 0.999, 1.0)]
        {
            let chance = MissCurve::TTFT.missed(used).chance;
            assert!((least..=most).contains(&chance), "{used} of the bound: {chance}");
        }
        let tokens = [0.8, 0.95, 1.0, 1.05, 1.3].map(|used| MissCurve::TPOT.missed(used).chance);
        assert!(tokens[0] < 0.01 && tokens[1] < 0.2 && tokens[3] > 0.8 && tokens[4] > 0.99, "{tokens:?}");
    }

    #[test]
    fn what_is_missed_by_more_is_dearer_for_ever() {
        for bound in [MissCurve::TTFT, MissCurve::TPOT] {
            let prices = [0.5, 0.9, 1.0, 1.1, 2.0, 10.0, 1000.0].map(|used| bound.missed(used).price());
            assert!(prices.is_sorted_by(|less, more| less < more), "{prices:?}");
            let by_slope = bound.missed(3.0).price() + bound.missed(3.0).slope();
            assert!((bound.missed(4.0).price() - by_slope).abs() < 1e-6);
        }
        assert_eq!(
            (MissCurve::TTFT.missed(0.0).price(), MissCurve::TPOT.missed(0.0).slope()),
            (0.0, 0.0),
            "no bound"
        );
    }
}
