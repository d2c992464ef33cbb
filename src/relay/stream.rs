//! The body of a streamed answer.
//!
//! One poll: note that hyper asks again (a pause was the client's), take the watchdog's expiry if there is one,
//! pass on the reader's next bytes. Nothing is allocated per event. A stream that breaks is continued elsewhere where it has a
//! [`Migration`], else it ends with an error event. Its drop completes the record, whatever the end was.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::Frame;

use super::aborting::{AbortingBody, Polled};
use super::error_event::{self, DialectError};
use super::itl_slo::ItlSlo;
use super::migration::{self, Migration, NextLeg, Succession};
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
    migration: Option<Box<Migration>>,
    /// Content events of the replicas before the present one.
    events_before: u64,
    /// First content of the present replica, where the stream was continued.
    leg_began: Option<Stamp>,
    /// It was cut behind its finish reason, and ends in order all the same.
    is_cut: bool,
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
            migration: None,
            events_before: 0,
            leg_began: None,
            is_cut: false,
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

    /// Goes on elsewhere when it breaks.
    #[must_use]
    pub fn migrating(mut self, migration: Option<Box<Migration>>) -> Self {
        self.migration = migration;
        self
    }

    /// Its record, for the head.
    pub fn record(&mut self) -> &mut Record {
        self.guard.record()
    }

    /// Polled by hyper: the next frame, the end, or an error event and the abort.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Polled {
        loop {
            if let Some(broken) = &mut self.broken {
                return broken.poll(cx);
            }
            if self.migration.as_ref().is_some_and(|migration| migration.is_pending()) {
                std::task::ready!(self.poll_migration(cx));
                continue;
            }
            if let Some(expiry) = self.reader.watch.expiry().filter(|_| !self.reader.has_ended()) {
                self.fail(&self.failure_of(expiry));
                continue;
            }
            match self.reader.poll_next(cx) {
                Poll::Ready(Next::Bytes(bytes, at)) => {
                    let Some(bytes) = self.fitted(bytes) else { continue };
                    return self.hand(bytes, at);
                }
                Poll::Ready(Next::End(end)) => match self.end(end) {
                    Some(failure) => self.fail(&failure),
                    None if self.broken.is_some() => {}
                    None => return Poll::Ready(None),
                },
                Poll::Pending => match self.poll_expiry(cx) {
                    Poll::Ready(expiry) => self.fail(&self.failure_of(expiry)),
                    Poll::Pending => return Poll::Pending,
                },
            }
        }
    }

    fn poll_expiry(&mut self, cx: &Context<'_>) -> Poll<Expiry> {
        if self.reader.watch.take_flush_request() {
            self.flush(self.reader.looked_at());
        }
        self.reader.watch.poll_expiry(cx)
    }

    /// What of the engine's bytes goes to the client: all of them, but for a continued stream. `None` where nothing is left.
    fn fitted(&mut self, bytes: Bytes) -> Option<Bytes> {
        let Some(migration) = &mut self.migration else { return Some(bytes) };
        if !self.reader.is_between_events() {
            migration.give_up();
        }
        let fitted = migration.transcript.pass(bytes);
        migration.note_obstacle();
        (!fitted.is_empty()).then_some(fitted)
    }

    fn hand(&mut self, bytes: Bytes, now: Stamp) -> Polled {
        if !self.has_first_token {
            self.note_first_token();
        }
        let events = self.leg_events() / self.reader.timeline.choices();
        self.pick.assignment.progress(events, now);
        if self.reader.timeline.should_flush(now) {
            self.flush(now);
        }
        self.reader.timeline.pause(now);
        self.reader.watch.waits_for_client(now);
        self.bytes_out += bytes.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    /// Content events of the present replica.
    fn leg_events(&self) -> u64 {
        self.reader.timeline.content_events().saturating_sub(self.events_before)
    }

    fn flush(&mut self, now: Stamp) {
        let (series, pace) = (&self.series, &mut self.pace);
        self.reader.timeline.flush(now, |gaps| observe(series, pace, &gaps));
    }

    fn note_first_token(&mut self) {
        let Some(at) = self.reader.timeline.first_token() else { return };
        self.has_first_token = true;
        self.reader.watch.decodes(at);
        self.pick.first_token(at);
        self.guard.first_token(at);
        let record = self.guard.record();
        let Some(read) = record.at.read else { return };
        let first = FirstToken {
            route: Arc::clone(&record.route),
            model: Arc::clone(&record.model),
            tenant: Arc::clone(&record.tenant),
            class: record.class,
            operation: record.dialect.operation(),
            served: Served::clone(&self.pick.replica.served()),
            ttft: at.since(read),
            predicted: self.pick.decision.predicted_ttft,
            is_cold: self.pick.decision.is_cold,
            conversation: record.conversation,
        };
        self.guard.observer().first_token(&first);
    }

    /// The failure of a stream that ended early.
    fn end(&mut self, end: StreamEnd) -> Option<Failure> {
        let replica = self.pick.replica.name();
        let failure = match end {
            StreamEnd::Complete => {
                self.complete();
                return None;
            }
            // What the engine blames on the request says nothing about the replica. It is relayed as it is; half an answer before
            // it must not look complete.
            StreamEnd::Failed(error) if error.is_of_request() => {
                self.is_settled = true;
                self.guard.settle(Outcome::ClientError, Some("engine_rejected"));
                if self.has_first_token {
                    self.broken = Some(Box::new(AbortingBody::new(Bytes::new())));
                }
                return None;
            }
            // Any other error before content is the engine's whole answer: relayed as it is, but no success.
            StreamEnd::Failed(_) if !self.has_first_token => {
                self.is_settled = true;
                self.guard.settle(Outcome::Failed, Some("replica_error"));
                let (now, why) = (self.guard.clock().now(), ReplicaFailure::ErrorEvent { replica });
                self.pick.failed(&why, now);
                return None;
            }
            StreamEnd::Failed(error) if error.kind != EngineErrorKind::Other => {
                let is_orderly = error.kind == EngineErrorKind::ShuttingDown;
                ReplicaFailure::EngineDown { replica, is_orderly }
            }
            StreamEnd::Failed(_) => ReplicaFailure::ErrorEvent { replica },
            StreamEnd::Unfinished | StreamEnd::Truncated => ReplicaFailure::Truncated { replica },
        };
        Some(Failure::Replica(failure))
    }

    fn complete(&mut self) {
        let now = self.guard.clock().now();
        self.is_settled = true;
        self.guard.settle(Outcome::Ok, None);
        if self.is_cut {
            return;
        }
        self.pick.answered(!self.has_first_token, now);
        let facts = &self.reader.scanner.state().answer;
        let began = match self.leg_began {
            // Its prompt is not the request's: it says nothing of the size and the cached part of that.
            Some(began) => Some(began),
            None => {
                self.pick.learn(facts.tokens);
                self.reader.timeline.first_token()
            }
        };
        if let Some(began) = began {
            let output = facts.tokens.output;
            self.pick.assignment.served(began, now, output, self.leg_events());
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
            self.pins.remember(&record.tenant, id, &self.pick.replica.identity.url);
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

    /// The stream broke: goes on elsewhere where that is possible, else ends the answer with an error event.
    fn fail(&mut self, failure: &Failure) {
        if self.reader.is_whole() {
            // Nothing follows a stream's own end, and a body that is left open behind it is nobody's failure.
            return self.reader.conclude(Bytes::new());
        }
        if self.migration.is_some() && self.has_first_token && migration::is_curable(failure) {
            if self.reader.has_told_finish() {
                // The answer is whole: nobody needs to be asked for its terminator.
                self.blame(failure);
                self.is_cut = true;
                return self.reader.conclude(Bytes::from_static(DONE));
            }
            match self.migration.as_mut().map(|migration| migration.begin(failure, &self.pick)) {
                Some(Ok(())) => return self.leave(failure),
                Some(Err(reason)) => self.guard.record().migration_refused = Some(reason),
                None => {}
            }
        }
        self.break_off(failure);
    }

    /// Gives the broken replica up, while another one is looked for.
    fn leave(&mut self, failure: &Failure) {
        self.blame(failure);
        self.note_broken(failure);
        let facts = &self.reader.scanner.state().answer;
        let (id, model) = (facts.id.clone(), facts.model.clone());
        let record = self.guard.record();
        if record.migrations == 0 {
            (record.response_id, record.response_model) = (id, model);
        }
        self.reader.watch.close();
        // What the client does not have yet is generated again.
        drop(self.reader.close());
    }

    /// The attempt that was answered has failed after all.
    fn note_broken(&mut self, failure: &Failure) {
        let now = self.guard.clock().now();
        if let Some(attempt) = self.guard.record().attempts.last_mut() {
            attempt.error = Some(failure.code());
            attempt.end = now;
        }
    }

    fn poll_migration(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(migration) = &mut self.migration else { return Poll::Ready(()) };
        let (Succession { attempts, next }, broken_by) = std::task::ready!(migration.poll(cx));
        self.guard.record().attempts.extend(attempts);
        match next {
            Ok(Some(next)) => self.continue_with(*next),
            Ok(None) => self.end_at_limit(),
            Err(none) => {
                self.guard.record().migration_refused = Some(none.reason);
                // It is charged already.
                self.is_settled = true;
                let failure = none.failure.unwrap_or(broken_by);
                self.guard.settle(Outcome::of(&failure), Some(failure.code()));
                self.break_off(&failure);
            }
        }
        Poll::Ready(())
    }

    fn continue_with(&mut self, next: NextLeg) {
        let NextLeg { mut reader, pick, by, successor } = next;
        let first = reader.timeline.first_token();
        let mut timeline = std::mem::take(&mut self.reader.timeline);
        self.events_before = timeline.content_events();
        timeline.join(&reader.timeline);
        reader.timeline = timeline;
        (self.reader, self.pick) = (reader, pick);
        if let Some(migration) = &mut self.migration {
            migration.resume(by, successor);
        }
        let at = first.unwrap_or_else(|| self.guard.clock().now());
        self.reader.watch.decodes(at);
        self.pick.first_token(at);
        self.leg_began = Some(at);
        let record = self.guard.record();
        record.migrations += 1;
        let key = StreamKey::new(&record.route, &record.model, record.class, &self.pick.replica.served());
        self.series = self.guard.observer().stream_series(&key);
        self.guard.observer().metrics().families.requests.migrations.inc();
    }

    /// Only the finish of the answer was lost.
    fn end_at_limit(&mut self) {
        let dialect = self.guard.record().dialect;
        let last = self.migration.as_ref().map(|migration| migration.transcript.end_at_limit(dialect));
        self.is_cut = true;
        self.reader.conclude(last.unwrap_or_default());
    }

    /// Ends the answer with an error event and charges the failure.
    fn break_off(&mut self, failure: &Failure) {
        self.charge(failure);
        let dialect = self.guard.record().dialect;
        let left = self.reader.close();
        let left = self.fitted(left).unwrap_or_default();
        self.bytes_out += left.len() as u64;
        let error = DialectError::new(failure, dialect.error_shape());
        let event = error_event::event(dialect, &error, &self.reader.event_context());
        self.broken = Some(Box::new(AbortingBody::new([left, event].concat().into())));
    }

    fn charge(&mut self, failure: &Failure) {
        if std::mem::replace(&mut self.is_settled, true) {
            return;
        }
        let is_client = failure.timer() == Some(Timer::ClientStall);
        self.guard
            .settle(if is_client { Outcome::Canceled } else { Outcome::of(failure) }, Some(failure.code()));
        self.blame(failure);
    }

    /// Counts the failure against the replica, if it is to blame.
    fn blame(&self, failure: &Failure) {
        let now = self.guard.clock().now();
        match failure {
            Failure::Replica(why) => self.pick.failed(why, now),
            Failure::Timeout { timer: Timer::InterToken, .. } => self.pick.silent(now),
            _ => {}
        }
    }
}

impl Drop for StreamBody {
    fn drop(&mut self) {
        self.reader.watch.close();
        // A client that was cut from outside never polled again: its failure is not charged yet. One that left while a replica was
        // looked for was not.
        let is_pending = self.migration.as_ref().is_some_and(|migration| migration.is_pending());
        let expiry = self.reader.watch.expiry().filter(|_| !is_pending);
        let is_stalled = expiry == Some(Expiry::Deadline(Timer::ClientStall));
        if self.reader.is_whole() && self.reader.is_taken() && !is_stalled {
            // Clients leave at the stream's own end, before that of its body.
            if !self.is_settled {
                self.complete();
            }
        } else if let Some(expiry) = expiry {
            let failure = self.failure_of(expiry);
            self.charge(&failure);
        }
        let now = self.guard.clock().now();
        let (series, pace) = (&self.series, &mut self.pace);
        let mut tokens = self.reader.scanner.state().answer.tokens;
        if let Some(migration) = &self.migration {
            tokens = migration.transcript.whole(tokens);
        }
        let output = tokens.output.map(|n| n.0);
        self.reader.timeline.finish(now, output, |gaps| observe(series, pace, &gaps));
        let timeline = &self.reader.timeline;
        let record = self.guard.record();
        record.bytes_out += self.bytes_out;
        record.at.last_token = timeline.last_token();
        record.content_events = timeline.content_events();
        (record.longest_gap, record.longest_gap_at) = timeline.longest_gap();
        record.relay_blocked = timeline.blocked();
        record.itl_missed = self.pace.as_ref().and_then(|pace| pace.missed());
        let first =
            (record.migrations > 0).then(|| (record.response_id.take(), record.response_model.take()));
        record_facts(record, &self.reader.scanner.state().answer);
        record.tokens = tokens;
        if self.is_cut && record.finish_reasons.is_empty() {
            record.finish_reasons.push("length".into());
        }
        if let Some((id, model)) = first {
            (record.response_id, record.response_model) = (id, model);
        }
    }
}

fn observe(series: &StreamSeries, pace: &mut Option<Box<ItlSlo>>, gaps: &Gaps<'_>) {
    series.gaps(gaps);
    if let Some(pace) = pace {
        pace.take(gaps);
    }
}

const DONE: &[u8] = b"data: [DONE]\n\n";

/// Copies the facts of an answer into the record.
pub fn record_facts(record: &mut Record, facts: &AnswerFacts) {
    record.tokens = facts.tokens;
    record.engine = facts.engine;
    record.response_id.clone_from(&facts.id);
    record.response_model.clone_from(&facts.model);
    record.finish_reasons.clone_from(&facts.finish_reasons);
}
