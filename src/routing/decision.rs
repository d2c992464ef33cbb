//! One decision: what each candidate has cached, what it would cost, and which one the policy takes.

use std::time::Duration;

use smallvec::SmallVec;

use super::candidate::Candidate;
use super::policies::{Choice, Eligible, Policy, Reason};
use super::predictor::Terms;
use super::prefix_index::Hits;
use super::query::Query;
use super::rendezvous;
use super::score::Stakes;
use super::slots::SlotSet;
use super::tuning::prices;
use crate::record::DecisionSummary;
use crate::units::Tokens;

/// Chooses among the candidates; `None` when all of them are excluded. Afterwards each candidate holds what was
/// found for it (`hit`, `cost`), for the decision log.
pub fn decide(policy: &dyn Policy, query: &Query<'_>, candidates: &mut [Candidate<'_>]) -> Option<Decision> {
    weigh(query, candidates);
    let stakes = Stakes::of(query, candidates);
    if policy.predicts() {
        stakes.price(candidates);
    }
    let keeps_to_holders = !policy.predicts() && have_holders_room(query, candidates);
    let passed_over = passed_over(query, candidates, keeps_to_holders);
    let eligible = Eligible::new(candidates, passed_over.as_ref().unwrap_or(query.ask.tried));
    let mut choice = match eligible.count {
        0 => return None,
        1 => Choice { at: eligible.iter().next()?.0, reason: Reason::Only },
        _ => policy.choose(query, &eligible)?,
    };
    let count = eligible.count;
    let winner = candidates.get(choice.at)?;
    if choice.reason == Reason::Prefix && policy.predicts() && !stakes.is_won_by_hit(winner, &eligible) {
        choice.reason = Reason::Load;
    }
    if keeps_to_holders || !winner.lacks_adapter && eligible.iter().any(|(_, one)| one.lacks_adapter) {
        choice.reason = Reason::Adapter;
    }
    // What it will meet is worth knowing however it was chosen.
    let terms = stakes.terms(winner);
    Some(Decision {
        at: choice.at,
        slot: winner.slot,
        policy: policy.name().as_str(),
        reason: choice.reason,
        predicted_ttft: policy.predicts().then(|| terms.ttft()),
        hit: winner.hit,
        terms,
        candidates: u16::try_from(count).unwrap_or(u16::MAX),
    })
}

/// A choice, and what was expected of it.
#[derive(Clone, Copy, Debug)]
pub struct Decision {
    /// Index into the candidates.
    pub at: usize,
    /// The chosen replica's slot.
    pub slot: usize,
    /// Name of the policy that chose.
    pub policy: &'static str,
    /// Why it won.
    pub reason: Reason,
    /// Predicted time from the decision to the first token, where the policy predicts.
    pub predicted_ttft: Option<Duration>,
    /// Prompt tokens believed to be cached there.
    pub hit: Tokens,
    /// What the request is expected to meet: its `work` is to be reserved.
    pub terms: Terms,
    /// How many replicas were weighed.
    pub candidates: u16,
}

impl Decision {
    /// For the record, headers and logs of a request that has `waited` in the gateway.
    pub fn summary(&self, waited: Duration) -> DecisionSummary {
        DecisionSummary {
            policy: self.policy,
            reason: self.reason.as_str(),
            waited,
            predicted_ttft: self.predicted_ttft.map(|from_now| waited + from_now),
            pace: self.terms.pace,
            predicted_hit: self.hit,
            candidates: self.candidates,
            is_cold: false,
            is_filling: false,
            longest_fill: Duration::ZERO,
            is_filling_beside: false,
            is_alone: false,
            weighed: Box::default(),
        }
    }
}

/// What the candidates that came closest and the chosen one would have meant, the cheapest first: what a log can hold of a decision.
pub fn cheapest<'c, 'a>(
    query: &Query<'_>,
    candidates: &'c [Candidate<'a>],
    decision: &Decision,
) -> SmallVec<[(&'c Candidate<'a>, Terms); MAX_LOGGED]> {
    let mut stakes = None;
    let mut terms = |one: &Candidate<'_>| {
        let is_chosen = one.slot == decision.slot;
        if is_chosen {
            decision.terms
        } else {
            stakes.get_or_insert_with(|| Stakes::of(query, candidates)).terms(one)
        }
    };
    let mut best: SmallVec<[(&Candidate<'_>, Terms); MAX_LOGGED]> = SmallVec::new();
    for candidate in candidates {
        let at = best.partition_point(|(other, _)| other.cost <= candidate.cost);
        if at < MAX_LOGGED {
            best.truncate(MAX_LOGGED - 1);
            best.insert(at, (candidate, terms(candidate)));
        }
    }
    if let Some(chosen) = candidates.get(decision.at)
        && best.iter().all(|(one, _)| one.slot != chosen.slot)
    {
        best.pop();
        best.push((chosen, decision.terms));
    }
    best
}

/// Finds what each candidate has cached.
fn weigh(query: &Query<'_>, candidates: &mut [Candidate<'_>]) {
    let mut hits = Hits::default();
    query.index.lookup(query.ask.prompt.chain, &mut hits);
    // Most replicas hold as much as the one before, and a division takes longer than all the rest.
    let mut last = (0, 0, Tokens(0));
    let beyond = query.index.beyond();
    for candidate in candidates {
        let blocks = hits.blocks(candidate.slot);
        let block_tokens = candidate.block_tokens;
        candidate.blocks = blocks;
        if (last.0, last.1) != (blocks, block_tokens) {
            last = (blocks, block_tokens, query.ask.prompt.cached(blocks, beyond, block_tokens));
        }
        let counted =
            query.index.exact.hit(candidate.slot, query.ask.turn, &query.ask.prompt, blocks, block_tokens);
        candidate.is_counted = counted.is_some();
        candidate.hit = match counted {
            Some(hit) => hit,
            None if blocks > 0 => query.index.believed(candidate.slot, last.2),
            None => Tokens(0),
        };
    }
}

/// Those that this request does not go to: tried already, or passed over because their share is below 1. `None` where that is no
/// more than those tried, which is nearly always. A session, or a conversation, is passed over
/// always or never, so that it does not wander.
fn passed_over(query: &Query<'_>, candidates: &[Candidate<'_>], keeps_to_holders: bool) -> Option<SlotSet> {
    let is_whole = |candidate: &Candidate<'_>| candidate.share >= 1.0;
    if !keeps_to_holders && candidates.iter().all(is_whole) {
        return None;
    }
    let key = query.ask.session.or(query.ask.conversation).unwrap_or(query.aim.now.as_nanos());
    let mut passed_over = query.ask.tried.clone();
    for candidate in candidates {
        let is_over = || rendezvous::unit(rendezvous::rank(!key, candidate.identity)) > candidate.share;
        if keeps_to_holders && candidate.lacks_adapter || is_over() {
            passed_over.insert(candidate.slot);
        }
    }
    candidates.iter().any(|candidate| !passed_over.contains(candidate.slot)).then_some(passed_over)
}

/// For policies without a price of loading an adapter: whether others hold it than all, and one that does has few requests.
fn have_holders_room(query: &Query<'_>, candidates: &[Candidate<'_>]) -> bool {
    let least = |lacks: bool| {
        let those =
            candidates.iter().filter(|one| one.lacks_adapter == lacks && !query.ask.tried.contains(one.slot));
        those.map(|one| one.requests).reduce(f64::min)
    };
    matches!((least(false), least(true)), (Some(held), Some(other)) if held <= other + prices::FREE_REQUESTS / 2.0)
}

/// Candidates that a decision log shows.
pub const MAX_LOGGED: usize = 8;
