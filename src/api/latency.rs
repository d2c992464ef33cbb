//! `/api/v1/latency`: percentiles of a window by series.

use serde::{Deserialize, Serialize};

answers! {
    struct Latency {
        series: Vec<LatencySeries>,
        /// `1m`, `5m` or `1h`.
        window: String,
    }

    /// A series, or the part of it that is of one class, stage or tenant. What was not asked for or not measured is left out.
    struct LatencySeries {
        #[serde(skip_serializing_if = "Option::is_none")]
        class: Option<String>,
        /// Of the request, or of the stage.
        duration: Percentiles,
        #[serde(skip_serializing_if = "Option::is_none")]
        icl: Option<Percentiles>,
        #[serde(skip_serializing_if = "Option::is_none")]
        itl: Option<Percentiles>,
        model: String,
        revision: String,
        route: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        stage: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        tenant: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        tpot: Option<Percentiles>,
        #[serde(skip_serializing_if = "Option::is_none")]
        ttft: Option<Percentiles>,
    }

    /// A number of values and, where there are any, their percentiles.
    struct Percentiles {
        count: u64,
        #[serde(flatten)]
        of: Option<PercentileSeconds>,
    }
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
