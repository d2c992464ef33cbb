//! `[telemetry]`: access log, OTLP export, sampling.
//!
//! The export may also be enabled by a flag or by the standard `OTEL_…` variables. Which of them wins is decided
//! here, key by key: flag, file, `OTEL_…`, default. `OTEL_SDK_DISABLED` and its like speak for the environment, and
//! so lose against a file or a flag that names an endpoint.

use std::time::Duration;

use http::{HeaderName, HeaderValue};

use crate::config::otel::metrics::{MetricsExporter, metrics_endpoint};
use crate::config::otel::{self, Exporter, Signal};
use crate::config::{
    Declared, EngineSpansConfig, Otlp, OtlpKeys, OtlpLogs, OtlpMetrics, OtlpProtocol, Sampling, Telemetry,
    TelemetryKeys, content,
};

use super::section::Section;

pub(super) fn telemetry(root: &Section<'_>, tenants: usize) -> Telemetry {
    let section = TelemetryKeys::open(root);
    let keys = TelemetryKeys::read(&section, &TelemetryKeys::default());
    let export = Export::read(&section);
    let otlp = export.spans(Exporter::from_env(root.checking.env));
    Telemetry {
        access_log: keys.access_log,
        content: content::content(&section, otlp.as_ref().is_some_and(|otlp| otlp.logs.is_some())),
        otlp,
        otlp_metrics: export.metrics(MetricsExporter::from_env(root.checking.env)),
        engine_spans: EngineSpansConfig::opened(&section).map(|(_, read)| read),
        sampling: Sampling::of(&section),
        stages_by_tenant: keys.stages_by_tenant.unwrap_or(tenants <= MAX_TENANTS_IN_HISTOGRAMS),
        ttft_by_tenant: keys.ttft_by_tenant.unwrap_or(tenants <= MAX_TENANTS_IN_HISTOGRAMS),
        runbook_url: keys.runbook_url,
    }
}

/// `[telemetry.otlp]`, and the flag that goes before its endpoint.
struct Export {
    is_present: bool,
    keys: OtlpKeys,
}

impl Export {
    fn read(telemetry: &Section<'_>) -> Self {
        let section = OtlpKeys::open(telemetry);
        let mut keys = OtlpKeys::read(&section, &OtlpKeys::default());
        if let Some(flag) = &section.checking.overrides.otlp_endpoint {
            keys.endpoint = Some(flag.clone());
        }
        Self { is_present: section.is_present(), keys }
    }

    fn spans(&self, exporter: Exporter) -> Option<Otlp> {
        let (protocol, headers, timeout) = self.travel(exporter.of_traces.clone());
        let traces_endpoint = match &self.keys.endpoint {
            Some(base) => otel::traces_endpoint(base, protocol),
            None if self.is_present => exporter
                .endpoint(protocol)
                .unwrap_or_else(|| otel::traces_endpoint(default_base(protocol), protocol)),
            None => exporter.endpoint(protocol)?,
        };
        let logs = self.logs(exporter, &traces_endpoint, protocol);
        Some(Otlp { traces_endpoint, protocol, headers, timeout, logs })
    }

    /// Where the environment sends them, or beside the spans and then as they go.
    fn logs(&self, exporter: Exporter, traces_endpoint: &str, of_traces: OtlpProtocol) -> Option<OtlpLogs> {
        let (protocol, headers, timeout) = self.travel(exporter.of_logs.clone().or(&exporter.of_all));
        let of_env = if self.keys.endpoint.is_none() { exporter.logs_endpoint(protocol) } else { None };
        if let Some(endpoint) = of_env {
            return Some(OtlpLogs { endpoint, protocol, headers, timeout });
        }
        let endpoint = otel::logs_endpoint(traces_endpoint, of_traces)?;
        let (_, headers, timeout) = self.travel(exporter.of_logs.or(&exporter.of_traces));
        Some(OtlpLogs { endpoint, protocol: of_traces, headers, timeout })
    }

    /// How exports travel, of what the environment has of them.
    fn travel(&self, of_env: Signal) -> (OtlpProtocol, Vec<(HeaderName, HeaderValue)>, Duration) {
        (
            self.keys.protocol.or(of_env.protocol).unwrap_or_default(),
            self.keys.headers.clone().or(of_env.headers).unwrap_or_default(),
            self.keys.timeout.or(of_env.timeout).unwrap_or(DEFAULT_EXPORT_TIMEOUT),
        )
    }

    /// Beside the spans, unless the environment alone says where.
    fn metrics(&self, exporter: MetricsExporter) -> Option<OtlpMetrics> {
        if self.keys.metrics.or(exporter.is_wanted) != Some(true) {
            return None;
        }
        let protocol = self.keys.protocol.or(exporter.protocol).unwrap_or_default();
        let endpoint = match (&self.keys.endpoint, exporter.endpoint) {
            (Some(base), _) => metrics_endpoint(base, protocol),
            (None, Some(exact)) => exact,
            (None, None) => {
                metrics_endpoint(exporter.base.as_deref().unwrap_or(default_base(protocol)), protocol)
            }
        };
        Some(OtlpMetrics {
            endpoint,
            protocol,
            headers: self.keys.headers.clone().unwrap_or(exporter.headers),
            timeout: self.keys.timeout.or(exporter.timeout).unwrap_or(DEFAULT_EXPORT_TIMEOUT),
            interval: self.keys.metrics_interval.or(exporter.interval).unwrap_or(DEFAULT_EXPORT_INTERVAL),
            is_gzip: exporter.is_gzip,
            temporality: exporter.temporality,
        })
    }
}

/// Where a collector on this machine listens.
fn default_base(protocol: OtlpProtocol) -> &'static str {
    match protocol {
        OtlpProtocol::Http => "http://127.0.0.1:4318",
        OtlpProtocol::Grpc => "http://127.0.0.1:4317",
    }
}

/// Above it, histograms by tenant would be most of the metrics page.
const MAX_TENANTS_IN_HISTOGRAMS: usize = 20;
const DEFAULT_EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// The default of OpenTelemetry.
const DEFAULT_EXPORT_INTERVAL: Duration = Duration::from_secs(60);
