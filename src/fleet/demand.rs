//! Demand on a pool and what serves it, at one moment: the input of autoscaling.
//!
//! Plain figures; nothing here decides.

use std::sync::Arc;
use std::time::Duration;

use super::life::ReplicaState;
use super::pool::PoolState;
use super::registry::Fleet;
use super::replica::Replica;
use crate::admission::{Line, Outlook, Share, WaitReason, Waiter};
use crate::clock::Stamp;
use crate::routing::{
    Ask, Dispatcher, EngineLimits, EngineSignals, Prompt, SlotSet, Target, Typical, Verdict, policies,
};
use crate::units::Tokens;

/// One pool at one moment.
#[derive(Clone, Debug, Default)]
pub struct PoolLoad {
    /// Name of the pool.
    pub pool: Arc<str>,
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
}

/// One engine at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineLoad {
    /// Name of the replica.
    pub replica: Arc<str>,
    /// Its state.
    pub state: ReplicaState,
    /// Fraction of its ordinary traffic that it gets.
    pub share: f64,
    /// Our requests in flight there.
    pub inflight: u64,
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
    /// Cold starts so far.
    pub cold_starts: u64,
    /// The latest of them, the newest last.
    pub latest_cold_starts: Vec<Duration>,
}

impl EngineLoad {
    /// What is known of a replica's engine; `signals` are those of its last page.
    pub(crate) fn of(
        replica: Arc<str>,
        state: ReplicaState,
        target: &Target,
        signals: Option<EngineSignals>,
        limits: &EngineLimits,
        cold_starts: (u64, Vec<Duration>),
    ) -> Self {
        let view = target.load.view();
        let blocks = signals.and_then(|signals| signals.total_blocks.zip(signals.block_tokens));
        let (cold_starts, latest_cold_starts) = cold_starts;
        Self {
            replica,
            state,
            share: target.share(),
            inflight: view.inflight,
            running: signals.and_then(|signals| signals.running),
            waiting: signals.and_then(|signals| signals.waiting),
            batch_limit: signals
                .and_then(|signals| signals.batch_limit)
                .or(limits.batch_limit)
                .or_else(|| target.load.batch_limit()),
            cache_tokens: blocks.map(|(blocks, tokens)| blocks.saturating_mul(tokens)),
            context: (view.decoding() > 0).then(|| view.context as f64 / view.decoding() as f64),
            cold_starts,
            latest_cold_starts,
        }
    }

    /// Whether it serves.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state == ReplicaState::Ready
    }
}

impl Fleet {
    /// Demand and capacity of every pool.
    pub fn loads(&self, now: Stamp) -> Vec<PoolLoad> {
        self.pools().iter().map(|pool| pool.load(now)).collect()
    }
}

impl PoolState {
    fn load(&self, now: Stamp) -> PoolLoad {
        let replicas = self.replicas();
        let limits = self.engine_limits();
        let engines: Vec<_> = replicas.iter().map(|replica| engine(replica, now, &limits)).collect();
        let mut urls: Vec<&str> = replicas.iter().map(|replica| &*replica.url).collect();
        urls.sort_unstable();
        urls.dedup();
        let ready: Vec<_> = replicas.iter().filter(|replica| replica.is_ready()).collect();
        let contexts = replicas
            .iter()
            .zip(&engines)
            .filter(|(replica, _)| replica.is_ready() || ready.is_empty())
            .map(|(replica, engine)| (replica.slot(), engine.context));
        let typical = self.dispatcher.model.typical(&self.arrivals.mean_work(), contexts, now);
        PoolLoad {
            pool: Arc::clone(&self.name),
            arrivals: self.arrivals.count(),
            queued: self.queue.len() as u64,
            engines_per_replica: (replicas.len() / urls.len().max(1)).max(1),
            predicted_ttft: typical.and_then(|typical| self.predicted_ttft(&typical, now)),
            engines,
            typical,
        }
    }

    fn predicted_ttft(&self, typical: &Typical, now: Stamp) -> Option<Duration> {
        let replicas = self.replicas();
        let targets = replicas.iter().filter(|replica| replica.is_ready()).map(|replica| &replica.target);
        let ahead = |last: &Waiter| Line::ahead(&&*self.queue, last);
        predicted_ttft(&self.dispatcher, &self.engine_limits(), targets, ahead, typical, now)
    }
}

/// What a mean request would meet that arrives now at one of `targets`, behind all that wait: `ahead` says how long they take.
pub(crate) fn predicted_ttft<'t>(
    dispatcher: &Arc<Dispatcher>,
    limits: &EngineLimits,
    targets: impl Iterator<Item = &'t Target>,
    ahead: impl FnOnce(&Waiter) -> Option<Duration>,
    typical: &Typical,
    now: Stamp,
) -> Option<Duration> {
    let tokens = Tokens(typical.uncached as u64);
    let tried = SlotSet::new();
    let ask = Ask {
        prompt: Prompt { chain: &[], block_end: &|_| 0, bytes: 0, tokens },
        session: None,
        slo: crate::record::SloBounds::default(),
        waited: Duration::ZERO,
        queues_late: false,
        shows_first_token: true,
        conversation: None,
        sampling: crate::routing::Sampling::default(),
        has_media: false,
        lacks_adapter: None,
        tried: &tried,
    };
    // Collected, so that they may be lent for as short as the question.
    let targets: Vec<&Target> = targets.collect();
    let policy = policies::named(crate::config::PolicyName::Latency);
    let judged = dispatcher.judge(&*policy, &ask, limits, now, targets.into_iter())?;
    let Verdict::Place(decision) = judged.verdict() else { return None };
    let terms = &decision.terms;
    let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds.max(0.0)).ok();
    let last = Waiter {
        reason: WaitReason::Late,
        route: "".into(),
        share: Share { tenant: "".into(), weight: 1, priority: i32::MIN },
        limits: None,
        is_long: false,
        bytes: 0,
        outlook: Outlook {
            at: now,
            work: seconds(terms.turn)?,
            replicas: judged.candidates().len(),
            ..Outlook::default()
        },
    };
    let ahead = ahead(&last).unwrap_or_default();
    Some(seconds(terms.prefill + terms.base)? + seconds(terms.wait)?.max(ahead))
}

fn engine(replica: &Replica, now: Stamp, limits: &EngineLimits) -> EngineLoad {
    let signals = replica.target.signals(now, limits);
    EngineLoad::of(replica.name(), replica.state(), &replica.target, signals, limits, replica.cold_starts())
}
