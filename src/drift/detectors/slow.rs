//! Slow drift of a tail over days: 180 to 240 ms in eleven days, with the median where it was.
//!
//! Tested is not the quantile but the number of requests above the baseline's quantile: a third more in p99 is three
//! times as many exceedances. Days differ by far more than chance, so the scale is learned from day to day, never from
//! the number of requests; a weak prior keeps a lucky month from making it small. The last 3 to 7 days are weighted like
//! a ramp, single days are capped, and the last two days must both be up, by [`TAIL`] on average. Measured in
//! `docs/drift.md`.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::blocks::BlockHistory;
use super::table::{
    DAILY_NOISE, HOURLY_NOISE, LEAST, MAX_DAY, MEDIAN_NOISE, MIN_DAYS, MIN_IN_BASELINE_BLOCK, QUANTILES,
    StepRow, TAIL, WEEK,
};
use crate::labels::labels;
use crate::stats::{Counts, INTERVAL_90, median, robust};

/// Which blocks are the baseline, and what is a finding.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlowSetup {
    /// Age in blocks at which the baseline begins.
    pub(super) from: usize,
    /// Age in blocks at which it ends; half the age of a young series.
    pub(super) to: usize,
    /// Exceedances over the baseline's, and the score.
    pub(super) row: StepRow,
}

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
    let over = recent.count_from(bound.from) as f64;
    (expected >= LEAST).then(|| over > TAIL.clear() * expected)
}

/// The share of values that are large for the baseline (its largest tenth), in the last two blocks and in the baseline.
pub(super) fn large_share(blocks: &BlockHistory, setup: &SlowSetup) -> Option<(f64, f64)> {
    let age = blocks.age();
    let to = setup.to.min(age / 2);
    let (recent, before) = (pooled(blocks, 0..2), pooled(blocks, to..setup.from.min(age)));
    let (from, share) = before.tail(0.1)?;
    (recent.count() > 0).then(|| (recent.count_from(from) as f64 / recent.count() as f64, share))
}

labels! {
    /// Whether the 90 % interval of the median's change lies within 5 %, excludes no change, or neither.
    pub(super) enum MedianMove {
        Flat = "flat",
        Moved = "moved",
        Unclear = "unclear",
    }
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
        .take(to.min(WEEK as usize))
        .map_while(|rate| Some(rate.as_ref()?.excess - noise.center))
        .collect();
    let (last, before) = (*recent.first()?, *recent.get(1)?);
    let effect = (last + before) / 2.0;
    if last <= 0.0 || before <= 0.0 || effect < setup.row.ratio.ln() {
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
    if score < setup.row.z {
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
        let variance = squares + weights * weights / baseline_days as f64;
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
            (expected >= LEAST).then_some(Exceedances { excess, expected })
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
    let half_interval = INTERVAL_90 * noise.scale * (1.0 / recent_days + 1.0 / days).sqrt();
    let flat = HOURLY_NOISE.scale;
    let median = if shift.abs() + half_interval < flat {
        MedianMove::Flat
    } else if shift.abs() > flat.max(half_interval) {
        MedianMove::Moved
    } else {
        MedianMove::Unclear
    };
    Some((median, shift.exp()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(blocks: &BlockHistory) -> Option<SlowDrift> {
        judge(blocks, &SlowSetup { from: 35, to: 7, row: TAIL })
    }

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
        let found = judged(&blocks(26, drifting, |_| 60.0)).unwrap();
        assert_eq!((found.quantile, found.median), (0.99, MedianMove::Flat), "{found:?}");
        assert!(found.exceedance_ratio > 1.5 && (0.19..0.24).contains(&found.now), "{found:?}");
        assert!((found.baseline - 0.18).abs() < 0.01, "{found:?}");
    }

    #[test]
    fn a_stationary_series_and_one_that_is_too_young_are_not_findings() {
        assert_eq!(judged(&blocks(30, |_| 180.0, |_| 60.0)), None);
        let steep = |day: f64| 180.0 + 40.0 * day;
        assert_eq!(judged(&blocks(5, steep, |_| 60.0)), None);
    }

    #[test]
    fn a_shift_of_everything_is_not_called_a_tail() {
        let slower = |day: f64| if day < 20.0 { 60.0 } else { 75.0 };
        let found = judged(&blocks(25, |_| 180.0, slower)).unwrap();
        assert_eq!(found.median, MedianMove::Moved, "{found:?}");
    }
}
