//! `/api/v1/slo`: the verdict over each route, with the numbers behind it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `/slo`, and each event of `/events`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Slo {
    /// Fingerprint of the page's files.
    pub(crate) page: String,
    pub(crate) replicas: ReplicaCounts,
    pub(crate) routes: Vec<RouteVerdict>,
    /// For people.
    pub(crate) sentence: String,
    /// `ok`, `bad` or `unknown`.
    pub(crate) status: String,
    pub(crate) time: String,
    /// Of the gateway.
    pub(crate) version: String,
}

/// How many replicas there are.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct ReplicaCounts {
    pub(crate) all: usize,
    /// The first of them.
    pub(crate) not_ready: Vec<NotReady>,
    pub(crate) ready: usize,
}

/// A replica that is not ready.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct NotReady {
    pub(crate) pool: String,
    pub(crate) reason: String,
    pub(crate) replica: String,
    pub(crate) state: String,
}

/// The verdict over a route.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct RouteVerdict {
    pub(crate) bound: BoundMeans,
    pub(crate) burn: Burn,
    pub(crate) cause: Option<MissCause>,
    pub(crate) goodput: Goodput,
    pub(crate) itl: Quantiles,
    /// By reason; none is 0.
    pub(crate) missed: BTreeMap<String, u32>,
    /// By stage that is blamed; none is 0.
    pub(crate) missed_in: BTreeMap<String, u32>,
    pub(crate) route: String,
    pub(crate) sentence: String,
    /// Seconds that it has missed its SLO without a pause of a minute; `None` unless it is `bad`.
    pub(crate) since: Option<f64>,
    /// Who differs from the others.
    pub(crate) standing_out: Vec<StandingOut>,
    /// `ok`, `bad` or `unknown`.
    pub(crate) status: String,
    pub(crate) tpot: Quantiles,
    pub(crate) ttft: Quantiles,
    /// Seconds that the figures are of.
    pub(crate) window: u64,
}

/// Means of bounds that grow with the prompt.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct BoundMeans {
    pub(crate) tpot: Option<f64>,
    pub(crate) ttft: Option<f64>,
}

/// Misses as a multiple of those that the SLO allows, by window.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Burn {
    #[serde(rename = "1h")]
    pub(crate) hour: Option<f64>,
    #[serde(rename = "1m")]
    pub(crate) minute: Option<f64>,
    #[serde(rename = "5m")]
    pub(crate) five_minutes: Option<f64>,
}

/// Where most misses come from.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct MissCause {
    /// Blamed by the engines' queues as scraped.
    pub(crate) by_scrape: bool,
    pub(crate) misses: u32,
    pub(crate) reason: String,
    pub(crate) replicas: Vec<StandingOut>,
    /// Of all misses.
    pub(crate) share: f64,
    pub(crate) stage: String,
}

/// Somebody who differs from the others, with the numbers that say so.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct StandingOut {
    /// `replica`, `tenant`, …
    pub(crate) dimension: String,
    pub(crate) evidence: String,
    pub(crate) name: String,
}

/// Requests that met every bound.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Goodput {
    pub(crate) good: u32,
    pub(crate) judged: u32,
    pub(crate) missed: u32,
    pub(crate) per_second: f64,
    pub(crate) requests: u32,
    /// Of all requests.
    pub(crate) requests_per_second: f64,
    /// `None` where none was judged.
    pub(crate) share: Option<f64>,
}

/// Quantiles of a latency.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Quantiles {
    pub(crate) count: u64,
    pub(crate) p50: Option<f64>,
    pub(crate) p95: Option<f64>,
    pub(crate) p99: Option<f64>,
}
