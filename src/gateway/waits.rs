//! How a request waits in the room of its route: for a gentler moment, for its turn among the late, for a replica.
//!
//! It asks routing again whenever the room calls it. It goes on waiting until it is placed, its client leaves, one of
//! its deadlines passes, or it was among the late for `max_wait` or when the gateway drains. Its time here is
//! the stage `admit`. The room and its order are in `crate::admission`.

use std::sync::Arc;
use std::time::Duration;

use super::exchange::Exchange;
use super::picker::{Asking, Hold, Tried};
use crate::admission::{Guest, Kind, Outlook, Refusal, Seat};
use crate::clock::Stamp;
use crate::error::{Failure, Timer};
use crate::observe::metrics::GaugeGuard;

/// A request's waits.
#[derive(Default)]
pub(super) struct Waits {
    seat: Option<(Seat, [GaugeGuard; 2])>,
    pool: Option<usize>,
    queued_since: Option<Stamp>,
    was_held: bool,
    is_counted: bool,
}

impl Waits {
    /// What it brings along to the next decision.
    pub(super) fn asking<'a>(&self, tried: &'a Tried) -> Asking<'a> {
        let is_queued = self.seat.as_ref().is_some_and(|(seat, _)| seat.kind() == Kind::Queued);
        Asking { tried, pool: self.pool, is_queued }
    }

    /// Another route answers: its waits begin anew.
    pub(super) fn begin_anew(&mut self) {
        (self.seat, self.pool, self.queued_since) = (None, None, None);
    }
}

impl std::fmt::Debug for Waits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seat = self.seat.as_ref().map(|(seat, _)| seat);
        f.debug_struct("Waits").field("seat", &seat).field("pool", &self.pool).finish_non_exhaustive()
    }
}

impl Exchange {
    /// Returns when it is to ask routing again.
    pub(super) async fn wait(&mut self, hold: Hold) -> Result<(), Failure> {
        let gateway = Arc::clone(self.gateway());
        let began = gateway.clock.now();
        self.take_seat(&hold, began)?;
        let (end, failure) = self.end_of_wait(&hold);
        let Some((seat, _)) = &self.waits.seat else { return Ok(()) };
        self.journal.record().at.admitted = None;
        // Both arms are cancel-safe: a call is kept until it is heard.
        let is_called = tokio::select! {
            () = seat.called() => true,
            () = tokio::time::sleep_until(gateway.clock.instant(end)) => false,
        };
        let now = gateway.clock.now();
        let record = self.journal.record();
        record.at.admitted = Some(now);
        if record.at.routed.is_none() {
            record.held += now.since(began);
        }
        if hold.kind == Kind::Queued && gateway.drain.refuses() {
            return Err(Failure::Draining);
        }
        if is_called && now < end { Ok(()) } else { Err(failure) }
    }

    /// Whether its route lets it wait until there is a replica to choose.
    pub(super) fn may_wait_for_a_replica(&self) -> bool {
        let queue = self.prepared.rules.queue.filter(|queue| queue.max_requests > 0);
        queue.is_some() && self.prepared.pinned.is_none()
    }

    /// It was sent: its place is free, and its admission is over.
    pub(super) fn note_admitted(&mut self) {
        let waits = &mut self.waits;
        (waits.seat, waits.pool) = (None, None);
        if !std::mem::replace(&mut waits.is_counted, true) {
            let reason = match (waits.queued_since, waits.was_held) {
                (Some(_), _) => "queued",
                (None, true) => "held",
                (None, false) => "ready",
            };
            self.gateway().observer.metrics().admission("admit", reason);
        }
    }

    fn take_seat(&mut self, hold: &Hold, now: Stamp) -> Result<(), Failure> {
        self.waits.pool = hold.pool;
        match &self.waits.seat {
            Some((seat, _)) if seat.kind() == hold.kind => {
                seat.stays();
                return Ok(());
            }
            _ => self.waits.seat = None,
        }
        let (gateway, room) = (Arc::clone(self.gateway()), Arc::clone(&self.prepared.route.room));
        let bytes = self.prepared.held.bytes.len();
        let guest = Guest {
            kind: hold.kind,
            deadline: self.prepared.deadline(),
            is_long: self.prepared.is_long,
            bytes,
            outlook: hold.outlook,
        };
        let (seat, is_first) = room.enter(&guest).map_err(|refusal| match hold.pool {
            Some(_) => Failure::from(refusal),
            None => self.nobody(),
        })?;
        self.waits.seat = Some((seat, gateway.observer.metrics().queued(bytes)));
        self.count_wait(hold, now);
        if is_first {
            let refuses = Arc::clone(&gateway);
            gateway.tasks.spawn(room.drive(move || refuses.drain.refuses()));
        }
        Ok(())
    }

    fn count_wait(&mut self, hold: &Hold, now: Stamp) {
        let metrics = self.gateway().observer.metrics();
        match (hold.kind, hold.pool) {
            (Kind::Paced, _) if !self.waits.was_held => metrics.admission("hold", "pacing"),
            (Kind::Queued, Some(_)) if self.waits.queued_since.is_none() => {
                metrics.admission("queue", "predicted_ttft");
            }
            (Kind::Queued, None) if self.waits.queued_since.is_none() => {
                metrics.admission("queue", "no_ready_replica");
            }
            _ => {}
        }
        match hold.kind {
            Kind::Paced => self.waits.was_held = true,
            Kind::Queued => {
                self.waits.queued_since.get_or_insert(now);
            }
        }
    }

    /// When it may wait no longer, and what it is told then.
    fn end_of_wait(&self, hold: &Hold) -> (Stamp, Failure) {
        let deadlines = self.deadlines();
        let timeout = |timer, (at, after): (Stamp, Duration)| (at, Failure::Timeout { timer, after });
        let mut first = timeout(Timer::Total, deadlines.total);
        if let Some(deadline) = deadlines.first_token.filter(|(at, _)| *at < first.0) {
            first = timeout(Timer::FirstToken, deadline);
        }
        if hold.kind == Kind::Queued {
            let most = self.prepared.rules.queue.map_or(Duration::ZERO, |queue| queue.max_wait);
            let end = self.waits.queued_since.unwrap_or(self.prepared.read).after(most);
            if end < first.0 {
                first = (end, self.waited(hold, most));
            }
        }
        first
    }

    fn waited(&self, hold: &Hold, most: Duration) -> Failure {
        match hold.pool {
            Some(_) => Failure::from(Refusal::Waited {
                most,
                drain: hold.outlook.drain,
                retry_after: hold.outlook.retry_after(),
            }),
            None => self.nobody(),
        }
    }
}

/// A wait for any replica at all.
pub(super) const NO_REPLICA: Hold =
    Hold { kind: Kind::Queued, pool: None, outlook: Outlook { drain: Duration::ZERO, work: Duration::ZERO } };
