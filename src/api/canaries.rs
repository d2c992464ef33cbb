//! `/api/v1/canaries`: every canary with its evidence.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// `/canaries`
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Canaries {
    pub(crate) canaries: Vec<Canary>,
}

/// `/canaries/{route}/{action}`
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct CanaryAnswer {
    pub(crate) canary: Option<Canary>,
}

/// A canary.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Canary {
    pub(crate) pool: String,
    /// Why it is in its state.
    pub(crate) reason: String,
    /// Of the last breach, as its state file and webhook have it.
    pub(crate) report: Option<Value>,
    pub(crate) requests: CanaryRequests,
    pub(crate) revision: String,
    pub(crate) route: String,
    /// Percent of new requests of which it gets copies.
    pub(crate) shadow_weight: f64,
    /// Seconds of the step's soak that are over.
    pub(crate) soaked: f64,
    pub(crate) state: String,
    /// From 1 on, 0 for the shadow step.
    pub(crate) step: usize,
    pub(crate) steps: usize,
    pub(crate) tests: Vec<CanaryTest>,
    /// Percent of new requests.
    pub(crate) weight: f64,
}

/// Numbers of requests.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct CanaryRequests {
    pub(crate) baseline: u64,
    pub(crate) canary: u64,
    /// Copies that the canary has answered.
    pub(crate) shadow: u64,
}

/// A test of a canary.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct CanaryTest {
    pub(crate) bound: f64,
    /// As a share of what stops it: 1 is a breach.
    pub(crate) evidence: f64,
    /// `ttft_p99`, `errors`, …
    pub(crate) test: String,
}
