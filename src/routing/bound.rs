//! What it is worth that a request is predicted to use so much of a bound: the chance that it misses it, and by how much.
//!
//! A prediction errs, so a bound is missed more or less likely around it (logistic). What misses it for certain may miss it by
//! more: were that free, it would be put wherever it can do others no harm, however long it waits there.

/// How well it is known what part of a bound will be used, and what more of it is worth.
#[derive(Clone, Copy)]
pub(super) struct Bound {
    /// Part of it that is missed as often as kept.
    even_at: f64,
    /// Parts of it over which a miss becomes e times as likely.
    within: f64,
    /// Missed bounds that each bound of excess is worth. The more, the fewer are very late, and the more are late.
    excess: f64,
}

/// How a bound is missed.
pub(super) struct Missed {
    /// The chance that it is.
    pub(super) chance: f64,
    /// By how many bounds, where it is expected to be.
    by: f64,
    bound: Bound,
}

impl Bound {
    /// On the first token.
    pub(super) fn on_ttft() -> Self {
        Self { even_at: LATE_AT, within: LATE_WITHIN, excess: LATER }
    }

    /// On the time per token.
    pub(super) fn on_tpot() -> Self {
        Self { even_at: SLOW_AT, within: SLOW_WITHIN, excess: SLOWER }
    }

    /// By a prediction that is so many times the bound.
    #[inline]
    pub(super) fn missed(self, used: f64) -> Missed {
        let far = (self.even_at - used) / self.within;
        // Far below the bound there is nothing to work out, and most are.
        let chance = if far > SURELY_KEPT { 0.0 } else { 1.0 / (1.0 + far.exp()) };
        Missed { chance, by: if used > 1.0 { used - 1.0 } else { 0.0 }, bound: self }
    }
}

impl Missed {
    /// In missed bounds.
    #[inline]
    pub(super) fn price(&self) -> f64 {
        self.chance + self.bound.excess * self.by
    }

    /// How much more that is for a bound more.
    #[inline]
    pub(super) fn slope(&self) -> f64 {
        let by_more = if self.by > 0.0 { self.bound.excess } else { 0.0 };
        self.chance * (1.0 - self.chance) / self.bound.within + by_more
    }
}

/// Share of the bound on TTFT at which a miss is as likely as not: predictions err by a tenth, ...
const LATE_AT: f64 = 0.9;
/// ... and shares of it over which a miss becomes e times as likely.
const LATE_WITHIN: f64 = 0.1;
/// Missed bounds that each bound more is worth. The more, the fewer are very late, and the more are late.
const LATER: f64 = 1.0;
/// The same for the bound on TPOT. The mean over the tokens of an answer varies less, ...
const SLOW_AT: f64 = 1.0;
/// ... by a few hundredths, ...
const SLOW_WITHIN: f64 = 0.03;
/// ... and whoever reads it loses less by what comes slower.
const SLOWER: f64 = 0.3;
/// Times over which a miss becomes e times as likely before less than one in a thousand misses: a hundredth of a second.
const SURELY_KEPT: f64 = 7.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_miss_is_a_matter_of_degree() {
        for (used, least, most) in
            [(0.0, 0.0, 0.001), (0.5, 0.0, 0.05), (0.9, 0.49, 0.51), (1.0, 0.7, 0.8), (9.0, 0.999, 1.0)]
        {
            let chance = Bound::on_ttft().missed(used).chance;
            assert!((least..=most).contains(&chance), "{used} of the bound: {chance}");
        }
        let tokens = [0.8, 0.95, 1.0, 1.05, 1.3].map(|used| Bound::on_tpot().missed(used).chance);
        assert!(tokens[0] < 0.01 && tokens[1] < 0.2 && tokens[3] > 0.8 && tokens[4] > 0.99, "{tokens:?}");
    }

    #[test]
    fn what_is_missed_by_more_is_dearer_for_ever() {
        for bound in [Bound::on_ttft(), Bound::on_tpot()] {
            let prices = [0.5, 0.9, 1.0, 1.1, 2.0, 10.0, 1000.0].map(|used| bound.missed(used).price());
            assert!(prices.is_sorted_by(|less, more| less < more), "{prices:?}");
            let by_slope = bound.missed(3.0).price() + bound.missed(3.0).slope();
            assert!((bound.missed(4.0).price() - by_slope).abs() < 1e-6);
        }
        assert_eq!(
            (Bound::on_ttft().missed(0.0).price(), Bound::on_tpot().missed(0.0).slope()),
            (0.0, 0.0),
            "no bound"
        );
    }
}
