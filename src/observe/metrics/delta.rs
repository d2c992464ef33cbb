//! What came since an earlier export, for receivers that want deltas. Pure: two cumulative states in, their difference out.
//!
//! The caller takes a state as the earlier one only when it has arrived: what a broken collector missed is in the next
//! delta. Series without news are left out; gauges have no delta.

use std::collections::HashMap;

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::exponential_histogram_data_point::Buckets;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, ExponentialHistogramDataPoint, HistogramDataPoint, Metric, NumberDataPoint,
    number_data_point,
};

use super::exponential::halve;

/// `now` without `before`.
pub(in crate::observe) fn since(now: &[Metric], before: &[Metric]) -> Vec<Metric> {
    let before: HashMap<&str, &Data> =
        before.iter().filter_map(|metric| Some((&*metric.name, metric.data.as_ref()?))).collect();
    let mut delta = now.to_vec();
    delta.retain_mut(|metric| {
        let earlier = before.get(&*metric.name).copied();
        metric.data.as_mut().is_some_and(|data| subtract(data, earlier))
    });
    delta
}

fn subtract(data: &mut Data, earlier: Option<&Data>) -> bool {
    // Three types of the protocol with the same two fields, and no trait.
    macro_rules! subtract {
        ($own:ident, $Kind:ident, $minus:ident) => {{
            $own.aggregation_temporality = AggregationTemporality::Delta.into();
            let earlier = if let Some(Data::$Kind(before)) = earlier { &before.data_points[..] } else { &[] };
            difference(&mut $own.data_points, earlier, |point| &point.attributes, $minus)
        }};
    }
    match data {
        Data::Sum(own) => subtract!(own, Sum, minus_number),
        Data::Histogram(own) => subtract!(own, Histogram, minus_histogram),
        Data::ExponentialHistogram(own) => subtract!(own, ExponentialHistogram, minus_exponential),
        Data::Gauge(gauge) => !gauge.data_points.is_empty(),
        Data::Summary(summary) => !summary.data_points.is_empty(),
    }
}

/// Subtracts the points with the same attributes; whether anything is left, as `minus` says of one. Nothing is subtracted from a series
/// that began anew, as one does whose replica left and came back.
fn difference<P>(
    points: &mut Vec<P>,
    earlier: &[P],
    attributes: fn(&P) -> &Vec<KeyValue>,
    minus: fn(&mut P, Option<&P>) -> bool,
) -> bool {
    let known: HashMap<Vec<u8>, &P> = earlier.iter().map(|point| (key(attributes(point)), point)).collect();
    points.retain_mut(|point| {
        let before = known.get(&key(attributes(point))).copied();
        minus(point, before)
    });
    !points.is_empty()
}

fn minus_number(point: &mut NumberDataPoint, before: Option<&NumberDataPoint>) -> bool {
    let value = |point: &NumberDataPoint| match point.value {
        Some(number_data_point::Value::AsDouble(value)) => value,
        Some(number_data_point::Value::AsInt(value)) => value as f64,
        None => 0.0,
    };
    let mut left = value(point);
    if let Some(before) = before.filter(|before| value(before) <= left) {
        left -= value(before);
        point.start_time_unix_nano = before.time_unix_nano;
    }
    point.value = Some(number_data_point::Value::AsDouble(left));
    left > 0.0
}

fn minus_histogram(point: &mut HistogramDataPoint, before: Option<&HistogramDataPoint>) -> bool {
    if let Some(before) = before.filter(|before| before.count <= point.count) {
        for (count, before) in point.bucket_counts.iter_mut().zip(&before.bucket_counts) {
            *count = count.saturating_sub(*before);
        }
        point.count = point.bucket_counts.iter().sum();
        point.sum = Some(point.sum.unwrap_or_default() - before.sum.unwrap_or_default());
        point.start_time_unix_nano = before.time_unix_nano;
    }
    point.count > 0
}

fn minus_exponential(
    point: &mut ExponentialHistogramDataPoint,
    before: Option<&ExponentialHistogramDataPoint>,
) -> bool {
    if let (Some(before), Some(now)) =
        (before.filter(|before| before.count <= point.count), point.positive.as_mut())
    {
        let mut old = before.positive.clone().unwrap_or_default();
        // A histogram that grows becomes coarser, never finer.
        for _ in point.scale..before.scale {
            halve(&mut old.offset, &mut old.bucket_counts);
        }
        take_away(now, &old);
        point.zero_count = point.zero_count.saturating_sub(before.zero_count);
        point.count = point.zero_count + now.bucket_counts.iter().sum::<u64>();
        point.sum = Some(point.sum.unwrap_or_default() - before.sum.unwrap_or_default());
        point.start_time_unix_nano = before.time_unix_nano;
    }
    point.count > 0
}

fn take_away(now: &mut Buckets, old: &Buckets) {
    for (place, count) in (old.offset..).zip(&old.bucket_counts) {
        let slot = usize::try_from(place - now.offset).ok().and_then(|at| now.bucket_counts.get_mut(at));
        if let Some(slot) = slot {
            *slot = slot.saturating_sub(*count);
        }
    }
}

fn key(attributes: &[KeyValue]) -> Vec<u8> {
    attributes.iter().flat_map(prost::Message::encode_length_delimited_to_vec).collect()
}
