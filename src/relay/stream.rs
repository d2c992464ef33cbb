//! The body of a streamed answer.
//!
//! One poll: note that hyper asks again (a pause was the client's), take the watchdog's expiry if there is one,
//! pass on the reader's next bytes. Nothing is allocated per event. Its drop completes the record, whatever the
//! end was.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::Frame;

use super::aborting::{AbortingBody, Polled};
use super::error_event::{self, DialectError};
use super::itl_slo::ItlSlo;
use super::pins::ResponsePins;
use super::reader::{Next, StreamReader};
use super::stream_state::StreamEnd;
use super::usage::{AnswerFacts, EngineErrorKind};
use super::watch::Expiry;
use crate::clock::Stamp;
use crate::error::{Failure, ReplicaFailure, Timer};
use crate::fleet::pick::Pick;
use crate::observe::StreamSeries;
use crate::observe::metrics::StreamKey;
use crate::observe::record_guard::RecordGuard;
use crate::record::{FirstToken, Gaps, Outcome, Record, Served};

/// The body of a streamed answer.
#[derive(Debug)]
#[repr(C)]
pub struct StreamBody {
    reader: Box<StreamReader>,
    bytes_out: u64,
    has_first_token: bool,
    /// The outcome is recorded and charged to the replica, if it is to blame.
    is_settled: bool,
    broken: Option<Box<AbortingBody>>,
    guard: RecordGuard,
    pick: Box<Pick>,
    series: StreamSeries,
    pace: Option<Box<ItlSlo>>,
    pins: Arc<ResponsePins>,
    timeouts: crate::config::Timeouts,
}

impl StreamBody {
    /// To be made when the response head goes out.
    #[must_use]
    pub fn new(
        reader: Box<StreamReader>,
        mut guard: RecordGuard,
        pick: Box<Pick>,
        pins: Arc<ResponsePins>,
        timeouts: crate::config::Timeouts,
    ) -> Self {
        let record = guard.record();
        let key = StreamKey::new(&record.route, &record.model, record.class, &pick.replica.served());
        let pace = ItlSlo::new(record.slo.itl);
        let series = guard.observer().stream_series(&key);
        let mut this = Self {
            reader,
            bytes_out: 0,
            has_first_token: false,
            is_settled: false,
            broken: None,
            guard,
            pick,
            series,
            pace,
            pins,
            timeouts,
        };
        this.note_first_token();
        this.remember_response();
        this
    }

    /// Its record, for the head.
    pub fn record(&mut self) -> &mut Record {
        self.guard.record()
    }

    /// Polled by hyper: the next frame, the end, or an error event and the abort.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Polled {
        if let Some(broken) = &mut self.broken {
            return broken.poll(cx);
        }
        if let Some(expiry) = self.reader.watch.expiry() {
            return self.break_off(&self.failure_of(expiry), cx);
        }
        match self.reader.poll_next(cx) {
            Poll::Ready(Next::Bytes(bytes, at)) => self.hand(bytes, at),
            Poll::Ready(Next::End(end)) => self.end(end, cx),
            Poll::Pending => self.wait(cx),
        }
    }

    fn wait(&mut self, cx: &mut Context<'_>) -> Polled {
        if self.reader.watch.take_flush_request() {
            self.flush(self.reader.looked_at());
        }
        match self.reader.watch.poll_expiry(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(expiry) => self.break_off(&self.failure_of(expiry), cx),
        }
    }

    fn hand(&mut self, bytes: Bytes, now: Stamp) -> Polled {
        if !self.has_first_token {
            self.note_first_token();
        }
        self.pick.assignment.progress(self.reader.timeline.content_events(), now);
        if self.reader.timeline.should_flush(now) {
            self.flush(now);
        }
        self.reader.timeline.pause(now);
        self.reader.watch.waits_for_client(now);
        self.bytes_out += bytes.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    fn flush(&mut self, now: Stamp) {
        let (series, pace, speed) = (&self.series, &mut self.pace, &self.pick.replica.speed);
        self.reader.timeline.flush(now, |gaps| {
            speed.note(gaps.gaps, now);
            observe(series, pace, &gaps);
        });
    }

    fn note_first_token(&mut self) {
        let Some(at) = self.reader.timeline.first_token() else { return };
        self.has_first_token = true;
        self.reader.watch.decodes(at);
        self.pick.first_token(at);
        let record = self.guard.record();
        record.at.first_token = Some(at);
        let Some(read) = record.at.read else { return };
        let first = FirstToken {
            route: Arc::clone(&record.route),
            model: Arc::clone(&record.model),
            tenant: Arc::clone(&record.tenant),
            class: record.class,
            served: Served::clone(&self.pick.replica.served()),
            ttft: at.since(read),
            predicted: self.pick.decision.predicted_ttft,
        };
        self.guard.observer().first_token(&first);
    }

    fn end(&mut self, end: StreamEnd, cx: &mut Context<'_>) -> Polled {
        let replica = self.pick.replica.name();
        let failure = match end {
            StreamEnd::Complete => {
                self.complete();
                return Poll::Ready(None);
            }
            // An error before any content is the engine's whole answer: relayed as it is, but no success.
            StreamEnd::Failed(error) if !self.has_first_token => {
                self.is_settled = true;
                self.guard.settle(Outcome::Failed, Some("replica_error"));
                // What the engine blames on the request says nothing about the replica.
                if !error.code.is_some_and(|code| (400..500).contains(&code)) {
                    let (now, why) = (self.guard.clock().now(), ReplicaFailure::ErrorEvent { replica });
                    self.pick.pool.failed(&self.pick.replica, &why, self.pick.prompt, now);
                }
                return Poll::Ready(None);
            }
            StreamEnd::Failed(error) if error.kind != EngineErrorKind::Other => {
                let is_orderly = error.kind == EngineErrorKind::ShuttingDown;
                ReplicaFailure::EngineDown { replica, is_orderly }
            }
            StreamEnd::Failed(_) => ReplicaFailure::ErrorEvent { replica },
            StreamEnd::Unfinished | StreamEnd::Truncated => ReplicaFailure::Truncated { replica },
        };
        self.break_off(&Failure::Replica(failure), cx)
    }

    fn complete(&mut self) {
        let now = self.guard.clock().now();
        self.is_settled = true;
        self.guard.settle(Outcome::Ok, None);
        self.pick.answered(now);
        if !self.has_first_token {
            self.pick.replica.succeeded(now);
        }
        let facts = &self.reader.scanner.state().answer;
        self.pick.learn(facts.tokens);
        if let Some(first) = self.reader.timeline.first_token() {
            self.pick.assignment.served(first, now, facts.tokens.output);
        }
        self.remember_response();
    }

    /// Pins a stored response: from its first event on, for a client that leaves and asks for it later.
    fn remember_response(&mut self) {
        let record = self.guard.record();
        if !record.dialect.is_stateful() {
            return;
        }
        if let Some(id) = self.reader.scanner.state().answer.id.as_deref() {
            self.pins.remember(&record.tenant, id, &self.pick.replica.url);
        }
    }

    fn failure_of(&self, expiry: Expiry) -> Failure {
        let after = |timer| match timer {
            Timer::FirstToken => self.timeouts.first_token,
            Timer::InterToken => self.timeouts.inter_token,
            Timer::ClientStall => self.timeouts.client_stall,
            _ => self.timeouts.total,
        };
        match expiry {
            Expiry::Deadline(timer) => Failure::Timeout { timer, after: after(timer) },
            Expiry::ReplicaSilent => {
                let replica = self.pick.replica.name();
                Failure::Replica(ReplicaFailure::Silent { replica })
            }
            Expiry::DrainOver => Failure::DrainCut,
        }
    }

    /// Ends the answer with an error event and charges the failure.
    fn break_off(&mut self, failure: &Failure, cx: &mut Context<'_>) -> Polled {
        self.charge(failure);
        let dialect = self.guard.record().dialect;
        self.reader.close();
        let error = DialectError::new(failure, dialect.error_shape());
        let event = error_event::event(dialect, &error, &self.reader.event_context());
        self.broken.insert(Box::new(AbortingBody::new(event))).poll(cx)
    }

    fn charge(&mut self, failure: &Failure) {
        if std::mem::replace(&mut self.is_settled, true) {
            return;
        }
        let is_client = failure.timer() == Some(Timer::ClientStall);
        self.guard
            .settle(if is_client { Outcome::Canceled } else { Outcome::of(failure) }, Some(failure.code()));
        let now = self.guard.clock().now();
        match failure {
            Failure::Replica(why) => self.pick.pool.failed(&self.pick.replica, why, self.pick.prompt, now),
            Failure::Timeout { timer: Timer::InterToken, .. } => {
                let replica = self.pick.replica.name();
                let why = ReplicaFailure::Silent { replica };
                self.pick.pool.failed(&self.pick.replica, &why, self.pick.prompt, now);
            }
            _ => {}
        }
    }
}

impl Drop for StreamBody {
    fn drop(&mut self) {
        self.reader.watch.close();
        // A client that was cut from outside never polled again: its failure is not charged yet.
        if let Some(expiry) = self.reader.watch.expiry() {
            let failure = self.failure_of(expiry);
            self.charge(&failure);
        }
        let now = self.guard.clock().now();
        let (series, pace, speed) = (&self.series, &mut self.pace, &self.pick.replica.speed);
        let output = self.reader.scanner.state().answer.tokens.output.map(|n| n.0);
        self.reader.timeline.finish(now, output, |gaps| {
            speed.note(gaps.gaps, now);
            observe(series, pace, &gaps);
        });
        let timeline = &self.reader.timeline;
        let record = self.guard.record();
        record.bytes_out += self.bytes_out;
        record.at.last_token = timeline.last_token();
        record.content_events = timeline.content_events();
        (record.longest_gap, record.longest_gap_at) = timeline.longest_gap();
        record.relay_blocked = timeline.blocked();
        record.itl_missed = self.pace.as_ref().and_then(|pace| pace.missed());
        record_facts(record, &self.reader.scanner.state().answer);
    }
}

fn observe(series: &StreamSeries, pace: &mut Option<Box<ItlSlo>>, gaps: &Gaps<'_>) {
    series.gaps(gaps);
    if let Some(pace) = pace {
        pace.take(gaps);
    }
}

/// Copies the facts of an answer into the record.
pub fn record_facts(record: &mut Record, facts: &AnswerFacts) {
    record.tokens = facts.tokens;
    record.engine = facts.engine;
    record.response_id.clone_from(&facts.id);
    record.response_model.clone_from(&facts.model);
    record.finish_reasons.clone_from(&facts.finish_reasons);
}
