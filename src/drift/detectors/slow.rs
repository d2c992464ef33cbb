//! Slow drift of a tail over days: 180 to 240 ms in eleven days, with the median where it was.
//!
//! Tested is not the quantile but the number of requests above the baseline's quantile: a third more in p99 is three
//! times as many exceedances. Days differ by far more than chance, so the scale is learned from day to day, never from
//! the number of requests; a weak prior keeps a lucky month from making it small. The last 3 to 7 days are weighted like
//! a ramp, single days are capped, and the last two days must both be up, by [`MIN_EFFECT`] on average. Measured in
//! `docs/drift.md`.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::blocks::BlockHistory;
use crate::stats::{Counts, Prior, median, robust};

/// Which blocks are the baseline, and the score of a finding.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlowSetup {
    /// Age in blocks at which the baseline begins.
    pub(super) from: usize,
    /// Age in blocks at which it ends; half the age of a young series.
    pub(super) to: usize,
    pub(super) min_score: f64,
}

/// A tail that grew.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SlowDrift {
    /// Ramp-weighted mean excess over its standard error.
    pub(super) score: f64,
    /// Days of the window that scored highest.
    pub(super) window: usize,
    /// The quantile whose exceedances were counted.
    pub(super) quantile: f64,
    pub(super) bound: TailBound,
    /// Its value in the baseline, in seconds.
    pub(super) baseline: f64,
    /// Its value in the last two blocks, in seconds.
    pub(super) now: f64,
    /// Exceedances of the last two blocks over those of the baseline.
    pub(super) exceedance_ratio: f64,
    pub(super) median: MedianMove,
    /// Median of the last blocks over that of the baseline.
    pub(super) median_ratio: f64,
    /// Blocks in the baseline.
    pub(super) baseline_blocks: usize,
}

/// A tail that was found to grow: what it is held against until it is back.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct TailBound {
    /// Microseconds from which requests are counted.
    pub(super) from: u32,
    /// Their share in the baseline.
    pub(super) share: f64,
}

/// Whether the last two blocks still have more slow requests than before the drift; `None` where too few came.
pub(super) fn goes_on(blocks: &BlockHistory, bound: &TailBound) -> Option<bool> {
    let recent = pooled(blocks, 0..2);
    let expected = recent.count() as f64 * bound.share;
    (expected >= MIN_EXPECTED).then(|| recent.count_from(bound.from) as f64 > CLEAR_EFFECT * expected)
}

/// The share of values that are large for the baseline (its largest tenth), in the last two blocks and in the baseline.
pub(super) fn large_share(blocks: &BlockHistory, setup: &SlowSetup) -> Option<(f64, f64)> {
    let age = blocks.age();
    let to = setup.to.min(age / 2);
    let (recent, before) = (pooled(blocks, 0..2), pooled(blocks, to..setup.from.min(age)));
    let (from, share) = before.tail(0.1)?;
    (recent.count() > 0).then(|| (recent.count_from(from) as f64 / recent.count() as f64, share))
}

/// Whether the 90 % interval of the median's change lies within 5 %, excludes no change, or neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MedianMove {
    Flat,
    Moved,
    Unclear,
}

/// Judges the closed blocks.
pub(super) fn judge(blocks: &BlockHistory, setup: &SlowSetup) -> Option<SlowDrift> {
    let age = blocks.age();
    let to = setup.to.min(age / 2);
    let from = setup.from.min(age);
    if to < MIN_DAYS || from < to + MIN_DAYS {
        return None;
    }
    let tail = Tail::of(blocks, to..from)?;
    let rates = tail.rates(blocks, from);
    let baseline: Vec<f64> = rates.get(to..)?.iter().flatten().map(|rate| rate.excess).collect();
    if baseline.len() < MIN_DAYS {
        return None;
    }
    let noise = robust(&baseline, DAILY_NOISE);
    let recent: Vec<f64> = rates
        .iter()
        .take(to.min(MAX_DAYS))
        .map_while(|rate| Some(rate.as_ref()?.excess - noise.center))
        .collect();
    let (last, before) = (*recent.first()?, *recent.get(1)?);
    let effect = (last + before) / 2.0;
    if last <= 0.0 || before <= 0.0 || effect < MIN_EFFECT.ln() {
        return None;
    }
    // The baseline's noise contains that of its counts (Poisson, 1 / expected); fewer requests now add to it.
    let expected = |rates: &[Option<Exceedances>]| {
        let known: Vec<f64> = rates.iter().flatten().map(|rate| rate.expected).collect();
        median(&known).unwrap_or(1.0).max(1.0)
    };
    let fewer = 1.0 / expected(&rates[..recent.len()]) - 1.0 / expected(&rates[to..]);
    let scale = (noise.scale.powi(2) + fewer.max(0.0)).sqrt();
    let (score, window) = highest_score(&recent, scale, baseline.len())?;
    if score < setup.min_score - SCORE_PER_SCALE * (EVEN_DAYS - noise.scale).max(0.0) {
        return None;
    }
    let (median, median_ratio) = median_move(blocks, to..from)?;
    Some(SlowDrift {
        score,
        window,
        quantile: tail.quantile,
        bound: tail.bound,
        baseline: f64::from(tail.bound.from) * 1e-6,
        now: pooled(blocks, 0..2).ln_quantile(tail.quantile)?.exp(),
        exceedance_ratio: effect.exp(),
        median,
        median_ratio,
        baseline_blocks: baseline.len(),
    })
}

/// The highest score over windows of the last days, with its length in days. `recent` is above the baseline's centre,
/// `scale` is that of a day, `baseline_days` is what the centre was learned from.
fn highest_score(recent: &[f64], scale: f64, baseline_days: usize) -> Option<(f64, usize)> {
    let score = |window: usize| {
        let (mut sum, mut squares, mut weights) = (0.0, 0.0, 0.0);
        for (age, excess) in recent.iter().take(window).enumerate() {
            let weight = (window - age) as f64 - 0.5;
            sum += weight * excess.min(MAX_DAY * scale);
            squares += weight * weight;
            weights += weight;
        }
        // The centre is an estimate too, and its error is the same in every day of the window.
        let variance = squares + weights * weights * CENTER_VARIANCE / baseline_days as f64;
        (sum / (scale * variance.sqrt()), window)
    };
    (MIN_DAYS..=recent.len()).map(score).max_by(|a, b| a.0.total_cmp(&b.0))
}

/// What counts as an exceedance.
struct Tail {
    quantile: f64,
    bound: TailBound,
}

/// Exceedances of one block.
#[derive(Clone, Copy, Debug)]
struct Exceedances {
    /// Logarithm of exceedances over expected ones.
    excess: f64,
    /// By the baseline's share.
    expected: f64,
}

impl Tail {
    /// The highest quantile with enough exceedances in a block of the baseline.
    fn of(blocks: &BlockHistory, baseline: Range<usize>) -> Option<Self> {
        let length = baseline.len() as f64;
        let all = pooled(blocks, baseline);
        let per_block = all.count() as f64 / length;
        let quantile = QUANTILES.into_iter().find(|q| per_block * (1.0 - q) >= MIN_IN_BASELINE_BLOCK)?;
        let (from, share) = all.tail(1.0 - quantile)?;
        Some(Self { quantile, bound: TailBound { from, share } })
    }

    /// Exceedances by age in blocks; `None` where too few are expected.
    fn rates(&self, blocks: &BlockHistory, count: usize) -> Vec<Option<Exceedances>> {
        let mut sums = vec![(0_u64, 0_u64); count];
        for (age, part) in blocks.aged() {
            if let Some((over, all)) = sums.get_mut(age) {
                *over += part.count_from(self.bound.from);
                *all += part.count();
            }
        }
        let rate = |(over, all): (u64, u64)| {
            let expected = all as f64 * self.bound.share;
            let excess = ((over as f64 + 0.5) / (expected + 0.5)).ln();
            (expected >= MIN_EXPECTED).then_some(Exceedances { excess, expected })
        };
        sums.into_iter().map(rate).collect()
    }
}

fn pooled(blocks: &BlockHistory, ages: Range<usize>) -> Counts {
    Counts::merged(blocks.aged().filter(|(age, _)| ages.contains(age)).map(|(_, part)| part))
}

/// Whether the median moved, and its ratio.
fn median_move(blocks: &BlockHistory, baseline: Range<usize>) -> Option<(MedianMove, f64)> {
    let of = |age: usize| pooled(blocks, age..age + 1).ln_quantile(0.5);
    let before: Vec<f64> = baseline.filter_map(of).collect();
    let recent: Vec<f64> = (0..MIN_DAYS).filter_map(of).collect();
    let noise = robust(&before, MEDIAN_NOISE);
    let (recent_days, days) = (recent.len().max(1) as f64, before.len().max(1) as f64);
    let shift = recent.iter().sum::<f64>() / recent_days - noise.center;
    let half_interval = Z_90 * noise.scale * (1.0 / recent_days + 1.0 / days).sqrt();
    let median = if shift.abs() + half_interval < MAX_FLAT {
        MedianMove::Flat
    } else if shift.abs() > MAX_FLAT.max(half_interval) {
        MedianMove::Moved
    } else {
        MedianMove::Unclear
    };
    Some((median, shift.exp()))
}

/// Days of the shortest and the longest window: two days are no trend, longer ones lose to the baseline's reach.
const MIN_DAYS: usize = 3;
const MAX_DAYS: usize = 7;
/// Scales that a single day counts for: lower loses a drift that has come far, higher lets bad days in.
const MAX_DAY: f64 = 2.3;
/// Mean exceedances of the last two days over the baseline's.
const MIN_EFFECT: f64 = 1.65;
/// A drift that was found is over below this.
const CLEAR_EFFECT: f64 = 1.25;
/// Where days are more even than this scale, `MIN_EFFECT` is many scales of noise and chance seldom reaches it: the
/// score may be lower by this much for each unit of scale.
const EVEN_DAYS: f64 = 0.31;
const SCORE_PER_SCALE: f64 = 3.0;
/// Noise of a day's exceedances (logarithm).
const DAILY_NOISE: Prior = Prior { scale: 0.35, weight: 8.0 };
/// Noise of a day's median (logarithm).
const MEDIAN_NOISE: Prior = Prior { scale: 0.01, weight: 4.0 };
/// Variance of the robust centre over that of a mean.
const CENTER_VARIANCE: f64 = 1.1;
/// The median is flat within this (logarithm).
const MAX_FLAT: f64 = 0.05;
/// Half of a two-sided 90 % interval, in standard errors.
const Z_90: f64 = 1.645;
const QUANTILES: [f64; 3] = [0.99, 0.95, 0.9];
/// Exceedances in a block of the baseline that make a quantile usable.
const MIN_IN_BASELINE_BLOCK: f64 = 20.0;
/// Expected exceedances of a block that counts.
const MIN_EXPECTED: f64 = 5.0;

#[cfg(test)]
mod tests {
    use super::super::table::SLOW_SCORE;
    use super::*;

    const SETUP: SlowSetup = SlowSetup { from: 35, to: 7, min_score: SLOW_SCORE };

    /// `days` of 500 requests an hour, lognormal with median 60 ms; p99 as `p99(day)` says.
    fn blocks(days: u32, p99: impl Fn(f64) -> f64, median_ms: impl Fn(f64) -> f64) -> BlockHistory {
        let mut random = fastrand::Rng::with_seed(7);
        let mut blocks = BlockHistory::new(86_400.0, 35.0 * 86_400.0);
        for request in 0..days * 12_000 {
            let at = f64::from(request) * 7.2;
            let day = at / 86_400.0;
            let sigma = (p99(day) / 60.0).ln() / 2.326;
            let normal = crate::stats::normal(&mut random);
            blocks.add(at, median_ms(day) * 1e-3 * (sigma * normal).exp());
        }
        blocks.advance(f64::from(days) * 86_400.0);
        blocks
    }

    #[test]
    fn a_growing_tail_with_a_flat_median_is_found_and_its_median_is_called_flat() {
        let drifting = |day: f64| 180.0 + 60.0 * ((day - 20.0) / 11.0).clamp(0.0, 1.0);
        let found = judge(&blocks(26, drifting, |_| 60.0), &SETUP).unwrap();
        assert_eq!((found.quantile, found.median), (0.99, MedianMove::Flat), "{found:?}");
        assert!(found.exceedance_ratio > 1.5 && (0.19..0.24).contains(&found.now), "{found:?}");
        assert!((found.baseline - 0.18).abs() < 0.01, "{found:?}");
    }

    #[test]
    fn a_stationary_series_and_one_that_is_too_young_are_not_findings() {
        assert_eq!(judge(&blocks(30, |_| 180.0, |_| 60.0), &SETUP), None);
        let steep = |day: f64| 180.0 + 40.0 * day;
        assert_eq!(judge(&blocks(5, steep, |_| 60.0), &SETUP), None);
    }

    #[test]
    fn a_shift_of_everything_is_not_called_a_tail() {
        let slower = |day: f64| if day < 20.0 { 60.0 } else { 75.0 };
        let found = judge(&blocks(25, |_| 180.0, slower), &SETUP).unwrap();
        assert_eq!(found.median, MedianMove::Moved, "{found:?}");
    }
}
