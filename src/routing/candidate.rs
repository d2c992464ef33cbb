//! A replica that may be chosen, with what a decision finds for it.

use std::sync::Arc;

use super::foreign::Foreign;
use super::load::ReplicaLoad;
use super::memory::Memory;
use super::prompt::Prompt;
use super::target::{EngineLimits, Target};
use crate::clock::Stamp;
use crate::routing::tuning::priors;
use crate::units::Tokens;

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
    /// Its KV memory, where known.
    pub(super) memory: Option<Memory>,
    /// Whether it would have to load the LoRA adapter of the request, while another holds it.
    pub lacks_adapter: bool,
    /// Tokens in one of the engine's KV blocks.
    pub block_tokens: u64,
    /// Its engine has shown requests that wait since it started, or the configuration has how many it runs at once.
    pub(super) has_queued: bool,
    /// Probability that it answers, relative to its peers.
    pub success: f64,
    /// Fraction of its ordinary traffic that it should get.
    pub share: f64,
    /// Found by [`decide`]: prompt tokens believed to be cached there.
    pub hit: Tokens,
    /// Found by [`decide`]: that is counted by the engine's KV events, not estimated.
    pub is_counted: bool,
    /// Found by [`decide`]: leading blocks of the prompt's chain that it is believed to hold.
    pub blocks: usize,
    /// Found by [`decide`] where the policy predicts: what the choice costs in seconds.
    pub cost: f64,
    /// Found by [`decide`] where the policy predicts: seconds to the first token.
    pub ttft: f64,
    /// Found by [`decide`] where the policy predicts: seconds until the engine begins on it.
    pub wait: f64,
    /// Found by [`decide`] where the policy predicts: see [`Terms::own_wait`].
    pub(super) own_wait: f64,
    /// Found by [`decide`] where the policy predicts: what its decoding costs, beside the best candidate's.
    pub(super) decoding: f64,
}

impl<'a> Candidate<'a> {
    /// Requests without a first token there: ours, others' by the last scrape, and one more where the batch is full.
    pub fn ahead(&self) -> f32 {
        let is_full = self.batch_limit.is_some_and(|limit| self.running() >= limit as f64);
        let awaiting = self.load.view().awaiting as f64 + self.foreign.waiting;
        awaiting as f32 + f32::from(u8::from(is_full))
    }

    /// Requests that are being decoded there, everybody's.
    #[inline]
    pub fn running(&self) -> f64 {
        self.load.view().decoding() as f64 + self.foreign.running()
    }

    /// A target as one decision sees it.
    #[inline]
    pub(super) fn of(target: &'a Target, limits: &EngineLimits, now: Stamp) -> Self {
        let (load, snapshot) = (&target.load, target.snapshot(now, limits).unwrap_or_default());
        Self {
            slot: target.slot,
            identity: target.identity,
            load,
            requests: (load.unfinished() + load.past_engine()) as f64 + snapshot.foreign.requests,
            foreign: snapshot.foreign,
            // What the configuration tells wins over what streams have shown, and that over what the engine's page has.
            batch_limit: limits.batch_limit.or(load.batch_limit()).or(snapshot.batch_limit),
            memory: snapshot.memory,
            lacks_adapter: false,
            block_tokens: snapshot.block_tokens.unwrap_or(priors::BLOCK_TOKENS),
            has_queued: limits.batch_limit.is_some() || target.has_queued(),
            success: target.success(),
            share: target.share(),
            hit: Tokens(0),
            is_counted: false,
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
    pub fn may_run_more(&self) -> bool {
        let tried = self.load.peak() + self.load.peak() / 2 + UNPROVED_BATCH;
        self.batch_limit.is_some() || self.load.unfinished() < tried
    }
}

/// The blocks of a prompt's longest hit on any of the candidates.
pub(super) fn longest<'p, 'c, 'a: 'c>(
    prompt: &Prompt<'p>,
    candidates: impl IntoIterator<Item = &'c Candidate<'a>>,
) -> &'p [u64] {
    let blocks = candidates.into_iter().map(|candidate| candidate.blocks).max().unwrap_or(0);
    prompt.chain.get(..blocks).unwrap_or(prompt.chain)
}

/// Requests for a replica that has answered none yet.
const UNPROVED_BATCH: u64 = 2;
