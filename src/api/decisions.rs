//! `/api/v1/decisions`, and the candidates of a decision.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `/decisions`: newest first.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Decisions {
    pub(crate) decisions: Vec<Decision>,
}

/// A routing decision beside what happened.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Decision {
    pub(crate) attempts: usize,
    pub(crate) cached_tokens: Option<u64>,
    /// Replicas compared.
    pub(crate) candidates: u16,
    pub(crate) class: String,
    /// The replica had become warm a short while ago.
    pub(crate) cold: bool,
    pub(crate) model: String,
    pub(crate) outcome: String,
    /// Stages that took more than the route's budget.
    pub(crate) over_budget: Vec<String>,
    pub(crate) policy: String,
    pub(crate) predicted_hit_tokens: u64,
    pub(crate) predicted_ttft: Option<f64>,
    /// What made the chosen replica win.
    pub(crate) reason: String,
    pub(crate) replica: Option<String>,
    pub(crate) request_id: String,
    pub(crate) route: String,
    pub(crate) slo_missed: Option<String>,
    /// The stage that is blamed.
    pub(crate) slo_missed_in: Option<String>,
    pub(crate) time: String,
    pub(crate) ttft: Option<f64>,
    /// From arrival to decision.
    pub(crate) waited: f64,
    pub(crate) way: Option<Way>,
    pub(crate) weighed: Vec<Candidate>,
    /// In words.
    pub(crate) why: Option<String>,
}

/// Where the prompt was computed, on a route with `[route.prefill]`; costs in seconds, as of candidates.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Way {
    /// Sum of the three below; `None` where it was not asked for, or cannot be.
    pub(crate) apart: Option<f64>,
    pub(crate) apart_decode: Option<f64>,
    pub(crate) apart_prefill: Option<f64>,
    pub(crate) apart_transfer: Option<f64>,
    pub(crate) reason: String,
    /// The prefill replica.
    pub(crate) replica: Option<String>,
    pub(crate) together: Option<f64>,
    /// What the transfer took, of a stream.
    pub(crate) transfer: Option<f64>,
    /// `together` or `apart`, as it went in the end.
    pub(crate) way: String,
}

/// A candidate with its predicted cost.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Candidate {
    pub(crate) chosen: bool,
    /// Sum of `cost_seconds`.
    pub(crate) cost: f64,
    /// By addend.
    pub(crate) cost_seconds: BTreeMap<String, f64>,
    /// Expected streams pushed over their bound on time per token.
    pub(crate) harm: f64,
    /// Probability that the first token is late, 0 to 1.
    pub(crate) late: f64,
    pub(crate) predicted_hit_tokens: u64,
    pub(crate) predicted_ttft: f64,
    pub(crate) prefill: f64,
    pub(crate) replica: String,
    pub(crate) wait: f64,
}
