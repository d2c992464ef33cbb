//! One pool in operation: its replicas, its dispatcher, and what failed requests mean for them.
//!
//! [`super::registry`] opens pools and changes their replicas; probes, scrapes and requests report here.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::poison::PoisonPrompts;
use super::replica::Replica;
use super::status::ReplicaState;
use crate::admission::PoolQueue;
use crate::clock::{Clock, Stamp};
use crate::config::Pool;
use crate::error::ReplicaFailure;
use crate::request::ratio::TokenRatio;
use crate::routing::{Dispatcher, EngineLimits, REFRESH_EVERY};

/// One pool in operation.
#[derive(Debug)]
pub struct PoolState {
    /// Name of the `[[pool]]`.
    pub name: Arc<str>,
    /// Prefix index, load and learned model of its replicas.
    pub dispatcher: Arc<Dispatcher>,
    /// Learned bytes per token of its model.
    pub ratio: TokenRatio,
    /// Requests of all its routes that wait.
    pub queue: Arc<PoolQueue>,
    retired: CancellationToken,
    pub(super) config: ArcSwap<Pool>,
    pub(super) replicas: ArcSwap<Vec<Arc<Replica>>>,
    poison: PoisonPrompts,
}

impl PoolState {
    /// A pool without replicas, with room for `slots` of them.
    pub(super) fn new(config: &Pool, slots: usize) -> Arc<Self> {
        Arc::new(Self {
            name: Arc::clone(&config.name),
            dispatcher: Dispatcher::new(slots),
            ratio: TokenRatio::default(),
            queue: PoolQueue::new(),
            retired: CancellationToken::new(),
            config: ArcSwap::from_pointee(config.clone()),
            replicas: ArcSwap::default(),
            poison: PoisonPrompts::default(),
        })
    }

    /// Ends the pool's tasks and those of its replicas.
    pub(super) fn retire(&self) {
        self.retired.cancel();
        self.replicas.load().iter().for_each(|replica| replica.retire());
    }

    /// Refreshes the dispatcher's view of running streams every [`REFRESH_EVERY`], until the pool is retired.
    pub(super) async fn refresh(self: Arc<Self>, clock: Clock) {
        let mut ticks = tokio::time::interval(REFRESH_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.retired.run_until_cancelled(ticks.tick()).await.is_some() {
            let replicas = self.replicas();
            let targets = replicas.iter().map(|replica| &replica.target);
            let ready = replicas.iter().filter(|replica| replica.is_ready()).map(|replica| &replica.target);
            let bytes_per_token = self.ratio.bytes_per_token();
            self.dispatcher.refresh(targets, ready, &self.engine_limits(), bytes_per_token, clock.now());
        }
    }

    /// The configuration that was applied last.
    pub fn config(&self) -> Arc<Pool> {
        self.config.load_full()
    }

    /// Its replicas in every state.
    pub fn replicas(&self) -> Arc<Vec<Arc<Replica>>> {
        self.replicas.load_full()
    }

    /// Whether any replica is `Ready`.
    pub fn is_ready(&self) -> bool {
        self.replicas.load().iter().any(|r| r.is_ready())
    }

    /// A request failed at a replica. The replica is ejected after [`FAILURES_TO_EJECT`] failures in a row, or at once
    /// where it refuses connections or reports a dead engine; but never the last ready one, and never more than
    /// `pool.ejection.max_share` of the pool.
    pub fn failed(&self, replica: &Replica, failure: &ReplicaFailure, prompt: u64, now: Stamp) {
        // Our own limit and an engine's full queue mean busy, and busy is not down.
        let is_busy = matches!(
            failure,
            ReplicaFailure::NoFreeConnection { .. } | ReplicaFailure::Status { status: 503, .. }
        );
        if is_busy {
            return;
        }
        let in_a_row = replica.count_failure();
        let broke = matches!(
            failure,
            ReplicaFailure::ClosedBeforeHead { is_unsent: false, .. }
                | ReplicaFailure::Truncated { .. }
                | ReplicaFailure::EngineDown { .. }
                | ReplicaFailure::Silent { .. }
        );
        if broke {
            self.poison.suspect(prompt, replica.life(), now);
        }
        let is_refused = matches!(failure, ReplicaFailure::Refused { .. });
        if is_refused {
            replica.vitals.refused(now);
        }
        let is_bad = is_refused
            || in_a_row >= FAILURES_TO_EJECT
            || matches!(failure, ReplicaFailure::EngineDown { .. });
        if is_bad && replica.is_ready() && self.may_eject() {
            replica.enter(ReplicaState::Ejected, &failure.to_string());
        }
        if is_bad || broke {
            replica.vitals.check_now.notify_one();
        }
    }

    fn may_eject(&self) -> bool {
        let replicas = self.replicas.load();
        let ready = replicas.iter().filter(|r| r.is_ready()).count();
        let ejected = replicas.iter().filter(|r| r.state() == ReplicaState::Ejected).count();
        let size = replicas.len().max(1) as f64;
        ready > 1 && (ejected + 1) as f64 / size <= self.config.load().max_ejected_share.max(1.0 / size)
    }

    /// The prober found a replica dead: its cache is gone, and the prompts in flight when it broke are suspects.
    pub(super) fn died(&self, replica: &Replica, now: Stamp) {
        self.dispatcher.forget(replica.slot());
        self.poison.confirm(replica.slot(), now);
    }

    /// How much longer a prompt is refused, if it was in flight at two replica deaths.
    pub fn poisoned_for(&self, prompt: u64, now: Stamp) -> Option<Duration> {
        self.poison.refused_for(prompt, now)
    }

    /// Limits of its engines as configured.
    pub fn engine_limits(&self) -> EngineLimits {
        let config = self.config.load();
        EngineLimits {
            scrape_interval: config.scrape_interval,
            batch_limit: config.max_num_seqs.map(NonZeroU64::get),
        }
    }
}

const FAILURES_TO_EJECT: u32 = 3;
