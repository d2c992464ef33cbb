//! Latency distributions with a median of 60 ms whose p99 is made to drift: log-normal, log-logistic, Weibull.
//!
//! All three are `60 ms * exp(shape * G(u))`, with another `G` each. Noise acts on the share of requests over 180 ms,
//! as in the research that set the goals, by bending the shape; the median never moves.

use super::super::histogram::{BINS, Dense, edge};
use super::super::scale::normal;

#[derive(Clone, Copy, Debug)]
pub(super) enum Family {
    Lognormal,
    /// A power law: the heaviest tail.
    LogLogistic,
    /// The lightest.
    Weibull,
}

pub(super) struct Shape {
    family: Family,
    shape: f64,
}

impl Shape {
    /// After `days` of a drift from 180 to 240 ms in eleven, with this much noise (logarithm).
    pub(super) fn new(family: Family, days: f64, noise: f64) -> Self {
        let p99 = 180.0 + 60.0 * (days / 11.0).clamp(0.0, 1.0);
        let shape = (p99 / 60.0_f64).ln() / family.quantile(0.99);
        let over = 1.0 - family.share(3.0_f64.ln() / shape);
        let over = (over * noise.exp()).clamp(1e-5, 0.3);
        Self { family, shape: 3.0_f64.ln() / family.quantile(1.0 - over) }
    }

    /// One value.
    pub(super) fn draw(&self, random: &mut fastrand::Rng) -> f64 {
        let g = match self.family {
            Family::Lognormal => normal(random),
            family => family.quantile(random.f64().clamp(1e-9, 1.0 - 1e-9)),
        };
        0.06 * (self.shape * g).exp()
    }

    /// Adds the numbers of values to be expected between the edges of `grid`, each at the bin that it begins with.
    pub(super) fn expect(&self, expected: f64, grid: &[usize], into: &mut [f64; BINS]) {
        let share = |bin: usize| self.family.share((edge(bin) / 0.06).ln() / self.shape);
        let mut below = 0.0;
        for (at, bin) in grid.iter().enumerate() {
            let until = grid.get(at + 1).map_or(1.0, |next| share(*next));
            into[*bin] += expected * (until - below);
            below = until;
        }
    }
}

/// Every bin from 2 ms on.
pub(super) fn every_bin() -> Vec<usize> {
    (152..BINS).collect()
}

/// What slow drift looks at: exceedances of a p99 that is somewhere near 180 ms. What is far below or above is one bin.
pub(super) fn bins_of_the_tail() -> Vec<usize> {
    std::iter::once(200).chain(270..=302).collect()
}

/// A Poisson number of values in each bin. A sum of Poisson numbers is one: so hours are added up before it is drawn.
pub(super) fn sample(random: &mut fastrand::Rng, expected: &[f64; BINS], into: &mut Dense) {
    for (bin, mean) in expected.iter().enumerate().filter(|(_, mean)| **mean > 0.0) {
        into.add_many(edge(bin) * 1.01, poisson(random, *mean));
    }
}

impl Family {
    /// `G(u)`
    fn quantile(self, u: f64) -> f64 {
        match self {
            Self::Lognormal => normal_quantile(u),
            Self::LogLogistic => (u / (1.0 - u)).ln(),
            Self::Weibull => (-(1.0 - u).ln() / std::f64::consts::LN_2).ln(),
        }
    }

    /// `u` of `G(u)`
    pub(super) fn share(self, g: f64) -> f64 {
        match self {
            Self::Lognormal => normal_share(g),
            Self::LogLogistic => 1.0 / (1.0 + (-g).exp()),
            Self::Weibull => 1.0 - (-(g.exp() * std::f64::consts::LN_2)).exp(),
        }
    }
}

fn poisson(random: &mut fastrand::Rng, mean: f64) -> u32 {
    if mean > 16.0 {
        return (mean + mean.sqrt() * normal(random)).round().max(0.0) as u32;
    }
    if mean < 1e-12 {
        return 0;
    }
    let (limit, mut product, mut count) = ((-mean).exp(), random.f64(), 0);
    while product > limit {
        product *= random.f64();
        count += 1;
    }
    count
}

/// Abramowitz and Stegun 26.2.17, good to 1e-7.
fn normal_share(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let poly = t
        * (0.319_381_530
            + t * (-0.356_563_782 + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    let upper = (-z * z / 2.0).exp() / std::f64::consts::TAU.sqrt() * poly;
    if z > 0.0 { 1.0 - upper } else { upper }
}

/// By bisection: exact enough, and the study draws few shapes.
fn normal_quantile(u: f64) -> f64 {
    let (mut low, mut high) = (-6.0, 6.0);
    for _ in 0..40 {
        let middle = (low + high) / 2.0;
        if normal_share(middle) < u {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low + high) / 2.0
}

#[test]
fn families_have_the_median_and_the_p99_that_they_are_made_for() {
    for family in [Family::Lognormal, Family::LogLogistic, Family::Weibull] {
        for (days, p99) in [(0.0, 0.18), (11.0, 0.24)] {
            let mut random = fastrand::Rng::with_seed(1);
            let mut dense = Dense::default();
            let mut expected = [0.0; BINS];
            Shape::new(family, days, 0.0).expect(300_000.0, &every_bin(), &mut expected);
            sample(&mut random, &expected, &mut dense);
            let of = |q| dense.ln_quantile(q).unwrap().exp();
            assert!((of(0.5) / 0.06 - 1.0).abs() < 0.02, "{family:?}: {}", of(0.5));
            assert!((of(0.99) / p99 - 1.0).abs() < 0.03, "{family:?}: {}", of(0.99));
        }
    }
}
