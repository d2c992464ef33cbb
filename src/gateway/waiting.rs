//! How a request waits in the queue of its route: held to spare streams, late, or for any ready replica.
//!
//! It asks routing again whenever the queue calls it, until it is placed, its client leaves, one of its deadlines passes, it
//! was late for `max_wait`, or the gateway drains. Its time here is the stage `admit`. Order and limits are in
//! [`crate::admission`].

use std::sync::Arc;
use std::time::Duration;

use super::Gateway;
use super::picker::{Asking, Hold, Tried};
use super::prepare::Prepared;
use crate::admission::{Outlook, Refusal, Ticket, WaitReason, Waiter};
use crate::clock::Stamp;
use crate::error::{Failure, Timer};
use crate::observe::metrics::GaugeGuard;
use crate::observe::record_guard::RecordGuard;

/// The waits of one request, over all its decisions.
#[derive(Default)]
pub(super) struct Waits {
    ticket: Option<(Ticket, [GaugeGuard; 2])>,
    pool: Option<usize>,
    late_since: Option<Stamp>,
    was_held: bool,
    is_counted: bool,
}

impl Waits {
    /// What the request brings along to its next decision.
    pub(super) fn asking<'a>(&self, tried: &'a Tried) -> Asking<'a> {
        let is_late = self.ticket.as_ref().is_some_and(|(ticket, _)| ticket.reason() == WaitReason::Late);
        Asking { tried, pool: self.pool, is_late }
    }

    /// Another route answers: the waits begin anew.
    pub(super) fn begin_anew(&mut self) {
        (self.ticket, self.pool, self.late_since) = (None, None, None);
    }

    /// Returns when the request is to ask routing again.
    ///
    /// # Errors
    /// A limit of the queue, a deadline, or the drain.
    pub(super) async fn wait(
        &mut self,
        hold: Hold,
        gateway: &Arc<Gateway>,
        prepared: &Prepared,
        guard: &mut RecordGuard,
    ) -> Result<(), Failure> {
        let began = gateway.clock.now();
        self.take_ticket(&hold, gateway, prepared, began)?;
        let (end, failure) = self.end_of_wait(&hold, prepared);
        let Some((ticket, _)) = &self.ticket else { return Ok(()) };
        guard.record().at.admitted = None;
        // Both arms are cancel-safe: a call is kept until it is awaited.
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

    /// The request was sent: its position is free, and its admission is over.
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
        hold: &Hold,
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
            None => prepared.nobody(),
        })?;
        self.ticket = Some((ticket, gateway.observer.metrics().queued(bytes)));
        self.count_wait(hold, gateway, now);
        if is_first {
            let refuses = Arc::clone(gateway);
            gateway.tasks.spawn(queue.drive(move || refuses.drain.refuses()));
        }
        Ok(())
    }

    fn count_wait(&mut self, hold: &Hold, gateway: &Gateway, now: Stamp) {
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

    /// When the request may wait no longer, and its failure then.
    fn end_of_wait(&self, hold: &Hold, prepared: &Prepared) -> (Stamp, Failure) {
        let deadlines = prepared.deadlines();
        let timeout = |timer, (at, after): (Stamp, Duration)| (at, Failure::Timeout { timer, after });
        let mut first = timeout(Timer::Total, deadlines.total);
        if let Some(deadline) = deadlines.first_token.filter(|(at, _)| *at < first.0) {
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

/// The failure of a request that was late for `max_wait`.
fn waited(hold: &Hold, prepared: &Prepared, max: Duration) -> Failure {
    match hold.pool {
        Some(_) => {
            let Outlook { drain, .. } = hold.outlook;
            Refusal::Waited { max, drain, retry_after: hold.outlook.retry_after() }.into()
        }
        None => prepared.nobody(),
    }
}

/// A wait for any replica at all.
pub(super) const NO_REPLICA: Hold = Hold {
    reason: WaitReason::Late,
    pool: None,
    outlook: Outlook { drain: Duration::ZERO, work: Duration::ZERO },
};
