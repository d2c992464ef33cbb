//! `[telemetry]`: access log, OTLP export, sampling.
//!
//! The export may also be enabled by a flag or by the standard `OTEL_…` variables. Which of them wins is decided
//! here, key by key: flag, file, `OTEL_…`, default. `OTEL_SDK_DISABLED` and its like speak for the environment, and
//! so lose against a file or a flag that names an endpoint.

use std::time::Duration;

use crate::config::otel::metrics::METRICS_PATH;
use crate::config::otel::{self, Exporter, Signal, TRACES_PATH, endpoint_at};
use crate::config::{
    Declared, EngineSpansConfig, Otlp, OtlpKeys, OtlpMetrics, OtlpProtocol, OtlpTarget, Sampling, Telemetry,
    content,
};

use super::section::Section;

pub(super) fn telemetry(root: &Section<'_>, tenants: usize) -> Telemetry {
    let section = Telemetry::open(root);
    let by_tenant = tenants <= MAX_TENANTS_IN_HISTOGRAMS;
    let default =
        Telemetry { stages_by_tenant: by_tenant, ttft_by_tenant: by_tenant, ..Telemetry::default() };
    let keys = Telemetry::read(&section, &default);
    let export = Export::read(&section);
    let exporter = Exporter::from_env(section.checking.env);
    let otlp = export.spans(&exporter);
    Telemetry {
        content: content::content(&section, otlp.as_ref().is_some_and(|otlp| otlp.logs.is_some())),
        otlp,
        otlp_metrics: export.metrics(exporter),
        engine_spans: EngineSpansConfig::opened(&section).map(|(_, read)| read),
        sampling: Sampling::of(&section),
        ..keys
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

    fn spans(&self, exporter: &Exporter) -> Option<Otlp> {
        let traces = self.target(exporter.traces.clone(), |protocol| match &self.keys.endpoint {
            Some(base) => Some(endpoint_at(TRACES_PATH, base, protocol)),
            None => exporter.endpoint(protocol).or_else(|| {
                self.is_present.then(|| endpoint_at(TRACES_PATH, default_base(protocol), protocol))
            }),
        })?;
        let logs = self.logs(exporter, &traces);
        Some(Otlp { traces, logs })
    }

    /// Where the environment sends them, or beside the spans and then as they go.
    fn logs(&self, exporter: &Exporter, traces: &OtlpTarget) -> Option<OtlpTarget> {
        let own = exporter.logs.clone().or(&exporter.all);
        let of_env = |protocol| exporter.logs_endpoint(protocol).filter(|_| self.keys.endpoint.is_none());
        self.target(own, of_env).or_else(|| {
            let beside = |_| otel::logs_endpoint(&traces.endpoint, traces.protocol);
            let target = self.target(exporter.logs.clone().or(&exporter.traces), beside)?;
            Some(OtlpTarget { protocol: traces.protocol, ..target })
        })
    }

    /// Where the flag and the file send a signal; where they are silent, the environment.
    fn target(
        &self,
        of_env: Signal,
        endpoint: impl FnOnce(OtlpProtocol) -> Option<String>,
    ) -> Option<OtlpTarget> {
        let protocol = self.keys.protocol.or(of_env.protocol).unwrap_or_default();
        Some(OtlpTarget {
            endpoint: endpoint(protocol)?,
            protocol,
            headers: self.keys.headers.clone().or(of_env.headers).unwrap_or_default(),
            timeout: self.keys.timeout.or(of_env.timeout).unwrap_or(DEFAULT_EXPORT_TIMEOUT),
        })
    }

    /// Beside the spans, unless the environment alone says where.
    fn metrics(&self, Exporter { metrics: exporter, all, .. }: Exporter) -> Option<OtlpMetrics> {
        if self.keys.metrics.or(exporter.is_wanted) != Some(true) {
            return None;
        }
        let exact = exporter.signal.endpoint.clone().filter(|_| self.keys.endpoint.is_none());
        let base = self.keys.endpoint.as_ref().or(all.endpoint.as_ref());
        let target = self.target(exporter.signal, |protocol| {
            let base = base.map_or(default_base(protocol), String::as_str);
            exact.or_else(|| Some(endpoint_at(METRICS_PATH, base, protocol)))
        })?;
        Some(OtlpMetrics {
            target,
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
