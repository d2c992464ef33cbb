//! Picks a replica for a request: a pool of its route, the pool's dispatcher, then the route's admission rules.
//!
//! [`crate::routing::Dispatcher`] decides and [`crate::admission::rule`] admits; this module adds the state of the live
//! gateway: which replicas are ready, which were tried, which one a stored response is pinned to.

use std::sync::Arc;

use super::Gateway;
use super::cold;
use super::degrade;
use super::prepared::Prepared;
use super::standby::{self, Past};
use crate::admission::{Deferral, Outlook, Rules, Ruling, TurnOnDrop, WaitReason, Waiter, rule};
use crate::clock::Stamp;
use crate::fleet::pick::Pick;
use crate::fleet::pool::PoolState;
use crate::fleet::replica::Replica;
use crate::record::{DecisionSummary, Weighed};
use crate::routing::{self, Ask, Candidate, Judged, Reason, SlotSet, Terms, Verdict};

/// The replicas that a request has tried, by pool.
pub type Tried = smallvec::SmallVec<[(Arc<str>, SlotSet); 1]>;

/// Excludes a picked replica from later picks of the same request.
pub fn note_tried(tried: &mut Tried, pick: &Pick) {
    let pool = &pick.pool.name;
    match tried.iter_mut().find(|(name, _)| name == pool) {
        Some((_, slots)) => slots.insert(pick.replica.slot()),
        None => tried.push((Arc::clone(pool), SlotSet::from_iter([pick.replica.slot()]))),
    }
}

/// Decision on a request.
#[derive(Debug)]
pub enum PickOutcome {
    /// Send it to this replica; its load is reserved.
    Take(Box<Pick>),
    /// Wait in the queue of its pool.
    Wait(QueueWait),
    /// Move it to the route of `[route.degrade]`.
    Degrade,
}

/// A wait in the queue of a pool.
#[derive(Clone, Copy, Debug)]
pub struct QueueWait {
    /// Selects limits and deadline.
    pub reason: WaitReason,
    /// Whether others may be placed.
    pub stay: Deferral,
    /// Index into the route's pools; `None` if no pool has a ready replica.
    pub pool: Option<usize>,
    /// Prediction at the time of the decision.
    pub outlook: Outlook,
}

impl QueueWait {
    /// For any ready replica.
    pub(super) fn for_replica(now: Stamp, read: Stamp) -> Self {
        let outlook = Outlook { at: now, latest: read, ..Outlook::default() };
        Self { reason: WaitReason::NoReplica, stay: Deferral::Request, pool: None, outlook }
    }
}

/// State of a request from its earlier decisions.
#[derive(Clone, Copy, Debug)]
pub struct PickContext<'a> {
    /// Replicas excluded because they failed this request.
    pub tried: &'a Tried,
    /// Pool that it waits for. It keeps it while that pool takes requests; choosing anew on each retry would distort the
    /// pools' weights.
    pub pool: Option<usize>,
    /// Whether it waits for room: then it was called because it is the first in order.
    pub is_late: bool,
    /// Whether it waits for the first replica of a pool.
    pub is_cold: bool,
    /// Whether a queue refused it, so that it goes to a standby pool.
    pub overflows: bool,
}

/// Picks among the ready replicas not tried yet; `None` if there is none.
#[must_use]
pub fn pick(gateway: &Gateway, request: &Prepared, context: PickContext<'_>) -> Option<PickOutcome> {
    let tried = context.tried;
    let now = gateway.clock.now();
    let none = SlotSet::new();
    let tried_of = |pool: &PoolState| tried_in(tried, pool).unwrap_or(&none);
    let pools = &request.route.pools;
    let is_open = |at: usize| pools.get(at).is_some_and(|(pool, _)| has_open(pool, request, tried_of(pool)));
    let holds = |pool: &PoolState, replica| pool.replicas().iter().any(|r| Arc::ptr_eq(r, replica));
    let past = Past { pool: context.pool, is_untried: tried.is_empty(), overflows: context.overflows };
    let in_turn = || {
        let conversation = request.prompt.conversation.filter(|_| request.route.config.canary.is_some());
        request.route.wheel.choose(request.session.or(conversation), is_open)
    };
    let at = match (&request.pinned, pools.len()) {
        (Some(pinned), _) => pools.iter().position(|(pool, _)| holds(pool, pinned)),
        (None, 1) => Some(0),
        (None, _) => standby::place(request, &past, now, is_open)
            .or_else(|| context.pool.filter(|at| is_open(*at)))
            .or_else(in_turn),
    }?;
    let (pool, _) = request.route.pools.get(at)?;
    if context.tried.is_empty()
        && let Some(stay) = cold::turn(request, pool, context.is_cold)
    {
        return Some(PickOutcome::Wait(QueueWait { stay, ..QueueWait::for_replica(now, request.read) }));
    }
    choose(gateway, request, at, context, now)
}

/// Picks among the ready replicas of the pool at this place for a copy of a request, which waits for nobody; `None` if it is not to
/// be sent.
pub(super) fn pick_for_copy(gateway: &Gateway, request: &Prepared, at: usize) -> Option<Box<Pick>> {
    let tried = Tried::new();
    let context =
        PickContext { tried: &tried, pool: Some(at), is_late: false, is_cold: false, overflows: false };
    match choose(gateway, request, at, context, gateway.clock.now())? {
        PickOutcome::Take(pick) => Some(pick),
        PickOutcome::Wait(_) | PickOutcome::Degrade => None,
    }
}

fn tried_in<'t>(tried: &'t Tried, pool: &PoolState) -> Option<&'t SlotSet> {
    tried.iter().find(|(name, _)| *name == pool.name).map(|(_, slots)| slots)
}

fn has_open(pool: &PoolState, request: &Prepared, tried: &SlotSet) -> bool {
    let serves = |replica: &Arc<Replica>| {
        request.model.as_deref().is_none_or(|model| {
            let models = replica.engine.models.load();
            models.is_empty() || models.iter().any(|m| &*m.id == model)
        })
    };
    let replicas = pool.replicas();
    let open = |r: &&Arc<Replica>| r.is_ready() && !tried.contains(r.slot());
    let is_any = request.route.config.model == crate::config::ModelMatch::Any;
    // A route `*` over pools of different models uses the pools that list the model, if any does.
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
    context: PickContext<'_>,
    now: Stamp,
) -> Option<PickOutcome> {
    let (pool, _) = request.route.pools.get(at)?;
    let none = SlotSet::new();
    let replicas = pool.replicas();
    let is_untried =
        |replica: &Replica| tried_in(context.tried, pool).is_none_or(|t| !t.contains(replica.slot()));
    let is_preferred = |replica: &&Arc<Replica>| {
        replica.is_open(now) && request.model.as_deref().is_none_or(|model| !is_missing(pool, replica, model))
    };
    // A replica in its back-off, on trial or without the model is better than none.
    let has_preferred =
        request.pinned.is_none() && replicas.iter().any(|r| is_untried(r) && is_preferred(&r));
    let may_take = |replica: &&Arc<Replica>| match &request.pinned {
        Some(pinned) => replica.is_ready() && Arc::ptr_eq(pinned, replica),
        None if has_preferred => is_preferred(replica),
        None => replica.is_ready(),
    };
    let is_strict = pool.queue.is_strict();
    let chain = &request.prompt.chain;
    let block_end = |block| chain.block_end_bytes(block);
    let lacks_adapter = lacks_adapter(pool, request, &replicas);
    let ask = Ask {
        prompt: prompt_of(request, &block_end),
        session: request.session,
        slo: request.slo,
        waited: now.since(request.read),
        queues_late: is_strict,
        shows_first_token: request.shows_first_token,
        conversation: request.prompt.conversation,
        sampling: request.sampling,
        has_media: request.prompt.size.media > 0,
        lacks_adapter: lacks_adapter.as_ref(),
        tried: tried_in(context.tried, pool).unwrap_or(&none),
    };
    let targets = replicas.iter().filter(may_take).map(|replica| &replica.target);
    let policy = &*request.route.policy;
    let judged = pool.dispatcher.judge(policy, &ask, &pool.engine_limits(), now, targets)?;
    let arriving =
        |outlook| (!context.is_late).then(|| Waiter { outlook, ..request.waiter(WaitReason::Late) });
    let wait =
        |reason, stay, outlook| Some(PickOutcome::Wait(QueueWait { reason, stay, pool: Some(at), outlook }));
    let rules = Rules { is_pinned: request.pinned.is_some(), ..degrade::rules(request, now) };
    match rule(&rules, &judged, is_strict, &mut &*pool.queue, arriving) {
        Ruling::Hold(outlook) => return wait(WaitReason::Held, Deferral::Request, outlook),
        Ruling::Queue(outlook, stay) => {
            // Others may go where this one may not.
            let is_free = replicas.iter().any(|r| r.is_open(now) && !may_take(&r));
            return wait(WaitReason::Late, if is_free { Deferral::Request } else { stay }, outlook);
        }
        Ruling::Degrade => return Some(PickOutcome::Degrade),
        Ruling::Place => {}
    }
    let is_explained = judged.predicts() && gateway.explained.takes(now, MAX_EXPLAINED);
    let weighed = if is_explained { weighed(&judged, &replicas) } else { Box::default() };
    let mut assignment = judged.assign()?;
    let replica = Arc::clone(replicas.iter().find(|r| r.slot() == assignment.decision.slot)?);
    let has_adapter = |model: &Arc<str>| has_preferred && lacked_elsewhere(&replicas, model);
    let is_only = assignment.decision.reason == Reason::Only;
    if is_only && request.model.as_ref().is_some_and(has_adapter) {
        assignment.decision.reason = Reason::Adapter;
    }
    replica.chosen(now);
    let is_cold = replica.is_cold(now);
    Some(PickOutcome::Take(Box::new(Pick {
        turn: TurnOnDrop(Arc::clone(&pool.queue)),
        pool: Arc::clone(pool),
        replica,
        decision: DecisionSummary { weighed, is_cold, ..assignment.decision.summary(ask.waited) },
        assignment,
        size: request.prompt.size,
        prompt: chain.whole(),
        is_pinned: request.pinned.is_some(),
    })))
}

fn prompt_of<'a>(request: &'a Prepared, block_end: &'a dyn Fn(usize) -> u64) -> routing::Prompt<'a> {
    let chain = &request.prompt.chain;
    routing::Prompt { chain: chain.hashes(), block_end, bytes: chain.bytes(), tokens: request.tokens }
}

/// Replicas that would have to load the adapter that the request names; `None` where none holds it.
fn lacks_adapter(pool: &PoolState, request: &Prepared, replicas: &[Arc<Replica>]) -> Option<SlotSet> {
    let model = request.model.as_deref().filter(|_| pool.tells_adapters())?;
    let holds = |replica: &&Arc<Replica>| replica.engine.adapters.holds(model);
    let lacks = |replica: &&Arc<Replica>| !holds(replica);
    let is_held = replicas.iter().any(|replica| holds(&replica));
    is_held.then(|| replicas.iter().filter(lacks).map(|replica| replica.slot()).collect())
}

/// Whether a replica that lists its models does not list this one, while another one of its pool does.
fn is_missing(pool: &PoolState, replica: &Replica, model: &str) -> bool {
    !replica.engine.models.load().is_empty() && !replica.lists(model) && pool.others_list(replica, model)
}

/// Whether another ready replica lists models, but not this one.
fn lacked_elsewhere(replicas: &[Arc<Replica>], model: &str) -> bool {
    replicas
        .iter()
        .any(|other| other.is_ready() && !other.engine.models.load().is_empty() && !other.lists(model))
}

/// Cost terms of the cheapest candidates, by replica name.
fn weighed(judged: &Judged<'_>, replicas: &[Arc<Replica>]) -> Box<[Weighed]> {
    let waited = judged.aim().waited;
    let Verdict::Place(decision) = judged.verdict() else { return Box::default() };
    let named = |(candidate, terms): (&Candidate<'_>, Terms)| {
        let replica = replicas.iter().find(|r| r.slot() == candidate.slot)?;
        Some(Weighed {
            replica: replica.name(),
            is_chosen: candidate.slot == decision.slot,
            predicted_ttft: waited + terms.ttft(),
            predicted_hit: candidate.hit,
            harm: terms.harm + terms.slowed,
            late: terms.late,
            cost: terms.cost,
        })
    };
    judged.cheapest().into_iter().filter_map(named).collect()
}

/// Decisions a second that list their candidates: listing costs more than deciding, and the decision log keeps no more.
const MAX_EXPLAINED: u32 = 200;
