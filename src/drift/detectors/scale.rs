//! Robust centre and scale of a few numbers, with a prior; errors of quantiles; binomial tails.
//!
//! A month has 28 days: too few to trust their spread alone. The prior counts as further values; outliers are winsorised,
//! so that one bad day neither moves the centre nor hides the next one by widening the scale.

/// Centre and scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Noise {
    pub(super) center: f64,
    pub(super) scale: f64,
}

/// A scale that is assumed until the values show their own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prior {
    pub(super) scale: f64,
    /// The number of values that it counts for.
    pub(super) weight: f64,
}

/// Noise of an hour's median from hour to hour, as a logarithm; a day shows a series' own.
pub(super) const HOURLY_NOISE: Prior = Prior { scale: 0.05, weight: 6.0 };

/// Winsorised mean and scale.
pub(super) fn robust(values: &[f64], prior: Prior) -> Noise {
    let Some(middle) = median(values) else { return Noise { center: 0.0, scale: prior.scale } };
    let deviations: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    let mad = SIGMA_PER_MAD * median(&deviations).unwrap_or(0.0);
    // Values that happen to be equal must not make every other value an outlier.
    let cut = MAX_DEVIATION * mad.max(prior.scale / 6.0);
    let winsorised = || values.iter().map(|value| (value - middle).clamp(-cut, cut));
    let count = values.len() as f64;
    let squares: f64 = winsorised().map(|d| d * d).sum::<f64>() * WINSORISED_VARIANCE;
    let variance =
        (prior.weight * prior.scale.powi(2) + squares) / (prior.weight + (count - 1.0).max(0.0)).max(1.0);
    Noise { center: middle + winsorised().sum::<f64>() / count, scale: variance.sqrt() }
}

/// The median; `None` of nothing.
pub(super) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    let upper = *sorted.get(half)?;
    Some(if sorted.len() % 2 == 1 { upper } else { (sorted[half - 1] + upper) / 2.0 })
}

/// Logarithm of the chance of at least `hits` of `tries` at `rate`, bounded from above (Chernoff).
pub(super) fn ln_binomial_tail(hits: f64, tries: f64, rate: f64) -> f64 {
    let share = hits / tries.max(1.0);
    if share <= rate {
        return 0.0;
    }
    let part = |a: f64, b: f64| if a <= 0.0 { 0.0 } else { a * (a / b).ln() };
    -tries * (part(share, rate) + part(1.0 - share, 1.0 - rate))
}

/// A standard normal number.
#[cfg(test)]
pub(super) fn normal(random: &mut fastrand::Rng) -> f64 {
    (-2.0 * (1.0 - random.f64()).ln()).sqrt() * (std::f64::consts::TAU * random.f64()).cos()
}

/// Standard error of a quantile over that of the mean, for normal values.
pub(super) const MEDIAN_ERROR: f64 = 1.25;
pub(super) const P90_ERROR: f64 = 1.8;
/// From a median absolute deviation to a standard deviation, for normal values.
const SIGMA_PER_MAD: f64 = 1.4826;
/// Standard deviations at which values are cut off.
const MAX_DEVIATION: f64 = 2.5;
/// Variance of normal values over that of the same values cut off there.
const WINSORISED_VARIANCE: f64 = 1.05;

#[cfg(test)]
mod tests {
    use super::*;

    const PRIOR: Prior = Prior { scale: 0.3, weight: 8.0 };

    #[test]
    fn one_outlier_moves_neither_centre_nor_scale_much() {
        let quiet: Vec<f64> = (0..28).map(|i| f64::from(i % 5) / 10.0).collect();
        let mut loud = quiet.clone();
        loud[3] = 50.0;
        let (a, b) = (robust(&quiet, PRIOR), robust(&loud, PRIOR));
        assert!((a.center - b.center).abs() < 0.05 && b.scale < 1.3 * a.scale, "{a:?} {b:?}");
        assert_eq!(robust(&[], PRIOR), Noise { center: 0.0, scale: 0.3 });
    }

    #[test]
    fn the_bound_on_a_binomial_tail_is_a_bound() {
        // P(at least 3 of 42 at 1 %) is 0.0086, P(8 of 8) is 1e-16.
        assert!(ln_binomial_tail(3.0, 42.0, 0.01).exp() > 0.0086);
        assert!((ln_binomial_tail(8.0, 8.0, 0.01) - 8.0 * 0.01_f64.ln()).abs() < 1e-9);
        assert_eq!(ln_binomial_tail(0.0, 42.0, 0.01), 0.0);
    }
}
