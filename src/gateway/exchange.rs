//! Pick, send, retry: from a prepared request to a response worth relaying, or a failure.
//!
//! The retry rule: a request known not to have been sent may use all of `retry.attempts`; one that may have started is
//! retried once at most, within the retry budget, and not at all if it acts at the engine. Deadlines run over all attempts. An exchange owns all its state, so that
//! it can also run inside a response body, behind heartbeats.

use std::sync::Arc;
use std::time::Duration;

use super::apart;
use super::asking::Tried;
use super::attempt::{AttemptError, UpstreamResponse};
use super::degrade::{self, degrade, rules};
use super::hedge::{self, Flown};
use super::outbound::{ActiveAttempt, Flight, Identity, Outbound};
use super::picker::{self, PickOutcome, QueueWait};
use super::prefill_leg::{self, HeldKv, Leg};
use super::prepared::Prepared;
use super::waiting::Waits;
use super::{Gateway, IncomingRequest, blame, engine_error, shadow, standby};
use crate::admission::WaitReason;
use crate::clock::Stamp;
use crate::error::{Failure, ReplicaFailure};
use crate::fleet::pick::Pick;
use crate::fleet::pool::PoolState;
use crate::fleet::replica::Replica;
use crate::observe::record_guard::RecordGuard;
use crate::record::{self, AttemptCause, Outcome, TurnedAway, Ways};
use crate::request::dialect::Computes;

/// A response worth relaying with the attempt that got it.
pub type Answered = (UpstreamResponse, ActiveAttempt);

/// What an attempt came to.
type Attempted = Result<Answered, (AttemptError, ActiveAttempt)>;

/// An answer that waits for another replica's.
#[derive(Debug)]
pub(super) struct Doubted {
    pub(super) answered: Answered,
    /// Place of its attempt in the record.
    pub(super) attempt: usize,
}

/// A prepared request and everything its attempts need.
#[derive(Debug)]
pub struct Exchange {
    pub(super) incoming: Box<IncomingRequest>,
    /// The request as parsed and classified.
    pub prepared: Box<Prepared>,
    /// Its open record.
    pub guard: RecordGuard,
    pub(super) tried: Tried,
    /// What had been tried before a replica closed an idle connection: it takes the request too where no other does.
    untried: Option<Tried>,
    retried_unsent: u32,
    pub(super) retried_started: bool,
    is_counted: bool,
    /// Its prompt is computed, and waits to be decoded.
    pub(super) held_kv: Option<Box<HeldKv>>,
    pub(super) waits: Waits,
}

/// Result of an exchange.
#[derive(Debug)]
pub struct ExchangeResult {
    /// The request's open record.
    pub guard: RecordGuard,
    /// A response worth relaying, or a failure.
    pub result: Result<Answered, Failure>,
    /// The request; after a degrade, as prepared for the fallback route.
    pub prepared: Box<Prepared>,
    /// Its head.
    pub incoming: Box<IncomingRequest>,
}

impl Exchange {
    /// An exchange before its first attempt. Boxed: it is moved several times, and each move would copy it whole.
    pub fn new(incoming: Box<IncomingRequest>, prepared: Box<Prepared>, guard: RecordGuard) -> Box<Self> {
        Box::new(Self {
            incoming,
            prepared,
            guard,
            tried: Tried::new(),
            untried: None,
            retried_unsent: 0,
            retried_started: false,
            is_counted: false,
            held_kv: None,
            waits: Waits::default(),
        })
    }

    /// The shared state of all requests.
    pub fn gateway(&self) -> &Arc<Gateway> {
        &self.incoming.gateway
    }

    /// Attempts until one replica answers or the retry rule forbids another.
    pub async fn run(mut self: Box<Self>) -> ExchangeResult {
        let result = self.answer().await;
        if let Err(failure) = &result {
            self.incoming.gateway.count_refusal(failure);
        }
        let Self { guard, prepared, incoming, .. } = *self;
        ExchangeResult { guard, result, prepared, incoming }
    }

    async fn answer(&mut self) -> Result<Answered, Failure> {
        let mut last: Option<Result<Answered, Failure>> = None;
        loop {
            let picked =
                picker::pick(&self.incoming.gateway, &self.prepared, self.waits.pick_context(&self.tried));
            self.note_arrival(picked.as_ref());
            let pick = match picked {
                Some(PickOutcome::Take(pick)) => pick,
                Some(PickOutcome::Wait(hold)) => {
                    // An answer of a replica is more than the queue of the next.
                    let Err(refusal) = self.wait_or_overflow(hold).await else { continue };
                    return last.unwrap_or(Err(refusal));
                }
                Some(PickOutcome::Degrade) => {
                    self.degrade("predicted_ttft").await;
                    continue;
                }
                None if self.is_lost(last.as_ref()) => {
                    if self.degrade("no_ready_replica").await {
                        last = None;
                    }
                    continue;
                }
                None if last.is_none() && self.prepared.may_wait_for_replica() => {
                    let now = self.incoming.gateway.clock.now();
                    self.wait(QueueWait::for_replica(now, self.prepared.read)).await?;
                    continue;
                }
                None if self.may_outwait(last.as_ref()) => {
                    last = self.outwait().await;
                    continue;
                }
                None => match self.untried.take() {
                    Some(tried) => {
                        self.tried = tried;
                        continue;
                    }
                    None => return last.unwrap_or_else(|| Err(self.prepared.no_ready_replica())),
                },
            };
            self.waits.note_admitted(&self.incoming.gateway);
            self.note_decision(&pick);
            shadow::offer(&self.incoming, &self.prepared, &mut self.guard, &pick);
            let Some(attempted) = self.send(pick).await? else { continue };
            if self.has_lost_kv(&attempted) {
                self.avoid_silent(&attempted);
                last = answer_of(attempted).map(Ok).or(last);
                continue;
            }
            match attempted {
                Ok(answered) => match self.blamed(&answered) {
                    Some(failure) if self.may_retry_answered(&failure, &answered.1.pick) => {
                        answered.1.watch.close();
                        last = Some(Ok(answered));
                    }
                    None if self.is_for_another(&answered) => {
                        answered.1.watch.close();
                        return Err(self.prepared.no_ready_replica());
                    }
                    blamed => match self.trusted(answered, blamed.as_ref()) {
                        Ok(answered) => return Ok(answered),
                        Err(doubted) => return Ok(self.second(doubted).await),
                    },
                },
                Err((AttemptError::Overdue(failure) | AttemptError::Ours(failure), _)) => {
                    return Err(failure);
                }
                Err((AttemptError::Replica(failure, answer), active)) => {
                    let may_retry = self.may_retry(&failure, &active.pick);
                    // If this was the last attempt, the client gets the engine's own complete response, if there is one.
                    let result = match answer {
                        Some(answer) => Ok((UpstreamResponse::Buffered(answer), active)),
                        None => Err(Failure::Replica(failure)),
                    };
                    if !may_retry {
                        return result;
                    }
                    last = Some(result);
                }
            }
        }
    }

    /// Asks another replica of its pool for what may be the prompt's doing; who would have to wait for one keeps what the first answered.
    async fn second(&mut self, doubted: Box<Doubted>) -> Answered {
        let pool = &doubted.pick().pool;
        let Some(pick) = picker::another(&self.incoming.gateway, &self.prepared, pool, &self.tried) else {
            return self.keep(*doubted);
        };
        // Boxed: rare, and its state would be part of every request's future.
        match Box::pin(self.attempt(pick)).await {
            Ok(second) => self.settle(*doubted, second),
            Err((error, active)) => {
                if let AttemptError::Replica(failure, _) = &error {
                    active.pick.failed(failure, self.incoming.gateway.clock.now());
                }
                self.keep(*doubted)
            }
        }
    }

    /// Sends it where it was placed, by one leg or two; `None` where it is to be placed anew.
    async fn send(&mut self, mut pick: Box<Pick>) -> Result<Option<Attempted>, Failure> {
        let Some(prefill) = pick.prefill.take() else {
            let attempted = self.attempt(pick).await;
            return Ok(Some(self.follow(attempted).await));
        };
        // Boxed: only routes with a prefill pool have two legs.
        if !Box::pin(self.is_prefilled(prefill, &pick)).await? {
            return Ok(None);
        }
        Box::pin(self.attempt_beside(pick)).await
    }

    /// Has the prompt computed at `prefill`; `false` where the request is to be placed anew.
    async fn is_prefilled(&mut self, prefill: Box<Pick>, decode: &Pick) -> Result<bool, Failure> {
        match self.two_legs().compute_prompt(prefill, decode).await {
            Leg::Done(held) => {
                self.held_kv = Some(held);
                Ok(true)
            }
            other => self.without_prompt(other).map(|()| false),
        }
    }

    /// Its prompt was not computed elsewhere: the request is to be placed anew, or has failed.
    fn without_prompt(&mut self, leg: Leg) -> Result<(), Failure> {
        match leg {
            Leg::Stays(reason) => self.prepared.stays = Some(reason),
            Leg::Broken(failure, prefill) => self.prefill_failed(&failure, &prefill),
            Leg::Failed(failure) => return Err(failure),
            Leg::Done(_) => {}
        }
        Ok(())
    }

    /// Decodes, while the prompt is computed or after that; `None` where computing failed, and the request is to be placed anew.
    async fn attempt_beside(&mut self, pick: Box<Pick>) -> Result<Option<Attempted>, Failure> {
        let Some(mut beside) = self.held_kv.as_mut().and_then(|held| held.beside.take()) else {
            return Ok(Some(self.attempt(pick).await));
        };
        let raced = {
            let attempt = std::pin::pin!(self.attempt(pick));
            // Dropped, an attempt closes its connection; the other arm is cancel-safe.
            tokio::select! {
                biased;
                attempted = attempt => Ok(attempted),
                landed = beside.failed() => Err(landed),
            }
        };
        match raced {
            Ok(attempted) => {
                let dialect = self.guard.record().dialect;
                if let Ok((answer, _)) = &attempted {
                    match beside.landed() {
                        Some(landed) => drop(self.two_legs().settle_beside(landed)),
                        // Beside an answer that is none it ends here.
                        None if answer.status().is_success() => {
                            beside.finish(&self.incoming.gateway, dialect);
                            self.two_legs().has_computed();
                        }
                        None => {}
                    }
                }
                Ok(Some(attempted))
            }
            Err(landed) => {
                self.held_kv = None;
                if let Some(leg) = self.two_legs().settle_beside(landed) {
                    self.without_prompt(leg)?;
                }
                Ok(None)
            }
        }
    }

    /// Whether the KV of its prefill leg did not come: the request is to be placed anew.
    fn has_lost_kv(&mut self, attempted: &Attempted) -> bool {
        let Some(held) = self.held_kv.take() else { return false };
        let landed = attempted.as_ref().map_err(|(error, _)| error);
        let lost = held.settle(landed, self.two_legs());
        self.prepared.stays = lost.or(self.prepared.stays);
        lost.is_some()
    }

    /// A decoding replica that sent nothing may not have lost the KV but hang: another one computes the prompt where one is ready.
    fn avoid_silent(&mut self, attempted: &Attempted) {
        let Err((AttemptError::Overdue(_), active)) = attempted else { return };
        if active.pick.pool.replicas().iter().any(|one| is_other(one, &active.pick)) {
            picker::note_tried(&mut self.tried, &active.pick);
        }
    }

    fn two_legs(&mut self) -> prefill_leg::Request<'_> {
        let Self { incoming, prepared, guard, .. } = self;
        prefill_leg::Request { incoming, prepared, guard }
    }

    /// Another prefill replica gets the prompt where the retry rule allows one and one is ready; else it is computed where it is
    /// decoded.
    fn prefill_failed(&mut self, failure: &ReplicaFailure, pick: &Pick) {
        if !self.may_retry(failure, pick) || !pick.pool.replicas().iter().any(|one| is_other(one, pick)) {
            self.prepared.stays = Some("prefill_failed");
        }
    }

    /// Waits, unless the request goes to a standby pool at once, or there or to another route after it was refused.
    async fn wait_or_overflow(&mut self, hold: QueueWait) -> Result<(), Failure> {
        let now = self.incoming.gateway.clock.now();
        if !self.waits.overflows() && standby::takes_waiting(&self.prepared, hold.reason, now) {
            self.waits.overflow();
            return Ok(());
        }
        let Err(refusal) = self.wait(hold).await else { return Ok(()) };
        let now = self.incoming.gateway.clock.now();
        match hold.pool.filter(|at| self.is_turned_away(*at, &refusal)) {
            Some(canary) => self.waits.leave(canary),
            None if !self.waits.overflows() && standby::takes_refused(&self.prepared, &refusal, now) => {
                self.waits.overflow();
            }
            None if self.is_handed_over(&refusal) && self.degrade("refused").await => {}
            None => return Err(refusal),
        }
        Ok(())
    }

    /// Notes whose queue it was, for the canary's judge. True where that is the canary's, and a pool beside it serves.
    fn is_turned_away(&mut self, at: usize, refusal: &Failure) -> bool {
        let route = &self.prepared.route;
        let (Failure::NotAdmitted { limit, .. }, Some(_), Some(pool)) =
            (refusal, &route.config.canary, route.pools.get(at))
        else {
            return false;
        };
        self.guard.record().turned_away.get_or_insert_with(|| {
            let (pool, revision) = (Arc::clone(&pool.name), Arc::clone(&pool.config().revision));
            Box::new(TurnedAway { pool, revision, limit })
        });
        let serves = |(other, pool): (usize, &Arc<PoolState>)| {
            other != at && route.wheel.uses(other) && pool.is_ready()
        };
        route.wheel.tries(at) && self.prepared.pinned.is_none() && route.pools.iter().enumerate().any(serves)
    }

    /// Where the proxy went elsewhere, the answer is that of the replica it went to.
    async fn follow(&mut self, attempted: Attempted) -> Attempted {
        let (served, active) = match attempted {
            Err((AttemptError::Replica(ReplicaFailure::Bypassed { served, replica }, _), active)) => {
                let failure = ReplicaFailure::Bypassed { served, replica };
                active.pick.failed(&failure, self.incoming.gateway.clock.now());
                active.pick.assignment.withdrawn(self.prepared.prompt.chain.hashes());
                (served, active)
            }
            other => return other,
        };
        let pick = match picker::taken(&self.incoming.gateway, &self.prepared, served, &active.pick) {
            Some(pick) => {
                drop(active);
                pick
            }
            None => {
                tracing::warn!(
                    %served, route = &*self.prepared.route.config.name,
                    "the proxy served a request at an endpoint that is no replica of its route: it counts for the one that was picked"
                );
                active.pick
            }
        };
        // Boxed: rare, and its state would be part of every request's future.
        Box::pin(self.attempt(pick)).await
    }

    async fn degrade(&mut self, reason: &'static str) -> bool {
        let gateway = &self.incoming.gateway;
        // Boxed: rare, and its state would be part of every request's future.
        let is_degraded = Box::pin(degrade(&mut self.prepared, &mut self.guard, gateway, reason)).await;
        if is_degraded {
            self.waits.reset();
        }
        is_degraded
    }

    /// Continues in the configuration in force, where that has none of its pools.
    async fn renew(&mut self) {
        let gateway = &self.incoming.gateway;
        // Most wait in the configuration that they began in.
        if Arc::ptr_eq(&self.prepared.table, &gateway.table.load()) {
            return;
        }
        // Boxed: rare, and its state would be part of every request's future.
        if Box::pin(degrade::renew(&mut self.prepared, &mut self.guard, gateway)).await {
            self.waits.renew();
        }
    }

    /// Whether no replica of its route can answer it, and the route of `[route.degrade]` may.
    fn is_lost(&self, last: Option<&Result<Answered, Failure>>) -> bool {
        let is_unsent = match last {
            None => self.prepared.cold_wait().is_none(),
            Some(Err(Failure::Replica(failure))) => failure.is_unsent(),
            Some(_) => false,
        };
        is_unsent && self.may_degrade()
    }

    /// Whether no engine could be connected to, of a pool that scales to zero: the last one has just stopped, and is taken for busy for a
    /// moment. Each try counts as one that was not sent.
    fn may_outwait(&self, last: Option<&Result<Answered, Failure>>) -> bool {
        let is_unsent = matches!(last, Some(Err(Failure::Replica(failure))) if failure.is_unsent());
        is_unsent && self.prepared.cold_wait().is_some() && self.prepared.may_wait_for_replica()
    }

    /// Until those are ejected that refuse connections; nothing has been tried then.
    async fn outwait(&mut self) -> Option<Result<Answered, Failure>> {
        tokio::time::sleep(UNTIL_EJECTED).await;
        self.tried = Tried::new();
        None
    }

    /// Whether its queue refused it, and the route of `[route.degrade]` may take it: before that would find it too late the queue
    /// does.
    fn is_handed_over(&self, refusal: &Failure) -> bool {
        matches!(refusal, Failure::NotAdmitted { .. }) && self.may_degrade()
    }

    /// Whether the route of `[route.degrade]` is for it, and ready.
    fn may_degrade(&self) -> bool {
        let rule = rules(&self.prepared, self.incoming.gateway.clock.now()).degrade;
        rule.and_then(|rule| self.prepared.table.routes.get(rule.to)).is_some_and(|to| to.is_ready())
    }

    /// Counts the request as demand on a pool, once: on the one that it was given first, or else on the route's first.
    fn note_arrival(&mut self, picked: Option<&PickOutcome>) {
        let is_demand = self.prepared.computes != Computes::Nothing;
        if std::mem::replace(&mut self.is_counted, true) || !is_demand {
            return;
        }
        let pool = match picked {
            Some(PickOutcome::Take(pick)) => Some(&pick.pool),
            Some(PickOutcome::Wait(hold)) => self.prepared.route.pools.get(hold.pool.unwrap_or(0)),
            Some(PickOutcome::Degrade) | None => self.prepared.route.pools.first(),
        };
        if let Some(pool) = pool {
            pool.arrivals.note();
        }
    }

    /// Returns an answer that is relayed: what speaks against its replica is the fleet's failure, whatever its status.
    fn trusted(
        &mut self,
        answered: Answered,
        blamed: Option<&ReplicaFailure>,
    ) -> Result<Answered, Box<Doubted>> {
        if blamed.is_some() {
            self.guard.settle(Outcome::Failed, Some("replica_error"));
            return Ok(answered);
        }
        self.trust(answered)
    }

    /// What an answer that is good enough to relay says against its replica.
    pub(super) fn blamed(&mut self, (answer, active): &Answered) -> Option<ReplicaFailure> {
        let UpstreamResponse::Buffered(answer) = answer else { return None };
        blame::of_answer(answer, &active.pick, &self.prepared, self.guard.record())
    }

    /// Whether an engine answered that it lacks a model which another replica has, one that is not ready.
    fn is_for_another(&self, (answer, active): &Answered) -> bool {
        let UpstreamResponse::Buffered(answer) = answer else { return false };
        blame::is_for_another(answer, &active.pick, &self.prepared)
    }

    /// Counts the failure. An error of a replica on trial is more likely the replica's than the request's, so another replica
    /// may show which: the client of a trial is no guinea pig. A model that only this replica lacks has begun no work.
    fn may_retry_answered(&mut self, failure: &ReplicaFailure, pick: &Pick) -> bool {
        if pick.replica.is_on_trial() || failure.is_missing_model() {
            return self.may_retry(failure, pick);
        }
        pick.failed(failure, self.incoming.gateway.clock.now());
        false
    }

    async fn wait(&mut self, hold: QueueWait) -> Result<(), Failure> {
        let began = self.incoming.gateway.clock.now();
        // Boxed: most requests never wait and should not carry this future's state.
        Box::pin(self.waits.wait(hold, &self.incoming.gateway, &self.prepared, &mut self.guard)).await?;
        if hold.reason == WaitReason::NoReplica && self.prepared.cold_wait().is_some() {
            // Nobody could have answered meanwhile.
            self.prepared.timeouts.first_token += self.incoming.gateway.clock.now().since(began);
        }
        if hold.reason == WaitReason::NoReplica {
            self.renew().await;
        }
        Ok(())
    }

    /// Counts the failure against the replica; whether the retry rule allows another attempt.
    pub(super) fn may_retry(&mut self, failure: &ReplicaFailure, pick: &Pick) -> bool {
        let gateway = &self.incoming.gateway;
        let now = gateway.clock.now();
        pick.failed(failure, now);
        if failure.is_unsent() || failure.is_refusal() {
            // It computed nothing of the prompt.
            pick.assignment.withdrawn(self.prepared.prompt.chain.hashes());
        }
        if self.prepared.carrier.is_some() {
            return false;
        }
        if failure.is_idle_close() {
            self.untried.get_or_insert_with(|| self.tried.clone());
        }
        picker::note_tried(&mut self.tried, pick);
        let retry = &self.prepared.table.config.retry;
        if failure.is_unsent() {
            self.retried_unsent += 1;
            return self.retried_unsent <= retry.attempts;
        }
        if self.prepared.is_sent_once {
            return false;
        }
        let is_first = !std::mem::replace(&mut self.retried_started, true);
        is_first
            && retry.attempts > 0
            && (failure.is_idle_close() || pick.pool.retries.withdraw(retry.min_per_second, now))
    }

    async fn attempt(&mut self, pick: Box<Pick>) -> Attempted {
        let cause = self.cause();
        let identity = Identity::of(self.guard.record());
        let Self { incoming, prepared, held_kv, guard, tried, .. } = self;
        let outbound = outbound(incoming, prepared, held_kv.as_deref(), &identity);
        let flight = outbound.launch(pick, cause);
        let due = hedge::due(prepared, cause, &flight);
        flight.open(guard);
        let flown = hedge::fly(&outbound, flight, guard.record(), due, tried).await;
        let Flown { flight, landed: result, other } = flown;
        self.guard.record().attempts.pop();
        if let Some((flight, failed)) = other {
            let entry = self.note_other(&flight, failed.as_ref());
            self.guard.record().attempts.push(entry);
        }
        self.note_attempt(cause, &flight, &result);
        let active = flight.into_active();
        match result {
            Ok(answer) => Ok((answer, active)),
            Err(error) => {
                active.watch.close();
                if let AttemptError::Overdue(failure) = &error
                    && self.held_kv.is_none()
                {
                    active.pick.overdue(failure, self.incoming.gateway.clock.now());
                }
                Err((error, active))
            }
        }
    }

    /// Why the next attempt is made.
    pub(super) fn cause(&mut self) -> AttemptCause {
        let is_first = self.guard.record().attempts.iter().all(|made| made.cause == AttemptCause::Prefill);
        if is_first { AttemptCause::First } else { AttemptCause::Retry }
    }

    /// The entry of the attempt of a hedge that does not count. Where it failed its replica is charged, and not asked again by this
    /// request.
    fn note_other(
        &mut self,
        flight: &Flight,
        failed: Option<&Result<UpstreamResponse, AttemptError>>,
    ) -> record::Attempt {
        let now = self.incoming.gateway.clock.now();
        if let Some(Err(AttemptError::Replica(failure, _))) = failed {
            flight.pick().failed(failure, now);
            picker::note_tried(&mut self.tried, flight.pick());
        }
        match failed {
            Some(failed) => flight.entry(failed, now),
            None => record::Attempt {
                seen: flight.pick().replica.engine.seen(flight.times.start, now),
                ..flight.lost_entry(now)
            },
        }
    }

    pub(super) fn note_decision(&mut self, pick: &Pick) {
        let record = self.guard.record();
        record.at.routed.get_or_insert(pick.assignment.at());
        if let Some(ways) = &pick.ways {
            let before = record.ways.take().unwrap_or_default();
            let (together, apart) = (ways.together.or(before.together), ways.apart.or(before.apart));
            record.ways = Some(Ways { together, apart, ..Ways::clone(ways) });
        }
        if record.attempts.last().is_none_or(|before| before.served.pool != pick.pool.name) {
            let reason = if self.waits.overflows() { "full" } else { "down" };
            self.prepared.route.count_standby(&self.incoming.gateway, &pick.pool, reason);
        }
        if record.decision.is_none() {
            record.decision = Some(pick.decision.clone());
            apart::note_missing(&self.prepared, pick);
            pick.pool.retries.deposit(self.prepared.table.config.retry.budget);
        }
    }

    fn note_attempt(
        &mut self,
        cause: AttemptCause,
        flight: &Flight,
        result: &Result<UpstreamResponse, AttemptError>,
    ) {
        let end = self.incoming.gateway.clock.now();
        let entry = self.entry(flight, result, end);
        self.note_demand(cause, flight.pick(), entry.status);
        let record = self.guard.record();
        let times = &flight.times;
        record.at.connected = times.connected;
        record.at.first_byte = times.head;
        if let Err(AttemptError::Overdue(_)) = result {
            flight.given_up(record, self.prepared.prompt.chain.hashes(), end);
        }
        record.attempts.push(entry);
    }

    /// Counts what a prompt takes of its pool, once its first attempt is over. One that the engine refuses takes nothing, however long it
    /// is.
    pub(super) fn note_demand(&self, cause: AttemptCause, pick: &Pick, status: Option<u16>) {
        let is_refused = status.is_some_and(|status| (400..500).contains(&status));
        if cause == AttemptCause::First && !pick.assignment.is_past_engine() && !is_refused {
            pick.pool.arrivals.placed(&pick.assignment.decision.terms.work, self.prepared.computes);
        }
    }

    /// The entry of the record for an attempt that came to this, with the words of its engine's error.
    fn entry(
        &mut self,
        flight: &Flight,
        result: &Result<UpstreamResponse, AttemptError>,
        end: Stamp,
    ) -> record::Attempt {
        let engine_error = engine_error::of_result(result, self.guard.record(), &self.prepared.body);
        if let Some(words) = &engine_error {
            flight.pick().replica.note_error(words, end);
        }
        record::Attempt { engine_error, ..flight.entry(result, end) }
    }
}

/// The engine's own answer of an attempt that is over, for the client if no other is had.
fn answer_of(attempted: Attempted) -> Option<Answered> {
    let answered = match attempted {
        Ok(answered) => answered,
        Err((AttemptError::Replica(_, answer), active)) => (UpstreamResponse::Buffered(answer?), active),
        Err(_) => return None,
    };
    answered.1.watch.close();
    Some(answered)
}

/// Whether this replica could take a request in place of that of a pick.
fn is_other(replica: &Arc<Replica>, pick: &Pick) -> bool {
    !Arc::ptr_eq(replica, &pick.replica) && replica.is_ready()
}

/// What is sent: where `held_kv` is the KV of its prompt, without computing that again.
fn outbound<'r>(
    incoming: &'r IncomingRequest,
    prepared: &'r Prepared,
    held_kv: Option<&'r HeldKv>,
    identity: &'r Identity,
) -> Outbound<'r> {
    let whole = Outbound::of(incoming, prepared, identity);
    let Some(held) = held_kv else { return whole };
    let deadlines = held.deadlines(whole.deadlines, incoming.gateway.clock.now());
    Outbound { body: &held.body, deadlines, sent: Some(&held.sent), ..whole }
}

/// Between two tries of an engine that refuses connections and is taken for busy: two probes later it is ejected.
const UNTIL_EJECTED: Duration = Duration::from_secs(1);
