//! Continues a broken stream on another replica of its pool (`migrate = true`).
//!
//! It keeps the request for as long as its stream, within the memory that its body was charged for. What it sends is built by
//! [`continuation`]; where an engine refuses that, or no other replica is there, the stream ends as it would have without.
//! Bounded: [`MAX_MIGRATIONS`] of one stream, [`MAX_ATTEMPTS`] of each, none for a prompt that is suspected of killing
//! engines. The retry budget is not touched: a dead replica's streams break together, and each of them had been admitted.

use std::sync::Arc;

use bytes::Bytes;

use super::IncomingRequest;
use super::asking::Tried;
use super::attempt::{AttemptError, Deadlines, UpstreamResponse};
use super::outbound::{Identity, Outbound};
use super::picker;
use super::prepared::Prepared;
use crate::admission::Rules;
use crate::fleet::pick::Pick;
use crate::fleet::pool::PoolState;
use crate::record::{self, AttemptCause};
use crate::relay::migration::{NextLeg, NoSuccessor, PendingLeg, Succession, Successor};
use crate::relay::reader::StreamReader;
use crate::relay::watch::Deadline;
use crate::request::continuation::{Continuation, Obstacle, Progress, continuation};
use crate::request::dialect::Dialect;
use crate::units::Tokens;

/// A request whose stream may have to be continued.
pub struct ReplicaSuccessor {
    incoming: Box<IncomingRequest>,
    prepared: Box<Prepared>,
    identity: Identity,
    /// Tokens of its prompt alone.
    prompt: Tokens,
    left: u8,
}

impl ReplicaSuccessor {
    /// Keeps the request of a stream that begins.
    pub fn new(incoming: Box<IncomingRequest>, mut prepared: Box<Prepared>, identity: Identity) -> Box<Self> {
        // One copy of the body is kept and stays charged: what goes upstream.
        prepared.held.bytes = Bytes::new();
        // It was admitted, and its first token came: no queue, no other route, no bound on the first token any more.
        prepared.rules = Rules::default();
        prepared.slo.ttft = None;
        let prompt = prepared.tokens;
        Box::new(Self { incoming, prepared, identity, prompt, left: MAX_MIGRATIONS })
    }

    async fn search(
        mut self: Box<Self>,
        progress: Progress,
        pool: Arc<PoolState>,
        mut tried: Tried,
    ) -> Succession {
        let mut attempts = Vec::new();
        let next = match self.continuation(progress, &pool).await {
            Err(reason) => Err(NoSuccessor::because(reason)),
            Ok(None) => Ok(None),
            Ok(Some(by)) => {
                self.prepared.tokens = Tokens(self.prompt.0.saturating_add(by.tokens));
                match self.attempts(&by, &pool, &mut tried, &mut attempts).await {
                    Ok((reader, pick)) => Ok(Some(Box::new(NextLeg { reader, pick, by, successor: self }))),
                    Err(none) => Err(none),
                }
            }
        };
        Succession { attempts, next }
    }

    /// The request to send.
    async fn continuation(
        &mut self,
        progress: Progress,
        pool: &PoolState,
    ) -> Result<Option<Continuation>, &'static str> {
        if pool.is_outside() {
            // A provider gets the client's own body and nothing that the gateway writes.
            return Err("outside");
        }
        self.left = self.left.checked_sub(1).ok_or("limit")?;
        let gateway = &self.incoming.gateway;
        if pool.poison.refused_for(self.prepared.identity, gateway.clock.now()).is_some() {
            return Err("suspected_poison");
        }
        let (dialect, body) = (self.identity.dialect, self.prepared.body.clone());
        if dialect == Dialect::Chat && !progress.text.trim().is_empty() && pool.answers_anew() {
            return Err(Obstacle::Engine.as_str());
        }
        let engine = pool.config().engine;
        let length = body.len();
        let work = move || continuation(dialect, &body.whole(), &progress, engine);
        gateway
            .body_work
            .run(self.prepared.tenant.name(), length, work)
            .await
            .map_err(|_| "internal")?
            .map_err(Obstacle::as_str)
    }

    async fn attempts(
        &self,
        by: &Continuation,
        pool: &Arc<PoolState>,
        tried: &mut Tried,
        attempts: &mut Vec<record::Attempt>,
    ) -> Result<(Box<StreamReader>, Box<Pick>), NoSuccessor> {
        for _ in 0..MAX_ATTEMPTS {
            let pick = self.pick(pool, tried).ok_or(NoSuccessor::because("no_replica"))?;
            let mut flight = self.outbound(by).launch(pick, AttemptCause::Migration);
            let result = flight.land().await;
            let now = self.incoming.gateway.clock.now();
            attempts.push(flight.entry(&result, now));
            let active = flight.into_active();
            let result = match result {
                Ok(UpstreamResponse::Stream { reader, .. })
                    if reader.scanner.state().answer.error.is_none() =>
                {
                    return Ok((reader, active.pick));
                }
                other => other,
            };
            active.watch.close();
            match result {
                Err(AttemptError::Replica(failure, _)) => {
                    active.pick.failed(&failure, now);
                    picker::note_tried(tried, &active.pick);
                }
                Err(AttemptError::Ours(failure)) => {
                    return Err(NoSuccessor { reason: failure.code(), failure: Some(failure) });
                }
                Err(AttemptError::Overdue(failure)) => {
                    active.pick.assignment.censored(now);
                    return Err(NoSuccessor { reason: failure.code(), failure: Some(failure) });
                }
                // It does not take the continuation, and the others run the same image.
                Ok(_) => return Err(NoSuccessor::because("engine_refused")),
            }
        }
        Err(NoSuccessor::because("no_replica"))
    }

    /// Another replica of the same pool: other pools may run another model.
    fn pick(&self, pool: &Arc<PoolState>, tried: &Tried) -> Option<Box<Pick>> {
        picker::another(&self.incoming.gateway, &self.prepared, pool, tried)
    }

    fn outbound<'r>(&'r self, by: &'r Continuation) -> Outbound<'r> {
        let after = self.prepared.timeouts.first_token;
        let first_token = Deadline { at: self.incoming.gateway.clock.now().after(after), after };
        let whole = Outbound::of(&self.incoming, &self.prepared, &self.identity);
        let deadlines = Deadlines { first_token: Some(first_token), ..whole.deadlines };
        Outbound { body: &by.body, deadlines, ..whole }
    }
}

impl Successor for ReplicaSuccessor {
    fn succeed(self: Box<Self>, progress: Progress, broken: &Pick) -> PendingLeg {
        let mut tried = Tried::new();
        picker::note_tried(&mut tried, broken);
        Box::pin(self.search(progress, Arc::clone(&broken.pool), tried))
    }
}

/// Continuations of one stream: a rolling restart may meet it more than once, a prompt that kills engines must not have them
/// all.
const MAX_MIGRATIONS: u8 = 3;
/// Replicas that are asked to continue it, one after the other.
const MAX_ATTEMPTS: u8 = 3;
