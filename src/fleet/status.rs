//! What the outside may know of a replica at one moment: read by metrics, admin API and demo.

use std::sync::Arc;

use crate::routing::{Calibration, EngineSignals};

/// The replica's state, as the label `state` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReplicaState {
    /// Not yet proved by an answer.
    Probing,
    /// Takes traffic.
    Ready,
    /// Left after failures; comes back after a probe.
    Ejected,
    /// Being taken out: serves what it has, gets nothing new.
    Draining,
}

impl ReplicaState {
    /// Every state, for `tokenway_replica_state{state}` (0 or 1 for each).
    pub const ALL: [Self; 4] = [Self::Probing, Self::Ready, Self::Ejected, Self::Draining];

    /// The label's value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Probing => "probing",
            Self::Ready => "ready",
            Self::Ejected => "ejected",
            Self::Draining => "draining",
        }
    }
}

/// One replica, seen from outside.
#[derive(Clone, Debug)]
pub struct ReplicaStatus {
    /// Pool name.
    pub pool: Arc<str>,
    /// Revision of the pool.
    pub revision: Arc<str>,
    /// Replica name.
    pub replica: Arc<str>,
    /// Its URL.
    pub url: Arc<str>,
    /// State.
    pub state: ReplicaState,
    /// Why it is in that state, for people (`connect refused`, `unproven`, …).
    pub reason: Arc<str>,
    /// Requests of ours in flight.
    pub inflight: u64,
    /// Uncached prompt tokens of ours that wait for their first token.
    pub inflight_prompt_tokens: u64,
    /// Signals of the last scrapes; absent when older than ten intervals.
    pub signals: Option<EngineSignals>,
    /// Counters of the last scrape; absent with the signals.
    pub counters: Option<EngineCounters>,
    /// Open upstream connections, idle ones included.
    pub connections: u64,
    /// Models that the engine lists (adapters included).
    pub models: Vec<Arc<str>>,
}

/// How well the times of one pool's replicas are predicted; absent before the first comparison.
#[derive(Clone, Debug)]
pub struct PoolCalibration {
    /// Pool name.
    pub pool: Arc<str>,
    /// Of all its replicas together.
    pub whole: Option<Calibration>,
    /// Of each, by name.
    pub replicas: Vec<(Arc<str>, Option<Calibration>)>,
}

/// What the engine has counted since it started, from its `/metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineCounters {
    /// `vllm:num_preemptions_total`
    pub preemptions: Option<f64>,
    /// Sum and count of `vllm:time_to_first_token_seconds`.
    pub ttft: Option<(f64, f64)>,
}
