//! State of a replica at one moment, for metrics, admin API and demo.

use std::sync::Arc;
use std::time::Duration;

use super::discovery::SourceStatus;
pub use super::gpu::{GpuFigures, Throttling};
pub use super::life::{ColdStarts, ReplicaState};
use crate::routing::{Calibration, EngineSignals};
use crate::stats::Mean;

/// Reads the state of every replica and of their sources; without a fleet there is none.
#[derive(Clone)]
pub struct FleetView {
    statuses: Arc<dyn Fn() -> Vec<ReplicaStatus> + Send + Sync>,
    sources: Arc<dyn Fn() -> Vec<SourceStatus> + Send + Sync>,
}

impl FleetView {
    /// Reads them by these functions.
    pub fn new(
        statuses: impl Fn() -> Vec<ReplicaStatus> + Send + Sync + 'static,
        sources: impl Fn() -> Vec<SourceStatus> + Send + Sync + 'static,
    ) -> Self {
        Self { statuses: Arc::new(statuses), sources: Arc::new(sources) }
    }

    /// The replicas as they are now.
    pub fn statuses(&self) -> Vec<ReplicaStatus> {
        (self.statuses)()
    }

    /// The sources of replicas as they are now.
    pub fn sources(&self) -> Vec<SourceStatus> {
        (self.sources)()
    }
}

impl Default for FleetView {
    fn default() -> Self {
        Self::new(Vec::new, Vec::new)
    }
}

/// State of one replica.
#[derive(Clone, Debug, Default)]
pub struct ReplicaStatus {
    /// Name of the pool: label `pool`.
    pub pool: Arc<str>,
    /// Revision of the pool: label `revision`.
    pub revision: Arc<str>,
    /// Name of the replica: label `replica`.
    pub replica: Arc<str>,
    /// Endpoint with scheme, port and base path.
    pub url: Arc<str>,
    /// What tells its process from an earlier one at the same URL, where its source says: the uid of its pod.
    pub instance: Option<Arc<str>>,
    /// Step of the state machine.
    pub state: ReplicaState,
    /// Cause of the last state change, for people (`connection refused`, `unproven`, …).
    pub reason: Arc<str>,
    /// What it went through.
    pub life: LifeStatus,
    /// Failed answers as a fraction of all of late, newer ones weighing more.
    pub failure_ratio: f64,
    /// Fraction of its ordinary traffic that it gets: below 1 while it fails more, or is slower, than its pool's others.
    pub traffic_share: f64,
    /// Failed requests had ejected it: it gets few requests until live answers prove it.
    pub is_on_trial: bool,
    /// In-flight requests of this gateway.
    pub inflight: u64,
    /// Requests that were sent there so far, those of other gateways included.
    pub sent: u64,
    /// How long that of those in flight which is longest without a token has been so.
    pub quiet: Duration,
    /// Uncached prompt tokens of those before their first token.
    pub inflight_prompt_tokens: u64,
    /// From the last scrapes; absent when older than ten intervals.
    pub signals: Option<EngineSignals>,
    /// From the last scrape; absent with the signals.
    pub counters: Option<EngineCounters>,
    /// Figures that its engine's profile expects and its page does not have, by their keys in `[pool.engine_profile]`.
    pub absent: Arc<[&'static str]>,
    /// Figures of its GPUs, where `pool.dcgm` says where they are; absent when too old.
    pub gpu: Option<GpuFigures>,
    /// Scrapes and probes without an answer, since the replica was configured.
    pub failures: OwnFailures,
    /// Open upstream connections, idle ones included.
    pub connections: u64,
    /// Listed by the engine, adapters included.
    pub models: Vec<Arc<str>>,
    /// LoRA adapters that its engine is known to hold, the latest used first.
    pub adapters: Vec<Arc<str>>,
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
    /// Start of the process, seconds since 1970, where the page has it.
    pub process_start: Option<f64>,
    /// Requests put back from the batch into the queue.
    pub preemptions: Option<f64>,
    /// Generated tokens: an engine whose streams are silent and whose count stands still does nothing.
    pub generated: Option<f64>,
    /// Times to first token.
    pub ttft: Option<Mean>,
    /// The last first tokens of our requests there, beside those that the engine counted.
    pub way: Option<Way>,
    /// Requests that wait, on average over the last scrapes: one that waits at a moment is no queue.
    pub recent_waiting: Option<f64>,
    /// Preemptions a second in the last minute.
    pub recent_preemptions: Option<f64>,
    /// KV from other engines; `None` where it moves none.
    pub kv: Option<KvCounters>,
    /// The same of the last minute.
    pub recent_kv: Option<KvCounters>,
}

/// Seconds by which two readings of one process' start may differ.
pub(crate) const START_TOLERANCE: f64 = 0.5;

/// First tokens that this gateway had of a replica in a span of time, beside those that its engine counted in the same span.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Way {
    /// Length of the span.
    pub span: Duration,
    /// Mean seconds from sending a request until its first token.
    pub seen: f64,
    /// Mean seconds by the engine's count, of its probes and of other gateways' requests as well.
    pub counted: f64,
    /// Seconds of `seen` that the engine can have had at most: whatever else it counted adds to them.
    pub in_engine: f64,
}

impl Way {
    /// Seconds between gateway and engine, where those are most of it: other requests than ours add to the sum of the engine's count and
    /// take from its mean, and between the two nothing is known.
    pub(crate) fn outside(self) -> Option<f64> {
        let Self { seen, counted, in_engine, .. } = self;
        let outside = seen - counted.max(in_engine);
        (outside >= MOST_OF_A_WAIT * seen && outside >= NOTICED).then_some(outside)
    }
}

/// Share of a wait for a first token that makes it the way's, and seconds of one that somebody notices.
pub(crate) const MOST_OF_A_WAIT: f64 = 0.5;
const NOTICED: f64 = 0.05;

/// What an engine counts of KV that moves between engines.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KvCounters {
    /// Transfers that it fetched.
    pub transfers: f64,
    /// Their durations, in all.
    pub seconds: f64,
    /// Bytes that they moved.
    pub bytes: f64,
    /// Those that failed.
    pub failed: f64,
    /// Requests whose KV was not fetched from it in time.
    pub expired: f64,
}

impl KvCounters {
    /// What came since `before`; `None` where the engine has started anew since.
    pub fn since(&self, before: &Self) -> Option<Self> {
        let since = Self {
            transfers: self.transfers - before.transfers,
            seconds: self.seconds - before.seconds,
            bytes: self.bytes - before.bytes,
            failed: self.failed - before.failed,
            expired: self.expired - before.expired,
        };
        (since.transfers >= 0.0 && since.failed >= 0.0 && since.expired >= 0.0).then_some(since)
    }

    /// Mean seconds of a transfer.
    pub fn mean_seconds(&self) -> Option<f64> {
        (self.transfers > 0.0).then(|| self.seconds / self.transfers)
    }
}

/// What a replica went through since it was configured.
#[derive(Clone, Debug, Default)]
pub struct LifeStatus {
    /// How long it has been in its state.
    pub since: Duration,
    /// How often it entered each of [`ReplicaState::ALL`].
    pub entered: [u64; ReplicaState::ALL.len()],
    /// Its cold starts so far.
    pub cold_starts: ColdStarts,
    /// Its share of the traffic still rises.
    pub is_in_slow_start: bool,
    /// The last warm-up.
    pub warm_up: Option<Arc<WarmUpReport>>,
    /// Models and adapters that its routes promise and that its engine does not list.
    pub lacks: Arc<[Arc<str>]>,
    /// `zone` of its configuration.
    pub zone: Option<Arc<str>>,
}

/// What came of a warm-up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WarmUpReport {
    /// Requests that were sent.
    pub requests: u32,
    /// From the first to the last answer.
    pub took: Duration,
    /// The slowest answer.
    pub slowest: Duration,
    /// What was not answered as it should be, a few words each.
    pub problems: Vec<String>,
}
