//! Histograms with logarithmic bins: 20 to an octave, from 10 microseconds to 45 minutes.
//!
//! A bin is 3.5 % wide, quantiles are interpolated inside it. [`Dense`] is written; closed parts of a series are kept as
//! [`Sparse`], because a latency distribution uses some 60 of the 560 bins.

use crate::stats::TRIMMED;

/// All bins, to write to.
#[derive(Clone, Debug)]
pub(super) struct Dense {
    counts: Vec<u32>,
    total: u64,
}

/// Bins in use.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sparse {
    /// Bin and count, ascending.
    pub(super) bins: Box<[(u16, u32)]>,
    pub(super) total: u64,
}

impl Default for Dense {
    fn default() -> Self {
        Self { counts: vec![0; BINS], total: 0 }
    }
}

impl Dense {
    pub(super) fn add(&mut self, value: f64) {
        self.counts[bin_of(value)] += 1;
        self.total += 1;
    }

    pub(super) fn merge(&mut self, other: &Sparse) {
        for (bin, count) in &other.bins {
            if let Some(cell) = self.counts.get_mut(usize::from(*bin)) {
                *cell = cell.saturating_add(*count);
                self.total += u64::from(*count);
            }
        }
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Values in this bin and above.
    pub(super) fn count_from(&self, bin: usize) -> u64 {
        self.counts.iter().skip(bin).map(|count| u64::from(*count)).sum()
    }

    /// The closed form; the bins start at zero again.
    pub(super) fn take(&mut self) -> Sparse {
        let used = self.counts.iter_mut().enumerate().filter(|(_, count)| **count > 0);
        let bins = used.filter_map(|(bin, count)| Some((u16::try_from(bin).ok()?, std::mem::take(count))));
        let bins = bins.collect();
        Sparse { bins, total: std::mem::take(&mut self.total) }
    }

    /// Natural logarithm of a quantile; `None` while empty.
    pub(super) fn ln_quantile(&self, q: f64) -> Option<f64> {
        let wanted = q * self.total as f64;
        let mut below = 0.0;
        for (bin, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let count = f64::from(*count);
            if below + count >= wanted {
                let inside = ((wanted - below) / count).clamp(0.0, 1.0);
                return Some(edge(bin).ln() + inside * WIDTH);
            }
            below += count;
        }
        None
    }

    /// Standard deviation of the logarithms, by the interquartile range; `None` while empty.
    pub(super) fn ln_spread(&self) -> Option<f64> {
        Some((self.ln_quantile(0.75)? - self.ln_quantile(0.25)?) / IQR_PER_SIGMA)
    }

    /// Trimmed mean of the logarithms; `None` while empty.
    pub(super) fn ln_center(&self) -> Option<f64> {
        let (low, high) = (TRIMMED * self.total as f64, (1.0 - TRIMMED) * self.total as f64);
        let (mut below, mut sum) = (0.0, 0.0);
        for (bin, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let until = below + f64::from(*count);
            let inside = until.min(high) - below.max(low);
            sum += inside.max(0.0) * (edge(bin).ln() + WIDTH / 2.0);
            below = until;
        }
        (self.total > 0).then(|| sum / (high - low))
    }

    /// The bin from which on about `share` of the values lies, with the exact share; `None` where it would be empty.
    pub(super) fn tail(&self, share: f64) -> Option<(usize, f64)> {
        let allowed = share * self.total as f64;
        let mut above = 0_u64;
        for (bin, count) in self.counts.iter().enumerate().rev() {
            let with_it = above + u64::from(*count);
            if with_it as f64 > allowed {
                // The nearer edge of the bin that the quantile falls into.
                let (bin, count) = if with_it as f64 - allowed < allowed - above as f64 {
                    (bin, with_it)
                } else {
                    (bin + 1, above)
                };
                return (count > 0).then(|| (bin, count as f64 / self.total as f64));
            }
            above = with_it;
        }
        None
    }
}

impl Sparse {
    /// Values in this bin and above.
    pub(super) fn count_from(&self, bin: usize) -> u64 {
        let above = self.bins.iter().rev().take_while(|(at, _)| usize::from(*at) >= bin);
        above.map(|(_, count)| u64::from(*count)).sum()
    }
}

/// The bin of a value.
pub(super) fn bin_of(value: f64) -> usize {
    let at = (value / LOWEST).log2() * PER_OCTAVE;
    // The cast saturates: NaN and what is below the lowest bin go to bin 0.
    (at as usize).min(BINS - 1)
}

/// The lower edge of a bin.
pub(super) fn edge(bin: usize) -> f64 {
    LOWEST * (bin as f64 / PER_OCTAVE).exp2()
}

const PER_OCTAVE: f64 = 20.0;
/// Width of a bin, as a logarithm.
const WIDTH: f64 = std::f64::consts::LN_2 / PER_OCTAVE;
/// Interquartile range of the standard normal distribution.
const IQR_PER_SIGMA: f64 = 1.349;
/// Seconds.
const LOWEST: f64 = 1e-5;
/// 28 octaves.
pub(super) const BINS: usize = 560;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_percent_of_a_fine_grid() {
        let mut dense = Dense::default();
        (1..=100_000).for_each(|i| dense.add(f64::from(i) * 1e-5));
        for (q, true_value) in [(0.5, 0.5), (0.9, 0.9), (0.99, 0.99)] {
            let value = dense.ln_quantile(q).unwrap().exp();
            assert!((value / true_value - 1.0).abs() < 0.01, "{q}: {value}");
        }
        let sparse = dense.take();
        assert_eq!((sparse.total, sparse.count_from(0)), (100_000, 100_000));
        assert_eq!(dense.total(), 0);
        assert_eq!(dense.ln_quantile(0.5), None);
    }

    #[test]
    fn a_tail_is_counted_exactly_above_an_edge() {
        let mut dense = Dense::default();
        (1..=100_000).for_each(|i| dense.add(f64::from(i) * 1e-5));
        let (bin, share) = dense.tail(0.01).unwrap();
        let sparse = dense.take();
        assert_eq!(sparse.count_from(bin) as f64 / 100_000.0, share);
        assert!(share > 0.0 && share < 0.03, "{share}");
    }

    #[test]
    fn every_number_has_a_bin() {
        for value in [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e-300, 1e300] {
            assert!(bin_of(value) < BINS);
        }
        assert_eq!(bin_of(edge(100) * 1.001), 100);
    }
}
