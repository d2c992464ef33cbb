//! One replica: who it is, its state machine, and the shared values the data path reads.
//!
//! ```text
//! Probing ──a probe is answered──▶ Ready ──failures, or a failed probe──▶ Ejected
//!                                    ▲                                      │
//!                                    └────────a probe is answered───────────┘
//! ```
//! `Draining` is entered when the configuration no longer names it; nothing leaves it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use http::HeaderValue;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::batch_limit::BatchLimit;
use super::load_report::LoadReport;
use super::status::{EngineCounters, ReplicaState, ReplicaStatus};
use super::vitals::Vitals;
use crate::clock::Stamp;
use crate::config::Endpoint;
use crate::record::Served;
use crate::routing::EngineSignals;
use crate::routing::{Foreign, LoadView, ReplicaLoad, Waiting, rendezvous};
use crate::upstream::pool::Pool;

/// A replica; lives as long as a request or the configuration refers to it.
#[derive(Debug)]
pub struct Replica {
    /// Bit of this replica in its pool's prefix index; never reused while the pool lives.
    pub slot: usize,
    /// Its labels.
    pub served: Served,
    /// Where it is.
    pub endpoint: Endpoint,
    /// Its `Host` header.
    pub host: HeaderValue,
    /// Its URL, for people.
    pub url: Arc<str>,
    /// Stable hash of its URL, for rendezvous.
    pub rendezvous: u64,
    /// Connections to it.
    pub connections: Arc<Pool>,
    /// Evidence of life.
    pub vitals: Arc<Vitals>,
    /// Our work on it.
    pub load: Arc<ReplicaLoad>,
    /// The engine's own figures.
    pub signals: ArcSwapOption<Scraped>,
    /// Models that it lists.
    pub models: ArcSwap<Vec<Model>>,
    /// Cancelled when the configuration drops it: its tasks end.
    pub removed: CancellationToken,
    state: AtomicU8,
    reason: Mutex<Arc<str>>,
    failures: AtomicU32,
    ejections: AtomicU32,
    lives: AtomicU32,
}

/// Figures of one scrape.
#[derive(Clone, Copy, Debug)]
pub struct Scraped {
    /// When the page was read.
    pub at: Stamp,
    /// Our own load when the page was read.
    pub own: LoadView,
    /// Running requests.
    pub running: f64,
    /// Waiting requests.
    pub waiting: f64,
    /// KV usage, 0 to 1.
    pub kv_cache_usage: f64,
    /// Tokens in a KV block.
    pub block_tokens: Option<u64>,
    /// KV blocks.
    pub total_blocks: Option<u64>,
    /// How many it runs at once, as far as pages have shown.
    pub batch_limit: BatchLimit,
    /// What it has counted.
    pub counters: EngineCounters,
    /// Newer figures of some of it.
    pub told: Option<Told>,
    /// Start of the engine's process, in its own seconds.
    pub process_start: Option<f64>,
}

/// What the engine told with an answer after the last scrape; see [`super::load_report`].
#[derive(Clone, Copy, Debug)]
pub struct Told {
    at: Stamp,
    own: LoadView,
    running: f64,
    report: LoadReport,
}

/// A model as an engine lists it.
#[derive(Clone, Debug)]
pub struct Model {
    /// Its id.
    pub id: Arc<str>,
    /// The whole entry, for `/v1/models`.
    pub entry: serde_json::Value,
}

/// What a new replica is made of.
#[derive(Debug)]
pub struct ReplicaParts {
    /// Bit in the prefix index.
    pub slot: usize,
    /// Labels.
    pub served: Served,
    /// Where.
    pub endpoint: Endpoint,
    /// Its `Host` header.
    pub host: HeaderValue,
    /// Its connections.
    pub connections: Arc<Pool>,
}

impl Replica {
    /// A replica that has yet to prove itself.
    #[must_use]
    pub fn new(parts: ReplicaParts) -> Arc<Self> {
        let url: Arc<str> = parts.endpoint.to_string().into();
        Arc::new(Self {
            slot: parts.slot,
            rendezvous: rendezvous::identity(0, url.as_bytes()),
            url,
            served: parts.served,
            endpoint: parts.endpoint,
            host: parts.host,
            connections: parts.connections,
            vitals: Arc::new(Vitals::default()),
            load: ReplicaLoad::new(),
            signals: ArcSwapOption::empty(),
            models: ArcSwap::default(),
            removed: CancellationToken::new(),
            state: AtomicU8::new(0),
            reason: Mutex::new("not probed yet".into()),
            failures: AtomicU32::new(0),
            ejections: AtomicU32::new(0),
            lives: AtomicU32::new(0),
        })
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> ReplicaState {
        let at = usize::from(self.state.load(Ordering::Acquire));
        ReplicaState::ALL.get(at).copied().unwrap_or(ReplicaState::Probing)
    }

    /// Whether it takes new requests.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state() == ReplicaState::Ready
    }

    /// Enters a state; the change is logged once. `Draining` is final.
    pub fn enter(&self, state: ReplicaState, reason: &str) {
        let before = self.state();
        if before == ReplicaState::Draining {
            return;
        }
        *self.reason.lock() = reason.into();
        if before == state {
            return;
        }
        let code = ReplicaState::ALL.iter().position(|s| *s == state).unwrap_or(0);
        self.state.store(u8::try_from(code).unwrap_or(0), Ordering::Release);
        match state {
            ReplicaState::Ready => {
                self.failures.store(0, Ordering::Relaxed);
                self.lives.fetch_add(1, Ordering::Relaxed);
            }
            ReplicaState::Ejected => {
                self.ejections.fetch_add(1, Ordering::Relaxed);
                self.connections.drain();
            }
            _ => {}
        }
        tracing::info!(
            pool = %self.served.pool, replica = %self.served.replica,
            from = before.as_str(), to = state.as_str(), reason, "replica changed state"
        );
    }

    /// How often it became ready: tells one death from the next.
    #[must_use]
    pub fn life(&self) -> u32 {
        self.lives.load(Ordering::Relaxed)
    }

    /// A live answer came: counters of failure start anew.
    pub fn succeeded(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
        if self.ejections.load(Ordering::Relaxed) != 0 {
            self.ejections.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a failed request; returns how many came in a row.
    pub fn count_failure(&self) -> u32 {
        self.failures.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// How long to wait with the first probe after an ejection: doubles with each one that no live answer
    /// followed, so that a replica that passes probes but fails requests does not flap.
    #[must_use]
    pub fn hold_off(&self, interval: Duration) -> Duration {
        let doublings = self.ejections.load(Ordering::Relaxed).clamp(1, 8) - 1;
        (FIRST_HOLD_OFF * (1 << doublings)).min(interval)
    }

    /// Whether its figures are overdue, so that it should be asked to tell some with an answer.
    #[must_use]
    pub fn is_overdue(&self, now: Stamp, interval: Duration) -> bool {
        let scraped = self.signals.load();
        let newest = scraped.as_ref().map(|scraped| scraped.told.map_or(scraped.at, |told| told.at));
        newest.is_some_and(|at| now.since(at) > interval.mul_f64(OVERDUE))
    }

    /// It told its load with an answer that was just read.
    pub fn told(&self, report: LoadReport, now: Stamp) {
        let Some(scraped) = self.signals.load_full() else { return };
        let own = self.load.view();
        // A report leaves out what runs: the streams of others are those of the scrape, as far as it is still believed.
        let others = Foreign::seen(&scraped.signals(now, None), &scraped.own);
        let running = own.decoding() as f64 + others.requests - others.waiting;
        let told = Some(Told { at: now, own, running, report });
        self.signals.store(Some(Arc::new(Scraped { told, ..*scraped })));
    }

    /// The newest figures with our own load at that time, unless older than ten intervals. A `batch_limit` of the configuration
    /// counts for more than what was seen.
    #[must_use]
    pub fn engine_signals(
        &self,
        now: Stamp,
        interval: Duration,
        batch_limit: Option<u64>,
    ) -> Option<(EngineSignals, LoadView)> {
        let scraped = self.signals.load();
        let scraped = scraped.as_ref()?;
        let signals = scraped.signals(now, batch_limit);
        if let Some(Told { at, own, running, report }) = scraped.told {
            let kv_cache_usage = report.kv_cache_usage.unwrap_or(signals.kv_cache_usage);
            let (age, waiting) = (now.since(at), report.waiting);
            let told = EngineSignals { age, running, waiting, kv_cache_usage, ..signals };
            return (age <= interval * 10).then_some((told, own));
        }
        (signals.age <= interval * 10).then_some((signals, scraped.own))
    }

    /// Prompts that wait there: ours, and those of others by the newest figures.
    #[must_use]
    pub fn waiting(&self, now: Stamp, interval: Duration) -> Waiting {
        let told = self.engine_signals(now, interval, None);
        let foreign = told.map_or_else(Foreign::default, |(signals, own)| Foreign::seen(&signals, &own));
        Waiting::at(&self.load.view(), &foreign)
    }

    /// How it looks from outside.
    #[must_use]
    pub fn status(&self, now: Stamp, interval: Duration, batch_limit: Option<u64>) -> ReplicaStatus {
        let signals = self.engine_signals(now, interval, batch_limit).map(|(signals, _)| signals);
        let load = self.load.view();
        ReplicaStatus {
            pool: Arc::clone(&self.served.pool),
            revision: Arc::clone(&self.served.revision),
            replica: Arc::clone(&self.served.replica),
            url: Arc::clone(&self.url),
            state: self.state(),
            reason: Arc::clone(&self.reason.lock()),
            inflight: load.inflight,
            inflight_prompt_tokens: load.waiting_tokens().0,
            signals,
            counters: signals.and_then(|_| Some(self.signals.load().as_ref()?.counters)),
            connections: self.connections.open(),
            models: self.models.load().iter().map(|m| Arc::clone(&m.id)).collect(),
        }
    }
}

impl Scraped {
    fn signals(&self, now: Stamp, batch_limit: Option<u64>) -> EngineSignals {
        EngineSignals {
            age: now.since(self.at),
            running: self.running,
            waiting: self.waiting,
            kv_cache_usage: self.kv_cache_usage,
            batch_limit: batch_limit.or(self.batch_limit.get()),
            block_tokens: self.block_tokens,
            total_blocks: self.total_blocks,
        }
    }
}

/// Scrape intervals after which a page is overdue, jitter and a slow answer included.
const OVERDUE: f64 = 1.5;
const FIRST_HOLD_OFF: Duration = Duration::from_millis(500);
