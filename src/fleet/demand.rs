//! Demand on a pool and what serves it, at one moment: the input of autoscaling.
//!
//! Plain figures; nothing here decides.

use std::sync::Arc;
use std::time::Duration;

use super::life::{ColdStarts, ReplicaState};
use super::pool::PoolState;
use super::registry::Fleet;
use super::replica::Replica;
use crate::admission::{Line, Outlook, Waiter};
use crate::clock::Stamp;
use crate::routing::{EngineLimits, Expected, Target, Typical};

/// One pool at one moment.
#[derive(Clone, Debug, Default)]
pub struct PoolLoad {
    /// Name of the pool.
    pub pool: Arc<str>,
    /// A canary that runs on it has a share of requests or copies, and gets none before it has a replica.
    pub is_for_canary: bool,
    /// No replica is known, and a source of its replicas has yet to answer.
    pub is_unseen: bool,
    /// Requests that asked for it so far.
    pub arrivals: u64,
    /// Requests that wait in the gateway.
    pub queued: u64,
    /// Its engines, those that are still to come or were left included.
    pub engines: Vec<EngineLoad>,
    /// Engines behind one URL: more than one with data parallelism.
    pub engines_per_replica: usize,
    /// Costs of a mean request; `None` before any answer.
    pub typical: Option<Typical>,
    /// TTFT that is predicted for a mean request that arrives now; `None` before any answer, and without a ready replica.
    pub predicted_ttft: Option<Duration>,
    /// The gateway itself waits for CPU.
    pub is_starved: bool,
}

/// One engine at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineLoad {
    /// Name of the replica.
    pub replica: Arc<str>,
    /// Its state.
    pub state: ReplicaState,
    /// Fraction of its ordinary traffic that it gets.
    pub share: f64,
    /// Requests in flight there that are known here: this gateway's, and those of gateways that it follows.
    pub inflight: u64,
    /// Those that other gateways sent.
    pub followed: u64,
    /// Requests there beyond those, when its engine was asked.
    pub foreign: f64,
    /// Running requests, everybody's, as its engine told.
    pub running: Option<f64>,
    /// Waiting requests, everybody's, as its engine told.
    pub waiting: Option<f64>,
    /// Sequences that it runs at once, where known.
    pub batch_limit: Option<u64>,
    /// Tokens that fit into its KV cache, where known.
    pub cache_tokens: Option<u64>,
    /// Tokens in the context of one of its running sequences, where there is one.
    pub context: Option<f64>,
    /// Its cold starts so far.
    pub cold_starts: ColdStarts,
}

impl EngineLoad {
    /// What is known of a replica's engine at `now`.
    pub fn of(
        replica: Arc<str>,
        state: ReplicaState,
        target: &Target,
        now: Stamp,
        limits: &EngineLimits,
        cold_starts: ColdStarts,
    ) -> Self {
        let (view, signals) = (target.load.view(), target.signals(now, limits));
        let page = signals.map(|signals| signals.page).unwrap_or_default();
        let blocks = page.total_blocks.zip(page.block_tokens);
        Self {
            replica,
            state,
            share: target.share(),
            inflight: view.inflight,
            followed: target.load.followed(),
            foreign: target.foreign(now, limits).requests,
            running: page.running,
            waiting: page.waiting,
            batch_limit: page.batch_limit.or(limits.batch_limit).or_else(|| target.load.batch_limit()),
            cache_tokens: blocks.map(|(blocks, tokens)| blocks.saturating_mul(tokens)),
            context: (view.decoding() > 0).then(|| view.context as f64 / view.decoding() as f64),
            cold_starts,
        }
    }

    /// Whether it serves.
    pub fn is_ready(&self) -> bool {
        self.state == ReplicaState::Ready
    }
}

impl Fleet {
    /// Demand and capacity of every pool.
    pub fn loads(&self, now: Stamp) -> Vec<PoolLoad> {
        let sources = self.sources();
        let is_silent = |pool: &str| sources.iter().any(|one| *one.pool == *pool && one.age.is_none());
        let mut loads: Vec<_> = self.pools().iter().map(|pool| pool.load(now)).collect();
        for load in &mut loads {
            load.is_unseen = load.engines.is_empty() && is_silent(&load.pool);
        }
        loads
    }
}

impl PoolState {
    fn load(&self, now: Stamp) -> PoolLoad {
        let replicas = self.replicas();
        let limits = self.engine_limits();
        let engines: Vec<_> = replicas.iter().map(|replica| engine(replica, now, &limits)).collect();
        let mut urls: Vec<&str> = replicas.iter().map(|replica| &*replica.identity.url).collect();
        urls.sort_unstable();
        urls.dedup();
        let ready: Vec<_> = replicas.iter().filter(|replica| replica.is_ready()).collect();
        let contexts = replicas
            .iter()
            .zip(&engines)
            .filter(|(replica, _)| replica.is_ready() || ready.is_empty())
            .map(|(replica, engine)| (replica.slot(), engine.context));
        let typical = self.dispatcher.model.typical(&self.arrivals.mean(), contexts, now);
        PoolLoad {
            is_unseen: false,
            pool: Arc::clone(&self.name),
            // The shares of canaries are not the fleet's.
            is_for_canary: false,
            arrivals: self.arrivals.count(),
            queued: self.queue.len() as u64,
            is_starved: false,
            engines_per_replica: (replicas.len() / urls.len().max(1)).max(1),
            predicted_ttft: typical.and_then(|typical| self.predicted_ttft(&typical, now)),
            engines,
            typical,
        }
    }

    fn predicted_ttft(&self, typical: &Typical, now: Stamp) -> Option<Duration> {
        let replicas = self.replicas();
        let targets = replicas.iter().filter(|replica| replica.is_ready()).map(|replica| &replica.target);
        let expected = Expected::at(&self.dispatcher, &self.engine_limits(), targets, typical, now)?;
        Some(predicted_ttft(&expected, |last| Line::ahead(&&*self.queue, last), now))
    }
}

/// TTFT of a mean request that arrives now, behind all that wait: `ahead` says how long they take.
pub fn predicted_ttft(
    expected: &Expected,
    ahead: impl FnOnce(&Waiter) -> Option<Duration>,
    now: Stamp,
) -> Duration {
    let Expected { first_token, wait, work, replicas } = *expected;
    let last = Waiter::last(Outlook { at: now, work, replicas, ..Outlook::default() });
    first_token + wait.max(ahead(&last).unwrap_or_default())
}

fn engine(replica: &Replica, now: Stamp, limits: &EngineLimits) -> EngineLoad {
    let cold_starts = replica.health.warmth.cold_starts();
    EngineLoad::of(replica.name(), replica.state(), &replica.target, now, limits, cold_starts)
}
