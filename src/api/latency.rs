//! `/api/v1/latency`: percentiles of a window by series.

use serde::{Deserialize, Serialize};

/// `/latency`
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Latency {
    pub(crate) series: Vec<LatencySeries>,
    /// `1m`, `5m` or `1h`.
    pub(crate) window: String,
}

/// A series, or the part of it that is of one class, stage or tenant. What was not asked for or not measured is left out.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct LatencySeries {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) class: Option<String>,
    /// Of the request, or of the stage.
    pub(crate) duration: Percentiles,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) icl: Option<Percentiles>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) itl: Option<Percentiles>,
    pub(crate) model: String,
    pub(crate) revision: String,
    pub(crate) route: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stage: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tpot: Option<Percentiles>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ttft: Option<Percentiles>,
}

/// A number of values and, where there are any, their percentiles.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Percentiles {
    pub(crate) count: u64,
    #[serde(flatten)]
    pub(crate) of: Option<PercentileSeconds>,
}

/// Percentiles of at least one value.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct PercentileSeconds {
    pub(crate) max: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p95: f64,
    pub(crate) p99: f64,
    #[serde(rename = "p99.9")]
    pub(crate) p999: f64,
}
