//! `/api/v1/fleet`: every replica, every pool's calibration, every source of replicas.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `/fleet`
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Fleet {
    pub(crate) pools: Vec<FleetPool>,
    pub(crate) replicas: Vec<Replica>,
    pub(crate) sources: Vec<Source>,
}

/// A pool.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct FleetPool {
    /// Over all its replicas.
    pub(crate) calibration: Option<Calibration>,
    pub(crate) pool: String,
}

/// A replica.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Replica {
    /// Figures that its engine's profile expects and its page does not have.
    pub(crate) absent_figures: Vec<String>,
    /// LoRA adapters that it holds, the latest used first.
    pub(crate) adapters: Vec<String>,
    pub(crate) calibration: Option<Calibration>,
    /// Open ones, idle ones included.
    pub(crate) connections: u64,
    /// Recent failures as a fraction of all answers.
    pub(crate) failure_ratio: f64,
    pub(crate) gpu: Option<Gpu>,
    pub(crate) inflight: u64,
    /// Uncached prompt tokens of requests before their first token.
    pub(crate) inflight_prompt_tokens: u64,
    pub(crate) life: Life,
    pub(crate) models: Vec<String>,
    /// Ejected for failed requests: gets few until answers prove it.
    pub(crate) on_trial: bool,
    pub(crate) pool: String,
    pub(crate) probe_failures: u64,
    /// Why it is in its state, for people.
    pub(crate) reason: String,
    /// Of the last minute.
    pub(crate) recent: Recent,
    pub(crate) replica: String,
    pub(crate) revision: String,
    pub(crate) scrape_failures: u64,
    pub(crate) signals: Option<Signals>,
    /// In its state.
    pub(crate) since: Option<f64>,
    pub(crate) state: String,
    /// Of its ordinary traffic, 0 to 1.
    pub(crate) traffic_share: f64,
    pub(crate) url: String,
    pub(crate) zone: Option<String>,
}

/// What a replica answered in the last minute.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Recent {
    /// Attempts that failed.
    pub(crate) failed: u32,
    /// Mean of the gaps.
    pub(crate) itl: Option<f64>,
    /// Requests that missed their SLO.
    pub(crate) missed: u32,
    pub(crate) per_second: f64,
    pub(crate) requests: u32,
    /// Of its pool's requests, 0 to 1.
    pub(crate) share: Option<f64>,
    /// p50 and p99 of time per output token.
    pub(crate) tpot: Option<[f64; 2]>,
    /// p50.
    pub(crate) ttft: Option<f64>,
    pub(crate) ttft_p99: Option<f64>,
}

/// What a replica went through since it was configured.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Life {
    pub(crate) cold_starts: u64,
    /// Entries into each state.
    pub(crate) entered: BTreeMap<String, u64>,
    pub(crate) in_slow_start: bool,
    /// Models and adapters that its routes promise and its engine does not list.
    pub(crate) lacks: Vec<String>,
    pub(crate) last_cold_start: Option<f64>,
    pub(crate) warm_up: Option<WarmUp>,
}

/// The last warm-up.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct WarmUp {
    /// Answers that were not as they should be, a few words each.
    pub(crate) problems: Vec<String>,
    pub(crate) requests: u32,
    pub(crate) slowest: f64,
    pub(crate) took: f64,
}

/// Predicted against actual TTFT; errors as fractions of the actual one.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Calibration {
    pub(crate) answers: usize,
    /// Median of actual / predicted.
    pub(crate) bias: f64,
    /// Share of answers within the bound that nine of ten should keep.
    pub(crate) coverage: f64,
    pub(crate) median_error: f64,
    pub(crate) p90_error: f64,
}

/// Figures of the engine's metrics page.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Signals {
    /// Of these figures.
    pub(crate) age: Option<f64>,
    pub(crate) batch_limit: Option<u64>,
    pub(crate) block_tokens: Option<u64>,
    /// 0 to 1.
    pub(crate) kv_cache_usage: Option<f64>,
    pub(crate) running: Option<f64>,
    pub(crate) total_blocks: Option<u64>,
    pub(crate) waiting: Option<f64>,
}

/// Figures of a replica's GPUs.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Gpu {
    /// Reasons that slow a busy GPU down.
    pub(crate) clocks_throttled: Option<Vec<String>>,
    pub(crate) gpus: u32,
    pub(crate) memory_free_bytes: Option<f64>,
    pub(crate) memory_used_bytes: Option<f64>,
    /// 0 to 1.
    pub(crate) utilization: Option<f64>,
    /// The last XID error; 0 is none.
    pub(crate) xid: Option<u32>,
}

/// A source of a pool's replicas.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Source {
    /// Since its last good answer.
    pub(crate) age: Option<f64>,
    pub(crate) error: Option<String>,
    pub(crate) failing_for: Option<f64>,
    pub(crate) failures: u64,
    /// Replicas that serve although no source names them any more, because nothing that is named is ready.
    pub(crate) kept: usize,
    pub(crate) pool: String,
    /// `static`, `admin`, `file`, `dns` or `kubernetes`.
    pub(crate) source: String,
    /// Replicas that it names.
    pub(crate) targets: usize,
}
