//! A chosen replica, and the feedback of its request.
//!
//! Load is counted from the decision and released at the first token and at the end, whatever the end is: the
//! assignment is dropped with the pick, and the pick with the body.

use std::sync::Arc;
use std::time::Duration;

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

    /// The attempt was given up: sent at `sent`, it has brought nothing, neither a first token nor, if `is_whole`, an answer at once.
    /// That is a failure of the replica where nothing has moved there since, another replica has answered meanwhile, and the wait
    /// was clearly longer than is usual in the pool: a client that is merely impatient says nothing.
    pub fn given_up(&self, sent: Stamp, is_whole: bool, now: Stamp) {
        let (replica, waited) = (&self.replica, now.since(sent));
        if waited < SHORTEST_SILENCE || replica.vitals.last_sign() >= sent {
            return;
        }
        let usual = self.pool.dispatcher.model.usual_wait(&self.assignment.decision.terms, is_whole);
        let answered =
            |other: &Arc<Replica>| other.slot() != replica.slot() && other.vitals.last_answer() >= sent;
        if waited.as_secs_f64() > SILENT_FROM * usual && self.pool.replicas().iter().any(answered) {
            let silent = ReplicaFailure::Silent { replica: replica.name() };
            self.failed(&silent, now);
        }
    }

    /// Learns bytes per token and the cached share from the engine's `usage`.
    pub fn learn(&mut self, tokens: TokenCounts) {
        if let Some(input) = tokens.input {
            self.size.teach(&self.pool.ratio, input);
        }
        if tokens.input.or(tokens.cached).is_some() {
            self.assignment.prompt_reported(tokens.input, tokens.cached);
        }
    }
}

/// Times the usual wait from which silence speaks against a replica, ...
const SILENT_FROM: f64 = 3.0;
/// ... and no sooner: gateways, networks and engines pause for longer than a first token takes.
const SHORTEST_SILENCE: Duration = Duration::from_secs(1);
