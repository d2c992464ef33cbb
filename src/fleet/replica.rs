//! One replica: what the data path and the fleet's tasks share of it.
//!
//! Each part has one writer's concern: who it is, its life, its health, its engine's facts, our own requests to it, and its load as
//! routing reads it. Name and labels may change with the configuration; state, connections and everything learned stay.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::engine::EngineFacts;
use super::health::{Health, Member};
use super::identity::Identity;
use super::life::{Event, Hold, LifeCycle};
use super::status::{LifeStatus, OwnFailures, ReplicaState, ReplicaStatus, WarmUpReport};
use crate::clock::{AtomicStamp, Clock, Stamp};
use crate::record::Served;
use crate::routing::{EngineLimits, Target};
use crate::upstream::pool::ConnectionPool;

/// A replica; lives as long as a request or the configuration refers to it.
#[derive(Debug)]
pub struct Replica {
    pub identity: Identity,
    pub connections: Arc<ConnectionPool>,
    /// Load and signals as routing reads them.
    pub target: Target,
    pub health: Health,
    pub engine: EngineFacts,
    pub(super) own: OwnRequests,
    life: LifeCycle,
    clock: Clock,
}

/// Our own requests to one replica: probes, scrapes, warm-ups.
#[derive(Debug, Default)]
pub(super) struct OwnRequests {
    /// Scrapes without a page.
    pub(super) failed_scrapes: AtomicU64,
    /// Probes without the answer of a working engine.
    pub(super) failed_probes: AtomicU64,
    /// The same, in a row.
    pub(super) misses: AtomicU32,
    /// When its engine's error was logged last.
    logged_at: AtomicStamp,
    /// The last error that its engine answered a request with, and when.
    last_error: Mutex<Option<(Stamp, Box<str>)>>,
    /// The last warm-up.
    pub(super) warm_up: ArcSwapOption<WarmUpReport>,
    /// It is to be warmed up again.
    pub(super) warm_again: AtomicBool,
}

/// One life of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Slot of the replica.
    pub slot: usize,
    /// How often it had become ready.
    pub number: u64,
}

impl Replica {
    /// A replica in state `Discovered`, at index `slot` of its pool's dispatcher.
    pub fn new(slot: usize, identity: Identity, connections: Arc<ConnectionPool>, clock: Clock) -> Arc<Self> {
        let now = clock.now();
        Arc::new(Self {
            target: Target::new(slot, identity.hash()),
            identity,
            connections,
            health: Health::new(now),
            engine: EngineFacts::default(),
            own: OwnRequests::default(),
            life: LifeCycle::new(now),
            clock,
        })
    }

    /// This moment.
    pub(super) fn now(&self) -> Stamp {
        self.clock.now()
    }

    /// Labels of its metrics and records.
    pub fn served(&self) -> Arc<Served> {
        self.identity.served()
    }

    /// Its name, the label `replica`.
    pub fn name(&self) -> Arc<str> {
        Arc::clone(&self.served().replica)
    }

    /// Index in the pool's dispatcher.
    pub fn slot(&self) -> usize {
        self.target.slot
    }

    pub fn state(&self) -> ReplicaState {
        self.life.state()
    }

    /// Why it takes no requests: `http://gpu-1:8000: connection refused (3 tries)`.
    pub(crate) fn why_unready(&self) -> String {
        let reason = match (self.state(), self.life.held()) {
            (ReplicaState::Ready, held) => held.map_or("ready", Hold::as_str).into(),
            // The last probe was answered, which is no reason to refuse.
            (ReplicaState::Warming, _) => "warming up".into(),
            _ => self.life.passage().reason,
        };
        let tries = match self.own.misses.load(Ordering::Relaxed) {
            0 => String::new(),
            1 => " (1 try)".to_owned(),
            misses => format!(" ({misses} tries)"),
        };
        format!("{}: {reason}{tries}", self.identity.url)
    }

    /// As a member of its pool.
    pub(super) fn member(&self) -> Member<'_> {
        let (state, is_held) = (self.state(), self.life.held().is_some());
        Member { health: &self.health, target: &self.target, state, is_held }
    }

    /// Whether it takes new requests, be it only where no other one does.
    pub fn is_ready(&self) -> bool {
        self.member().is_ready()
    }

    /// Whether it takes another request now: ready, and neither in a back-off nor at the limit of its trial.
    pub fn is_open(&self, now: Stamp) -> bool {
        self.member().is_open(now)
    }

    /// Whether failed requests ejected it, and live answers have yet to prove it.
    pub fn is_on_trial(&self) -> bool {
        self.health.answers.is_on_trial()
    }

    /// Takes new requests away for as long as there is a reason; streams, probes and scrapes go on. One that is released is asked at once:
    /// it may have begun to serve since its last probe.
    pub(super) fn hold(&self, reason: Option<Hold>) {
        if self.life.hold(reason) {
            if reason.is_none() {
                self.health.vitals.check_now.notify_one();
            }
            let served = self.served();
            let (pool, replica) = (&*served.pool, &*served.replica);
            tracing::info!(
                pool,
                replica,
                reason = reason.map_or("released", Hold::as_str),
                "replica held or released"
            );
        }
    }

    /// Applies an event of its life, with the reason that people are given, and logs a change of state.
    pub(crate) fn apply(&self, event: Event, reason: &str) {
        let now = self.clock.now();
        if matches!(event, Event::Refused | Event::Unproved) {
            self.health.warmth.not_yet(now);
        }
        let words = self.words_for(event, now);
        let reason = &*words.map_or(Cow::Borrowed(reason), |words| format!("{reason} ({words})").into());
        let Some(change) = self.life.apply(event, reason, now) else { return };
        match change.to {
            ReplicaState::Ready => {
                self.health.became_ready();
                // What it was worth when it was ejected no longer holds.
                self.member().publish(now);
            }
            ReplicaState::Ejected | ReplicaState::Unreachable => {
                self.health.was_left();
                self.connections.drain();
            }
            ReplicaState::Probing if event == Event::Restarted => self.connections.drain(),
            _ => {}
        }
        let served = self.served();
        macro_rules! log {
            ($level:ident) => {
                tracing::$level!(
                    pool = %served.pool, replica = %served.replica,
                    from = change.from.as_str(), to = change.to.as_str(), after = change.after.as_secs_f64(), reason,
                    "replica changed state"
                )
            };
        }
        if change.to == ReplicaState::Ejected { log!(warn) } else { log!(info) }
    }

    /// Its engine's last error, for the reason of an ejection: of the minute before, also while it lasts.
    fn words_for(&self, event: Event, now: Stamp) -> Option<String> {
        let last = self.own.last_error.lock();
        let (at, words) = last.as_ref().filter(|_| matches!(event, Event::Unproved | Event::Sick))?;
        let passage = self.life.passage();
        let ejected = if passage.state == ReplicaState::Ejected { passage.since } else { now };
        (ejected.since(*at) <= WORDS_HOLD).then(|| format!("engine error: \u{201c}{words}\u{201d}"))
    }

    /// The current life: it ends with a death and begins with the next `Ready`.
    pub fn life(&self) -> Life {
        Life { slot: self.slot(), number: self.life.passage().entered(ReplicaState::Ready) }
    }

    /// Whether it is a pod whose process of this moment is known to be gone: at its address another pod may answer by now.
    pub(super) fn has_lost_pod_since(&self, at: Stamp) -> bool {
        let is_lost = || {
            let passage = self.life.passage();
            passage.state == ReplicaState::Unreachable || passage.process_lost.is_some_and(|lost| lost >= at)
        };
        self.identity.instance.is_some() && is_lost()
    }

    /// Cancelled when the configuration drops it.
    pub(crate) fn removed(&self) -> &CancellationToken {
        &self.life.removed
    }

    /// Drains it and ends its tasks: it is no longer configured.
    pub fn retire(&self) {
        self.apply(Event::Removed, "no longer part of the fleet");
        self.removed().cancel();
        self.connections.drain();
    }

    /// Failed requests proved it sick: no new ones until a probe is answered, and few at first.
    pub(super) fn eject(&self, reason: &str) {
        self.health.failed_requests();
        self.apply(Event::Sick, reason);
    }

    /// Another gateway left it, which may be the fault of the way from there, or its page stays away: its prober asks it at once, and
    /// until it has answered, or `within` is over twice, others are preferred. Requests that failed elsewhere count, but never eject
    /// it alone.
    pub(crate) fn doubt(&self, is_failing: bool, within: Duration, now: Stamp) {
        if !self.is_ready() || self.health.answers.is_doubted(now) {
            return;
        }
        self.health.answers.doubt(is_failing, now.after(within * 2), now);
        self.member().publish(now);
        self.health.vitals.check_now.notify_one();
    }

    /// Its engine answered a request with an error of its own: logged, but once in ten seconds.
    pub fn note_error(&self, words: &str, now: Stamp) {
        *self.own.last_error.lock() = Some((now, words.into()));
        if self.own.logged_at.is_due(LOG_EVERY, now) {
            let served = self.served();
            tracing::warn!(pool = %served.pool, replica = %served.replica, error = words, "engine answered with an error");
        }
    }

    /// It was chosen for a request.
    pub fn chosen(&self, now: Stamp) {
        self.member().chosen(now);
    }

    /// A first token or a whole answer came.
    pub(super) fn succeeded(&self, now: Stamp) {
        self.health.succeeded(self.is_ready(), now);
    }

    /// Has it warmed up again, as soon as its prober comes to it.
    pub fn warm_again(&self) {
        self.own.warm_again.store(true, Ordering::Relaxed);
        self.health.vitals.check_now.notify_one();
    }

    /// Whether its engine may have the model: it lists it, or none.
    pub fn may_have(&self, model: &str) -> bool {
        self.engine.lists(model) || self.engine.models.load().is_empty()
    }

    /// Whether its metrics page was read.
    pub(crate) fn is_scraped(&self) -> bool {
        self.engine.scraped.load().is_some()
    }

    /// Whether its process is older than this time since 1970, as far as its page shows; false before it was read.
    pub(crate) fn has_run_since(&self, at: Duration) -> bool {
        self.is_scraped() && self.process_start().is_none_or(|start| start <= at.as_secs_f64())
    }

    /// When its process started, seconds since 1970, where its page has that.
    pub(super) fn process_start(&self) -> Option<f64> {
        self.engine.scraped.load().as_ref()?.process_start
    }

    /// Status for metrics and the admin API.
    pub fn status(&self, now: Stamp, limits: &EngineLimits) -> ReplicaStatus {
        let signals = self.target.signals(now, limits);
        let load = self.target.load.view();
        let served = self.served();
        let passage = self.life.passage();
        let member = self.member();
        let held = self.life.held().filter(|_| passage.state == ReplicaState::Ready);
        let (engine, own) = (&self.engine, &self.own);
        let life = LifeStatus {
            since: now.since(passage.since),
            entered: passage.entered,
            cold_starts: self.health.warmth.cold_starts(),
            is_in_slow_start: self.health.warmth.is_in_slow_start(),
            warm_up: own.warm_up.load_full(),
            lacks: engine.lacks.load().as_slice().into(),
            zone: self.identity.zone.lock().clone(),
        };
        ReplicaStatus {
            pool: Arc::clone(&served.pool),
            revision: Arc::clone(&served.revision),
            replica: Arc::clone(&served.replica),
            url: Arc::clone(&self.identity.url),
            instance: self.identity.instance.clone(),
            state: held.map_or(passage.state, Hold::shown),
            reason: held.map_or(passage.reason, |held| held.as_str().into()),
            life,
            failure_ratio: self.health.answers.failure_rate(now).unwrap_or_default(),
            traffic_share: member.lasting_share(now),
            is_on_trial: self.is_on_trial(),
            inflight: self.target.load.own(),
            sent: self.target.load.sent(),
            quiet: self.target.load.quiet(now),
            inflight_prompt_tokens: load.waiting.tokens,
            signals,
            counters: signals.and_then(|_| Some(**engine.scraped.load().as_ref()?)),
            absent: engine.absent.load().as_slice().into(),
            gpu: engine.gpu.load().as_ref().and_then(|reading| reading.figures(now)),
            failures: OwnFailures {
                scrapes: own.failed_scrapes.load(Ordering::Relaxed),
                probes: own.failed_probes.load(Ordering::Relaxed),
            },
            connections: self.connections.open(),
            models: engine.models.load().iter().map(|m| Arc::clone(&m.id)).collect(),
            adapters: engine.adapters.held(),
        }
    }
}

/// An error that is older explains no ejection.
const WORDS_HOLD: Duration = Duration::from_secs(60);
/// Between two lines of the log about errors of one engine.
const LOG_EVERY: Duration = Duration::from_secs(10);

impl Drop for Replica {
    fn drop(&mut self) {
        self.apply(Event::Released, "its last stream has ended");
    }
}
