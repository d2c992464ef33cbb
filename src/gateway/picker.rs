//! Picks a replica for a request: a pool of its route, the pool's dispatcher, then the route's admission rules.
//!
//! [`crate::routing::Dispatcher`] decides and [`crate::admission::rule`] admits; this module adds the state of the live
//! gateway: which replicas are ready, which were tried, which one a stored response is pinned to.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Gateway;
use super::apart;
use super::asking::{Asking, PickContext, Scene, Task, Tried};
use super::carrier::{Carrier, MAX_FALLBACKS};
use super::cold;
use super::degrade;
use super::prepared::Prepared;
use super::standby;
use crate::admission::{Deferral, Outlook, Rules, Ruling, WaitReason, Waiter, rule};
use crate::clock::Stamp;
use crate::fleet::pick::Pick;
use crate::fleet::pool::PoolState;
use crate::fleet::replica::Replica;
use crate::record::{Ways, Weighed};
use crate::routing::{Candidate, Elsewhere, Judged, SlotSet, Terms, Verdict};

/// Excludes a picked replica from later picks of the same request.
pub(super) fn note_tried(tried: &mut Tried, pick: &Pick) {
    let pool = &pick.pool.name;
    match tried.iter_mut().find(|(name, _)| name == pool) {
        Some((_, slots)) => slots.insert(pick.replica.slot()),
        None => tried.push((Arc::clone(pool), SlotSet::from_iter([pick.replica.slot()]))),
    }
}

/// Decision on a request.
#[derive(Debug)]
pub(super) enum PickOutcome {
    /// Send it to this replica; its load is reserved.
    Take(Box<Pick>),
    /// Wait in the queue of its pool.
    Wait(QueueWait),
    /// Move it to the route of `[route.degrade]`.
    Degrade,
}

/// A wait in the queue of a pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueWait {
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

/// Picks another replica of this very pool; `None` where it would have to wait, or go elsewhere.
pub(super) fn another(
    gateway: &Gateway,
    request: &Prepared,
    pool: &Arc<PoolState>,
    tried: &Tried,
) -> Option<Box<Pick>> {
    let at = request.route.pools.iter().position(|known| Arc::ptr_eq(known, pool));
    match pick(gateway, request, PickContext::within(at, tried))? {
        PickOutcome::Take(pick) if Arc::ptr_eq(&pick.pool, pool) => Some(pick),
        _ => None,
    }
}

/// Where a request may go if its replica does not take it: the least busy others that it would be sent to. Only a request that a
/// proxy carries has any: our own retries are decided when they are due.
pub(super) fn fallbacks(
    carrier: Option<&Arc<dyn Carrier>>,
    request: &Prepared,
    pick: &Pick,
    now: Stamp,
) -> smallvec::SmallVec<[Arc<Replica>; MAX_FALLBACKS]> {
    if carrier.is_none() || request.pinned.is_some() || request.is_sent_once {
        return Default::default();
    }
    let tried = SlotSet::new();
    let asking = Asking::whole(request, &pick.pool, &tried);
    let replicas = pick.pool.replicas();
    let mut found = smallvec::SmallVec::<[Arc<Replica>; MAX_FALLBACKS]>::new();
    while found.len() < MAX_FALLBACKS {
        // Not another rank of a host that is listed: it fails with it. Nor one below another base path: the request has one path.
        let is_other = |r: &&Arc<Replica>| {
            let address = r.connections.address();
            let mut listed = std::iter::once(&pick.replica).chain(&found);
            r.identity.endpoint.base_path == pick.replica.identity.endpoint.base_path
                && listed.all(|listed| listed.connections.address() != address)
        };
        let others = replicas.iter().filter(is_other).filter(|r| asking.is_preferred(r, now));
        let Some(next) = others.min_by_key(|r| r.target.load.inflight()) else { break };
        found.push(Arc::clone(next));
    }
    found
}

/// The replica at this address, to which a proxy took the request in place of `instead`, whether it is ready or not; with its load
/// reserved. `None` where no pool of the route has it.
pub(super) fn taken(
    gateway: &Gateway,
    request: &Prepared,
    served: SocketAddr,
    instead: &Pick,
) -> Option<Box<Pick>> {
    let rank = |replica: &Replica| replica.identity.rank.map(|rank| rank.index);
    let (pool, there) = request.route.pools.iter().find_map(|pool| {
        let replicas = pool.replicas();
        // Ranks share an address, and the request names its own.
        let at = |r: &&Arc<Replica>| r.connections.address() == Some(served);
        let same = replicas.iter().filter(at).find(|r| rank(r) == rank(&instead.replica));
        let there = same.or_else(|| replicas.iter().find(at))?;
        Some((pool, Arc::clone(there)))
    })?;
    let others = pool.replicas().iter().map(|r| r.slot()).filter(|slot| *slot != there.slot()).collect();
    let asking = Asking { task: Task::Taken(&there), ..Asking::whole(request, pool, &others) };
    asking.take_best(gateway.clock.now())
}

/// Picks among the ready replicas not tried yet; `None` if there is none.
pub(super) fn pick(gateway: &Gateway, request: &Prepared, context: PickContext<'_>) -> Option<PickOutcome> {
    let tried = context.tried;
    let now = gateway.clock.now();
    let pools = &request.route.pools;
    let takes = |pool: &PoolState| {
        has_open(pool, request, &tried_in(tried, pool)) && pool.has_room(request.outside_demand(), now)
    };
    let is_open = |at: usize| context.left != Some(at) && pools.get(at).is_some_and(|pool| takes(pool));
    let holds = |pool: &PoolState, replica| pool.replicas().iter().any(|r| Arc::ptr_eq(r, replica));
    let in_turn = || {
        let conversation = request.prompt.conversation.filter(|_| request.route.config.canary.is_some());
        request.route.wheel.choose(request.session.or(conversation), is_open)
    };
    let at = match (&request.pinned, pools.len()) {
        (Some(pinned), _) => pools.iter().position(|pool| holds(pool, pinned)),
        (None, 1) => Some(0),
        (None, _) => standby::place(request, &context, now, is_open)
            .or_else(|| context.pool.filter(|at| is_open(*at)))
            .or_else(in_turn),
    }?;
    let pool = request.route.pools.get(at)?;
    if context.tried.is_empty()
        && let Some(stay) = cold::turn(request, pool, context.is_cold)
    {
        return Some(PickOutcome::Wait(QueueWait { stay, ..QueueWait::for_replica(now, request.read) }));
    }
    choose(gateway, request, at, context, now)
}

/// Picks for a request that does not wait: past admission where it would be held or queued.
pub(super) fn pick_at_once(
    gateway: &Gateway,
    request: &Prepared,
    context: PickContext<'_>,
) -> Option<Box<Pick>> {
    let (tried, now) = (context.tried, gateway.clock.now());
    let at = match pick(gateway, request, context)? {
        PickOutcome::Take(pick) => return Some(pick),
        PickOutcome::Wait(hold) => hold.pool?,
        PickOutcome::Degrade => return None,
    };
    let pool = request.route.pools.get(at)?;
    Asking::whole(request, pool, &tried_in(tried, pool)).take_best(now)
}

/// Picks among the ready replicas of the pool at this place for a copy of a request, which waits for nobody; `None` if it is not to
/// be sent.
pub(super) fn pick_for_copy(gateway: &Gateway, request: &Prepared, at: usize) -> Option<Box<Pick>> {
    let tried = Tried::new();
    match choose(gateway, request, at, PickContext::within(Some(at), &tried), gateway.clock.now())? {
        PickOutcome::Take(pick) => Some(pick),
        PickOutcome::Wait(_) | PickOutcome::Degrade => None,
    }
}

/// Picks a replica that fetches KV of the prefill pool for no client: the first pool's that can use it, past admission, because
/// nothing is computed there; `None` if none is ready.
pub(super) fn pick_for_release(gateway: &Gateway, request: &Prepared, tried: &Tried) -> Option<Box<Pick>> {
    let side = request.route.prefill.as_ref()?;
    let now = gateway.clock.now();
    let elsewhere = Elsewhere { transfer: &|_, _| 0.0 };
    let task = Task::Decode { after: Duration::ZERO, elsewhere };
    let mut pools = request.route.pools.iter().filter(|pool| side.reaches(pool));
    pools.find_map(|pool| {
        Asking { task, ..Asking::whole(request, pool, &tried_in(tried, pool)) }.take_best(now)
    })
}

fn tried_in(tried: &Tried, pool: &PoolState) -> SlotSet {
    tried.iter().find(|(name, _)| *name == pool.name).map(|(_, slots)| slots.clone()).unwrap_or_default()
}

fn has_open(pool: &PoolState, request: &Prepared, tried: &SlotSet) -> bool {
    let serves =
        |replica: &Arc<Replica>| request.model.as_deref().is_none_or(|model| replica.may_have(model));
    let replicas = pool.replicas();
    let open = |r: &&Arc<Replica>| r.is_ready() && !tried.contains(r.slot()) && request.allows(r);
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
    let pool = request.route.pools.get(at)?;
    let tried = tried_in(context.tried, pool);
    let whole = Asking::whole(request, pool, &tried);
    let place = Place { gateway, at, is_late: context.is_late, now };
    let side = request.route.prefill.as_ref().filter(|_| context.may_go_apart && request.carrier.is_none());
    let Some(side) = side else { return place.ask(&whole, None) };
    let tried = side.excluded(tried_in(context.tried, &side.pool), now);
    let choice = apart::weigh(&whole, side, &tried, now);
    let outcome = choice.prefill.and_then(|quote| {
        let links = side.transfers.from(quote.identity, now);
        let transfer = |identity, tokens| links.seconds(identity, tokens);
        let task = Task::Decode { after: quote.ttft, elsewhere: Elsewhere { transfer: &transfer } };
        let (policy, tried) = (&*side.policy, &choice.closed);
        let prefill = Asking { pool: &side.pool, policy, task: Task::Prefill, tried, ..whole };
        place.ask(&Asking { task, ..whole }, Some(&prefill))
    });
    let mut outcome = outcome.or_else(|| place.ask(&whole, None))?;
    if let PickOutcome::Take(pick) = &mut outcome {
        let is_apart = pick.prefill.is_some();
        pick.ways = Some(Box::new(Ways { is_apart, ..choice.ways }));
    }
    Some(outcome)
}

/// Where and when a request is placed.
#[derive(Clone, Copy)]
struct Place<'a> {
    gateway: &'a Gateway,
    /// Place of the pool in the route.
    at: usize,
    is_late: bool,
    now: Stamp,
}

impl Place<'_> {
    /// Judges and rules; `prefill` is to get a place as well.
    fn ask(&self, asking: &Asking<'_>, prefill: Option<&Asking<'_>>) -> Option<PickOutcome> {
        asking.judge(self.now, |judged, scene| self.rule(asking, judged, scene, prefill)).flatten()
    }

    fn rule(
        &self,
        asking: &Asking<'_>,
        judged: &Judged<'_>,
        scene: &Scene,
        prefill: Option<&Asking<'_>>,
    ) -> Option<PickOutcome> {
        let Self { gateway, at, is_late, now } = *self;
        let Asking { request, pool, .. } = *asking;
        let arriving = |outlook| (!is_late).then(|| Waiter { outlook, ..request.waiter(WaitReason::Late) });
        let rules = Rules { is_pinned: request.pinned.is_some(), ..degrade::rules(request, now) };
        match rule(&rules, judged, pool.queue.is_strict(), &mut &*pool.queue, arriving) {
            Ruling::Wait(reason, outlook, stay) => {
                // Others may go where this one may not.
                let is_free =
                    scene.replicas.iter().any(|r| r.is_open(now) && !asking.may_take(r, scene, now));
                let stay = if is_free { Deferral::Request } else { stay };
                return Some(PickOutcome::Wait(QueueWait { reason, stay, pool: Some(at), outlook }));
            }
            Ruling::Degrade => return Some(PickOutcome::Degrade),
            Ruling::Place => {}
        }
        let is_explained = judged.predicts() && gateway.explained.takes(now, MAX_EXPLAINED);
        let weighed = if is_explained { weighed(judged, &scene.replicas) } else { Box::default() };
        let prefill = match prefill {
            Some(prefill) => Some(prefill.take_best(now)?),
            None => None,
        };
        let mut pick = asking.take(judged, scene, weighed, now)?;
        if let Some(prefill) = &prefill {
            if prefill.replica.identity.hash() == pick.replica.identity.hash() {
                // Another request had the one that was quoted. This one has nothing to fetch from itself.
                let chain = request.prompt.chain.hashes();
                [prefill, &pick].iter().for_each(|place| place.assignment.withdrawn(chain));
                return None;
            }
            // Of the replica that computes the prompt.
            pick.decision.predicted_hit = prefill.decision.predicted_hit;
        }
        pick.prefill = prefill;
        Some(PickOutcome::Take(pick))
    }
}

/// Cost terms of the cheapest candidates, by replica name.
fn weighed(judged: &Judged<'_>, replicas: &[Arc<Replica>]) -> Box<[Weighed]> {
    let waited = judged.query.aim.waited;
    let Verdict::Place(decision) = &judged.verdict else { return Box::default() };
    let named = |(candidate, terms): (&Candidate<'_>, Terms)| {
        let replica = replicas.iter().find(|r| r.slot() == candidate.slot)?;
        Some(Weighed {
            replica: replica.name(),
            is_chosen: candidate.slot == decision.slot,
            predicted_ttft: waited + terms.ttft(),
            predicted_hit: candidate.hit,
            is_counted: candidate.is_counted,
            harm: terms.harm + terms.stalled + terms.slowed,
            late: terms.late,
            cost: terms.cost,
        })
    };
    judged.cheapest().into_iter().filter_map(named).collect()
}

/// Decisions a second that list their candidates: listing costs more than deciding, and the decision log keeps no more.
const MAX_EXPLAINED: u32 = 200;
