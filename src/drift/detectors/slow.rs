//! Slow drift of a tail over days: 180 to 240 ms in eleven days, with the median where it was.
//!
//! What is tested is not the quantile but how many requests exceed the baseline's quantile: a third more in p99 is
//! three times as many exceedances. Days differ from each other by far more than chance would have it, so that the
//! scale is learned from day to day, never from the number of requests; a weak prior keeps a lucky month from making
//! it small. The last 3 to 7 days are weighed like a ramp, single days are cut off, and the last two days must both be
//! up, by two thirds on average. Measured in `docs/drift.md`. Does not know what is measured.

use super::blocks::Blocks;
use super::histogram::{Dense, edge};
use super::scale::{median, robust};

/// Which blocks are baseline, and how sure a finding must be.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlowSetup {
    /// The baseline begins so many blocks ago.
    pub(super) from: usize,
    /// And ends so many blocks ago; less in a young series.
    pub(super) lag: usize,
    /// Score that is a finding.
    pub(super) threshold: f64,
}

/// A tail that grew.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SlowDrift {
    /// In scales of the day-to-day noise.
    pub(super) score: f64,
    /// Days of the window that scored highest.
    pub(super) window: usize,
    /// The quantile whose exceedances were counted.
    pub(super) quantile: f64,
    /// Its value in the baseline.
    pub(super) threshold: f64,
    /// Exceedances of the last two blocks against those of the baseline.
    pub(super) exceedance_ratio: f64,
    /// The quantile of the last two blocks.
    pub(super) now: f64,
    /// Change of the median, as a logarithm, with half of its 90 % interval.
    pub(super) median_shift: (f64, f64),
    /// Blocks in the baseline.
    pub(super) baseline_blocks: usize,
}

impl SlowDrift {
    /// Whether the median is shown to have stayed (within 5 %), to have moved, or neither.
    pub(super) fn median(&self) -> &'static str {
        let (shift, half) = self.median_shift;
        if shift.abs() + half < FLAT {
            "flat"
        } else if shift.abs() > FLAT && shift.abs() > half {
            "moved"
        } else {
            "unclear"
        }
    }
}

/// Judges the blocks that there are.
pub(super) fn judge(blocks: &Blocks, setup: &SlowSetup) -> Option<SlowDrift> {
    let age = blocks.age();
    let lag = setup.lag.min(age / 2);
    let from = setup.from.min(age);
    if lag < SHORTEST || from < lag + SHORTEST {
        return None;
    }
    let (quantile, bin, share) = tail_of(blocks, lag..from)?;
    let rates = rates(blocks, from, (bin, share));
    let baseline: Vec<f64> = rates.get(lag..)?.iter().flatten().map(|rate| rate.excess).collect();
    if baseline.len() < SHORTEST {
        return None;
    }
    let noise = robust(&baseline, (PRIOR_SCALE, PRIOR_WEIGHT));
    let recent: Vec<f64> =
        rates.iter().take(lag.min(LONGEST)).map_while(|r| Some(r.as_ref()?.excess)).collect();
    let excess = |i: usize| recent.get(i).map(|x| x - noise.center);
    let (last, before) = (excess(0)?, excess(1)?);
    let effect = (last + before) / 2.0;
    if last <= 0.0 || before <= 0.0 || effect < EFFECT.ln() {
        return None;
    }
    // Fewer requests than in the baseline make more noise than it taught.
    let counts = |range: &[Option<Rate>]| {
        let known: Vec<f64> = range.iter().flatten().map(|r| r.expected).collect();
        median(&known).unwrap_or(1.0).max(1.0)
    };
    let thinner = 1.0 / counts(&rates[..recent.len()]) - 1.0 / counts(&rates[lag..]);
    let scale = (noise.scale.powi(2) + thinner.max(0.0)).sqrt();
    let scored = scan(&recent, noise.center, (scale, baseline.len()))?;
    if scored.0 < setup.threshold - EASE * (EVEN - noise.scale).max(0.0) {
        return None;
    }
    Some(SlowDrift {
        score: scored.0,
        window: scored.1,
        quantile,
        threshold: edge(bin),
        exceedance_ratio: effect.exp(),
        now: pooled(blocks, 0..2).ln_quantile(quantile)?.exp(),
        median_shift: median_shift(blocks, lag..from)?,
        baseline_blocks: baseline.len(),
    })
}

/// The highest ramp-weighted mean of the last days, in scales, with its length. `noise` is the scale of a day and
/// how many days the centre was learned from.
fn scan(recent: &[f64], center: f64, noise: (f64, usize)) -> Option<(f64, usize)> {
    let (scale, learned) = (noise.0, noise.1 as f64);
    let score = |window: usize| {
        let (mut sum, mut squares, mut weights) = (0.0, 0.0, 0.0);
        for (i, excess) in recent.iter().take(window).enumerate() {
            let weight = (window - i) as f64 - 0.5;
            sum += weight * (excess - center).min(CUT * scale);
            squares += weight * weight;
            weights += weight;
        }
        // The centre is an estimate too, and its error is the same in every day of the window.
        let spread = squares + weights * weights * CENTER_LOSS / learned;
        (sum / (scale * spread.sqrt()), window)
    };
    (SHORTEST..=recent.len()).map(score).max_by(|a, b| a.0.total_cmp(&b.0))
}

/// Exceedances of one block.
#[derive(Clone, Copy, Debug)]
struct Rate {
    /// Logarithm of exceedances over those that the baseline's share would give.
    excess: f64,
    expected: f64,
}

fn rates(blocks: &Blocks, count: usize, tail: (usize, f64)) -> Vec<Option<Rate>> {
    let mut sums = vec![(0_u64, 0_u64); count];
    for (age, part) in blocks.aged() {
        if let Some(sum) = sums.get_mut(age) {
            sum.0 += part.count_from(tail.0);
            sum.1 += part.total;
        }
    }
    let rate = |(over, all): (u64, u64)| {
        let expected = all as f64 * tail.1;
        let excess = ((over as f64 + 0.5) / (expected + 0.5)).ln();
        (expected >= FEWEST_EXPECTED).then_some(Rate { excess, expected })
    };
    sums.into_iter().map(rate).collect()
}

/// The highest quantile whose exceedances are numerous enough in an ordinary block of the baseline, its bin and its
/// exact share.
fn tail_of(blocks: &Blocks, baseline: std::ops::Range<usize>) -> Option<(f64, usize, f64)> {
    let length = baseline.len() as f64;
    let all = pooled(blocks, baseline);
    let in_a_block = all.total() as f64 / length;
    let quantile = QUANTILES.into_iter().find(|q| in_a_block * (1.0 - q) >= ENOUGH)?;
    let (bin, share) = all.tail(1.0 - quantile)?;
    Some((quantile, bin, share))
}

fn pooled(blocks: &Blocks, ages: std::ops::Range<usize>) -> Dense {
    let mut all = Dense::default();
    blocks.aged().filter(|(age, _)| ages.contains(age)).for_each(|(_, part)| all.merge(part));
    all
}

fn median_shift(blocks: &Blocks, baseline: std::ops::Range<usize>) -> Option<(f64, f64)> {
    let of = |age: usize| pooled(blocks, age..age + 1).ln_quantile(0.5);
    let before: Vec<f64> = baseline.filter_map(of).collect();
    let recent: Vec<f64> = (0..SHORTEST).filter_map(of).collect();
    let noise = robust(&before, (0.01, 4.0));
    let now = recent.iter().sum::<f64>() / recent.len().max(1) as f64;
    let spread = 1.0 / recent.len().max(1) as f64 + 1.0 / before.len().max(1) as f64;
    Some((now - noise.center, 1.645 * noise.scale * spread.sqrt()))
}

/// Days without which there is no trend.
const SHORTEST: usize = 3;
/// Days that are looked at, at most.
const LONGEST: usize = 7;
/// A single day counts for so many scales at most: less loses a drift that has come far, more lets bad days in.
const CUT: f64 = 2.3;
/// Mean excess of the last two days that matters.
const EFFECT: f64 = 1.65;
/// Where days are more even than this (scale), what matters is many scales of noise, and chance reaches it so seldom
/// that a lower score will do: by so much for each unit of scale.
const EVEN: f64 = 0.31;
const EASE: f64 = 3.0;
/// Day-to-day noise that is taken for ordinary until a series has shown its own, and how many days' worth that is.
const PRIOR_SCALE: f64 = 0.35;
const PRIOR_WEIGHT: f64 = 8.0;
/// Loss of the robust centre against a mean.
const CENTER_LOSS: f64 = 1.1;
/// The median counts as flat within this.
const FLAT: f64 = 0.05;
const QUANTILES: [f64; 3] = [0.99, 0.95, 0.9];
const ENOUGH: f64 = 20.0;
const FEWEST_EXPECTED: f64 = 5.0;

#[cfg(test)]
mod tests {
    use super::super::series::THRESHOLD;
    use super::*;

    const SETUP: SlowSetup = SlowSetup { from: 35, lag: 7, threshold: THRESHOLD };

    /// `days` of 500 requests an hour, lognormal with median 60 ms; p99 as `p99(day)` says.
    fn blocks(days: u32, p99: impl Fn(f64) -> f64, median_ms: impl Fn(f64) -> f64) -> Blocks {
        let mut random = fastrand::Rng::with_seed(7);
        let mut blocks = Blocks::new(86_400.0, 35.0 * 86_400.0);
        for request in 0..days * 12_000 {
            let at = f64::from(request) * 7.2;
            let day = at / 86_400.0;
            let sigma = (p99(day) / 60.0).ln() / 2.326;
            let normal = super::super::scale::normal(&mut random);
            blocks.add(at, median_ms(day) * 1e-3 * (sigma * normal).exp());
        }
        blocks.advance(f64::from(days) * 86_400.0);
        blocks
    }

    #[test]
    fn a_growing_tail_with_a_flat_median_is_found_and_told_as_such() {
        let drifting = |day: f64| 180.0 + 60.0 * ((day - 20.0) / 11.0).clamp(0.0, 1.0);
        let found = judge(&blocks(26, drifting, |_| 60.0), &SETUP).unwrap();
        assert_eq!((found.quantile, found.median()), (0.99, "flat"), "{found:?}");
        assert!(found.exceedance_ratio > 1.5 && (0.19..0.24).contains(&found.now), "{found:?}");
        assert!((found.threshold - 0.18).abs() < 0.01, "{found:?}");
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
        assert_eq!(found.median(), "moved", "{found:?}");
    }
}
