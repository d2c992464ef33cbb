//! `[telemetry]`: access log, OTLP export, sampling.
//!
//! The export may also be enabled by a flag or by the standard `OTEL_…` variables. Which of them wins is decided
//! here, key by key: flag, file, `OTEL_…`, default. `OTEL_SDK_DISABLED` and its like speak for the environment, and
//! so lose against a file or a flag that names an endpoint.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use toml::de::DeValue;

use crate::config::otel::metrics::{MetricsExporter, metrics_endpoint};
use crate::config::otel::{self, Exporter};
use crate::config::{AccessLog, EngineSpansConfig, Otlp, OtlpMetrics, OtlpProtocol, Sampling, Telemetry};

use super::section::{Item, Section};
use super::values::{ADDRESS, HTTP_URL, POSITIVE_DURATION};
use super::{secret, unbuilt};

/// Reads `[telemetry]`.
pub(super) fn telemetry(root: &Section<'_>, tenants: usize) -> Telemetry {
    let section = root.section("telemetry", "[telemetry]");
    unbuilt::refuse(&section, unbuilt::TELEMETRY);
    let otlp = OtlpSection::read(&section.section("otlp", "[telemetry.otlp]"));
    Telemetry {
        access_log: section.get("access_log").and_then(|item| access_log(&item)).unwrap_or(AccessLog::Stdout),
        otlp: otlp.spans(Exporter::from_env(root.checking.env)),
        otlp_metrics: otlp.metrics(MetricsExporter::from_env(root.checking.env)),
        engine_spans: engine_spans(&section.section("engine_spans", "[telemetry.engine_spans]")),
        sampling: sampling(&section.section("sampling", "[telemetry.sampling]")),
        stages_by_tenant: section.boolean("stages_by_tenant").unwrap_or(tenants <= MAX_TENANTS_IN_HISTOGRAMS),
        ttft_by_tenant: section.boolean("ttft_by_tenant").unwrap_or(tenants <= MAX_TENANTS_IN_HISTOGRAMS),
    }
}

fn access_log(item: &Item<'_>) -> Option<AccessLog> {
    Some(match item.text()? {
        "stdout" => AccessLog::Stdout,
        "stderr" => AccessLog::Stderr,
        "off" => AccessLog::Off,
        path if path.contains(['/', '.']) => AccessLog::File(item.checking.directory.join(path)),
        word => {
            let hint = "known: stdout, stderr, off, or the path of a file: \"./access.log\"";
            item.fault_unknown("access log", word, &["stdout", "stderr", "off"], hint);
            return None;
        }
    })
}

/// `[telemetry.otlp]` as it is written.
struct OtlpSection {
    is_present: bool,
    /// The flag's, else the file's.
    endpoint: Option<String>,
    protocol: Option<OtlpProtocol>,
    headers: Option<Vec<(HeaderName, HeaderValue)>>,
    timeout: Option<Duration>,
    metrics: Option<bool>,
    metrics_interval: Option<Duration>,
}

impl OtlpSection {
    fn read(section: &Section<'_>) -> Self {
        let endpoint = section.parse("endpoint", &HTTP_URL);
        Self {
            is_present: section.is_present(),
            endpoint: section.checking.overrides.otlp_endpoint.clone().or(endpoint),
            protocol: section.get("protocol").and_then(|item| item.one_of("protocol", PROTOCOLS)),
            headers: section.get("headers").map(|item| headers(&item)),
            timeout: section.parse("timeout", &POSITIVE_DURATION),
            metrics: section.boolean("metrics"),
            metrics_interval: section.parse("metrics_interval", &POSITIVE_DURATION),
        }
    }

    fn spans(&self, exporter: Exporter) -> Option<Otlp> {
        let protocol = self.protocol.or(exporter.protocol).unwrap_or_default();
        let of_env = if self.endpoint.is_none() { exporter.logs_endpoint(protocol) } else { None };
        let traces_endpoint = match &self.endpoint {
            Some(base) => otel::traces_endpoint(base, protocol),
            None if self.is_present => exporter
                .endpoint(protocol)
                .unwrap_or_else(|| otel::traces_endpoint(default_base(protocol), protocol)),
            None => exporter.endpoint(protocol)?,
        };
        Some(Otlp {
            logs_endpoint: of_env.or_else(|| otel::logs_endpoint(&traces_endpoint, protocol)),
            traces_endpoint,
            protocol,
            headers: self.headers.clone().unwrap_or(exporter.headers),
            timeout: self.timeout.or(exporter.timeout).unwrap_or(DEFAULT_EXPORT_TIMEOUT),
        })
    }

    /// Beside the spans, unless the environment alone says where.
    fn metrics(&self, exporter: MetricsExporter) -> Option<OtlpMetrics> {
        if self.metrics.or(exporter.is_wanted) != Some(true) {
            return None;
        }
        let protocol = self.protocol.or(exporter.protocol).unwrap_or_default();
        let endpoint = match (&self.endpoint, exporter.endpoint) {
            (Some(base), _) => metrics_endpoint(base, protocol),
            (None, Some(exact)) => exact,
            (None, None) => {
                metrics_endpoint(exporter.base.as_deref().unwrap_or(default_base(protocol)), protocol)
            }
        };
        Some(OtlpMetrics {
            endpoint,
            protocol,
            headers: self.headers.clone().unwrap_or(exporter.headers),
            timeout: self.timeout.or(exporter.timeout).unwrap_or(DEFAULT_EXPORT_TIMEOUT),
            interval: self.metrics_interval.or(exporter.interval).unwrap_or(DEFAULT_EXPORT_INTERVAL),
            is_gzip: exporter.is_gzip,
            temporality: exporter.temporality,
        })
    }
}

fn engine_spans(section: &Section<'_>) -> Option<EngineSpansConfig> {
    if !section.is_present() {
        return None;
    }
    let fallback = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), DEFAULT_ENGINE_SPANS_PORT);
    Some(EngineSpansConfig { listen: section.parse("listen", &ADDRESS).unwrap_or(fallback) })
}

/// Where a collector on this machine listens.
fn default_base(protocol: OtlpProtocol) -> &'static str {
    match protocol {
        OtlpProtocol::Http => "http://127.0.0.1:4318",
        OtlpProtocol::Grpc => "http://127.0.0.1:4317",
    }
}

fn headers(item: &Item<'_>) -> Vec<(HeaderName, HeaderValue)> {
    if !matches!(item.value, DeValue::Table(_)) {
        item.wrong_type("a table", "write names and values: headers = { \"x-tenant\" = \"1\" }");
    }
    item.entries().filter_map(|entry| header(&entry)).collect()
}

fn header(entry: &Item<'_>) -> Option<(HeaderName, HeaderValue)> {
    let Ok(name) = entry.key.parse() else {
        entry.fault_at_key(
            format!("{:?} is not a header name", entry.key),
            "write it in quotes, without a colon",
        );
        return None;
    };
    let value = secret::read_or_plain(entry)?;
    match HeaderValue::from_str(value.reveal()) {
        Ok(mut value) => {
            value.set_sensitive(true);
            Some((name, value))
        }
        Err(_) => {
            entry.fault_masked("this cannot be the value of a header", "use visible ASCII characters");
            None
        }
    }
}

fn sampling(section: &Section<'_>) -> Sampling {
    let routine = section.ratio("routine").unwrap_or(0.02);
    let max_per_second = section.integer("max_per_second", 1..=1_000_000).unwrap_or(100);
    let Some(item) = section.get("keep") else {
        return Sampling {
            routine,
            keep_error: true,
            keep_slo_miss: true,
            keep_tail: true,
            keep_retry: true,
            keep_drift: true,
            keep_canary: true,
            max_per_second,
        };
    };
    let kept: Vec<Keep> = item.list().iter().filter_map(|entry| entry.one_of("reason", KEEP)).collect();
    Sampling {
        routine,
        keep_error: kept.contains(&Keep::Error),
        keep_slo_miss: kept.contains(&Keep::SloMiss),
        keep_tail: kept.contains(&Keep::Tail),
        keep_retry: kept.contains(&Keep::Retry),
        keep_drift: kept.contains(&Keep::Drift),
        keep_canary: kept.contains(&Keep::Canary),
        max_per_second,
    }
}

/// Reasons to keep a span.
#[derive(Clone, Copy, PartialEq)]
enum Keep {
    Error,
    SloMiss,
    Tail,
    Retry,
    Drift,
    Canary,
}

const KEEP: &[(&str, Keep)] = &[
    ("error", Keep::Error),
    ("slo_miss", Keep::SloMiss),
    ("retry", Keep::Retry),
    ("tail", Keep::Tail),
    ("canary", Keep::Canary),
    ("drift", Keep::Drift),
];
const PROTOCOLS: &[(&str, OtlpProtocol)] =
    &[("http", OtlpProtocol::Http), ("http/protobuf", OtlpProtocol::Http), ("grpc", OtlpProtocol::Grpc)];
/// Beside the usual ports of a collector, which may be on the same machine.
const DEFAULT_ENGINE_SPANS_PORT: u16 = 4319;
/// Above it, histograms by tenant would be most of the metrics page.
const MAX_TENANTS_IN_HISTOGRAMS: usize = 20;
const DEFAULT_EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// The default of OpenTelemetry.
const DEFAULT_EXPORT_INTERVAL: Duration = Duration::from_secs(60);
