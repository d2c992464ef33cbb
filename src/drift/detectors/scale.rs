//! Robust centre and scale of a few numbers, with a prior.
//!
//! A month has 28 days: too few to trust their spread alone. The prior counts as some days more; outliers are pulled
//! in, so that one bad day neither moves the centre nor hides the next bad day by widening the scale.

/// Centre and scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Noise {
    pub(super) center: f64,
    pub(super) scale: f64,
}

/// Winsorised mean and scale; `prior` is a scale and how many values it counts for.
pub(super) fn robust(values: &[f64], prior: (f64, f64)) -> Noise {
    let Some(middle) = median(values) else { return Noise { center: 0.0, scale: prior.0 } };
    let deviations: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    let mad = TO_SIGMA * median(&deviations).unwrap_or(0.0);
    let cut = PULLED_IN * mad.max(prior.0 / 6.0);
    let pulled = || values.iter().map(|value| (value - middle).clamp(-cut, cut));
    let count = values.len() as f64;
    let squares: f64 = pulled().map(|d| d * d).sum::<f64>() * LOST_BY_PULLING;
    let variance = (prior.1 * prior.0 * prior.0 + squares) / (prior.1 + (count - 1.0).max(0.0)).max(1.0);
    Noise { center: middle + pulled().sum::<f64>() / count, scale: variance.sqrt() }
}

/// The median; `None` of nothing.
pub(super) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    let upper = *sorted.get(half)?;
    Some(if sorted.len() % 2 == 1 { upper } else { (sorted[half - 1] + upper) / 2.0 })
}

/// The upper tail of a binomial: at least `hits` of `tries` at `rate`, bounded from above (Chernoff).
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

/// From a median absolute deviation to a standard deviation.
const TO_SIGMA: f64 = 1.4826;
/// Values beyond so many scales are pulled in.
const PULLED_IN: f64 = 2.5;
const LOST_BY_PULLING: f64 = 1.05;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_outlier_moves_neither_centre_nor_scale_much() {
        let quiet: Vec<f64> = (0..28).map(|i| f64::from(i % 5) / 10.0).collect();
        let mut loud = quiet.clone();
        loud[3] = 50.0;
        let (a, b) = (robust(&quiet, (0.3, 8.0)), robust(&loud, (0.3, 8.0)));
        assert!((a.center - b.center).abs() < 0.05 && b.scale < 1.3 * a.scale, "{a:?} {b:?}");
        assert_eq!(robust(&[], (0.3, 8.0)), Noise { center: 0.0, scale: 0.3 });
    }

    #[test]
    fn the_bound_on_a_binomial_tail_is_a_bound() {
        // P(at least 3 of 42 at 1 %) is 0.0086, P(8 of 8) is 1e-16.
        assert!(ln_binomial_tail(3.0, 42.0, 0.01).exp() > 0.0086);
        assert!((ln_binomial_tail(8.0, 8.0, 0.01) - 8.0 * 0.01_f64.ln()).abs() < 1e-9);
        assert_eq!(ln_binomial_tail(0.0, 42.0, 0.01), 0.0);
    }
}
