//! One replica: identity, state machine, and the shared values that the data path reads.
//!
//! ```text
//! Probing ──a probe is answered──▶ Ready ──failures, or a failed probe──▶ Ejected
//!                                    ▲                                      │
//!                                    └────────a probe is answered───────────┘
//! ```
//! `Draining` is entered when the configuration drops the replica, and is final.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use http::HeaderValue;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::status::{EngineCounters, OwnFailures, ReplicaState, ReplicaStatus};
use super::unasked::UnaskedStream;
use super::vitals::Vitals;
use crate::clock::Stamp;
use crate::config::Endpoint;
use crate::record::Served;
use crate::routing::{EngineLimits, Target, rendezvous};
use crate::upstream::pool::ConnectionPool;

/// A replica; lives as long as a request or the configuration refers to it.
#[derive(Debug)]
pub struct Replica {
    /// Labels of its metrics and records.
    pub served: Served,
    pub endpoint: Endpoint,
    /// Value of the `Host` header.
    pub host: HeaderValue,
    /// The endpoint as text.
    pub url: Arc<str>,
    pub connections: Arc<ConnectionPool>,
    pub vitals: Arc<Vitals>,
    /// Load and signals as routing reads them.
    pub target: Target,
    /// Counters of the last scrape.
    pub scraped: ArcSwapOption<ScrapedCounters>,
    /// Figures that are expected of the engine and that its page does not have.
    pub absent: ArcSwap<Arc<[&'static str]>>,
    /// Scrapes without a page.
    pub scrape_failures: AtomicU64,
    /// Probes without the answer of a working engine.
    pub probe_failures: AtomicU64,
    /// As listed by `/v1/models` of the engine.
    pub models: ArcSwap<Vec<EngineModel>>,
    /// What its engine puts into a stream that asks for nothing; `None` until a probe told.
    pub unasked: ArcSwapOption<UnaskedStream>,
    /// Cancelled when the configuration drops it: probes and scrapes end.
    pub removed: CancellationToken,
    /// Index into [`ReplicaState::ALL`].
    state: AtomicU8,
    reason: Mutex<Arc<str>>,
    /// Failed requests since the last good one.
    failures: AtomicU32,
    /// Ejections since the last good request.
    ejections: AtomicU32,
    lives: AtomicU32,
}

/// One life of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Slot of the replica.
    pub slot: usize,
    /// How often it had become ready.
    pub number: u32,
}

/// Counters of one scrape.
#[derive(Clone, Copy, Debug)]
pub struct ScrapedCounters {
    pub counters: EngineCounters,
    /// Prompt tokens looked up in the engine's prefix cache, and those found there.
    pub cache: Option<(f64, f64)>,
    /// Start of the process, where it is told.
    pub process_start: Option<f64>,
}

/// A model as an engine lists it.
#[derive(Clone, Debug)]
pub struct EngineModel {
    pub id: Arc<str>,
    /// The whole object as the engine wrote it, for our `/v1/models`.
    pub entry: Box<str>,
    /// Where the value of its `id` stands in `entry`, quotes included.
    pub id_at: std::ops::Range<usize>,
    /// It has no `parent`: it is no adapter.
    pub is_base: bool,
}

/// Parts of a new replica.
#[derive(Debug)]
pub struct ReplicaParts {
    /// Index in the pool's dispatcher.
    pub slot: usize,
    pub served: Served,
    pub endpoint: Endpoint,
    /// Value of the `Host` header.
    pub host: HeaderValue,
    pub connections: Arc<ConnectionPool>,
}

impl Replica {
    /// A replica in state `Probing`.
    pub fn new(parts: ReplicaParts) -> Arc<Self> {
        let url: Arc<str> = parts.endpoint.to_string().into();
        Arc::new(Self {
            target: Target::new(parts.slot, rendezvous::identity(0, url.as_bytes())),
            url,
            served: parts.served,
            endpoint: parts.endpoint,
            host: parts.host,
            connections: parts.connections,
            vitals: Arc::new(Vitals::default()),
            scraped: ArcSwapOption::empty(),
            absent: ArcSwap::from_pointee(Arc::from([])),
            scrape_failures: AtomicU64::new(0),
            probe_failures: AtomicU64::new(0),
            models: ArcSwap::default(),
            unasked: ArcSwapOption::empty(),
            removed: CancellationToken::new(),
            state: AtomicU8::new(0),
            reason: Mutex::new("not probed yet".into()),
            failures: AtomicU32::new(0),
            ejections: AtomicU32::new(0),
            lives: AtomicU32::new(0),
        })
    }

    /// Index in the pool's dispatcher.
    pub fn slot(&self) -> usize {
        self.target.slot
    }

    pub fn state(&self) -> ReplicaState {
        let at = usize::from(self.state.load(Ordering::Acquire));
        ReplicaState::ALL.get(at).copied().unwrap_or(ReplicaState::Probing)
    }

    /// Whether it takes new requests.
    pub fn is_ready(&self) -> bool {
        self.state() == ReplicaState::Ready
    }

    /// Changes the state and logs the change; from `Draining` does nothing.
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

    /// The current life: it ends with a death and begins with the next `Ready`.
    pub fn life(&self) -> Life {
        Life { slot: self.slot(), number: self.lives.load(Ordering::Relaxed) }
    }

    /// Drains it and ends its tasks: it is no longer configured.
    pub fn retire(&self) {
        self.enter(ReplicaState::Draining, "no longer configured");
        self.removed.cancel();
        self.connections.drain();
    }

    /// A request succeeded: resets the failure counters.
    pub fn succeeded(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
        if self.ejections.load(Ordering::Relaxed) != 0 {
            self.ejections.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a failed request; returns the failures in a row.
    pub fn count_failure(&self) -> u32 {
        self.failures.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Delay of the first probe after an ejection: 500 ms, doubled for each ejection since the last good request, at
    /// most `interval`. Keeps a replica that passes probes but fails requests from flapping.
    #[must_use]
    pub fn hold_off(&self, interval: Duration) -> Duration {
        let doublings = self.ejections.load(Ordering::Relaxed).clamp(1, 8) - 1;
        (FIRST_HOLD_OFF * (1 << doublings)).min(interval)
    }

    /// Status for metrics and the admin API.
    pub fn status(&self, now: Stamp, limits: &EngineLimits) -> ReplicaStatus {
        let signals = self.target.signals(now, limits);
        let load = self.target.load.view();
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
            counters: signals.and_then(|_| Some(self.scraped.load().as_ref()?.counters)),
            absent: Arc::clone(&self.absent.load()),
            failures: OwnFailures {
                scrapes: self.scrape_failures.load(Ordering::Relaxed),
                probes: self.probe_failures.load(Ordering::Relaxed),
            },
            connections: self.connections.open(),
            models: self.models.load().iter().map(|m| Arc::clone(&m.id)).collect(),
        }
    }
}

const FIRST_HOLD_OFF: Duration = Duration::from_millis(500);
