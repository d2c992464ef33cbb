//! Robust statistics of a few numbers: quantiles, trimmed mean, centre and scale with a prior, binomial tail.
//!
//! A month has 28 days: too few to trust their spread alone. The prior counts as further values; outliers are winsorised,
//! so that one bad day neither moves the centre nor hides the next one by widening the scale.

/// Centre and scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    /// Winsorised mean.
    pub center: f64,
    /// Standard deviation.
    pub scale: f64,
}

/// A scale that is assumed until the values show their own.
#[derive(Clone, Copy, Debug)]
pub struct Prior {
    /// Standard deviation.
    pub scale: f64,
    /// The number of values that it counts for.
    pub weight: f64,
}

/// Winsorised mean and scale.
pub fn robust(values: &[f64], prior: Prior) -> Noise {
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

/// The median, the mean of the middle two where there are two; `None` of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    Some(f64::midpoint(lower_quantile(&mut values, 0.5)?, upper_quantile(&mut values, 0.5)?))
}

/// The quantile by the rank `(n - 1) × quantile`, rounded down; `None` of nothing. Reorders the values.
pub fn lower_quantile(values: &mut [f64], quantile: f64) -> Option<f64> {
    let last = values.len().checked_sub(1)?;
    Some(nth(values, (last as f64 * quantile) as usize))
}

/// The quantile by the rank `n × quantile`, rounded down; `None` of nothing. Reorders the values.
pub fn upper_quantile(values: &mut [f64], quantile: f64) -> Option<f64> {
    let last = values.len().checked_sub(1)?;
    Some(nth(values, ((values.len() as f64 * quantile) as usize).min(last)))
}

fn nth(values: &mut [f64], at: usize) -> f64 {
    *values.select_nth_unstable_by(at, f64::total_cmp).1
}

/// Mean without [`TRIMMED`] of the values at either end; `None` of nothing.
pub fn trimmed_mean(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let cut = (values.len() as f64 * TRIMMED) as usize;
    let inside = values.get(cut..values.len() - cut).filter(|inside| !inside.is_empty())?;
    Some(inside.iter().sum::<f64>() / inside.len() as f64)
}

/// Logarithm of the probability of at least `hits` of `tries` at `rate`, bounded from above (Chernoff).
pub fn ln_binomial_tail(hits: f64, tries: f64, rate: f64) -> f64 {
    let share = hits / tries.max(1.0);
    if share <= rate {
        return 0.0;
    }
    let part = |a: f64, b: f64| if a <= 0.0 { 0.0 } else { a * (a / b).ln() };
    -tries * (part(share, rate) + part(1.0 - share, 1.0 - rate))
}

/// A standard normal number.
pub fn normal(random: &mut fastrand::Rng) -> f64 {
    (-2.0 * (1.0 - random.f64()).ln()).sqrt() * (std::f64::consts::TAU * random.f64()).cos()
}

/// Standard error of the median over that of the mean, for normal values.
pub const MEDIAN_ERROR: f64 = 1.25;
/// Standard error of the 90th percentile over that of the mean, for normal values.
pub const P90_ERROR: f64 = 1.8;
/// Half of a two-sided 90 % interval, in standard errors, for normal values.
pub const INTERVAL_90: f64 = 1.645;
/// Share that a trimmed mean leaves out at either end.
pub const TRIMMED: f64 = 0.1;
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

    #[test]
    fn quantiles_of_few_values_are_among_them_and_the_median_is_between() {
        for (values, lower, upper, middle) in [
            (&mut [0.0, 0.9, 0.8][..], 0.8, 0.8, 0.8),
            (&mut [0.9, 0.0], 0.0, 0.9, 0.45),
            (&mut [0.9, 0.0, 0.0, 0.2], 0.0, 0.2, 0.1),
        ] {
            assert_eq!(
                (lower_quantile(values, 0.5), upper_quantile(values, 0.5)),
                (Some(lower), Some(upper))
            );
            assert_eq!(median(values), Some(middle));
            assert_eq!((lower_quantile(values, 1.0), upper_quantile(values, 1.0)), (Some(0.9), Some(0.9)));
        }
        let nothing = (lower_quantile(&mut [], 0.5), upper_quantile(&mut [], 0.5), median(&[]));
        assert_eq!((nothing, trimmed_mean(Vec::new())), ((None, None, None), None));
        assert_eq!(
            trimmed_mean((0..10).map(|n| if n == 9 { 99.0 } else { f64::from(n) }).collect()),
            Some(4.5)
        );
    }
}
