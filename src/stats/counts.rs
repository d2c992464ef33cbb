//! What a histogram has counted: the buckets in use, and the figures that are read from them.

use serde::{Deserialize, Serialize, Serializer};

use super::TRIMMED;

/// Closed counts of a [`Histogram`](super::Histogram): some 100 buckets for the latencies of a slot of time, 8 bytes each. A file has
/// the buckets of coarse ones.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(from = "Vec<(u32, u32)>")]
pub struct Counts {
    /// Lower edge in microseconds and count, ascending.
    buckets: Box<[(u32, u32)]>,
    count: u64,
    /// Seconds.
    sum: f64,
    pub(super) is_coarse: bool,
}

impl Counts {
    /// `buckets` are ascending, their lower edges in microseconds; `sum` is in seconds.
    pub(super) fn new(buckets: Box<[(u32, u32)]>, sum: f64) -> Self {
        let count = buckets.iter().map(|(_, count)| u64::from(*count)).sum();
        Self { buckets, count, sum, is_coarse: false }
    }

    /// In a quarter as many buckets, 32 or more in an octave: for distributions that are kept by the thousand.
    pub fn coarse(&self) -> Self {
        let mut buckets: Vec<(u32, u32)> = Vec::with_capacity(self.buckets.len());
        for (from, count) in &self.buckets {
            let from = from & !(width(*from, COARSE_BITS) - 1);
            match buckets.last_mut() {
                Some((last, sum)) if *last == from => *sum = sum.saturating_add(*count),
                _ => buckets.push((from, *count)),
            }
        }
        Self { buckets: buckets.into(), is_coarse: true, ..*self }
    }

    /// Lower edges in microseconds, and counts; ascending, none empty.
    pub fn buckets(&self) -> &[(u32, u32)] {
        &self.buckets
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Sum of the values in seconds.
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// Mean in seconds; `None` while empty.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }

    /// Middle of each bucket in seconds, and its count; ascending.
    pub fn values(&self) -> impl Iterator<Item = (f64, u32)> {
        let middles = self.spans().map(|span| f64::midpoint(span.from, span.to));
        middles.zip(self.buckets.iter().map(|(_, count)| *count))
    }

    /// Quantile in seconds, the middle of its bucket; `None` while empty.
    pub fn quantile(&self, quantile: f64) -> Option<f64> {
        let rank = ((self.count as f64 * quantile).ceil() as u64).clamp(1, self.count.max(1));
        let mut below = 0;
        let bucket = self.values().find(|(_, count)| {
            below += u64::from(*count);
            below >= rank
        });
        bucket.map(|(middle, _)| middle)
    }

    /// Natural logarithm of a quantile, interpolated within its bucket; `None` while empty.
    pub fn ln_quantile(&self, quantile: f64) -> Option<f64> {
        let wanted = quantile * self.count as f64;
        let mut below = 0.0;
        let span = self.spans().find(|span| {
            let is_it = below + span.count >= wanted;
            below += if is_it { 0.0 } else { span.count };
            is_it
        })?;
        let inside = ((wanted - below) / span.count).clamp(0.0, 1.0);
        Some(span.from.ln() + inside * (span.to / span.from).ln())
    }

    /// Standard deviation of the logarithms, by the interquartile range; `None` while empty.
    pub fn ln_spread(&self) -> Option<f64> {
        Some((self.ln_quantile(0.75)? - self.ln_quantile(0.25)?) / IQR_PER_SIGMA)
    }

    /// Trimmed mean of the logarithms; `None` while empty.
    pub fn ln_center(&self) -> Option<f64> {
        let count = self.count as f64;
        let (low, high) = (TRIMMED * count, (1.0 - TRIMMED) * count);
        let (mut below, mut sum) = (0.0, 0.0);
        for span in self.spans() {
            let until = below + span.count;
            let inside = until.min(high) - below.max(low);
            sum += inside.max(0.0) * f64::midpoint(span.from.ln(), span.to.ln());
            below = until;
        }
        (self.count > 0).then(|| sum / (high - low))
    }

    /// Values in the bucket that begins at `from` microseconds, and above.
    pub fn count_from(&self, from: u32) -> u64 {
        let above = self.buckets.iter().rev().take_while(|(at, _)| *at >= from);
        above.map(|(_, count)| u64::from(*count)).sum()
    }

    /// The lower edge in microseconds of the bucket from which on about `share` of the values lies, with the exact share;
    /// `None` where that would be none.
    pub fn tail(&self, share: f64) -> Option<(u32, f64)> {
        let allowed = share * self.count as f64;
        let (mut above, mut edge) = (0_u64, None);
        for (from, count) in self.buckets.iter().rev() {
            let with_it = above + u64::from(*count);
            if with_it as f64 > allowed {
                // The nearer edge of the bucket that the quantile falls into.
                let is_nearer = with_it as f64 - allowed < allowed - above as f64;
                let (edge, count) = if is_nearer { (*from, with_it) } else { (edge?, above) };
                return (count > 0).then(|| (edge, count as f64 / self.count as f64));
            }
            (above, edge) = (with_it, Some(*from));
        }
        None
    }

    fn spans(&self) -> impl Iterator<Item = Span> {
        let bits = if self.is_coarse { COARSE_BITS } else { FINE_BITS };
        self.buckets.iter().map(move |(from, count)| {
            let seconds = |micros: u32| (f64::from(micros) * 1e-6).max(SHORTEST);
            Span {
                from: seconds(*from),
                to: seconds(from.saturating_add(width(*from, bits))),
                count: f64::from(*count),
            }
        })
    }
}

impl Serialize for Counts {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.buckets.serialize(to)
    }
}

/// Coarse counts of a file; empty where they are out of order.
impl From<Vec<(u32, u32)>> for Counts {
    fn from(mut buckets: Vec<(u32, u32)>) -> Self {
        if !buckets.is_sorted_by(|a, b| a.0 < b.0) {
            return Self::default();
        }
        buckets.retain(|(_, count)| *count > 0);
        let mut counts = Self::new(buckets.into(), 0.0).coarse();
        counts.sum = counts.spans().map(|span| f64::midpoint(span.from, span.to) * span.count).sum();
        counts
    }
}

/// A bucket: edges in seconds.
struct Span {
    from: f64,
    to: f64,
    count: f64,
}

/// Width of the bucket that begins at `from`: numbers keep so many significant bits.
fn width(from: u32, bits: u32) -> u32 {
    1 << (u32::BITS - from.leading_zeros()).saturating_sub(bits)
}

/// Significant bits of an HDR histogram with two decimal digits.
const FINE_BITS: u32 = 8;
const COARSE_BITS: u32 = 6;
/// Seconds: the lower edge of the first bucket, which has a logarithm.
const SHORTEST: f64 = 1e-7;
/// Interquartile range of the standard normal distribution.
const IQR_PER_SIGMA: f64 = 1.349;

#[cfg(test)]
mod tests {
    use crate::stats::Histogram;

    use super::*;

    fn uniform() -> Counts {
        let mut histogram = Histogram::default();
        (1..=100_000).for_each(|i| histogram.add_seconds(f64::from(i) * 1e-5));
        histogram.counts()
    }

    #[test]
    fn interpolated_quantiles_are_within_a_percent_of_a_fine_grid() {
        for counts in [uniform(), uniform().coarse()] {
            for (q, expected) in [(0.5, 0.5), (0.9, 0.9), (0.99, 0.99)] {
                let value = counts.ln_quantile(q).unwrap().exp();
                assert!((value / expected - 1.0).abs() < 0.01, "{q}: {value}");
            }
            assert_eq!((counts.count(), counts.count_from(0)), (100_000, 100_000));
        }
        assert_eq!(Counts::default().ln_quantile(0.5), None);
    }

    #[test]
    fn a_tail_is_counted_exactly_above_an_edge() {
        for counts in [uniform(), uniform().coarse()] {
            let (from, share) = counts.tail(0.01).unwrap();
            assert_eq!(counts.count_from(from) as f64 / 100_000.0, share);
            assert!(share > 0.0 && share < 0.03, "{share}");
        }
    }

    #[test]
    fn coarse_counts_add_up_in_the_same_buckets_again() {
        let coarse = uniform().coarse();
        assert!(coarse.buckets().len() < uniform().buckets().len() / 3);
        let twice = Counts::merged([&coarse, &coarse]);
        assert_eq!((twice.count(), twice.buckets().len()), (200_000, coarse.buckets().len()));
        assert_eq!(twice.ln_quantile(0.9), coarse.ln_quantile(0.9));
        assert_eq!(Counts::merged([&coarse, &Counts::default()]), coarse);
        let file = serde_json::to_string(&coarse).unwrap();
        assert_eq!(serde_json::from_str::<Counts>(&file).unwrap().buckets(), coarse.buckets());
        for wrong in ["[]", "[[5,0]]", "[[5,1],[4,1]]", "[[5,1],[5,1]]"] {
            assert_eq!(serde_json::from_str::<Counts>(wrong).unwrap().count(), 0, "{wrong}");
        }
    }
}
