//! A chosen replica, and the feedback of its request.
//!
//! Load is counted from the decision and released at the first token and at the end, whatever the end is: the
//! assignment is dropped with the pick, and the pick with the body.

use std::sync::Arc;

use super::pool::PoolState;
use super::replica::Replica;
use crate::admission::TurnOnDrop;
use crate::clock::Stamp;
use crate::error::ReplicaFailure;
use crate::record::{DecisionSummary, TokenCounts};
use crate::request::prompt_size::PromptSize;
use crate::routing::Assignment;

/// The replica that one attempt goes to.
#[derive(Debug)]
pub struct Pick {
    pub pool: Arc<PoolState>,
    pub replica: Arc<Replica>,
    /// Of the first attempt, for the record and response headers.
    pub decision: DecisionSummary,
    /// The request's share of the replica's load.
    pub assignment: Assignment,
    /// After the load, which is released first: its end may make room for another.
    pub turn: TurnOnDrop,
    pub size: PromptSize,
    /// Hash of the whole prompt, to find prompts that kill engines.
    pub prompt: u64,
    /// Its request can go nowhere else: a stored response lives there.
    pub is_pinned: bool,
}

impl Pick {
    /// The first content event arrived.
    pub fn first_token(&mut self, now: Stamp) {
        self.assignment.first_token(now);
        self.replica.succeeded(now);
        self.pool.queue.turn();
    }

    /// A complete response arrived, which proves as much as a probe.
    pub fn answered(&self, now: Stamp) {
        self.pool.dispatcher.answered(now);
        self.replica.vitals.answered(now);
        self.pool.succeeded(self.prompt);
    }

    /// Its request failed there.
    pub fn failed(&self, failure: &ReplicaFailure, now: Stamp) {
        self.pool.failed(&self.replica, failure, self.prompt, self.is_pinned, now);
    }

    /// Learns bytes per token and the cached share from the engine's `usage`.
    pub fn learn(&mut self, tokens: TokenCounts) {
        if let Some(input) = tokens.input {
            self.size.teach(&self.pool.ratio, input);
        }
        if let Some(cached) = tokens.cached {
            self.assignment.cache_reported(tokens.input, cached);
        }
    }
}
