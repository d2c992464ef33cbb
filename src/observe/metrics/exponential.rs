//! Exponential histograms for the OTLP export: bucket edges are powers of 2^(1/16), 4.4 % apart at any magnitude.
//!
//! Recording is one logarithm and two atomic additions; nothing is allocated. They exist beside the Prometheus histograms,
//! whose edges are fixed, and only where metrics are exported by OTLP. Label sets are bounded: past the bound they share
//! one, which carries OpenTelemetry's `otel.metric.overflow`.

use std::hash::RandomState;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;

use crate::record::{FirstToken, Record};
use crate::request::class::Class;

/// Counts of one series.
pub(super) struct ExponentialHistogram {
    /// At most [`ZERO_THRESHOLD`].
    zero: AtomicU64,
    buckets: Box<[AtomicU64]>,
    sum_nanos: AtomicU64,
}

/// What a histogram has counted so far, in the terms of OTLP.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Counted {
    pub(super) count: u64,
    /// Seconds.
    pub(super) sum: f64,
    /// Bucket `i` is (base^i, base^(i+1)] with base = 2^(2^-scale).
    pub(super) scale: i32,
    pub(super) zero_count: u64,
    /// Index of the first of `buckets`.
    pub(super) offset: i32,
    /// Without empty ones at either end.
    pub(super) buckets: Vec<u64>,
}

impl Default for ExponentialHistogram {
    fn default() -> Self {
        let buckets = (FIRST..=LAST).map(|_| AtomicU64::new(0)).collect();
        Self { zero: AtomicU64::new(0), buckets, sum_nanos: AtomicU64::new(0) }
    }
}

impl ExponentialHistogram {
    pub(super) fn observe(&self, value: Duration) {
        self.observe_n(value, 1);
    }

    /// `n` observations of the same value.
    pub(super) fn observe_n(&self, value: Duration, n: u64) {
        let nanos = u64::try_from(value.as_nanos()).unwrap_or(u64::MAX);
        self.sum_nanos.fetch_add(nanos.saturating_mul(n), Ordering::Relaxed);
        let bucket = if value <= ZERO_THRESHOLD { None } else { self.buckets.get(place(value)) };
        bucket.unwrap_or(&self.zero).fetch_add(n, Ordering::Relaxed);
    }

    /// Halves the resolution until it fits into [`MAX_BUCKETS`], which is what receivers take.
    pub(super) fn counted(&self) -> Counted {
        let counts: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        let zero_count = self.zero.load(Ordering::Relaxed);
        // From the buckets, because a count of its own could differ from them while requests go on.
        let count = zero_count + counts.iter().sum::<u64>();
        let sum = Duration::from_nanos(self.sum_nanos.load(Ordering::Relaxed)).as_secs_f64();
        let (mut scale, mut offset, mut buckets) = (SCALE, FIRST, counts);
        trim(&mut offset, &mut buckets);
        while buckets.len() > MAX_BUCKETS {
            halve(&mut offset, &mut buckets);
            scale -= 1;
        }
        Counted { count, sum, scale, zero_count, offset, buckets }
    }
}

/// Place in the list of buckets; values beyond the last edge count into the last bucket.
fn place(value: Duration) -> usize {
    let index = (value.as_secs_f64().log2() * f64::from(1 << SCALE)).ceil() - 1.0 - f64::from(FIRST);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to the buckets")]
    let place = index.clamp(0.0, f64::from(LAST - FIRST)) as usize;
    place
}

fn trim(offset: &mut i32, buckets: &mut Vec<u64>) {
    let used = buckets.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    buckets.truncate(used);
    let empty = buckets.iter().take_while(|count| **count == 0).count();
    buckets.drain(..empty);
    *offset = if buckets.is_empty() { 0 } else { *offset + i32::try_from(empty).unwrap_or(0) };
}

/// Merges buckets in pairs: bucket `i` of a scale is in bucket `i >> 1` of the one below it.
pub(super) fn halve(offset: &mut i32, buckets: &mut Vec<u64>) {
    if *offset & 1 == 1 {
        buckets.insert(0, 0);
    }
    *offset >>= 1;
    *buckets = buckets.chunks(2).map(|pair| pair.iter().sum()).collect();
}

/// Labels of a series; the same for every exponential histogram, so that one look-up finds all of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ExponentialKey {
    /// `gen_ai.operation.name`; empty where it does not apply.
    pub(super) operation: &'static str,
    /// `gen_ai.provider.name`
    pub(super) provider: Option<Arc<str>>,
    pub(super) route: Arc<str>,
    pub(super) model: Arc<str>,
    pub(super) revision: Arc<str>,
    pub(super) class: Class,
    /// `error.type`, of durations of failed requests.
    pub(super) error: Option<&'static str>,
}

impl ExponentialKey {
    pub(super) fn of_first_token(first: &FirstToken) -> Self {
        Self {
            operation: first.operation,
            provider: Some(Arc::clone(&first.served.engine)),
            route: Arc::clone(&first.route),
            model: Arc::clone(&first.model),
            revision: Arc::clone(&first.served.revision),
            class: first.class,
            error: None,
        }
    }

    pub(super) fn of_record(record: &Record) -> Self {
        let served = record.served();
        Self {
            operation: record.dialect.operation(),
            provider: served.map(|served| Arc::clone(&served.engine)),
            route: Arc::clone(&record.route),
            model: Arc::clone(&record.model),
            revision: served.map_or_else(|| "none".into(), |served| Arc::clone(&served.revision)),
            class: record.class,
            error: record.error,
        }
    }
}

/// The histograms of one label set.
#[derive(Default)]
pub(super) struct ExponentialSeries {
    pub(super) ttft: ExponentialHistogram,
    pub(super) tpot: ExponentialHistogram,
    pub(super) itl: ExponentialHistogram,
    pub(super) duration: ExponentialHistogram,
}

/// All of them.
#[derive(Default)]
pub(super) struct Exponentials {
    by_key: DashMap<ExponentialKey, Arc<ExponentialSeries>, RandomState>,
    overflow: Arc<ExponentialSeries>,
}

impl Exponentials {
    pub(super) fn series(&self, key: &ExponentialKey) -> Arc<ExponentialSeries> {
        if let Some(series) = self.by_key.get(key) {
            return Arc::clone(&series);
        }
        if self.by_key.len() >= MAX_SERIES {
            return Arc::clone(&self.overflow);
        }
        Arc::clone(&self.by_key.entry(key.clone()).or_default())
    }

    /// Every label set with its histograms; `None` is the overflow's.
    pub(super) fn all(&self) -> Vec<(Option<ExponentialKey>, Arc<ExponentialSeries>)> {
        let known = self.by_key.iter().map(|entry| (Some(entry.key().clone()), Arc::clone(entry.value())));
        known.chain([(None, Arc::clone(&self.overflow))]).collect()
    }
}

/// What is shorter counts as zero.
pub(super) const ZERO_THRESHOLD: Duration = Duration::from_micros(100);
/// Buckets per doubling: 2^scale.
const SCALE: i32 = 4;
/// Of the bucket that holds the shortest value above the threshold.
const FIRST: i32 = -213;
/// Of the bucket that ends above an hour.
const LAST: i32 = 189;
/// The default of OpenTelemetry's SDKs.
const MAX_BUCKETS: usize = 160;
/// Label sets, with four histograms of 3 KiB each.
const MAX_SERIES: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(counted: &Counted, bucket: usize) -> (f64, f64) {
        let base = 2f64.powf(2f64.powi(-counted.scale));
        let index = counted.offset + i32::try_from(bucket).unwrap();
        (base.powi(index), base.powi(index + 1))
    }

    #[test]
    fn every_value_lies_in_its_bucket() {
        for micros in [101, 150, 999, 1_000, 20_000, 62_500, 250_000, 1_000_000, 14_000_000, 3_600_000_000] {
            let histogram = ExponentialHistogram::default();
            histogram.observe(Duration::from_micros(micros));
            let counted = histogram.counted();
            assert_eq!(counted.buckets, [1], "{micros}");
            let (lower, upper) = edges(&counted, 0);
            let seconds = micros as f64 / 1e6;
            assert!(lower < seconds && seconds <= upper * (1.0 + 1e-12), "{lower} {seconds} {upper}");
            assert!(upper / lower < 1.05);
        }
    }

    #[test]
    fn what_is_too_short_or_too_long_is_counted_all_the_same() {
        let histogram = ExponentialHistogram::default();
        histogram.observe(Duration::ZERO);
        histogram.observe_n(Duration::from_micros(100), 3);
        histogram.observe(Duration::from_secs(100_000));
        let counted = histogram.counted();
        assert_eq!((counted.count, counted.zero_count), (5, 4));
        assert_eq!((counted.offset, &counted.buckets[..]), (LAST, &[1][..]));
        assert!((counted.sum - 100_000.000_3).abs() < 1e-9);
    }

    #[test]
    fn a_wide_histogram_is_exported_more_coarsely_and_loses_nothing() {
        let histogram = ExponentialHistogram::default();
        for power in 0..25 {
            histogram.observe_n(Duration::from_micros(101 << power), 7);
        }
        let counted = histogram.counted();
        assert!(counted.buckets.len() <= MAX_BUCKETS && counted.scale < SCALE, "{counted:?}");
        assert_eq!(counted.buckets.iter().sum::<u64>(), 25 * 7);
        let first = edges(&counted, 0);
        assert!(first.0 < 101e-6 && 101e-6 <= first.1, "{first:?}");
        let last = edges(&counted, counted.buckets.len() - 1);
        let longest = 101e-6 * f64::from(1 << 24);
        assert!(last.0 < longest && longest <= last.1, "{last:?}");
    }

    #[test]
    fn an_unused_one_is_empty() {
        assert_eq!(ExponentialHistogram::default().counted(), Counted { scale: SCALE, ..Counted::default() });
    }
}
