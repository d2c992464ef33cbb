//! Waits in the admission queue: held to protect running streams, late, or without a ready replica.
//!
//! A request retries routing on each call of the queue until it is placed, its client leaves, a deadline passes, it has been
//! late for `max_wait`, or the gateway drains. This time is the stage `admit`. [`crate::admission`] has order and limits.

use std::sync::Arc;
use std::time::Duration;

use super::Gateway;
use super::attempt::Deadline;
use super::picker::{PickContext, QueueWait, Tried};
use super::prepare::Prepared;
use crate::admission::{Outlook, Refusal, Ticket, WaitReason, Waiter};
use crate::clock::Stamp;
use crate::error::{Failure, Timer};
use crate::observe::metrics::QueuedGuard;
use crate::observe::record_guard::RecordGuard;

/// State of a request's waits, over all its decisions.
#[derive(Default)]
pub(super) struct Waits {
    ticket: Option<(Ticket, QueuedGuard)>,
    pool: Option<usize>,
    late_since: Option<Stamp>,
    was_held: bool,
    is_counted: bool,
}

impl Waits {
    /// The state that the next pick depends on.
    pub(super) fn pick_context<'a>(&self, tried: &'a Tried) -> PickContext<'a> {
        let is_late = self.ticket.as_ref().is_some_and(|(ticket, _)| ticket.reason() == WaitReason::Late);
        PickContext { tried, pool: self.pool, is_late }
    }

    /// Forgets the waits on the previous route, after a degrade.
    pub(super) fn reset(&mut self) {
        (self.ticket, self.pool, self.late_since) = (None, None, None);
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
        self.take_ticket(&hold, gateway, prepared, began)?;
        let (end, failure) = self.end_of_wait(&hold, prepared);
        let Some((ticket, _)) = &self.ticket else { return Ok(()) };
        guard.record().at.admitted = None;
        // Both arms are cancel-safe: an unawaited call wakes the next wait.
        let is_called = tokio::select! {
            () = ticket.called() => true,
            () = tokio::time::sleep_until(gateway.clock.instant(end)) => false,
        };
        let now = gateway.clock.now();
        let record = guard.record();
        record.at.admitted = Some(now);
        if record.at.routed.is_none() {
            record.held += now.since(began);
        }
        if hold.reason == WaitReason::Late && gateway.drain.refuses() {
            return Err(Failure::Draining);
        }
        if is_called && now < end { Ok(()) } else { Err(failure) }
    }

    /// The request was placed: frees its position and counts the admission, once.
    pub(super) fn note_admitted(&mut self, gateway: &Gateway) {
        (self.ticket, self.pool) = (None, None);
        if !std::mem::replace(&mut self.is_counted, true) {
            let reason = match (self.late_since, self.was_held) {
                (Some(_), _) => "queued",
                (None, true) => "held",
                (None, false) => "ready",
            };
            gateway.observer.metrics().admission("admit", reason);
        }
    }

    fn take_ticket(
        &mut self,
        hold: &QueueWait,
        gateway: &Arc<Gateway>,
        prepared: &Prepared,
        now: Stamp,
    ) -> Result<(), Failure> {
        self.pool = hold.pool;
        match &self.ticket {
            Some((ticket, _)) if ticket.reason() == hold.reason => {
                ticket.stays();
                return Ok(());
            }
            _ => self.ticket = None,
        }
        let queue = Arc::clone(&prepared.route.queue);
        let bytes = prepared.held.bytes.len();
        let waiter = Waiter {
            reason: hold.reason,
            deadline: prepared.deadline(),
            is_long: prepared.is_long,
            bytes,
            outlook: hold.outlook,
        };
        let (ticket, is_first) = queue.enter(&waiter).map_err(|refusal| match hold.pool {
            Some(_) => Failure::from(refusal),
            None => prepared.no_ready_replica(),
        })?;
        self.ticket = Some((ticket, gateway.observer.metrics().queued(bytes)));
        self.count_wait(hold, gateway, now);
        if is_first {
            let refuses = Arc::clone(gateway);
            gateway.tasks.spawn(queue.drive(move || refuses.drain.refuses()));
        }
        Ok(())
    }

    fn count_wait(&mut self, hold: &QueueWait, gateway: &Gateway, now: Stamp) {
        let metrics = gateway.observer.metrics();
        match hold.reason {
            WaitReason::Held => {
                if !std::mem::replace(&mut self.was_held, true) {
                    metrics.admission("hold", "pacing");
                }
            }
            WaitReason::Late => {
                if self.late_since.is_none() {
                    let reason = if hold.pool.is_some() { "predicted_ttft" } else { "no_ready_replica" };
                    metrics.admission("queue", reason);
                }
                self.late_since.get_or_insert(now);
            }
        }
    }

    /// The earliest deadline of the wait, with the failure at that time.
    fn end_of_wait(&self, hold: &QueueWait, prepared: &Prepared) -> (Stamp, Failure) {
        let deadlines = prepared.deadlines();
        let timeout = |timer, Deadline { at, after }| (at, Failure::Timeout { timer, after });
        let mut first = timeout(Timer::Total, deadlines.total);
        if let Some(deadline) = deadlines.first_token.filter(|deadline| deadline.at < first.0) {
            first = timeout(Timer::FirstToken, deadline);
        }
        if hold.reason == WaitReason::Late {
            let max = prepared.rules.queue.map_or(Duration::ZERO, |queue| queue.max_wait);
            let end = self.late_since.unwrap_or(prepared.read).after(max);
            if end < first.0 {
                first = (end, waited(hold, prepared, max));
            }
        }
        first
    }
}

impl std::fmt::Debug for Waits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ticket = self.ticket.as_ref().map(|(ticket, _)| ticket);
        f.debug_struct("Waits").field("ticket", &ticket).field("pool", &self.pool).finish_non_exhaustive()
    }
}

/// The failure of a request that has been late for `max_wait`.
fn waited(hold: &QueueWait, prepared: &Prepared, max: Duration) -> Failure {
    match hold.pool {
        Some(_) => {
            let Outlook { drain, .. } = hold.outlook;
            Refusal::Waited { max, drain, retry_after: hold.outlook.retry_after() }.into()
        }
        None => prepared.no_ready_replica(),
    }
}

/// A wait for any ready replica.
pub(super) const NO_REPLICA: QueueWait = QueueWait {
    reason: WaitReason::Late,
    pool: None,
    outlook: Outlook { drain: Duration::ZERO, work: Duration::ZERO },
};
