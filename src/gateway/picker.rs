//! Chooses a replica for a request: gathers what routing needs, asks the policy, marks the load.
//!
//! Routing itself is pure; here its inputs are read from the fleet's atomics and snapshots. The load and the
//! prefix are noted at decision time, so that two requests of one burst see each other.

use std::sync::Arc;

use super::Gateway;
use super::prepare::Prepared;
use crate::admission::{Kind, Outlook, Ruling, Standing, is_late, rule};
use crate::clock::Stamp;
use crate::fleet::pick::Pick;
use crate::fleet::registry::PoolState;
use crate::fleet::replica::Replica;
use crate::record::{DecisionSummary, Weighed};
use crate::routing::{self, Aim, Candidate, LoadGuard, Placement, Query, SlotSet, Terms, Verdict};

/// The replicas that a request has tried, by pool.
pub type Tried = smallvec::SmallVec<[(Arc<str>, SlotSet); 1]>;

/// Notes that a replica was tried.
pub fn note_tried(tried: &mut Tried, pick: &Pick) {
    let pool = &pick.pool.name;
    match tried.iter_mut().find(|(name, _)| name == pool) {
        Some((_, slots)) => slots.insert(pick.replica.slot),
        None => tried.push((Arc::clone(pool), SlotSet::from_iter([pick.replica.slot]))),
    }
}

/// What is to be done with a request now.
#[derive(Debug)]
pub enum Choice {
    /// It goes to this replica.
    Take(Box<Pick>),
    /// It waits in the room of its route.
    Wait(Hold),
    /// Its route's `[route.degrade]` applies.
    Degrade,
}

/// Why and where a request waits.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    /// Why.
    pub kind: Kind,
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
    /// It waits among the late, and it is its turn.
    pub is_queued: bool,
}

/// A replica for the request, among those not tried; `None` when there is none.
#[must_use]
pub fn pick(gateway: &Gateway, request: &Prepared, asking: Asking<'_>) -> Option<Choice> {
    let tried = asking.tried;
    let now = gateway.clock.now();
    let none = SlotSet::new();
    let tried_of =
        |pool: &PoolState| tried.iter().find(|(name, _)| *name == pool.name).map_or(&none, |(_, s)| s);
    let pools = &request.route.pools;
    let is_open = |at: usize| pools.get(at).is_some_and(|(pool, _)| has_open(pool, request, tried_of(pool)));
    let holds = |pool: &PoolState, replica| pool.replicas().iter().any(|r| Arc::ptr_eq(r, replica));
    let at = match (&request.pinned, pools.len()) {
        (Some(pinned), _) => pools.iter().position(|(pool, _)| holds(pool, pinned)),
        (None, 1) => Some(0),
        (None, _) if asking.pool.is_some_and(is_open) => asking.pool,
        (None, _) => request.route.wheel.choose(request.session, is_open),
    }?;
    choose(gateway, request, at, (asking, now))
}

/// What speaks against sending a request now; `None` where nothing does.
fn hold_back(
    (request, asking, at): (&Prepared, Asking<'_>, usize),
    pool: &PoolState,
    aim: &Aim,
    verdict: &Verdict,
    candidates: &[Candidate<'_>],
) -> Option<Choice> {
    let hold = |kind, outlook| Some(Choice::Wait(Hold { kind, pool: Some(at), outlook }));
    let rules = &request.rules;
    let decision = match verdict {
        Verdict::Hold { .. } => return hold(Kind::Paced, Outlook::default()),
        Verdict::Place(decision) | Verdict::Hopeless { decision, .. } => decision,
    };
    let queues_late = rules.queue.is_some() && is_late(aim, decision);
    if !queues_late && rules.degrade.is_none() {
        return None;
    }
    let before = || request.route.room.has_queued_before(request.is_long, request.deadline());
    let last = pool.replicas().iter().map(|replica| replica.vitals.last_answer()).max().unwrap_or_default();
    let standing = Standing {
        is_behind_others: queues_late && !asking.is_queued && before(),
        // What nobody has measured yet is no reason to refuse; and who was tried elsewhere was let in.
        is_let_in: !asking.tried.is_empty() || !pool.model.is_taught(),
        silence: (last != Stamp::default()).then(|| aim.now.since(last)),
    };
    match rule(rules, standing, aim, verdict, candidates) {
        Ruling::Place => None,
        Ruling::Wait(outlook) => hold(Kind::Queued, outlook),
        Ruling::Degrade => Some(Choice::Degrade),
    }
}

fn has_open(pool: &PoolState, request: &Prepared, tried: &SlotSet) -> bool {
    let serves = |replica: &Arc<Replica>| {
        request.model.as_deref().is_none_or(|model| {
            let models = replica.models.load();
            models.is_empty() || models.iter().any(|m| &*m.id == model)
        })
    };
    let replicas = pool.replicas();
    let open = |r: &&Arc<Replica>| r.is_ready() && !tried.contains(r.slot);
    let is_any = request.route.config.model == crate::config::ModelMatch::Any;
    // A route `*` over pools of different models asks those that list the model, if any does.
    if is_any && request.route.is_listed(request.model.as_deref()) {
        replicas.iter().filter(open).any(serves)
    } else {
        replicas.iter().any(|r| open(&r))
    }
}

fn aim(request: &Prepared, pool: &PoolState, was_tried: bool, now: Stamp) -> Aim {
    // What nobody has measured yet is no reason to wait; and who was tried elsewhere already has waited enough.
    let patience = if pool.model.is_taught() && !was_tried { routing::PATIENCE } else { 0.0 };
    Aim {
        now,
        waited: now.since(request.read),
        slo: request.slo,
        patience,
        queues_late: request.rules.queue.is_some(),
    }
}

fn choose(
    gateway: &Gateway,
    request: &Prepared,
    at: usize,
    (asking, now): (Asking<'_>, Stamp),
) -> Option<Choice> {
    let (pool, _) = request.route.pools.get(at)?;
    let none = SlotSet::new();
    let tried = asking.tried.iter().find(|(name, _)| *name == pool.name).map_or(&none, |(_, s)| s);
    let replicas = pool.replicas();
    let config = pool.config();
    let limit = config.max_num_seqs.map(std::num::NonZeroU64::get);
    let mut candidates: Vec<Candidate<'_>> = Vec::with_capacity(replicas.len());
    for replica in replicas.iter().filter(|r| r.is_ready()) {
        if request.pinned.as_ref().is_some_and(|pinned| !Arc::ptr_eq(pinned, replica)) {
            continue;
        }
        let candidate = Candidate::new(replica.slot, replica.rendezvous, &replica.load);
        candidates.push(match replica.engine_signals(now, config.scrape_interval, limit) {
            Some((signals, own)) => candidate.with_signals(&signals, &own),
            None => candidate,
        });
    }
    let chain = &request.prompt.chain;
    let query = Query {
        prompt: routing::Prompt {
            chain: chain.hashes(),
            block_end: &|block| chain.block_end_bytes(block),
            bytes: chain.bytes(),
            tokens: request.tokens,
        },
        session: request.session,
        aim: aim(request, pool, !tried.is_empty(), now),
        model: &pool.model,
        index: &pool.index,
        excluded: tried,
    };
    let verdict = routing::judge(&*request.route.policy, &query, &mut candidates)?;
    if let Some(choice) = hold_back((request, asking, at), pool, &query.aim, &verdict, &candidates) {
        return Some(choice);
    }
    let (Verdict::Place(decision) | Verdict::Hopeless { decision, .. }) = verdict else { return None };
    let is_explained = decision.predicted_ttft.is_some() && gateway.explained.is_due(now);
    let weighed = if is_explained { weighed(&query, &candidates, &replicas) } else { Box::default() };
    let replica = Arc::clone(replicas.iter().find(|r| r.slot == decision.slot)?);
    let placement = Placement {
        at: now,
        work: decision.terms.work,
        prompt: request.tokens,
        tpot: request.slo.tpot,
        is_stream: request.shows_first_token,
    };
    let load = LoadGuard::reserve(&replica.load, placement);
    pool.index.insert(decision.slot, &query.prompt);
    let expected = pool.model.expected(&decision.terms);
    Some(Choice::Take(Box::new(Pick {
        pool: Arc::clone(pool),
        replica,
        decision: DecisionSummary { weighed, ..decision.summary(query.aim.waited) },
        expected,
        size: request.prompt.size,
        prompt: chain.whole(),
        chosen_at: now,
        load,
    })))
}

/// The terms of the candidates that came closest, by the names that people know.
fn weighed(query: &Query<'_>, candidates: &[Candidate<'_>], replicas: &[Arc<Replica>]) -> Box<[Weighed]> {
    let named = |(candidate, terms): (&Candidate<'_>, Terms)| {
        let replica = replicas.iter().find(|r| r.slot == candidate.slot)?;
        Some(Weighed {
            replica: Arc::clone(&replica.served.replica),
            predicted_ttft: query.aim.waited + terms.ttft(),
            predicted_hit: candidate.hit,
            wait: terms.wait,
            prefill: terms.prefill,
            harm: terms.harm,
            late: terms.late,
            cost: terms.cost,
        })
    };
    routing::cheapest(query, candidates).into_iter().filter_map(named).collect()
}
