//! Chooses a replica for a request: gathers what routing needs, asks the policy, marks the load.
//!
//! Routing itself is pure; here its inputs are read from the fleet's atomics and snapshots. The load and the
//! prefix are noted at decision time, so that two requests of one burst see each other.

use std::sync::Arc;

use super::Gateway;
use super::prepare::Prepared;
use crate::clock::Stamp;
use crate::fleet::pick::Pick;
use crate::fleet::registry::PoolState;
use crate::fleet::replica::Replica;
use crate::record::{DecisionSummary, Weighed};
use crate::routing::{self, Aim, Candidate, LoadGuard, Placement, Query, SlotSet, Verdict};

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
    /// Any placement now would break streams that run, and it has time: ask again then.
    Hold(Stamp),
}

/// A replica for the request, among those not tried; `None` when there is none.
#[must_use]
pub fn pick(gateway: &Gateway, request: &Prepared, tried: &Tried) -> Option<Choice> {
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
        (None, _) => request.route.wheel.choose(request.session, is_open),
    }?;
    let (pool, _) = pools.get(at)?;
    choose(gateway, pool, request, (tried_of(pool), now))
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

fn choose(
    gateway: &Gateway,
    pool: &Arc<PoolState>,
    request: &Prepared,
    (tried, now): (&SlotSet, Stamp),
) -> Option<Choice> {
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
    // What nobody has measured yet is no reason to wait; and who was tried elsewhere already has waited enough.
    let patience = if pool.model.is_taught() && tried.is_empty() { routing::PATIENCE } else { 0.0 };
    let query = Query {
        prompt: routing::Prompt {
            chain: chain.hashes(),
            block_end: &|block| chain.block_end_bytes(block),
            bytes: chain.bytes(),
            tokens: request.tokens,
        },
        session: request.session,
        aim: Aim { now, waited: now.since(request.read), slo: request.slo, patience },
        model: &pool.model,
        index: &pool.index,
        excluded: tried,
    };
    let decision = match routing::judge(&*request.route.policy, &query, &mut candidates)? {
        Verdict::Hold { until } => return Some(Choice::Hold(until)),
        // Without a queue to wait in, late is better than never.
        Verdict::Hopeless { decision, .. } | Verdict::Place(decision) => decision,
    };
    let is_explained = decision.predicted_ttft.is_some() && gateway.explained.is_due(now);
    let weighed = if is_explained { weighed(&query, &mut candidates, &replicas) } else { Box::default() };
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
        decision: DecisionSummary { weighed, ..decision.summary() },
        expected,
        size: request.prompt.size,
        prompt: chain.whole(),
        chosen_at: now,
        load,
    })))
}

/// The terms of the candidates that came closest, by the names that people know.
fn weighed(query: &Query<'_>, candidates: &mut [Candidate<'_>], replicas: &[Arc<Replica>]) -> Box<[Weighed]> {
    routing::price_all(query, candidates);
    let named = |candidate: &Candidate<'_>| {
        let replica = replicas.iter().find(|r| r.slot == candidate.slot)?;
        Some(Weighed {
            replica: Arc::clone(&replica.served.replica),
            predicted_ttft: candidate.terms.ttft(),
            predicted_hit: candidate.hit,
            wait: candidate.terms.wait,
            prefill: candidate.terms.prefill,
            harm: candidate.terms.harm,
            late: candidate.terms.late,
            cost: candidate.terms.cost,
        })
    };
    routing::cheapest(candidates).into_iter().filter_map(named).collect()
}
