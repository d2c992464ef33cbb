//! `/api/v1/requests`: the slowest and the failed of the last hour, and one of them with its stages.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::decisions::{Candidate, Way};

/// `/requests`: newest first.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Requests {
    /// For `after` of the page that follows.
    pub(crate) next: Option<String>,
    pub(crate) requests: Vec<Request>,
}

/// An ended request.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Request {
    pub(crate) attempts: usize,
    pub(crate) class: String,
    pub(crate) duration: f64,
    /// Code of its failure.
    pub(crate) error: Option<String>,
    /// Why it is kept: `slow`, `failed` or `refused`.
    pub(crate) kept: String,
    pub(crate) model: String,
    pub(crate) outcome: String,
    pub(crate) replica: Option<String>,
    pub(crate) request_id: String,
    pub(crate) revision: String,
    pub(crate) route: String,
    pub(crate) slo_missed: Option<String>,
    /// The stage that is blamed.
    pub(crate) slo_missed_in: Option<String>,
    /// How slow, as the list ranks it.
    pub(crate) slow: f64,
    pub(crate) status: u16,
    pub(crate) tenant: String,
    pub(crate) time: String,
    pub(crate) tpot: Option<f64>,
    pub(crate) ttft: Option<f64>,
}

/// `/requests/{id}`
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct RequestDetail {
    #[serde(flatten)]
    pub(crate) request: Request,
    pub(crate) attempts_made: Vec<Attempt>,
    pub(crate) bounds: Bounds,
    pub(crate) cached_tokens: Option<u64>,
    /// `None` for a request that ended before a replica was chosen.
    pub(crate) decision: Option<Choice>,
    /// The route that was asked for, of a degraded request.
    pub(crate) degraded_from: Option<String>,
    pub(crate) estimated_prompt_tokens: u64,
    /// Since the head, as all that ends in `_at`.
    pub(crate) first_token_at: Option<f64>,
    /// In the admission queue.
    pub(crate) held: f64,
    pub(crate) longest_gap: f64,
    pub(crate) longest_gap_at: Option<f64>,
    pub(crate) migration_refused: Option<String>,
    pub(crate) migrations: u32,
    pub(crate) output_tokens: Option<u64>,
    pub(crate) prompt_tokens: Option<u64>,
    /// Waiting for the client to take bytes.
    pub(crate) relay_blocked: f64,
    pub(crate) stages: Vec<StageTime>,
    pub(crate) stream: bool,
    /// 32 hexadecimal digits.
    pub(crate) trace_id: String,
}

/// SLO bounds of a request.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Bounds {
    pub(crate) e2e: Option<f64>,
    /// By percentile: `p50`, …
    pub(crate) itl: BTreeMap<String, f64>,
    pub(crate) tpot: Option<f64>,
    pub(crate) ttft: Option<f64>,
}

/// A stage; each starts where the one before ends.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct StageTime {
    pub(crate) budget: Option<f64>,
    pub(crate) duration: f64,
    pub(crate) over_budget: bool,
    /// `measured`, `estimated`, …
    pub(crate) source: String,
    pub(crate) stage: String,
    pub(crate) start: f64,
}

/// An attempt at one replica; times since the request's head.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Attempt {
    /// Another attempt spoke first, or the client left.
    pub(crate) canceled: bool,
    /// `first`, `retry`, `hedge`, `migration` or `prefill`.
    pub(crate) cause: String,
    pub(crate) connected: Option<f64>,
    pub(crate) end: Option<f64>,
    /// Its answer was whole and had no text.
    pub(crate) empty: bool,
    /// The engine's error message, without what it quotes.
    pub(crate) engine_error: Option<String>,
    pub(crate) error: Option<String>,
    /// Predicted, as `expected_queue`.
    pub(crate) expected_prefill: Option<f64>,
    pub(crate) expected_queue: Option<f64>,
    pub(crate) head: Option<f64>,
    pub(crate) pool: String,
    pub(crate) replica: String,
    pub(crate) revision: String,
    pub(crate) start: f64,
    pub(crate) status: Option<u16>,
}

/// The first routing decision of a request.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Choice {
    /// Replicas compared.
    pub(crate) candidates: u16,
    /// Whether its candidates were kept.
    pub(crate) explained: bool,
    pub(crate) policy: String,
    pub(crate) predicted_hit_tokens: u64,
    pub(crate) predicted_ttft: Option<f64>,
    /// What made the replica win.
    pub(crate) reason: String,
    pub(crate) replica: Option<String>,
    /// From arrival to decision.
    pub(crate) waited: f64,
    pub(crate) way: Option<Way>,
    pub(crate) weighed: Vec<Candidate>,
    /// In words.
    pub(crate) why: Option<String>,
}
