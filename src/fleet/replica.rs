//! One replica: identity, state machine, and the shared values that the data path reads.
//!
//! What states it passes is [`super::life`]'s affair. One that traffic proved sick comes back on trial. Name and labels may change
//! with the configuration; state, connections and everything learned stay.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use http::HeaderValue;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::adapters::Adapters;
use super::answers::Answers;
use super::cold::Warmth;
use super::gpu::GpuReading;
use super::life::{Event, LifeCycle};
use super::status::{EngineCounters, LifeStatus, OwnFailures, ReplicaState, ReplicaStatus, WarmUpReport};
use super::unasked::UnaskedStream;
use super::vitals::Vitals;
use crate::clock::{Clock, Stamp};
use crate::config::Endpoint;
use crate::record::Served;
use crate::routing::{EngineLimits, Target, rendezvous};
use crate::upstream::pool::ConnectionPool;

/// A replica; lives as long as a request or the configuration refers to it.
#[derive(Debug)]
pub struct Replica {
    served: ArcSwap<Served>,
    pub endpoint: Endpoint,
    /// Its place among the engines of its URL, where each of them is a target of its own.
    pub rank: Option<Rank>,
    /// What tells its process from an earlier one at the same URL, where its source says.
    pub instance: Option<Arc<str>>,
    /// Value of the `Host` header.
    pub host: HeaderValue,
    /// The endpoint as text.
    pub url: Arc<str>,
    pub connections: Arc<ConnectionPool>,
    pub vitals: Arc<Vitals>,
    /// How it answered of late.
    pub answers: Answers,
    /// Load and signals as routing reads them.
    pub target: Target,
    /// Counters of the last scrape.
    pub scraped: ArcSwapOption<ScrapedCounters>,
    /// Figures that are expected of the engine and that its page does not have.
    pub absent: ArcSwap<Arc<[&'static str]>>,
    /// Figures of its GPUs.
    pub(super) gpu: ArcSwapOption<GpuReading>,
    /// Scrapes without a page.
    pub scrape_failures: AtomicU64,
    /// Probes without the answer of a working engine.
    pub probe_failures: AtomicU64,
    /// The same, in a row.
    pub(super) misses: AtomicU32,
    /// As listed by `/v1/models` of the engine.
    pub models: ArcSwap<Vec<EngineModel>>,
    /// LoRA adapters that its engine is known to hold.
    pub adapters: Adapters,
    /// What its engine puts into a stream that asks for nothing; `None` until a probe told.
    pub unasked: ArcSwapOption<UnaskedStream>,
    /// Cancelled when the configuration drops it: probes and scrapes end.
    pub removed: CancellationToken,
    /// It gets no new requests whatever its probes say; its source or an operator said so.
    is_held: AtomicBool,
    held_for: ArcSwapOption<&'static str>,
    /// What it was before it took traffic, and for a while after.
    pub(super) warmth: Warmth,
    /// The last warm-up.
    pub(super) warm_up: ArcSwapOption<WarmUpReport>,
    /// Promised models that its engine does not list.
    pub(super) lacks: ArcSwap<Arc<[Arc<str>]>>,
    /// Start of the newest process that its page told, seconds since 1970 as bits; 0 where none is told.
    pub(super) newest_process: AtomicU64,
    /// It was asked for that it be warmed up again.
    pub(super) warm_again: AtomicBool,
    zone: Mutex<Option<Arc<str>>>,
    life: LifeCycle,
    clock: Clock,
    /// Ejections since it was last proved well.
    ejections: AtomicU32,
    /// Failed requests ejected it: it comes back on trial.
    was_sick: AtomicBool,
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

/// One of several engines behind one URL (data parallelism).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// From 0: the value of `X-data-parallel-rank`.
    pub index: u32,
    /// Engines behind the URL.
    pub of: u32,
}

/// Counters of one scrape.
#[derive(Clone, Copy, Debug)]
pub struct ScrapedCounters {
    pub counters: EngineCounters,
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
    /// Place among the engines of the endpoint.
    pub rank: Option<Rank>,
    /// Id of the process, where its source tells one.
    pub instance: Option<Arc<str>>,
    /// Value of the `Host` header.
    pub host: HeaderValue,
    pub connections: Arc<ConnectionPool>,
    pub zone: Option<Arc<str>>,
    pub clock: Clock,
}

impl Replica {
    /// A replica in state `Discovered`.
    pub fn new(parts: ReplicaParts) -> Arc<Self> {
        let url: Arc<str> = parts.endpoint.to_string().into();
        let now = parts.clock.now();
        Arc::new(Self {
            target: Target::new(parts.slot, identity(&url, parts.rank)),
            url,
            rank: parts.rank,
            instance: parts.instance,
            served: ArcSwap::from_pointee(parts.served),
            endpoint: parts.endpoint,
            host: parts.host,
            connections: parts.connections,
            vitals: Arc::new(Vitals::default()),
            answers: Answers::default(),
            scraped: ArcSwapOption::empty(),
            absent: ArcSwap::from_pointee(Arc::from([])),
            gpu: ArcSwapOption::empty(),
            scrape_failures: AtomicU64::new(0),
            probe_failures: AtomicU64::new(0),
            misses: AtomicU32::new(0),
            models: ArcSwap::default(),
            adapters: Adapters::default(),
            unasked: ArcSwapOption::empty(),
            removed: CancellationToken::new(),
            is_held: AtomicBool::new(false),
            held_for: ArcSwapOption::empty(),
            warmth: Warmth::new(now),
            warm_up: ArcSwapOption::empty(),
            lacks: ArcSwap::from_pointee(Arc::from([])),
            newest_process: AtomicU64::new(0),
            warm_again: AtomicBool::new(false),
            zone: Mutex::new(parts.zone),
            life: LifeCycle::new(now),
            clock: parts.clock,
            ejections: AtomicU32::new(0),
            was_sick: AtomicBool::new(false),
            lives: AtomicU32::new(0),
        })
    }

    /// Labels of its metrics and records.
    pub fn served(&self) -> Arc<Served> {
        self.served.load_full()
    }

    /// Its name, the label `replica`.
    pub fn name(&self) -> Arc<str> {
        Arc::clone(&self.served.load().replica)
    }

    /// Takes other labels from now on: its name or its pool's revision changed.
    pub fn relabel(&self, served: Served) {
        self.served.store(Arc::new(served));
    }

    /// Index in the pool's dispatcher.
    pub fn slot(&self) -> usize {
        self.target.slot
    }

    pub fn state(&self) -> ReplicaState {
        self.life.state()
    }

    /// Why it is in its state.
    pub(super) fn reason(&self) -> Arc<str> {
        self.life.passage().reason
    }

    /// Why it takes no requests: `http://gpu-1:8000: connection refused (3 tries)`.
    pub(super) fn why_unready(&self) -> String {
        let reason = match (self.state(), self.held_for.load_full()) {
            (ReplicaState::Ready, Some(held)) => (*held).into(),
            (ReplicaState::Ready, None) => "ready".into(),
            _ => self.reason(),
        };
        let tries = match self.misses.load(Ordering::Relaxed) {
            0 => String::new(),
            1 => " (1 try)".to_owned(),
            misses => format!(" ({misses} tries)"),
        };
        format!("{}: {reason}{tries}", self.url)
    }

    /// Whether it takes new requests.
    pub fn is_ready(&self) -> bool {
        self.state() == ReplicaState::Ready && !self.is_held.load(Ordering::Relaxed)
    }

    /// Takes new requests away for as long as there is a reason; streams, probes and scrapes go on.
    pub fn hold(&self, reason: Option<&'static str>) {
        if self.is_held.swap(reason.is_some(), Ordering::Relaxed) != reason.is_some() {
            self.held_for.store(reason.map(Arc::new));
            let served = self.served();
            let (pool, replica) = (&*served.pool, &*served.replica);
            tracing::info!(pool, replica, reason = reason.unwrap_or("released"), "replica held or released");
        }
    }

    /// Takes an event of its life, with the reason that people are told, and logs a change of state.
    pub(crate) fn happened(&self, event: Event, reason: &str) {
        let now = self.clock.now();
        if matches!(event, Event::Refused | Event::Unproved) {
            self.warmth.not_yet();
        }
        let Some(change) = self.life.apply(event, reason, now) else { return };
        match change.to {
            ReplicaState::Ready => {
                if self.was_sick.swap(false, Ordering::Relaxed) {
                    self.answers.begin_trial();
                } else {
                    self.answers.resume();
                }
                self.lives.fetch_add(1, Ordering::Relaxed);
            }
            ReplicaState::Ejected | ReplicaState::Unreachable => {
                if self.answers.is_on_trial() {
                    self.was_sick.store(true, Ordering::Relaxed);
                }
                self.ejections.fetch_add(1, Ordering::Relaxed);
                self.connections.drain();
            }
            ReplicaState::Probing if event == Event::Restarted => self.connections.drain(),
            _ => {}
        }
        let served = self.served();
        tracing::info!(
            pool = %served.pool, replica = %served.replica,
            from = change.from.as_str(), to = change.to.as_str(), after = change.after.as_secs_f64(), reason,
            "replica changed state"
        );
    }

    /// The current life: it ends with a death and begins with the next `Ready`.
    pub fn life(&self) -> Life {
        Life { slot: self.slot(), number: self.lives.load(Ordering::Relaxed) }
    }

    /// Drains it and ends its tasks: it is no longer configured.
    pub fn retire(&self) {
        self.happened(Event::Removed, "no longer part of the fleet");
        self.removed.cancel();
        self.connections.drain();
    }

    /// Failed requests proved it sick: no new ones until a probe is answered, and few at first.
    pub fn eject(&self, reason: &str) {
        self.was_sick.store(true, Ordering::Relaxed);
        self.happened(Event::Sick, reason);
    }

    /// Whether failed requests ejected it, so that it comes back on trial.
    pub fn is_due_for_trial(&self) -> bool {
        self.was_sick.load(Ordering::Relaxed)
    }

    /// Sets what its answers are worth beside the others', slow start included.
    pub(super) fn set_standing(&self, success: f64, share: f64, now: Stamp) {
        self.target.set_standing(success, share * self.warmth.share(now));
    }

    /// It was chosen for a request: in slow start one trial at a time.
    pub fn chosen(&self, now: Stamp) {
        if self.is_in_slow_start() {
            self.warmth.chosen(now);
            self.target.set_standing(self.target.success(), self.warmth.share(now));
        }
    }

    /// Whether it became warm a short while ago, so that the time of its first tokens says little about its pool.
    pub fn is_cold(&self, now: Stamp) -> bool {
        self.warmth.is_cold(now)
    }

    /// Whether it gets less than its share because it became warm a short while ago.
    pub fn is_in_slow_start(&self) -> bool {
        self.warmth.is_in_slow_start()
    }

    /// Cold starts so far, and how long the latest of them took, the newest last.
    pub(super) fn cold_starts(&self) -> (u64, Vec<Duration>) {
        let cold_starts = self.warmth.cold_starts();
        (cold_starts.count, cold_starts.latest.into_iter().collect())
    }

    /// Has it warmed up again, as soon as its prober comes to it.
    pub fn warm_again(&self) {
        self.warm_again.store(true, Ordering::Relaxed);
        self.vitals.check_now.notify_one();
    }

    /// Takes another zone from now on.
    pub(super) fn set_zone(&self, zone: Option<Arc<str>>) {
        *self.zone.lock() = zone;
    }

    /// A first token or a whole answer came.
    pub fn succeeded(&self, now: Stamp) {
        self.warmth.answered();
        let is_proved = self.answers.good(now) || !self.answers.is_on_trial();
        if is_proved && self.is_ready() && self.ejections.load(Ordering::Relaxed) != 0 {
            self.ejections.store(0, Ordering::Relaxed);
        }
    }

    /// Delay of the first probe after an ejection: 500 ms, doubled for each ejection since it was last proved well, at
    /// most `interval`. Keeps a replica that passes probes but fails requests from flapping.
    #[must_use]
    pub fn hold_off(&self, interval: Duration) -> Duration {
        let doublings = self.ejections.load(Ordering::Relaxed).clamp(1, 8) - 1;
        (FIRST_HOLD_OFF * (1 << doublings)).min(interval)
    }

    /// Whether it takes another request now: ready, and neither in a back-off nor at the limit of its trial.
    pub fn is_open(&self, now: Stamp) -> bool {
        self.is_ready() && self.answers.takes(now, self.target.load.inflight())
    }

    /// Whether its engine lists the model.
    pub fn lists(&self, model: &str) -> bool {
        self.models.load().iter().any(|known| &*known.id == model)
    }

    /// Status for metrics and the admin API.
    pub fn status(&self, now: Stamp, limits: &EngineLimits) -> ReplicaStatus {
        let signals = self.target.signals(now, limits);
        let load = self.target.load.view();
        let served = self.served.load();
        let held = self.held_for.load();
        let held = held.as_ref().filter(|_| self.state() == ReplicaState::Ready);
        let passage = self.life.passage();
        let cold_starts = self.warmth.cold_starts();
        let life = LifeStatus {
            since: now.since(passage.since),
            entered: passage.entered,
            cold_starts: cold_starts.count,
            latest_cold_starts: cold_starts.latest.iter().copied().collect(),
            is_in_slow_start: self.is_in_slow_start(),
            warm_up: self.warm_up.load_full(),
            lacks: Arc::clone(&self.lacks.load()),
            zone: self.zone.lock().clone(),
        };
        ReplicaStatus {
            pool: Arc::clone(&served.pool),
            revision: Arc::clone(&served.revision),
            replica: Arc::clone(&served.replica),
            url: Arc::clone(&self.url),
            state: if held.is_some() { ReplicaState::Draining } else { passage.state },
            reason: held.map_or(passage.reason, |reason| (***reason).into()),
            life,
            failure_ratio: self.answers.failure_rate(now).unwrap_or_default(),
            traffic_share: self.target.share().min(self.warmth.lasting_share()),
            is_on_trial: self.answers.is_on_trial(),
            inflight: load.inflight,
            inflight_prompt_tokens: load.waiting_tokens().0,
            signals,
            counters: signals.and_then(|_| Some(self.scraped.load().as_ref()?.counters)),
            absent: Arc::clone(&self.absent.load()),
            gpu: self.gpu.load().as_ref().and_then(|reading| reading.figures(now)),
            failures: OwnFailures {
                scrapes: self.scrape_failures.load(Ordering::Relaxed),
                probes: self.probe_failures.load(Ordering::Relaxed),
            },
            connections: self.connections.open(),
            models: self.models.load().iter().map(|m| Arc::clone(&m.id)).collect(),
            adapters: self.adapters.held(),
        }
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.happened(Event::Released, "its last stream has ended");
    }
}

/// Ranks of one URL are told apart where keys are spread over replicas.
fn identity(url: &str, rank: Option<Rank>) -> u64 {
    match rank {
        Some(rank) => rendezvous::identity(0, format!("{url}#{}", rank.index).as_bytes()),
        None => rendezvous::identity(0, url.as_bytes()),
    }
}

const FIRST_HOLD_OFF: Duration = Duration::from_millis(500);
