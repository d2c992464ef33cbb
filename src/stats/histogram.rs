//! The one histogram of latencies: an HDR histogram of microseconds with two significant digits, up to an hour.
//!
//! 128 buckets or more in an octave: a quantile is within 0.4 % of the value. Adding allocates only when a value is larger
//! than all before, 7 kB in all for values of 300 ms. [`Histogram`] is written to; what is kept of a closed slot of time, and what
//! figures are read from, are its [`Counts`].

use std::time::Duration;

use hdrhistogram::Histogram as Hdr;

use super::counts::Counts;

/// A histogram to write to.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// Allocated with the first value.
    micros: Option<Box<Hdr<u32>>>,
    /// Seconds.
    sum: f64,
}

impl Histogram {
    /// Adds a value `times` times; what is longer than an hour counts as an hour.
    pub fn add(&mut self, value: Duration, times: u32) {
        self.record(u64::try_from(value.as_micros()).unwrap_or(u64::MAX), times);
        self.sum += value.as_secs_f64() * f64::from(times);
    }

    /// Adds a value in seconds; what is no time counts as zero.
    pub fn add_seconds(&mut self, value: f64) {
        self.add_seconds_times(value, 1);
    }

    /// Adds one `times` times.
    pub fn add_seconds_times(&mut self, value: f64, times: u32) {
        // The cast saturates.
        self.record((value * 1e6) as u64, times);
        self.sum += if value.is_finite() { value.max(0.0) * f64::from(times) } else { 0.0 };
    }

    /// Adds all values of another.
    pub fn merge(&mut self, other: &Counts) {
        // The largest first: it allocates for all.
        for (from, times) in other.buckets().iter().rev() {
            self.record(u64::from(*from), *times);
        }
        self.sum += other.sum();
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.micros.as_ref().map_or(0, |micros| micros.len())
    }

    /// What it has counted.
    pub fn counts(&self) -> Counts {
        let Some(micros) = &self.micros else { return Counts::default() };
        let used = micros.iter_recorded().map(|bucket| {
            let from = micros.lowest_equivalent(bucket.value_iterated_to());
            (u32::try_from(from).unwrap_or(u32::MAX), bucket.count_at_value())
        });
        Counts::new(used.collect(), self.sum)
    }

    /// What it has counted; it is empty again.
    pub fn take(&mut self) -> Counts {
        let counts = self.counts();
        if let Some(micros) = &mut self.micros {
            micros.reset();
        }
        self.sum = 0.0;
        counts
    }

    fn record(&mut self, micros: u64, times: u32) {
        if times == 0 {
            return;
        }
        let counts = self.micros.get_or_insert_with(|| {
            Box::new(Hdr::new(DIGITS).expect("invariant: one to five significant digits are valid"))
        });
        // Infallible: the histogram resizes, and counts saturate.
        let _ = counts.record_n(micros.min(MAX_MICROS), times);
    }
}

impl Counts {
    /// The sum of all of these; coarse where one of them is.
    pub fn merged<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let all: Vec<&Self> = all.into_iter().filter(|counts| counts.count() > 0).collect();
        if let [one] = all[..] {
            return one.clone();
        }
        let mut sum = Histogram::default();
        all.iter().for_each(|counts| sum.merge(counts));
        if all.iter().any(|counts| counts.is_coarse) { sum.counts().coarse() } else { sum.counts() }
    }
}

const DIGITS: u8 = 2;
/// One hour; bounds the memory, and fits into the 32 bits of [`Counts`].
const MAX_MICROS: u64 = 3_600_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_their_error() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.counts(), histogram.counts().quantile(0.5)), (Counts::default(), None));
        (1..=1000).for_each(|ms| histogram.add(Duration::from_millis(ms), 1));
        let counts = histogram.counts();
        for (quantile, expected) in [(0.5, 0.5), (0.95, 0.95), (0.99, 0.99), (1.0, 1.0)] {
            let actual = counts.quantile(quantile).unwrap();
            assert!((actual / expected - 1.0).abs() < 0.004, "{quantile}: {actual}");
        }
        assert!((counts.mean().unwrap() - 0.5005).abs() < 1e-9);
        histogram.merge(&counts);
        assert_eq!((histogram.count(), histogram.take().count(), histogram.count()), (2000, 2000, 0));
    }

    #[test]
    fn every_value_has_a_bucket_and_a_closed_one_keeps_it() {
        for micros in [0, 1, 255, 256, 1_000, 99_999, 12_345_678, 3_600_000_000] {
            let mut histogram = Histogram::default();
            histogram.add(Duration::from_micros(micros), 3);
            let counts = histogram.take();
            let value = counts.quantile(0.5).unwrap() * 1e6;
            assert!((value - micros as f64).abs() <= 0.6 + 0.004 * micros as f64, "{micros}: {value}");
            histogram.merge(&counts);
            assert_eq!(histogram.counts(), counts, "{micros}");
        }
        for value in [f64::NAN, f64::INFINITY, -1.0, 1e-300, 1e300] {
            let mut histogram = Histogram::default();
            histogram.add_seconds(value);
            assert_eq!(histogram.count(), 1);
        }
        let mut histogram = Histogram::default();
        histogram.add(Duration::from_secs(86_400), u32::MAX);
        histogram.add(Duration::from_secs(86_400), 1);
        assert!(
            (histogram.counts().quantile(1.0).unwrap() / 3600.0 - 1.0).abs() < 0.004,
            "clamped to an hour"
        );
    }
}
