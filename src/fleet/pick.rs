//! A chosen replica: its place there, and what is learned from how the request went.
//!
//! The load is counted from the decision and released at the first token and at the end, whatever the end is: the
//! assignment is dropped with the pick, and the pick with the body.

use std::sync::Arc;

use super::pool::PoolState;
use super::replica::Replica;
use crate::clock::Stamp;
use crate::record::{DecisionSummary, TokenCounts};
use crate::request::prompt::PromptSize;
use crate::routing::Assignment;

/// A chosen replica.
#[derive(Debug)]
pub struct Pick {
    /// Its pool.
    pub pool: Arc<PoolState>,
    /// Itself.
    pub replica: Arc<Replica>,
    /// The decision, for record and headers.
    pub decision: DecisionSummary,
    /// The request's place there.
    pub assignment: Assignment,
    /// How long the prompt is.
    pub size: PromptSize,
    /// Identity of the whole prompt, to find prompts that kill replicas.
    pub prompt: u64,
}

impl Pick {
    /// The first token came.
    pub fn first_token(&mut self, now: Stamp) {
        self.assignment.first_token(now);
        self.replica.succeeded();
    }

    /// A whole answer came: as good as a probe.
    pub fn answered(&self, now: Stamp) {
        self.pool.dispatcher.answered(now);
        self.replica.vitals.answered(now);
        self.replica.succeeded();
    }

    /// The engine counted the tokens: the model's bytes per token, and what its cache held.
    pub fn learn(&self, tokens: TokenCounts) {
        if let Some(input) = tokens.input {
            self.size.teach(&self.pool.ratio, input);
        }
        if let Some(cached) = tokens.cached {
            self.assignment.cache_reported(cached);
        }
    }
}
