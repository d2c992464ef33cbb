//! Exponential histograms for the OTLP export: bucket edges are powers of 2^(1/16), 4.4 % apart at any magnitude.
//!
//! Recorded as every latency is ([`Histogram`]), and mapped to exponential buckets when they are exported. They exist beside the
//! Prometheus histograms, whose edges are fixed, and only where metrics are exported by OTLP. Label sets are bounded: past the
//! bound they share one, which carries OpenTelemetry's `otel.metric.overflow`.

use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use opentelemetry_proto::tonic::metrics::v1::ExponentialHistogramDataPoint;
use opentelemetry_proto::tonic::metrics::v1::exponential_histogram_data_point::Buckets;
use parking_lot::Mutex;

use crate::labels::LabelHasher;
use crate::record::Record;
use crate::request::class::Class;
use crate::stats::{Counts, Histogram};

/// Counts of one series.
#[derive(Default)]
pub(super) struct ExponentialHistogram {
    /// Since the last export.
    latest: Mutex<Histogram>,
    total: Mutex<Total>,
}

/// Exponential counts up to the last export.
#[derive(Default)]
struct Total {
    /// At most [`ZERO_THRESHOLD`].
    zero: u64,
    /// From [`FIRST`] to [`LAST`]; empty before the first export.
    buckets: Vec<u64>,
    /// Seconds.
    sum: f64,
}

impl ExponentialHistogram {
    pub(super) fn observe(&self, value: Duration) {
        self.observe_each([(value, 1)]);
    }

    /// Observes each value `count` times, under one lock.
    pub(super) fn observe_each(&self, values: impl IntoIterator<Item = (Duration, u32)>) {
        let mut latest = self.latest.lock();
        values.into_iter().for_each(|(value, times)| latest.add(value, times));
    }

    /// All counts, cumulative; without attributes and times.
    pub(super) fn counted(&self) -> ExponentialHistogramDataPoint {
        let mut total = self.total.lock();
        total.add(&self.latest.lock().take());
        total.counted()
    }
}

impl Total {
    fn add(&mut self, counts: &Counts) {
        self.buckets.resize(1 + (LAST - FIRST) as usize, 0);
        self.sum += counts.sum();
        for ((from, times), (middle, _)) in counts.buckets().iter().zip(counts.values()) {
            let is_zero = Duration::from_micros(u64::from(*from)) <= ZERO_THRESHOLD;
            let bucket = if is_zero { None } else { self.buckets.get_mut(place(middle)) };
            *bucket.unwrap_or(&mut self.zero) += u64::from(*times);
        }
    }

    /// Halves the resolution until it fits into [`MAX_BUCKETS`], which is what receivers take.
    fn counted(&self) -> ExponentialHistogramDataPoint {
        let count = self.zero + self.buckets.iter().sum::<u64>();
        let (mut scale, mut offset, mut buckets) = (SCALE, FIRST, self.buckets.clone());
        trim(&mut offset, &mut buckets);
        while buckets.len() > MAX_BUCKETS {
            halve(&mut offset, &mut buckets);
            scale -= 1;
        }
        ExponentialHistogramDataPoint {
            count,
            sum: Some(self.sum),
            scale,
            zero_count: self.zero,
            zero_threshold: ZERO_THRESHOLD.as_secs_f64(),
            positive: Some(Buckets { offset, bucket_counts: buckets }),
            ..ExponentialHistogramDataPoint::default()
        }
    }
}

/// Place in the list of buckets; values beyond the last edge count into the last bucket.
fn place(seconds: f64) -> usize {
    let index = (seconds.log2() * f64::from(1 << SCALE)).ceil() - 1.0 - f64::from(FIRST);
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

#[derive(Default)]
pub(super) struct Exponentials {
    by_key: DashMap<ExponentialKey, Arc<ExponentialSeries>, LabelHasher>,
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

    /// Removes the series of other revisions.
    pub(super) fn forget_revisions(&self, is_kept: impl Fn(&str) -> bool) {
        self.by_key.retain(|key, _| is_kept(&key.revision));
    }

    /// Every label set with its histograms; `None` is the overflow's.
    pub(super) fn all(&self) -> Vec<(Option<ExponentialKey>, Arc<ExponentialSeries>)> {
        let known = self.by_key.iter().map(|entry| (Some(entry.key().clone()), Arc::clone(entry.value())));
        known.chain([(None, Arc::clone(&self.overflow))]).collect()
    }
}

/// What is shorter counts as zero.
const ZERO_THRESHOLD: Duration = Duration::from_micros(100);
/// Buckets per doubling: 2^scale.
const SCALE: i32 = 4;
/// Of the bucket that holds the shortest value above the threshold.
const FIRST: i32 = -213;
/// Of the bucket that ends above an hour.
const LAST: i32 = 189;
/// The default of OpenTelemetry's SDKs.
const MAX_BUCKETS: usize = 160;
/// Label sets, with four histograms of some 10 KiB each.
const MAX_SERIES: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets(counted: &ExponentialHistogramDataPoint) -> &Buckets {
        counted.positive.as_ref().unwrap()
    }

    /// Bucket `i` is (base^i, base^(i+1)] with base = 2^(2^-scale).
    fn edges(counted: &ExponentialHistogramDataPoint, bucket: usize) -> (f64, f64) {
        let base = 2f64.powf(2f64.powi(-counted.scale));
        let index = buckets(counted).offset + i32::try_from(bucket).unwrap();
        (base.powi(index), base.powi(index + 1))
    }

    #[test]
    fn every_value_lies_in_its_bucket() {
        for micros in [101, 150, 999, 1_000, 20_000, 62_500, 250_000, 1_000_000, 14_000_000, 3_600_000_000] {
            let histogram = ExponentialHistogram::default();
            histogram.observe(Duration::from_micros(micros));
            let counted = histogram.counted();
            assert_eq!(buckets(&counted).bucket_counts, [1], "{micros}");
            let (lower, upper) = edges(&counted, 0);
            let seconds = micros as f64 / 1e6;
            // Recorded with an error of 0.4 %.
            assert!(lower * 0.996 < seconds && seconds <= upper * 1.004, "{lower} {seconds} {upper}");
            assert!(upper / lower < 1.05);
        }
    }

    #[test]
    fn what_is_too_short_or_too_long_is_counted_all_the_same() {
        let histogram = ExponentialHistogram::default();
        histogram.observe(Duration::ZERO);
        histogram.observe_each([(Duration::from_micros(100), 3)]);
        histogram.observe(Duration::from_secs(100_000));
        let counted = histogram.counted();
        assert_eq!((counted.count, counted.zero_count), (5, 4));
        assert_eq!(buckets(&counted), &Buckets { offset: LAST, bucket_counts: vec![1] });
        assert!((counted.sum.unwrap() - 100_000.000_3).abs() < 1e-9);
    }

    #[test]
    fn a_wide_histogram_is_exported_more_coarsely_and_loses_nothing() {
        let histogram = ExponentialHistogram::default();
        for power in 0..25 {
            histogram.observe_each([(Duration::from_micros(101 << power), 7)]);
        }
        let counted = histogram.counted();
        let counts = &buckets(&counted).bucket_counts;
        assert!(counts.len() <= MAX_BUCKETS && counted.scale < SCALE, "{counted:?}");
        assert_eq!(counts.iter().sum::<u64>(), 25 * 7);
        assert_eq!(histogram.counted(), counted, "cumulative");
        let first = edges(&counted, 0);
        assert!(first.0 < 101e-6 && 101e-6 <= first.1, "{first:?}");
        let last = edges(&counted, counts.len() - 1);
        let longest = 101e-6 * f64::from(1 << 24);
        assert!(last.0 < longest && longest <= last.1, "{last:?}");
    }

    #[test]
    fn an_unused_one_is_empty() {
        let counted = ExponentialHistogram::default().counted();
        assert_eq!((counted.count, counted.scale, buckets(&counted)), (0, SCALE, &Buckets::default()));
    }
}
