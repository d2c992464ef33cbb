//! Chooses the replica for a request: pure, from a request's prefix chain and a snapshot of the candidates.
//!
//! The order of a decision: [`PoolWheel`] picks the pool of the route; the caller makes a [`Candidate`] of each of
//! its ready replicas; [`decide`] looks the prompt up in the [`PrefixIndex`], says what each candidate would have
//! to do, and asks the route's [`Policy`]. Then the caller notes it at once, before anything is sent:
//! [`LoadGuard::reserve`] and [`PrefixIndex::insert`], so that the next decision sees this one. What came of it is
//! learned by [`PoolModel::observe`]. [`judge`] adds whether to act on it now. No clock, socket or runtime in here:
//! the same code runs in simulated time.

mod backlog;
mod batch_limit;
mod bound;
mod cache_counters;
mod dispatcher;
mod float;
mod foreign;
mod hazard;
mod load;
pub mod policies;
mod pools;
mod predictor;
pub mod prefix_index;
pub mod rendezvous;
#[cfg(test)]
mod scenarios;
mod score;
mod signals;
mod slots;
pub mod target;
mod verdict;
mod work;

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

pub use self::backlog::Waiting;
pub use self::cache_counters::CacheFigures;
pub use self::dispatcher::{Ask, Assignment, Dispatcher, Judged, Sampling};
pub use self::foreign::Foreign;
pub use self::hazard::{Curve, POINTS};
pub use self::load::{Lesson, LoadGuard, LoadView, Pace, Placement, REFRESH_EVERY, Refreshed, ReplicaLoad};
pub use self::policies::{Choice, Eligible, Policy, Reason};
pub use self::pools::{CanaryShare, CanaryShares, PoolWheel};
pub use self::predictor::{Calibration, Estimate, PoolModel, PoolView, Terms, Typical};
use self::prefix_index::Hits;
pub use self::prefix_index::PrefixIndex;
use self::score::Stakes;
pub use self::signals::EngineSignals;
pub use self::slots::SlotSet;
use self::target::Told;
pub use self::target::{EngineLimits, EnginePage, Target};
pub use self::verdict::{Aim, Verdict};
pub use self::work::Work;
use crate::record::DecisionSummary;
use crate::units::Tokens;

/// Chooses among the candidates; `None` when all of them are excluded. Afterwards each candidate holds what was
/// found for it (`hit`, `cost`), for the decision log.
#[must_use]
pub fn decide(policy: &dyn Policy, query: &Query<'_>, candidates: &mut [Candidate<'_>]) -> Option<Decision> {
    weigh(query, candidates);
    let stakes = Stakes::of(query, candidates);
    if policy.predicts() {
        stakes.price(candidates);
    }
    let passed_over = passed_over(query, candidates);
    let eligible = Eligible::new(candidates, passed_over.as_ref().unwrap_or(query.excluded));
    let mut choice = match eligible.count() {
        0 => return None,
        1 => Choice { at: eligible.iter().next()?.0, reason: Reason::Only },
        _ => policy.choose(query, &eligible)?,
    };
    let count = eligible.count();
    let winner = candidates.get(choice.at)?;
    if choice.reason == Reason::Prefix && policy.predicts() && !stakes.is_won_by_hit(winner, &eligible) {
        choice.reason = Reason::Load;
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

/// Those that this request does not go to: tried already, or passed over because their share is below 1. `None` where that is no
/// more than those tried, which is nearly always. A session, or a conversation, is passed over
/// always or never, so that it does not wander.
fn passed_over(query: &Query<'_>, candidates: &[Candidate<'_>]) -> Option<SlotSet> {
    if candidates.iter().all(|candidate| candidate.share >= 1.0) {
        return None;
    }
    let key = query.session.or(query.conversation).unwrap_or(query.aim.now.as_nanos());
    let mut passed_over = query.excluded.clone();
    for candidate in candidates {
        if rendezvous::unit(rendezvous::rank(!key, candidate.identity)) > candidate.share {
            passed_over.insert(candidate.slot);
        }
    }
    candidates.iter().any(|candidate| !passed_over.contains(candidate.slot)).then_some(passed_over)
}

/// One request, as routing sees it.
#[derive(Clone, Copy)]
pub struct Query<'a> {
    /// Its prompt.
    pub prompt: Prompt<'a>,
    /// [`rendezvous::identity`] of `x-session-id`, where the client sent one.
    pub session: Option<u64>,
    /// What its conversation's turns have in common, where it is one.
    pub conversation: Option<u64>,
    /// What it says of its answer.
    pub sampling: Sampling,
    /// What it needs, and how long it has waited.
    pub aim: Aim,
    /// What is known of the speed of the pool's replicas.
    pub model: &'a PoolModel,
    /// What the pool's replicas are believed to have cached.
    pub index: &'a PrefixIndex,
    /// Replicas that this request has tried already.
    pub excluded: &'a SlotSet,
}

/// A prompt by its prefix chain.
#[derive(Clone, Copy)]
pub struct Prompt<'a> {
    /// Chained block hashes: hash `i` covers blocks `0..=i`.
    pub chain: &'a [u64],
    /// The byte at which block `i` ends.
    pub block_end: &'a (dyn Fn(usize) -> u64 + 'a),
    /// All bytes of the canonical prompt.
    pub bytes: u64,
    /// All its tokens, estimated or exact.
    pub tokens: Tokens,
}

impl Prompt<'_> {
    /// Tokens that an engine with this block size finds cached when it holds so many leading blocks of the
    /// chain, and something beyond. It caches whole blocks only, and computes the last token in any case.
    fn cached(&self, blocks: usize, beyond: Tokens, block_tokens: u64) -> Tokens {
        let Some(last) = blocks.min(self.chain.len()).checked_sub(1) else { return Tokens(0) };
        if self.bytes == 0 || block_tokens == 0 {
            return Tokens(0);
        }
        let end = (self.block_end)(last).min(self.bytes);
        // Divisions of 128 bits are slow, and every candidate asks.
        let tokens = match end.checked_mul(self.tokens.0) {
            Some(covered) => covered / self.bytes,
            None => (end as f64 / self.bytes as f64 * self.tokens.0 as f64) as u64,
        };
        let tokens = tokens.saturating_add(beyond.0).min(self.tokens.0.saturating_sub(1));
        Tokens(tokens - tokens % block_tokens)
    }

    /// The first block that is coarse: eight times as long as a fine one.
    fn coarse_from(&self) -> usize {
        let blocks = self.chain.len();
        let is_coarse = |block: usize| {
            let before = block.checked_sub(1).map_or(0, self.block_end);
            (self.block_end)(block).saturating_sub(before) > LONGEST_FINE_BLOCK
        };
        if blocks == 0 || !is_coarse(blocks - 1) {
            return blocks;
        }
        let (mut fine, mut coarse) = (0, blocks - 1);
        while fine < coarse {
            let middle = fine.midpoint(coarse);
            if is_coarse(middle) { coarse = middle } else { fine = middle + 1 }
        }
        coarse
    }

    /// What several gateways agree on for prompts that begin alike.
    fn root(&self) -> Option<u64> {
        self.chain.first().copied()
    }
}

/// A replica that may be chosen: plain values, made for one decision.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Its place in the pool: in the prefix index and in the model.
    pub slot: usize,
    /// [`rendezvous::identity`] of its name.
    pub identity: u64,
    /// Our own work there.
    pub load: &'a Arc<ReplicaLoad>,
    /// Requests there, everybody's.
    pub requests: f64,
    /// Work of others there.
    pub foreign: Foreign,
    /// Sequences that the engine runs at once, where known.
    pub batch_limit: Option<u64>,
    /// Tokens in one of the engine's KV blocks.
    pub block_tokens: u64,
    /// Probability that it answers, relative to its peers.
    pub success: f64,
    /// Fraction of its ordinary traffic that it should get.
    pub share: f64,
    /// Found by [`decide`]: prompt tokens believed to be cached there.
    pub hit: Tokens,
    /// Found by [`decide`]: leading blocks of the prompt's chain that it is believed to hold.
    pub blocks: usize,
    /// Found by [`decide`] where the policy predicts: what the choice costs in seconds.
    pub cost: f64,
    /// Found by [`decide`] where the policy predicts: seconds to the first token.
    pub ttft: f64,
    /// Found by [`decide`] where the policy predicts: seconds until the engine begins on it.
    pub wait: f64,
    /// Found by [`decide`] where the policy predicts: see [`Terms::own_wait`].
    own_wait: f64,
    /// Found by [`decide`] where the policy predicts: what its decoding costs, beside the best candidate's.
    decoding: f64,
}

impl<'a> Candidate<'a> {
    /// Requests without a first token there: ours, others' by the last scrape, and one more where the batch is full.
    #[must_use]
    pub fn ahead(&self) -> f32 {
        let is_full = self.batch_limit.is_some_and(|limit| self.running() >= limit as f64);
        let awaiting = self.load.view().awaiting as f64 + self.foreign.waiting;
        awaiting as f32 + f32::from(u8::from(is_full))
    }

    /// Requests that are being decoded there, everybody's.
    #[inline]
    #[must_use]
    pub fn running(&self) -> f64 {
        self.load.view().decoding() as f64 + self.foreign.running()
    }

    /// A candidate of which the engine has told nothing (yet, or any more).
    #[inline]
    #[must_use]
    pub fn new(slot: usize, identity: u64, load: &'a Arc<ReplicaLoad>) -> Self {
        Self {
            slot,
            identity,
            load,
            requests: load.inflight() as f64,
            foreign: Foreign::default(),
            batch_limit: load.batch_limit(),
            block_tokens: DEFAULT_BLOCK_TOKENS,
            success: 1.0,
            share: 1.0,
            hit: Tokens(0),
            blocks: 0,
            cost: 0.0,
            ttft: 0.0,
            decoding: 0.0,
            wait: 0.0,
            own_wait: 0.0,
        }
    }

    /// Whether it is known how many the engine runs at once, or few enough are there to find out: at most half as many again
    /// as ever ran at once, and two more.
    #[must_use]
    pub fn may_run_more(&self) -> bool {
        let tried = self.load.peak() + self.load.peak() / 2 + UNPROVED_BATCH;
        self.batch_limit.is_some() || self.load.inflight() < tried
    }

    /// Adds what the engine told.
    #[inline]
    #[must_use]
    fn with(self, told: &Told) -> Self {
        Self {
            foreign: told.foreign,
            requests: self.requests + told.foreign.requests,
            batch_limit: self.batch_limit.or(told.batch_limit),
            block_tokens: told.block_tokens.unwrap_or(DEFAULT_BLOCK_TOKENS),
            ..self
        }
    }
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
    #[must_use]
    pub fn summary(&self, waited: Duration) -> DecisionSummary {
        DecisionSummary {
            policy: self.policy,
            reason: self.reason.as_str(),
            waited,
            predicted_ttft: self.predicted_ttft.map(|from_now| waited + from_now),
            predicted_hit: self.hit,
            candidates: self.candidates,
            is_cold: false,
            weighed: Box::default(),
        }
    }
}

/// What the candidates that came closest and the chosen one would have meant, the cheapest first: what a log can hold of a decision.
#[must_use]
pub fn cheapest<'c, 'a>(
    query: &Query<'_>,
    candidates: &'c [Candidate<'a>],
    chosen: usize,
) -> SmallVec<[(&'c Candidate<'a>, Terms); MAX_LOGGED]> {
    let stakes = Stakes::of(query, candidates);
    let mut best: SmallVec<[(&Candidate<'_>, Terms); MAX_LOGGED]> = SmallVec::new();
    for candidate in candidates {
        let at = best.partition_point(|(other, _)| other.cost <= candidate.cost);
        if at < MAX_LOGGED {
            best.truncate(MAX_LOGGED - 1);
            best.insert(at, (candidate, stakes.terms(candidate)));
        }
    }
    if let Some(chosen) = candidates.get(chosen)
        && best.iter().all(|(one, _)| one.slot != chosen.slot)
    {
        best.pop();
        best.push((chosen, stakes.terms(chosen)));
    }
    best
}

/// The blocks of a prompt's longest hit on any of the candidates.
fn longest<'p, 'c, 'a: 'c>(
    prompt: &Prompt<'p>,
    candidates: impl IntoIterator<Item = &'c Candidate<'a>>,
) -> &'p [u64] {
    let blocks = candidates.into_iter().map(|candidate| candidate.blocks).max().unwrap_or(0);
    prompt.chain.get(..blocks).unwrap_or(prompt.chain)
}

/// Finds what each candidate has cached.
fn weigh(query: &Query<'_>, candidates: &mut [Candidate<'_>]) {
    let mut hits = Hits::default();
    query.index.lookup(query.prompt.chain, &mut hits);
    // Most replicas hold as much as the one before, and a division takes longer than all the rest.
    let mut last = (0, 0, Tokens(0));
    let beyond = query.index.beyond();
    for candidate in candidates {
        let blocks = hits.blocks(candidate.slot);
        let block_tokens = candidate.block_tokens;
        candidate.blocks = blocks;
        if (last.0, last.1) != (blocks, block_tokens) {
            last = (blocks, block_tokens, query.prompt.cached(blocks, beyond, block_tokens));
        }
        candidate.hit = if blocks > 0 { query.index.believed(candidate.slot, last.2) } else { Tokens(0) };
    }
}

/// Candidates that a decision log shows.
pub const MAX_LOGGED: usize = 8;
/// Bytes: fine blocks have 256, coarse ones 2048.
const LONGEST_FINE_BLOCK: u64 = 1024;
/// Requests for a replica that has answered none yet.
const UNPROVED_BATCH: u64 = 2;
/// vLLM's on GPUs.
const DEFAULT_BLOCK_TOKENS: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hit_is_whole_engine_blocks_and_never_the_whole_prompt() {
        let chain = [1, 2, 3, 4];
        let cases = [
            ("nothing cached", 0, 0, 16, 0),
            ("one of four blocks", 1, 0, 16, 64),
            ("rounded down to the engine's blocks", 1, 0, 48, 48),
            ("less than one engine block", 1, 0, 128, 0),
            ("all of it: the last token is computed", 4, 0, 16, 240),
            ("more than the chain has", 9, 0, 16, 240),
            ("no block size", 4, 0, 0, 0),
            ("less than one engine block, with what is beyond", 1, 30, 80, 80),
            ("all of it, with what is beyond", 4, 30, 16, 240),
        ];
        for (name, blocks, beyond, block_tokens, expected) in cases {
            let block_end = |block: usize| 256 * (block as u64 + 1);
            let prompt = Prompt { chain: &chain, block_end: &block_end, bytes: 1024, tokens: Tokens(256) };
            assert_eq!(prompt.cached(blocks, Tokens(beyond), block_tokens), Tokens(expected), "{name}");
        }
    }

    #[test]
    fn a_prompt_without_bytes_or_tokens_hits_nothing() {
        let far = |_: usize| u64::MAX;
        for (bytes, tokens) in [(0, 100), (100, 0), (1, u64::MAX)] {
            let prompt = Prompt { chain: &[1], block_end: &far, bytes, tokens: Tokens(tokens) };
            let hit = prompt.cached(1, Tokens(0), 16);
            assert!(hit.0 < tokens.max(1), "{hit:?} of {tokens}");
        }
    }
}
