//! Guard that emits a request's record exactly once, from its drop.
//!
//! It moves from the service future into the response body. Wherever it is dropped (complete, client gone, replica gone,
//! panic), the request has ended and the observers get the record.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use http::StatusCode;
use tokio_util::sync::CancellationToken;

use crate::admission::TenantPermit;
use crate::clock::{Clock, Stamp};
use crate::error::Failure;
use crate::observe::content::Capture;
use crate::observe::metrics::GaugeGuard;
use crate::observe::overdue::BoundGuard;
use crate::observe::{Judgement, Observer, stages};
use crate::record::{Attempt, Gaps, Opening, Outcome, Record};

/// How the original of a copy ended.
#[derive(Clone, Debug, Default)]
pub struct OriginalEnd {
    /// Cancelled when its client left before the answer was complete.
    pub left: CancellationToken,
    /// Cancelled at any other end.
    pub over: CancellationToken,
}

/// A [`Record`] under construction.
#[derive(Debug)]
pub struct RecordGuard {
    record: Option<Arc<Record>>,
    observer: Arc<Observer>,
    has_head: bool,
    has_early_head: Option<Arc<AtomicBool>>,
    is_settled: bool,
    hides_replicas: bool,
    open: Arc<AtomicU64>,
    /// Boxed, as few have one: a guard lives as long as its stream.
    permit: Option<Box<TenantPermit>>,
    copy: Option<OriginalEnd>,
    bounds: Option<BoundGuard>,
    capture: Option<Box<Capture>>,
    _inflight: GaugeGuard,
}

impl RecordGuard {
    /// Begins the record of a request.
    pub fn open(opening: Opening, observer: &Arc<Observer>, open: &Arc<AtomicU64>) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Self {
            record: Some(Arc::new(Record::open(opening))),
            observer: Arc::clone(observer),
            has_head: false,
            has_early_head: None,
            is_settled: false,
            hides_replicas: false,
            open: Arc::clone(open),
            permit: None,
            copy: None,
            bounds: None,
            capture: None,
            _inflight: observer.metrics.request_inflight(),
        }
    }

    /// The record so far.
    pub fn record(&mut self) -> &mut Record {
        let record = self.record.as_mut().and_then(Arc::get_mut);
        record.expect("invariant: the record leaves its guard only in the drop, and is not shared before")
    }

    pub fn observer(&self) -> &Arc<Observer> {
        &self.observer
    }

    pub fn clock(&self) -> Clock {
        self.observer.clock
    }

    /// Its SLO is known: from now on it counts as a miss as soon as a bound has passed.
    pub fn watch_bounds(&mut self) {
        self.bounds = self.record.as_deref().and_then(|record| self.observer.metrics.overdue.watch(record));
    }

    /// An attempt goes to its replica.
    pub fn asks(&self, made: &Attempt) {
        if let Some(bounds) = &self.bounds {
            bounds.asks(made, self.clock().now());
        }
    }

    /// Its first token came at `at`.
    pub fn first_token(&mut self, at: Stamp) {
        self.record().at.first_token = Some(at);
        if let Some(bounds) = &self.bounds {
            bounds.first_token(at);
        }
    }

    /// A batch of gaps between its content events; `per_event` is the usual number of tokens in one, where that is known.
    #[inline]
    pub fn gaps(&self, gaps: &Gaps<'_>, per_event: impl FnOnce() -> Option<f64>) {
        if let Some(bounds) = &self.bounds {
            bounds.gaps(gaps, per_event);
        }
    }

    /// Its tenant's permit, settled when the request has ended.
    pub fn permit(&mut self, permit: Option<TenantPermit>) {
        self.permit = permit.map(Box::new);
    }

    /// The last that a client waits for goes out: its tenant's place is free.
    pub fn is_answered(&mut self) {
        if let Some(permit) = &mut self.permit {
            permit.give_place_back();
        }
    }

    /// Signals `end` when the request ends: to the copy of it that a canary got.
    pub fn signals(&mut self, end: OriginalEnd) {
        self.copy = Some(end);
    }

    /// Prompt and answer are read by others when it ends.
    pub fn capture(&mut self, capture: Box<Capture>) {
        self.capture = Some(capture);
    }

    /// Adds to what is kept of its answer, where others read it.
    pub(crate) fn captures(&mut self, keep: impl FnOnce(&mut Capture)) {
        if let Some(capture) = &mut self.capture {
            keep(capture);
        }
    }

    /// The response head goes out with this status, which a client that leaves no longer changes.
    pub fn head_sent(&mut self, status: u16) {
        self.has_head = true;
        self.record().status = status;
    }

    /// A mark to be set where the head goes out as 200 before the guard can be reached.
    pub fn early_head(&mut self) -> Arc<AtomicBool> {
        Arc::clone(self.has_early_head.get_or_insert_default())
    }

    /// Sets how the request ended; only the first call has effect.
    pub fn settle(&mut self, outcome: Outcome, error: Option<&'static str>) {
        if !self.is_settled {
            self.is_settled = true;
            let record = self.record();
            record.outcome = outcome;
            record.error = error;
        }
    }

    /// The client did not get all of the answer, whose end is settled: because of a failure, or it left.
    pub fn cut_short(&mut self, failure: Option<&Failure>) {
        let record = self.record();
        record.outcome = failure.map_or(Outcome::Canceled, Outcome::of);
        record.error = failure.map(Failure::code);
    }

    /// The rest of an answer whose end is settled was not taken.
    pub fn not_taken(&mut self) {
        let failure = self.observer.ended_by();
        self.cut_short(failure.as_ref());
    }

    /// Its client is a tenant, to whom no error names a replica.
    pub fn hides_replicas(&mut self, hides_replicas: bool) {
        self.hides_replicas = hides_replicas;
    }

    /// A failure as its client may see it.
    pub fn shown(&self, failure: &Failure) -> Failure {
        let request_id = || self.record.as_ref().map(|record| Arc::clone(&record.request_id));
        if self.hides_replicas {
            failure.for_tenants(request_id().unwrap_or_default())
        } else {
            failure.clone()
        }
    }

    /// Sets a failure as the end of the request; only the first end has effect.
    pub fn fail(&mut self, failure: &Failure) {
        if let (Failure::Replica(why), false) = (failure, self.is_settled) {
            let last = self.record().attempts.last_mut();
            if let Some(begun) = last.filter(|last| last.error.is_none() && last.head.is_some()) {
                begun.broken = Some(why.code());
            }
        }
        self.settle(Outcome::of(failure), Some(failure.code()));
    }
}

impl Drop for RecordGuard {
    // Its instructions are counted under this name.
    #[inline(never)]
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        self.bounds = None;
        let Some(mut shared) = self.record.take() else { return };
        let Some(record) = Arc::get_mut(&mut shared) else { return };
        record.at.end = self.observer.clock.now();
        if let Some(left) = record.attempts.last_mut().filter(|attempt| attempt.is_canceled) {
            left.end = record.at.end;
        }
        if let Some(ways) = record.ways.as_ref().filter(|ways| ways.is_apart) {
            record.tokens.cached = ways.cached;
        }
        let ended_by = (!self.is_settled).then(|| self.observer.ended_by()).flatten();
        if let Some(failure) = &ended_by {
            (record.outcome, record.error) = (Outcome::of(failure), Some(failure.code()));
        }
        if !self.has_head && !self.is_settled {
            let is_early = self.has_early_head.as_ref().is_some_and(|early| early.load(Ordering::Relaxed));
            let without = || ended_by.map_or(499, |failure| failure.status().as_u16());
            record.status = if is_early { StatusCode::OK.as_u16() } else { without() };
        }
        if let Some(end) = self.copy.take() {
            if record.outcome == Outcome::Canceled { end.left.cancel() } else { end.over.cancel() }
        }
        let judgement = Judgement::of(&shared);
        let engine = || stages::charged_time(&shared, &judgement.stages);
        let charge = self.permit.take().map(|permit| permit.settle(&shared, engine()));
        self.observer.record_judged(&shared, &judgement, charge);
        if let Some(capture) = self.capture.take() {
            capture.deliver(&shared);
        }
    }
}
