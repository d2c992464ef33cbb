//! Chooses a replica for a request: the pool of its route, then the pool's dispatcher, then the rules of the route.
//!
//! Deciding is in [`crate::routing::Dispatcher`], holding back in [`crate::admission::rule`]; here is what only the live
//! gateway knows: which replicas are ready, which were tried, which one a stored response is pinned to.

use std::sync::Arc;

use super::Gateway;
use super::prepare::Prepared;
use crate::admission::{Outlook, Ruling, WaitReason, rule};
use crate::clock::Stamp;
use crate::fleet::pick::Pick;
use crate::fleet::pool::PoolState;
use crate::fleet::replica::Replica;
use crate::record::{DecisionSummary, Weighed};
use crate::routing::{self, Ask, Candidate, Judged, SlotSet, Terms};

/// The replicas that a request has tried, by pool.
pub type Tried = smallvec::SmallVec<[(Arc<str>, SlotSet); 1]>;

/// Notes that a replica was tried.
pub fn note_tried(tried: &mut Tried, pick: &Pick) {
    let pool = &pick.pool.name;
    match tried.iter_mut().find(|(name, _)| name == pool) {
        Some((_, slots)) => slots.insert(pick.replica.slot()),
        None => tried.push((Arc::clone(pool), SlotSet::from_iter([pick.replica.slot()]))),
    }
}

/// What is to be done with a request now.
#[derive(Debug)]
pub enum Choice {
    /// It goes to this replica.
    Take(Box<Pick>),
    /// It waits in the queue of its route.
    Wait(Hold),
    /// Its route's `[route.degrade]` applies.
    Degrade,
}

/// Why and where a request waits.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    /// Why.
    pub reason: WaitReason,
    /// The pool that it waits for, by its place in the route; `None` where none of them is ready.
    pub pool: Option<usize>,
    /// What is predicted for it.
    pub outlook: Outlook,
}

/// What a request brings along to a decision.
#[derive(Clone, Copy, Debug)]
pub struct Asking<'a> {
    /// The replicas that it tried.
    pub tried: &'a Tried,
    /// The pool that it waited for: it stays with it while that takes requests, or the pools' weights would not hold.
    pub pool: Option<usize>,
    /// It waits in the queue as late and was called.
    pub is_late: bool,
}

/// A replica for the request, among those not tried; `None` when there is none.
#[must_use]
pub fn pick(gateway: &Gateway, request: &Prepared, asking: Asking<'_>) -> Option<Choice> {
    let tried = asking.tried;
    let now = gateway.clock.now();
    let none = SlotSet::new();
    let tried_of = |pool: &PoolState| tried_in(tried, pool).unwrap_or(&none);
    let pools = &request.route.pools;
    let is_open = |at: usize| pools.get(at).is_some_and(|(pool, _)| has_open(pool, request, tried_of(pool)));
    let holds = |pool: &PoolState, replica| pool.replicas().iter().any(|r| Arc::ptr_eq(r, replica));
    let at = match (&request.pinned, pools.len()) {
        (Some(pinned), _) => pools.iter().position(|(pool, _)| holds(pool, pinned)),
        (None, 1) => Some(0),
        (None, _) if asking.pool.is_some_and(is_open) => asking.pool,
        (None, _) => request.route.wheel.choose(request.session, is_open),
    }?;
    choose(gateway, request, at, asking, now)
}

fn tried_in<'t>(tried: &'t Tried, pool: &PoolState) -> Option<&'t SlotSet> {
    tried.iter().find(|(name, _)| *name == pool.name).map(|(_, slots)| slots)
}

fn has_open(pool: &PoolState, request: &Prepared, tried: &SlotSet) -> bool {
    let serves = |replica: &Arc<Replica>| {
        request.model.as_deref().is_none_or(|model| {
            let models = replica.models.load();
            models.is_empty() || models.iter().any(|m| &*m.id == model)
        })
    };
    let replicas = pool.replicas();
    let open = |r: &&Arc<Replica>| r.is_ready() && !tried.contains(r.slot());
    let is_any = request.route.config.model == crate::config::ModelMatch::Any;
    // A route `*` over pools of different models asks those that list the model, if any does.
    if is_any && request.route.is_listed(request.model.as_deref()) {
        replicas.iter().filter(open).any(serves)
    } else {
        replicas.iter().any(|r| open(&r))
    }
}

fn choose(
    gateway: &Gateway,
    request: &Prepared,
    at: usize,
    asking: Asking<'_>,
    now: Stamp,
) -> Option<Choice> {
    let (pool, _) = request.route.pools.get(at)?;
    let none = SlotSet::new();
    let replicas = pool.replicas();
    let may_take = |replica: &&Arc<Replica>| {
        replica.is_ready() && request.pinned.as_ref().is_none_or(|pinned| Arc::ptr_eq(pinned, replica))
    };
    let chain = &request.prompt.chain;
    let block_end = |block| chain.block_end_bytes(block);
    let ask = Ask {
        prompt: routing::Prompt {
            chain: chain.hashes(),
            block_end: &block_end,
            bytes: chain.bytes(),
            tokens: request.tokens,
        },
        session: request.session,
        slo: request.slo,
        waited: now.since(request.read),
        queues_late: request.rules.queue.is_some(),
        shows_first_token: request.shows_first_token,
        tried: tried_in(asking.tried, pool).unwrap_or(&none),
    };
    let targets = replicas.iter().filter(may_take).map(|replica| &replica.target);
    let policy = &*request.route.policy;
    let judged = pool.dispatcher.judge(policy, &ask, &pool.engine_limits(), now, targets)?;
    let is_behind_others =
        || !asking.is_late && request.route.queue.has_late_before(request.is_long, request.deadline());
    let hold = |reason, outlook| Some(Choice::Wait(Hold { reason, pool: Some(at), outlook }));
    match rule(&request.rules, &judged, is_behind_others) {
        Ruling::Hold => return hold(WaitReason::Held, Outlook::default()),
        Ruling::Queue(outlook) => return hold(WaitReason::Late, outlook),
        Ruling::Degrade => return Some(Choice::Degrade),
        Ruling::Place => {}
    }
    let is_explained = judged.predicts() && gateway.explained.is_due(now);
    let weighed = if is_explained { weighed(&judged, &replicas) } else { Box::default() };
    let assignment = judged.assign()?;
    let replica = Arc::clone(replicas.iter().find(|r| r.slot() == assignment.decision.slot)?);
    Some(Choice::Take(Box::new(Pick {
        pool: Arc::clone(pool),
        replica,
        decision: DecisionSummary { weighed, ..assignment.decision.summary(ask.waited) },
        assignment,
        size: request.prompt.size,
        prompt: chain.whole(),
    })))
}

/// The terms of the candidates that came closest, by the names that people know.
fn weighed(judged: &Judged<'_>, replicas: &[Arc<Replica>]) -> Box<[Weighed]> {
    let waited = judged.aim().waited;
    let named = |(candidate, terms): (&Candidate<'_>, Terms)| {
        let replica = replicas.iter().find(|r| r.slot() == candidate.slot)?;
        Some(Weighed {
            replica: Arc::clone(&replica.served.replica),
            predicted_ttft: waited + terms.ttft(),
            predicted_hit: candidate.hit,
            wait: terms.wait,
            prefill: terms.prefill,
            harm: terms.harm,
            late: terms.late,
            cost: terms.cost,
        })
    };
    judged.cheapest().into_iter().filter_map(named).collect()
}
