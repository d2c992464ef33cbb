//! State of a replica at one moment, for metrics, admin API and demo.

use std::sync::Arc;

use crate::routing::{Calibration, EngineSignals};

/// The replica's state, as the label `state` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReplicaState {
    /// No probe was answered yet.
    Probing,
    /// Gets new requests.
    Ready,
    /// Gets no new requests after failures; reinstated by a probe.
    Ejected,
    /// No longer configured: its streams run to their end.
    Draining,
}

impl ReplicaState {
    /// Every state: `tokenway_replica_state{state}` has a series for each.
    pub const ALL: [Self; 4] = [Self::Probing, Self::Ready, Self::Ejected, Self::Draining];

    /// Value of the label `state`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Probing => "probing",
            Self::Ready => "ready",
            Self::Ejected => "ejected",
            Self::Draining => "draining",
        }
    }
}

/// State of one replica.
#[derive(Clone, Debug)]
pub struct ReplicaStatus {
    /// Name of the pool: label `pool`.
    pub pool: Arc<str>,
    /// Revision of the pool: label `revision`.
    pub revision: Arc<str>,
    /// Name of the replica: label `replica`.
    pub replica: Arc<str>,
    /// Endpoint with scheme, port and base path.
    pub url: Arc<str>,
    /// Step of the state machine.
    pub state: ReplicaState,
    /// Cause of the last state change, for people (`connect refused`, `unproven`, …).
    pub reason: Arc<str>,
    /// Failed answers as a fraction of all of late, newer ones weighing more.
    pub failure_ratio: f64,
    /// Fraction of its ordinary traffic that it gets: below 1 while it fails more, or is slower, than its pool's others.
    pub traffic_share: f64,
    /// Failed requests had ejected it: it gets few requests until live answers prove it.
    pub is_on_trial: bool,
    /// In-flight requests of this gateway.
    pub inflight: u64,
    /// Uncached prompt tokens of those before their first token.
    pub inflight_prompt_tokens: u64,
    /// From the last scrapes; absent when older than ten intervals.
    pub signals: Option<EngineSignals>,
    /// From the last scrape; absent with the signals.
    pub counters: Option<EngineCounters>,
    /// Figures that its engine's profile expects and its page does not have, by their keys in `[pool.engine_profile]`.
    pub absent: Arc<[&'static str]>,
    /// Scrapes and probes without an answer, since the replica was configured.
    pub failures: OwnFailures,
    /// Open upstream connections, idle ones included.
    pub connections: u64,
    /// Listed by the engine, adapters included.
    pub models: Vec<Arc<str>>,
}

/// How well one pool's TTFT is predicted; `None` before the first comparison.
#[derive(Clone, Debug)]
pub struct PoolCalibration {
    /// Name of the pool: label `pool`.
    pub pool: Arc<str>,
    /// Over all its replicas.
    pub whole: Option<Calibration>,
    /// For each replica, by name.
    pub replicas: Vec<(Arc<str>, Option<Calibration>)>,
}

/// The gateway's own requests that a replica did not answer as they need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnFailures {
    /// Scrapes without a page.
    pub scrapes: u64,
    /// Probes without the answer of a working engine.
    pub probes: u64,
}

/// Counters of an engine's metrics page, since its process started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineCounters {
    /// Requests put back from the batch into the queue.
    pub preemptions: Option<f64>,
    /// Generated tokens: an engine whose streams are silent and whose count stands still does nothing.
    pub generated: Option<f64>,
    /// Sum and count of times to first token.
    pub ttft: Option<(f64, f64)>,
}
