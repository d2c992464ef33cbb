//! A chosen replica: the load that the choice put on it, and what is learned from how it went.
//!
//! The load is counted from the decision, in requests and in uncached prompt tokens, and released at the first
//! token and at the end, whatever the end is: the guard is dropped with the pick, and the pick with the body.

use std::sync::Arc;

use super::registry::PoolState;
use super::replica::Replica;
use crate::clock::Stamp;
use crate::record::{DecisionSummary, ExpectedWait, TokenCounts};
use crate::request::prompt::PromptSize;
use crate::routing::LoadGuard;

/// A chosen replica.
#[derive(Debug)]
pub struct Pick {
    /// Its pool.
    pub pool: Arc<PoolState>,
    /// Itself.
    pub replica: Arc<Replica>,
    /// What the decision said.
    pub decision: DecisionSummary,
    /// The expected wait as times, where the model was taught: to tell where a wait went.
    pub expected: Option<ExpectedWait>,
    /// How long the prompt is.
    pub size: PromptSize,
    /// Identity of the whole prompt, for the search after prompts that kill replicas.
    pub prompt: u64,
    /// When the replica was chosen: the wait for its first token counts from here.
    pub chosen_at: Stamp,
    /// Our mark on its load.
    pub load: LoadGuard,
}

impl Pick {
    /// The first token came: the prompt is computed, and the wait for it is a lesson.
    pub fn first_token(&mut self, now: Stamp) {
        if let Some(lesson) = self.load.first_token(now) {
            self.pool.model.observe(self.slot(), &lesson);
        }
        self.replica.succeeded();
        if let Some(ttft) = self.decision.predicted_ttft {
            let from_then = ttft.saturating_sub(self.decision.waited);
            self.pool.model.compare(self.slot(), from_then, now.since(self.chosen_at));
        }
    }

    /// The stream has brought so much content by now.
    pub fn progress(&self, content_events: u64, now: Stamp) {
        self.load.progress(content_events, now);
    }

    /// It waited until now and got no token: the wait was at least that long.
    pub fn censored(&self, now: Stamp) {
        if let Some(lesson) = self.load.overdue(now) {
            self.pool.model.observe_censored(self.slot(), &lesson);
        }
    }

    /// The answer is complete: since its first token it held a place in the batch.
    pub fn served(&self, first_token: Stamp, now: Stamp, tokens: TokenCounts) {
        self.pool.model.observe_service(self.slot(), now, now.since(first_token), tokens.output);
    }

    /// The engine counted the tokens: the model's bytes per token, and what its cache held.
    pub fn learn(&self, tokens: TokenCounts) {
        if let Some(input) = tokens.input {
            self.size.teach(&self.pool.ratio, input);
        }
        if let Some(cached) = tokens.cached {
            self.pool.index.reported(self.slot(), self.decision.predicted_hit, cached);
        }
    }

    fn slot(&self) -> usize {
        self.replica.slot
    }
}
