//! The record in the making: travels with its request and reports it exactly once, from its drop.
//!
//! It moves from the service future into the response body. Wherever it is dropped (complete, client gone,
//! replica gone, panic), the request has ended and the observers get the record.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::{Clock, Stamp};
use crate::error::Failure;
use crate::observe::Observer;
use crate::observe::metrics::GaugeGuard;
use crate::record::{Moments, Outcome, Record, SloBounds, TokenCounts};
use crate::request::class::Class;
use crate::request::dialect::Dialect;
use crate::request::trace_context::Trace;
use crate::units::Tokens;

/// A [`Record`] that reports itself.
#[derive(Debug)]
pub struct RecordGuard {
    record: Option<Arc<Record>>,
    observer: Arc<Observer>,
    clock: Clock,
    has_head: bool,
    is_settled: bool,
    open: Arc<AtomicU64>,
    _inflight: GaugeGuard,
}

/// What is known when the head of a request was parsed.
#[derive(Debug)]
pub struct Opening {
    /// `x-request-id`
    pub request_id: Arc<str>,
    /// Trace context.
    pub trace: Trace,
    /// API that is spoken.
    pub dialect: Dialect,
    /// Path on the allow-list.
    pub path: Arc<str>,
    /// When the head was parsed.
    pub head: Stamp,
}

impl RecordGuard {
    /// Begins the record of a request.
    #[must_use]
    pub fn open(opening: Opening, observer: &Arc<Observer>, clock: Clock, open: &Arc<AtomicU64>) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        let none: Arc<str> = "none".into();
        let record = Record {
            request_id: opening.request_id,
            trace: opening.trace,
            dialect: opening.dialect,
            path: opening.path,
            route: Arc::clone(&none),
            model: Arc::clone(&none),
            tenant: Arc::clone(&none),
            slo_class: none,
            slo: SloBounds::default(),
            class: Class::None,
            is_stream: false,
            outcome: Outcome::Canceled,
            status: 499,
            error: None,
            at: Moments { head: opening.head, ..Moments::default() },
            held: Duration::ZERO,
            relay_blocked: Duration::ZERO,
            attempts: Vec::new(),
            decision: None,
            tokens: TokenCounts::default(),
            estimated_input: Tokens(0),
            content_events: 0,
            longest_gap: Duration::ZERO,
            longest_gap_at: None,
            itl_missed: None,
            degraded_from: None,
            engine: None,
            stage_budget: None,
            response_id: None,
            response_model: None,
            finish_reasons: Vec::new(),
            bytes_in: 0,
            bytes_out: 0,
        };
        Self {
            record: Some(Arc::new(record)),
            observer: Arc::clone(observer),
            clock,
            has_head: false,
            is_settled: false,
            open: Arc::clone(open),
            _inflight: observer.metrics().request_inflight(),
        }
    }

    /// The record; it is there until the drop.
    pub fn record(&mut self) -> &mut Record {
        let record = self.record.as_mut().and_then(Arc::get_mut);
        record
            .expect("invariant: the record leaves the journal only in its drop, and nobody shares it before")
    }

    /// The observers.
    #[must_use]
    pub fn observer(&self) -> &Arc<Observer> {
        &self.observer
    }

    /// Time.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// The head goes out with this status: from now on a client that leaves does not change it.
    pub fn head_sent(&mut self, status: u16) {
        self.has_head = true;
        self.record().status = status;
    }

    /// The request ended like this; the first word counts.
    pub fn settle(&mut self, outcome: Outcome, error: Option<&'static str>) {
        if !self.is_settled {
            self.is_settled = true;
            let record = self.record();
            record.outcome = outcome;
            record.error = error;
        }
    }

    /// The request ended with a failure of ours.
    pub fn fail(&mut self, failure: &Failure) {
        self.settle(Outcome::of(failure), Some(failure.code()));
    }
}

impl Drop for RecordGuard {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        let Some(mut shared) = self.record.take() else { return };
        let Some(record) = Arc::get_mut(&mut shared) else { return };
        record.at.end = self.clock.now();
        if !self.is_settled && std::thread::panicking() {
            record.outcome = Outcome::Failed;
            record.error = Some(Failure::Internal.code());
        }
        if !self.has_head && !self.is_settled {
            record.status = 499;
        }
        self.observer.record(&shared);
    }
}
