//! What no detector can beat: one that knows all that has to be learned, on the share of slow requests alone.
//!
//! It knows the scale of days and of hours, the centre, where a day begins, and the shape of the drift; all that it does
//! not know is when the drift began. For each length of it, the parts of four hours are weighed by the inverse of their
//! covariance (parts of a day share its noise); the highest score over all lengths is the statistic. With normal noise
//! that is as good as a test can be: what it misses at one false alarm a year, others miss too.

use super::super::blocks::PARTS;
use super::super::scale::normal;
use super::tails::Family;
use super::{CELLS, QUIET_DAYS};

/// Logarithm of how many times more requests are over 180 ms after so many days of drift.
fn excess(days: f64) -> f64 {
    let p99 = 180.0 + 60.0 * (days / 11.0).clamp(0.0, 1.0);
    let shape = (p99 / 60.0_f64).ln() / 2.3263;
    ((1.0 - Family::Lognormal.share(3.0_f64.ln() / shape)) / 0.01).ln()
}

struct Known {
    day: f64,
    part: f64,
    /// By part of the day that a window ends in, one for each length.
    filters: Vec<Vec<Vec<f64>>>,
}

impl Known {
    fn new(per_hour: f64, od: f64) -> Self {
        let part = (od * od * PARTS as f64 / 24.0 + PARTS as f64 / (24.0 * per_hour * 0.01)).sqrt();
        let filters = (0..PARTS)
            .map(|phase| (2 * PARTS..=LONGEST).step_by(3).map(|n| filter(phase, n, (od, part))).collect())
            .collect();
        Self { day: od, part, filters }
    }

    fn series(&self, random: &mut fastrand::Rng, days: usize, start: f64) -> Vec<f64> {
        let mut parts = Vec::with_capacity(days * PARTS);
        for day in 0..days {
            let of_day = self.day * normal(random);
            for part in 0..PARTS {
                let since = day as f64 + (part as f64 + 0.5) / PARTS as f64 - start;
                parts.push(of_day + self.part * normal(random) + excess(since.max(0.0)));
            }
        }
        parts
    }

    /// The score at the end of each part.
    fn scores(&self, parts: &[f64]) -> Vec<f64> {
        let score = |end: usize| {
            let filters = self.filters[end % PARTS].iter();
            let of = |filter: &Vec<f64>| {
                let window = &parts[end + 1 - filter.len()..=end];
                window.iter().zip(filter).map(|(value, weight)| value * weight).sum()
            };
            filters.map(of).fold(f64::NEG_INFINITY, f64::max)
        };
        (0..parts.len()).map(|end| if end < LONGEST { f64::NEG_INFINITY } else { score(end) }).collect()
    }
}

/// The matched filter of a drift that began `length` parts ago, scaled to unit noise.
fn filter(phase: usize, length: usize, noise: (f64, f64)) -> Vec<f64> {
    let (day, part) = (noise.0 * noise.0, noise.1 * noise.1);
    let drift: Vec<f64> = (0..length).map(|at| excess((at as f64 + 0.5) / PARTS as f64)).collect();
    // The day of each part, counted from one that is before all.
    let day_of = |at: usize| (at + phase + 1 + LONGEST * PARTS - length) / PARTS;
    let weights: Vec<f64> = (0..length)
        .map(|at| {
            let same = || (0..length).filter(|other| day_of(*other) == day_of(at));
            let sum: f64 = same().map(|other| drift[other]).sum();
            (drift[at] - day * sum / (part + same().count() as f64 * day)) / part
        })
        .collect();
    let power: f64 = weights.iter().zip(&drift).map(|(weight, drift)| weight * drift).sum();
    weights.iter().map(|weight| weight / power.sqrt()).collect()
}

const LONGEST: usize = 9 * PARTS;
const START: usize = 15;

#[test]
#[ignore = "run by hand as docs/drift.md says"]
fn of_any_detector() {
    for cell in CELLS {
        let mut random = fastrand::Rng::with_seed(1);
        let known = Known::new(cell.per_hour, cell.dispersion);
        let mut scores = |days: usize, start: f64| {
            let parts = known.series(&mut random, days, start);
            known.scores(&parts)
        };
        let years: Vec<Vec<f64>> = (0..300).map(|_| scores(374, f64::INFINITY)).collect();
        let drifts: Vec<Vec<f64>> = (0..1500).map(|_| scores(40, START as f64)).collect();
        for threshold in [3.1, 3.3, 3.5] {
            let mut alarms = 0;
            for year in &years {
                let mut quiet = 0;
                for (at, score) in year.iter().enumerate() {
                    if *score > threshold && at >= quiet {
                        alarms += 1;
                        quiet = at + QUIET_DAYS * PARTS;
                    }
                }
            }
            let found = |drift: &Vec<f64>| {
                let first = drift[START * PARTS..].iter().position(|score| *score > threshold);
                first.map_or(f64::INFINITY, |at| (at + 1) as f64 / PARTS as f64)
            };
            let mut delays: Vec<f64> = drifts.iter().map(found).collect();
            delays.sort_by(f64::total_cmp);
            println!(
                "{} an hour, od {}: {:.2} false alarms a year, found on day {:.1} / {:.1}",
                cell.per_hour,
                cell.dispersion,
                f64::from(alarms) / years.len() as f64,
                delays[delays.len() / 2],
                delays[delays.len() * 9 / 10],
            );
        }
    }
}
