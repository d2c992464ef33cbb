//! Waits in the admission queue: held to protect running streams, for room at a replica, or for a ready replica.
//!
//! A request retries routing on each call of the queue until it is placed, its client leaves, a deadline passes, it can no
//! longer meet its bound or has waited for `max_wait`, or the gateway drains. This time is the stage `admit`.
//! [`crate::admission`] has order and limits.

use std::sync::Arc;
use std::time::Duration;

use super::Gateway;
use super::asking::{PickContext, Tried};
use super::picker::QueueWait;
use super::prepared::Prepared;
use crate::admission::{EndOfWait, PoolQueue, Ticket, WaitReason, Waiter};
use crate::background::boxed;
use crate::clock::Stamp;
use crate::debug::debug_as;
use crate::error::{Failure, Timer};
use crate::observe::metrics::QueuedGuard;
use crate::observe::record_guard::RecordGuard;
use crate::relay::watch::Deadline;

/// State of a request's waits, over all its decisions.
#[derive(Default)]
pub(super) struct Waits {
    ticket: Option<(Ticket, QueuedGuard)>,
    pool: Option<usize>,
    late_since: Option<Stamp>,
    was_held: bool,
    is_counted: bool,
    overflows: bool,
    left: Option<usize>,
}

impl Waits {
    /// The state that the next pick depends on.
    pub(super) fn pick_context<'a>(&self, tried: &'a Tried) -> PickContext<'a> {
        let is_late = self.ticket.as_ref().is_some_and(|(ticket, _)| ticket.is_late());
        let is_cold = self.ticket.as_ref().is_some_and(|(ticket, _)| ticket.is_for_replica());
        PickContext {
            tried,
            pool: self.pool,
            is_late,
            is_cold,
            may_go_apart: true,
            overflows: self.overflows,
            left: self.left,
        }
    }

    /// Forgets the waits on the previous route, after a degrade.
    pub(super) fn reset(&mut self) {
        (self.ticket, self.pool, self.late_since, self.left) = (None, None, None, None);
    }

    /// Its pools are others now; since when it waits stays.
    pub(super) fn renew(&mut self) {
        (self.ticket, self.pool, self.left) = (None, None, None);
    }

    /// From here on it goes to a standby pool, or nowhere.
    pub(super) fn overflow(&mut self) {
        self.reset();
        self.overflows = true;
    }

    /// From here on it goes to another pool than the one at this place.
    pub(super) fn leave(&mut self, at: usize) {
        self.reset();
        self.left = Some(at);
    }

    /// Whether its pool's queue had no place for it.
    pub(super) fn overflows(&self) -> bool {
        self.overflows
    }

    /// Waits until the request is to retry routing.
    ///
    /// # Errors
    /// A limit of the queue was exceeded, a deadline passed, or the gateway drains.
    pub(super) async fn wait(
        &mut self,
        hold: QueueWait,
        gateway: &Arc<Gateway>,
        prepared: &Prepared,
        guard: &mut RecordGuard,
    ) -> Result<(), Failure> {
        let began = gateway.clock.now();
        let queue = queue_of(&hold, prepared)?;
        self.take_ticket(&hold, &queue, gateway, prepared)?;
        let (end, reason) = self.end_of_wait(&hold, prepared);
        let Some((ticket, _)) = &self.ticket else { return Ok(()) };
        guard.record().at.admitted = None;
        // Both arms are cancel-safe: an unawaited call wakes the next wait.
        let called = tokio::select! {
            called = ticket.called() => Some(called),
            () = tokio::time::sleep_until(gateway.clock.instant(end)) => None,
        };
        let now = gateway.clock.now();
        let record = guard.record();
        record.at.admitted = Some(now);
        if record.at.routed.is_none() {
            record.held += now.since(began);
        }
        let is_refusable = match hold.reason {
            WaitReason::Held => false,
            WaitReason::Late => prepared.rules.queue.is_some(),
            WaitReason::NoReplica => true,
        };
        if is_refusable && gateway.drain.refuses() {
            return Err(Failure::Draining);
        }
        match called {
            Some(called) if now < end => Ok(called?),
            _ => Err(self.failure(reason, &hold, &queue, prepared)),
        }
    }

    /// The request was placed: frees its position and counts the admission, once.
    pub(super) fn note_admitted(&mut self, gateway: &Gateway) {
        self.pool = None;
        if let Some((ticket, _)) = self.ticket.take() {
            ticket.placed(gateway.clock.now());
        }
        if !std::mem::replace(&mut self.is_counted, true) {
            let reason = match (self.late_since, self.was_held) {
                (Some(_), _) => "queued",
                (None, true) => "held",
                (None, false) => "ready",
            };
            gateway.observer.metrics.admitted(reason);
        }
    }

    fn take_ticket(
        &mut self,
        hold: &QueueWait,
        queue: &Arc<PoolQueue>,
        gateway: &Arc<Gateway>,
        prepared: &Prepared,
    ) -> Result<(), Failure> {
        self.pool = hold.pool;
        let waiter = Waiter { outlook: hold.outlook, ..prepared.waiter_for(hold.reason) };
        match &self.ticket {
            Some((ticket, _)) if ticket.suits(&waiter, queue) => {
                ticket.stays(hold.stay);
                return Ok(());
            }
            _ => self.ticket = None,
        }
        let (ticket, is_first) = queue.enter(&waiter).map_err(|refusal| match hold.pool {
            Some(_) => Failure::from(refusal),
            None => prepared.no_ready_replica(),
        })?;
        self.ticket = Some((ticket, gateway.observer.metrics.queued(waiter.bytes)));
        self.count_wait(hold, gateway);
        if is_first {
            let refuses = Arc::clone(gateway);
            gateway.tasks.spawn(boxed(Arc::clone(queue).drive(move || refuses.drain.refuses())));
        }
        Ok(())
    }

    fn count_wait(&mut self, hold: &QueueWait, gateway: &Gateway) {
        let admissions = &gateway.observer.metrics.families.requests.admissions;
        let reason = match hold.reason {
            WaitReason::Held => {
                if !std::mem::replace(&mut self.was_held, true) {
                    admissions.inc(["hold", "pacing"]);
                }
                return;
            }
            WaitReason::Late => "predicted_ttft",
            WaitReason::NoReplica => "no_ready_replica",
        };
        if self.late_since.is_none() {
            admissions.inc(["queue", reason]);
            self.late_since = Some(gateway.clock.now());
        }
    }

    /// When the wait ends at the latest, and why.
    fn end_of_wait(&self, hold: &QueueWait, prepared: &Prepared) -> (Stamp, GaveUp) {
        let deadlines = prepared.deadlines();
        let timeout = |timer, Deadline { at, after }| (at, GaveUp::Timeout(timer, after));
        let since = self.late_since.unwrap_or(prepared.read);
        let cold = prepared.cold_wait().filter(|_| hold.reason == WaitReason::NoReplica);
        let (first_token, of_queue) = match cold {
            Some(cold) => (None, Some((since.after(cold.max_wait), EndOfWait::MaxWait(cold.max_wait)))),
            None => (
                deadlines.first_token,
                EndOfWait::of(hold.reason, prepared.rules.queue.as_ref(), since, &hold.outlook),
            ),
        };
        let first_token = first_token.map(|deadline| timeout(Timer::FirstToken, deadline));
        let others = first_token.into_iter().chain(of_queue.map(|(at, end)| (at, GaveUp::Queue(end))));
        let total = timeout(prepared.total_timer, deadlines.total);
        others.fold(total, |first, other| if other.0 < first.0 { other } else { first })
    }

    fn failure(&self, reason: GaveUp, hold: &QueueWait, queue: &PoolQueue, prepared: &Prepared) -> Failure {
        let outlook = &hold.outlook;
        match reason {
            GaveUp::Timeout(timer, after) => Failure::NeverPlaced { timer, after },
            GaveUp::Queue(_) if hold.pool.is_none() => prepared.no_ready_replica(),
            GaveUp::Queue(end) => {
                end.refusal(outlook, queue.promise(&prepared.share, outlook, outlook.drain)).into()
            }
        }
    }
}

debug_as!(Waits => "Waits");

/// Why a wait ends without a place.
#[derive(Clone, Copy, Debug)]
enum GaveUp {
    /// A deadline of `[timeouts]`.
    Timeout(Timer, Duration),
    /// A limit of the queue.
    Queue(EndOfWait),
}

/// The queue of the pool that it waits for; without a ready pool that of the route's first.
fn queue_of(hold: &QueueWait, prepared: &Prepared) -> Result<Arc<PoolQueue>, Failure> {
    let pool = prepared.route.pools.get(hold.pool.unwrap_or(0));
    pool.map(|pool| Arc::clone(&pool.queue)).ok_or_else(|| prepared.no_ready_replica())
}
