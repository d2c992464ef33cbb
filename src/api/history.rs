//! `/api/v1/history`: a list for each figure of a route, a value for each slot of time; `null` where nothing was measured.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `/history`
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct History {
    pub(crate) routes: Vec<RouteColumns>,
    /// Seconds of a slot.
    pub(crate) step: u64,
    /// Start of each slot, in seconds since 1970.
    pub(crate) times: Vec<f64>,
}

/// Figures of a route.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct RouteColumns {
    /// The route's share for each stage, in seconds.
    pub(crate) budget: BTreeMap<String, f64>,
    pub(crate) good: Vec<u32>,
    pub(crate) heat: Heat,
    pub(crate) itl: ItlColumns,
    pub(crate) judged: Vec<u32>,
    /// By reason.
    pub(crate) missed: BTreeMap<String, Vec<u32>>,
    /// By stage that is blamed, of those that were.
    pub(crate) missed_in: BTreeMap<String, Vec<u32>>,
    /// Who took part, over all slots; by dimension, the most requests first.
    pub(crate) parts: Vec<PartFigures>,
    pub(crate) requests: Vec<u32>,
    pub(crate) route: String,
    /// Of the stages that occurred.
    pub(crate) stages: BTreeMap<String, StageColumns>,
    pub(crate) ttft: TtftColumns,
    pub(crate) ttft_bound: Vec<Option<f64>>,
}

/// A revision, tenant or class of a route.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct PartFigures {
    /// `revision`, `tenant` or `class`.
    pub(crate) dimension: String,
    /// p50 and p99; of a revision only.
    pub(crate) itl: Option<[f64; 2]>,
    pub(crate) judged: u32,
    pub(crate) missed: u32,
    pub(crate) name: String,
    pub(crate) requests: u32,
    pub(crate) tpot: Option<[f64; 2]>,
    /// p50 and p99.
    pub(crate) ttft: Vec<f64>,
}

/// Numbers of requests by TTFT.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Heat {
    /// By slot, then by row.
    pub(crate) counts: Vec<Vec<u64>>,
    /// Lower edge of each row.
    pub(crate) edges: Vec<f64>,
}

/// Quantiles of ITL.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct ItlColumns {
    pub(crate) p50: Vec<Option<f64>>,
    pub(crate) p99: Vec<Option<f64>>,
}

/// Quantiles of TTFT.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct TtftColumns {
    pub(crate) p50: Vec<Option<f64>>,
    pub(crate) p95: Vec<Option<f64>>,
    pub(crate) p99: Vec<Option<f64>>,
}

/// Time in a stage.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct StageColumns {
    pub(crate) mean: Vec<Option<f64>>,
    pub(crate) p50: Vec<Option<f64>>,
    pub(crate) p95: Vec<Option<f64>>,
    pub(crate) p99: Vec<Option<f64>>,
}
