//! `[telemetry]`: where the access log and the spans go, and which spans are kept.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use super::Content;
use super::check::codec::{self, List, Own, SHARE, SWITCH, Word};
use super::check::section::Item;
use super::check::values::{ADDRESS, HTTP_URL};
use super::declare::section;
use crate::labels::labels;

section! {
    #[derive(Clone, Debug)]
    pub struct Telemetry for "[telemetry]" {
        /// stdout | stderr | off | path of a file, such as "./access.log"
        access_log: AccessLog as ACCESS_LOG, default "stdout", restart;
        /// times by stage are told apart by tenant, else they have the tenant "all"; default false with more than 20 tenants
        stages_by_tenant: bool as SWITCH, default true, restart;
        /// the same for the histogram of TTFT; counters always have their tenant
        ttft_by_tenant: bool as SWITCH, default true, restart;
        /// where people read docs/runbook.md: what the alerts of rules.yml link to
        runbook_url: Option<String> as HTTP_URL, example "https://wiki.example/tokenway/runbook";
    } with {
        /// OTLP export, if configured (by file, flag or `OTEL_EXPORTER_OTLP_*`).
        otlp: Option<Otlp>,
        /// OTLP export of metrics, if asked for.
        otlp_metrics: Option<OtlpMetrics>,
        /// `[telemetry.content]`
        content: Option<Content>,
        /// `[telemetry.engine_spans]`
        engine_spans: Option<EngineSpansConfig>,
        /// `[telemetry.sampling]`
        sampling: Sampling,
    }
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

impl std::fmt::Display for AccessLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stdout => f.write_str("stdout"),
            Self::Stderr => f.write_str("stderr"),
            Self::Off => f.write_str("off"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// `[telemetry.otlp]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Otlp {
    /// The export of spans.
    pub traces: OtlpTarget,
    /// The export of log records; `None` where only the address of traces is known. What is said of traces alone counts only where
    /// they go beside the spans.
    pub logs: Option<OtlpTarget>,
}

/// Where one signal goes, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpTarget {
    /// For HTTP the full URL (`/v1/traces` or its like appended already), for gRPC the collector's.
    pub endpoint: String,
    /// How it is sent.
    pub protocol: OtlpProtocol,
    /// Headers of the export requests.
    pub headers: Vec<(http::HeaderName, http::HeaderValue)>,
    /// For one export.
    pub timeout: Duration,
}

/// `[telemetry.otlp]` with `metrics = true`, or the environment's word for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpMetrics {
    /// Where metrics go.
    pub target: OtlpTarget,
    /// Between two exports.
    pub interval: Duration,
    /// Whether exports are compressed.
    pub is_gzip: bool,
    /// What counters and histograms count from.
    pub temporality: Temporality,
}

labels! {
    /// `OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE`
    #[derive(Default)]
    pub enum Temporality {
        /// Totals since the start of the process.
        #[default]
        Cumulative = "cumulative",
        /// What came since the last export that arrived.
        Delta = "delta",
    }

    /// `telemetry.otlp.protocol`
    #[derive(Default)]
    pub enum OtlpProtocol {
        /// Protobuf over HTTP/1.1.
        #[default]
        Http = "http",
        /// Protobuf over gRPC.
        Grpc = "grpc",
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
        routine: f64 as SHARE, default 0.02;
        /// traces that are kept, so that an incident does not export everything; callers' own sampled ones come on top
        max_per_second: u32 as 1..=1_000_000, default 100;
        /// always kept
        keep: Vec<Keep> as List(Word("reason")), default ["error", "slo_miss", "tail", "retry", "canary", "drift"];
    }
}

impl Sampling {
    /// Whether spans are kept for this reason.
    pub fn keeps(&self, reason: Keep) -> bool {
        self.keep.contains(&reason)
    }
}

labels! {
    /// Why the spans of a request are kept.
    pub enum Keep {
        /// It failed.
        Error = "error",
        /// It missed its SLO.
        SloMiss = "slo_miss",
        /// It was retried.
        Retry = "retry",
        /// It was slower than the rolling p99 of its series.
        Tail = "tail",
        /// A canary served it while it is judged.
        Canary = "canary",
        /// Drift was found for its series, and holds.
        Drift = "drift",
    }
}

fn access_log(item: &Item<'_>) -> Option<AccessLog> {
    Some(match item.text()? {
        "stdout" => AccessLog::Stdout,
        "stderr" => AccessLog::Stderr,
        "off" => AccessLog::Off,
        path if path.contains(['/', '.']) => AccessLog::File(codec::log(item)?),
        word => {
            let hint = "known: stdout, stderr, off, or the path of a file: \"./access.log\"";
            item.fault_unknown("access log", word, &["stdout", "stderr", "off"], hint);
            return None;
        }
    })
}

const ACCESS_LOG: Own<AccessLog> = Own { read: access_log, show: |log| json!(log.to_string()) };
