//! `[telemetry]`: where the access log and the spans go, and which spans are kept.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::check::codec::{List, Share, Word};
use super::check::values::ADDRESS;
use super::declare::section;

/// `[telemetry]`
#[derive(Clone, Debug)]
pub struct Telemetry {
    /// Where access-log lines go.
    pub access_log: AccessLog,
    /// OTLP export, if configured (by file, flag or `OTEL_EXPORTER_OTLP_*`).
    pub otlp: Option<Otlp>,
    /// OTLP export of metrics, if asked for.
    pub otlp_metrics: Option<OtlpMetrics>,
    /// `[telemetry.engine_spans]`
    pub engine_spans: Option<EngineSpansConfig>,
    /// `[telemetry.sampling]`
    pub sampling: Sampling,
    /// Whether stages are told apart by tenant; the default up to 20 configured tenants.
    pub stages_by_tenant: bool,
    /// Whether the histogram of TTFT is told apart by tenant; the same default.
    pub ttft_by_tenant: bool,
}

/// `telemetry.access_log`
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessLog {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// Appended to a file.
    File(PathBuf),
    /// Nowhere.
    Off,
}

/// `[telemetry.otlp]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Otlp {
    /// For HTTP the full URL of the traces endpoint (`/v1/traces` appended already), for gRPC the collector's.
    pub traces_endpoint: String,
    /// The same for log records; `None` where only the address of traces is known.
    pub logs_endpoint: Option<String>,
    /// How spans are sent.
    pub protocol: OtlpProtocol,
    /// Headers of the export requests.
    pub headers: Vec<(http::HeaderName, http::HeaderValue)>,
    /// For one export.
    pub timeout: Duration,
}

/// `[telemetry.otlp]` with `metrics = true`, or the environment's word for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpMetrics {
    /// For HTTP the full URL (`/v1/metrics` appended already), for gRPC the collector's.
    pub endpoint: String,
    /// How metrics are sent.
    pub protocol: OtlpProtocol,
    /// Headers of the export requests.
    pub headers: Vec<(http::HeaderName, http::HeaderValue)>,
    /// For one export.
    pub timeout: Duration,
    /// Between two exports.
    pub interval: Duration,
    /// Whether exports are compressed.
    pub is_gzip: bool,
    /// What counters and histograms count from.
    pub temporality: Temporality,
}

/// `OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Temporality {
    /// Totals since the start of the process.
    #[default]
    Cumulative,
    /// What came since the last export that arrived.
    Delta,
}

impl Temporality {
    /// Its name in OpenTelemetry.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cumulative => "cumulative",
            Self::Delta => "delta",
        }
    }
}

/// `telemetry.otlp.protocol`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OtlpProtocol {
    /// Protobuf over HTTP/1.1.
    #[default]
    Http,
    /// Protobuf over gRPC.
    Grpc,
}

impl OtlpProtocol {
    /// Its name in TOML.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
        }
    }
}

section! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct EngineSpansConfig for "[telemetry.engine_spans]", optional {
        /// beside the usual ports of a collector, which may be on the same machine
        listen: SocketAddr as ADDRESS, default "127.0.0.1:4319";
    }
}

section! {
    #[derive(Clone, Debug, PartialEq)]
    pub struct Sampling for "[telemetry.sampling]" {
        /// share of ordinary requests whose spans are kept
        routine: f64 as Share, default 0.02;
        /// traces that are kept, so that an incident does not export everything; callers' own sampled ones come on top
        max_per_second: u32 as 1..=1_000_000, default 100;
        /// always kept
        keep: Vec<Keep> as List(KEEP), default ["error", "slo_miss", "tail", "retry", "canary", "drift"];
    }
}

impl Sampling {
    /// Whether spans are kept for this reason.
    #[must_use]
    pub fn keeps(&self, reason: Keep) -> bool {
        self.keep.contains(&reason)
    }
}

/// Why the spans of a request are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// It failed.
    Error,
    /// It missed its SLO.
    SloMiss,
    /// It was slower than the rolling p99 of its series.
    Tail,
    /// It was retried.
    Retry,
    /// Drift was found for its series, and holds.
    Drift,
    /// A canary served it while it is judged.
    Canary,
}

const KEEP: Word<Keep> = Word(
    "reason",
    &[
        ("error", Keep::Error),
        ("slo_miss", Keep::SloMiss),
        ("retry", Keep::Retry),
        ("tail", Keep::Tail),
        ("canary", Keep::Canary),
        ("drift", Keep::Drift),
    ],
);
