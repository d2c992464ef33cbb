//! The metrics as OTLP: what a scrape would show, and the exponential histograms. Pure: families in, metrics out.
//!
//! A name loses its unit and the suffix of counters, and its first word becomes a name space:
//! `tokenway_queue_oldest_seconds` is `tokenway.queue_oldest` in `s`. That is the inverse of what Prometheus does when it
//! receives OTLP, so the names of docs/metrics.md come back there. Labels are attributes of the same names.

use std::sync::Arc;
use std::time::SystemTime;

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, ExponentialHistogram, ExponentialHistogramDataPoint, Gauge, Histogram,
    HistogramDataPoint, Metric, NumberDataPoint, Sum, number_data_point,
};
use prometheus::proto::{LabelPair, MetricFamily, MetricType};

use super::exponential::{ExponentialKey, ExponentialSeries};
use super::table::{EXPONENTIAL, ExponentialMeasure, is_exponential};
use crate::observe::otlp::{attribute, nanos, text};

/// Cumulative from `start` to `now`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) start: SystemTime,
    pub(super) now: SystemTime,
}

/// Everything, cumulative.
pub(super) fn metrics(
    families: &[MetricFamily],
    exponentials: &[(Option<ExponentialKey>, Arc<ExponentialSeries>)],
    span: Span,
) -> Vec<Metric> {
    let own = families.iter().filter(|family| !is_exponential(family.name()));
    let own = own.filter_map(|family| metric(family, span));
    let exponential = EXPONENTIAL.iter().filter_map(|measure| of_measure(measure, exponentials, span));
    own.chain(exponential).collect()
}

fn metric(family: &MetricFamily, span: Span) -> Option<Metric> {
    let temporality = AggregationTemporality::Cumulative.into();
    let data = match family.get_field_type() {
        MetricType::COUNTER => {
            let points = numbers(family, span, |metric| metric.get_counter().get_value());
            Data::Sum(Sum { data_points: points, aggregation_temporality: temporality, is_monotonic: true })
        }
        MetricType::GAUGE => {
            Data::Gauge(Gauge { data_points: numbers(family, span, |metric| metric.get_gauge().get_value()) })
        }
        MetricType::HISTOGRAM => {
            let points = family.get_metric().iter().map(|metric| explicit(metric, span)).collect();
            Data::Histogram(Histogram { data_points: points, aggregation_temporality: temporality })
        }
        MetricType::SUMMARY | MetricType::UNTYPED => return None,
    };
    let (name, unit) = name_and_unit(family.name(), family.get_field_type() == MetricType::COUNTER);
    let description = family.help().to_owned();
    Some(Metric { name, description, unit: unit.to_owned(), metadata: Vec::new(), data: Some(data) })
}

/// As the specification of OpenTelemetry maps names to Prometheus, backwards.
fn name_and_unit(name: &str, is_counter: bool) -> (String, &'static str) {
    let keeps_unit = DIFFER_BY_UNIT.contains(&name);
    let name = if is_counter { name.strip_suffix("_total").unwrap_or(name) } else { name };
    let named = UNITS.iter().find_map(|(suffix, unit)| Some((name.strip_suffix(suffix)?, *unit)));
    let named = named.map(|(bare, unit)| (if keeps_unit { name } else { bare }, unit));
    // A gauge in `1` would come back as a ratio.
    let (name, unit) = named.unwrap_or((name, if is_counter { "1" } else { "" }));
    (name.replacen('_', ".", 1), unit)
}

/// Families whose names differ by the unit alone, and a histogram of ratios, which Prometheus does not name so: the unit stays in the
/// name, which is left as it is then.
const DIFFER_BY_UNIT: &[&str] = &[
    "tokenway_replica_kv_transfer_bytes_total",
    "tokenway_replica_kv_transfer_seconds",
    "tokenway_prediction_ratio",
];
const UNITS: &[(&str, &str)] = &[("_seconds", "s"), ("_bytes", "By"), ("_ratio", "1")];

fn numbers(
    family: &MetricFamily,
    span: Span,
    value: fn(&prometheus::proto::Metric) -> f64,
) -> Vec<NumberDataPoint> {
    let point = |metric: &prometheus::proto::Metric| NumberDataPoint {
        attributes: labels(metric.get_label()),
        start_time_unix_nano: nanos(span.start),
        time_unix_nano: nanos(span.now),
        value: Some(number_data_point::Value::AsDouble(value(metric))),
        ..NumberDataPoint::default()
    };
    family.get_metric().iter().map(point).collect()
}

fn explicit(metric: &prometheus::proto::Metric, span: Span) -> HistogramDataPoint {
    let histogram = metric.get_histogram();
    let mut below = 0;
    let mut counts = Vec::with_capacity(histogram.get_bucket().len() + 1);
    for bucket in histogram.get_bucket() {
        counts.push(bucket.cumulative_count().saturating_sub(below));
        below = bucket.cumulative_count();
    }
    counts.push(histogram.get_sample_count().saturating_sub(below));
    HistogramDataPoint {
        attributes: labels(metric.get_label()),
        start_time_unix_nano: nanos(span.start),
        time_unix_nano: nanos(span.now),
        count: counts.iter().sum(),
        sum: Some(histogram.get_sample_sum()),
        bucket_counts: counts,
        explicit_bounds: histogram.get_bucket().iter().map(prometheus::proto::Bucket::upper_bound).collect(),
        ..HistogramDataPoint::default()
    }
}

fn of_measure(
    measure: &ExponentialMeasure,
    all: &[(Option<ExponentialKey>, Arc<ExponentialSeries>)],
    span: Span,
) -> Option<Metric> {
    let points = all.iter().filter_map(|(key, series)| {
        let counted = (measure.pick)(series).counted();
        (counted.count > 0).then(|| ExponentialHistogramDataPoint {
            attributes: key.as_ref().map_or_else(overflow, attributes),
            start_time_unix_nano: nanos(span.start),
            time_unix_nano: nanos(span.now),
            ..counted
        })
    });
    let data_points: Vec<_> = points.collect();
    let is_used = !data_points.is_empty();
    let temporality = AggregationTemporality::Cumulative.into();
    is_used.then(|| Metric {
        name: measure.name.to_owned(),
        description: measure.help.to_owned(),
        unit: "s".to_owned(),
        metadata: Vec::new(),
        data: Some(Data::ExponentialHistogram(ExponentialHistogram {
            data_points,
            aggregation_temporality: temporality,
        })),
    })
}

/// By the semantic conventions for GenAI, and as on spans.
fn attributes(key: &ExponentialKey) -> Vec<KeyValue> {
    let pairs = [
        ("gen_ai.operation.name", key.operation),
        ("gen_ai.provider.name", key.provider.as_deref().unwrap_or_default()),
        ("gen_ai.request.model", &*key.model),
        ("error.type", key.error.unwrap_or_default()),
        ("tokenway.route", &*key.route),
        ("tokenway.revision", &*key.revision),
        ("tokenway.class", key.class.as_str()),
    ];
    pairs.into_iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| text(name, value)).collect()
}

fn overflow() -> Vec<KeyValue> {
    vec![attribute("otel.metric.overflow", Value::BoolValue(true))]
}

fn labels(labels: &[LabelPair]) -> Vec<KeyValue> {
    labels.iter().map(|label| text(label.name(), label.value())).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use prometheus::Registry;

    use super::super::buckets::Edges;
    use super::super::declare::Maker;
    use super::super::table::Families;
    use super::*;

    #[test]
    fn no_two_families_have_one_name() {
        let (registry, edges) = (Registry::new(), Edges::default());
        let maker = Maker::new(&registry, &edges);
        Families::new(&maker);
        let declared = maker.declared.take();
        let own = declared.iter().filter(|family| !is_exponential(family.name));
        let own = own.map(|family| name_and_unit(family.name, matches!(family.kind, "counter" | "amount")).0);
        let mut seen = HashSet::new();
        for name in own.chain(EXPONENTIAL.iter().map(|measure| measure.name.to_owned())) {
            assert!(seen.insert(name.clone()), "{name}");
        }
    }

    #[test]
    fn names_come_back_from_prometheus() {
        for (name, is_counter, expected) in [
            ("tokenway_requests_total", true, ("tokenway.requests", "1")),
            ("tokenway_queue_oldest_seconds", false, ("tokenway.queue_oldest", "s")),
            ("tokenway_queue_bytes", false, ("tokenway.queue", "By")),
            ("tokenway_canary_share_ratio", false, ("tokenway.canary_share", "1")),
            ("tokenway_prediction_ratio", false, ("tokenway.prediction_ratio", "1")),
            ("tokenway_requests_inflight", false, ("tokenway.requests_inflight", "")),
            ("process_cpu_seconds_total", true, ("process.cpu", "s")),
            ("tokenway_replica_kv_transfer_bytes_total", true, ("tokenway.replica_kv_transfer_bytes", "By")),
            ("tokenway_replica_kv_transfer_seconds", false, ("tokenway.replica_kv_transfer_seconds", "s")),
        ] {
            let (name, unit) = name_and_unit(name, is_counter);
            assert_eq!((&*name, unit), expected);
        }
    }
}
