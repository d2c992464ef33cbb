//! `/api/v1/pools/{pool}/scale`: replicas that a pool should have, flat where an autoscaler looks, with the terms beside.

use serde::{Deserialize, Serialize};

/// `/pools/{pool}/scale`
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct PoolScale {
    pub(crate) desired_replicas: usize,
    pub(crate) ejected_replicas: usize,
    pub(crate) max_replicas: usize,
    pub(crate) min_replicas: usize,
    /// For the load of now, before bounds and stabilisation.
    pub(crate) needed_replicas: usize,
    pub(crate) pool: String,
    pub(crate) predicted_ttft: Option<f64>,
    pub(crate) ready_replicas: usize,
    /// For people.
    pub(crate) reason: String,
    pub(crate) starting_replicas: usize,
    pub(crate) terms: ScaleTerms,
    pub(crate) waiting_per_replica: f64,
}

/// Figures behind a number of replicas; rates are requests a second.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct ScaleTerms {
    /// Until a replica that is asked for now is warm.
    pub(crate) arrival_growth: f64,
    pub(crate) arrival_rate: f64,
    pub(crate) backlog_rate: f64,
    pub(crate) cold_start: f64,
    pub(crate) cold_start_measured: bool,
    /// Of other gateways, by what runs at the engines.
    pub(crate) foreign_rate: f64,
    /// `None` before anything is measured.
    pub(crate) load: Option<ScaleLoad>,
    pub(crate) predicted: Option<ScalePrediction>,
    pub(crate) standing_waiting: f64,
    /// Running sequences as a multiple of those that `load` explains.
    pub(crate) unexplained_running: f64,
}

/// Costs of a request, limits of an engine, bounds.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct ScaleLoad {
    pub(crate) batch_limit: Option<f64>,
    /// That fit into an engine's KV cache.
    pub(crate) cache_tokens: Option<f64>,
    /// Of a running sequence.
    pub(crate) context_tokens: f64,
    pub(crate) decode_step: f64,
    pub(crate) decode_step_per_sequence: f64,
    pub(crate) output_tokens: f64,
    pub(crate) prefill: f64,
    pub(crate) rate: f64,
    pub(crate) tpot_bound: Option<f64>,
    pub(crate) ttft_bound: Option<f64>,
}

/// What the number of replicas is predicted to mean.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct ScalePrediction {
    pub(crate) itl: f64,
    pub(crate) prefill_utilisation: f64,
    pub(crate) running_per_replica: f64,
    pub(crate) ttft_p99: f64,
}
