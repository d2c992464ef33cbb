//! The standard `OTEL_…` variables, as far as they concern the export of metrics.

use std::time::Duration;

use super::Signal;
use crate::config::Temporality;

/// What the environment says about the OTLP export of metrics.
#[derive(Debug)]
pub(in crate::config) struct MetricsExporter {
    /// Whether metrics are asked for, or explicitly not; `None` where nothing is said about metrics alone.
    pub(in crate::config) is_wanted: Option<bool>,
    /// Its endpoint is used as it is.
    pub(in crate::config) signal: Signal,
    /// Between two exports.
    pub(in crate::config) interval: Option<Duration>,
    pub(in crate::config) is_gzip: bool,
    /// Totals since the start, or since the export before.
    pub(in crate::config) temporality: Temporality,
}

impl MetricsExporter {
    /// Reads what is of metrics alone; `set` yields the variables that are set.
    pub(super) fn read(set: &dyn Fn(&str) -> Option<String>, is_off: bool, signal: Signal) -> Self {
        // By the specification the default is to export. Nobody who sends only spans today should get metrics by an update.
        let is_wanted = match set("OTEL_METRICS_EXPORTER").as_deref() {
            _ if is_off => Some(false),
            Some("none") => Some(false),
            Some(list) if list.split(',').any(|name| name.trim() == "otlp") => Some(true),
            _ => signal.endpoint.is_some().then_some(true),
        };
        let compression = set("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION");
        let compression = compression.or_else(|| set("OTEL_EXPORTER_OTLP_COMPRESSION"));
        Self {
            is_wanted,
            signal,
            interval: set("OTEL_METRIC_EXPORT_INTERVAL").and_then(|millis| interval(&millis)),
            is_gzip: compression.is_some_and(|name| is_gzip(&name)),
            temporality: set("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE")
                .and_then(|name| temporality(&name))
                .unwrap_or_default(),
        }
    }
}

fn interval(millis: &str) -> Option<Duration> {
    let parsed = millis.parse().ok().filter(|millis| (100..=3_600_000).contains(millis));
    if parsed.is_none() {
        tracing::warn!(
            "OTEL_METRIC_EXPORT_INTERVAL is no number of milliseconds from 100 to an hour: left out"
        );
    }
    parsed.map(Duration::from_millis)
}

fn is_gzip(name: &str) -> bool {
    if !matches!(name, "gzip" | "none") {
        tracing::warn!("OTEL_EXPORTER_OTLP_COMPRESSION is neither gzip nor none: left out");
    }
    name == "gzip"
}

fn temporality(name: &str) -> Option<Temporality> {
    match name.to_ascii_lowercase().as_str() {
        "cumulative" => Some(Temporality::Cumulative),
        // They differ in up-down counters, and there are none.
        "delta" | "lowmemory" => Some(Temporality::Delta),
        _ => {
            tracing::warn!(
                "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE is none of cumulative, delta, lowmemory: left out"
            );
            None
        }
    }
}

pub(in crate::config) const METRICS_PATH: &str = "/v1/metrics";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::OtlpProtocol;
    use crate::config::otel::{endpoint_at, tests};

    fn read(variables: &[(&str, &str)]) -> MetricsExporter {
        tests::exporter(variables).metrics
    }

    #[test]
    fn metrics_are_exported_where_something_asks_for_them() {
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318");
        let cases: [(&[_], _); 6] = [
            (&[base], None),
            (&[base, ("OTEL_METRICS_EXPORTER", "otlp")], Some(true)),
            (&[base, ("OTEL_METRICS_EXPORTER", "none")], Some(false)),
            (&[base, ("OTEL_METRICS_EXPORTER", "prometheus")], None),
            (&[("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://m:1/x")], Some(true)),
            (&[("OTEL_METRICS_EXPORTER", "otlp"), ("OTEL_SDK_DISABLED", "true")], Some(false)),
        ];
        for (variables, wanted) in cases {
            assert_eq!(read(variables).is_wanted, wanted, "{variables:?}");
        }
    }

    #[test]
    fn the_variables_of_metrics_go_before_those_of_all_signals() {
        let read = read(&[
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "10"),
            ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "2500"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "none"),
            ("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "gzip"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-a=1"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "15000"),
            ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "Delta"),
        ]);
        assert_eq!(read.signal.timeout, Some(Duration::from_millis(2500)));
        assert_eq!(read.interval, Some(Duration::from_secs(15)));
        assert_eq!((read.is_gzip, read.temporality), (true, Temporality::Delta));
        assert_eq!(read.signal.headers.unwrap().len(), 1);
    }

    #[test]
    fn metrics_go_beside_the_spans() {
        for (base, protocol, expected) in [
            ("http://c:4318", OtlpProtocol::Http, "http://c:4318/v1/metrics"),
            ("http://c:4318/v1/traces", OtlpProtocol::Http, "http://c:4318/v1/metrics"),
            ("http://c:4318/x/", OtlpProtocol::Http, "http://c:4318/x/v1/metrics"),
            ("http://c:4317", OtlpProtocol::Grpc, "http://c:4317"),
        ] {
            assert_eq!(endpoint_at(METRICS_PATH, base, protocol), expected);
        }
    }
}
