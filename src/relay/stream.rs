//! The body of a streamed answer.
//!
//! One poll: note that hyper asks again (a pause was the client's), take the watchdog's expiry if there is one,
//! pass on the reader's next bytes. Nothing is allocated per event. A stream that breaks is continued elsewhere where it has a
//! [`Migration`], else it ends with an error event. Its drop completes the record, whatever the end was.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Frame;

use super::aborting::{AbortingBody, Polled};
use super::error_event;
use super::frame::LineState;
use super::heartbeat::{Pulse, comment};
use super::itl_slo::ItlSlo;
use super::migration::{self, Migration, NextLeg, Succession};
use super::pins::ResponsePins;
use super::pump::{Pumped, StreamPump, StreamSink, note_first_token};
use super::reader::StreamReader;
use super::stream_state::StreamEnd;
use super::transcript::Transcript;
use super::usage::EngineError;
use super::verdict;
use super::watch::Expiry;
use crate::clock::Stamp;
use crate::error::{Failure, ReplicaFailure, Timer};
use crate::fleet::pick::Pick;
use crate::observe::StreamSeries;
use crate::observe::metrics::StreamKey;
use crate::observe::record_guard::RecordGuard;
use crate::record::{Gaps, Outcome, Record, TokenCounts};
use crate::request::dialect::Dialect;

/// The body of a streamed answer.
#[derive(Debug)]
#[repr(C)]
pub struct StreamBody {
    pump: StreamPump,
    bytes_out: u64,
    /// The outcome is recorded and charged to the replica, if it is to blame.
    is_settled: bool,
    broken: Option<Box<AbortingBody>>,
    migration: Option<Box<Migration>>,
    pulse: Option<Box<Pulse>>,
    /// It was cut behind its finish reason, and ends in order all the same.
    is_cut: bool,
    client: ClientSink,
    pins: Arc<ResponsePins>,
}

/// What is observed of a client's stream.
#[derive(Debug)]
struct ClientSink {
    guard: RecordGuard,
    series: StreamSeries,
    pace: Option<Box<ItlSlo>>,
}

impl StreamSink for ClientSink {
    fn record(&mut self) -> &mut Record {
        self.guard.record()
    }

    fn first_token(&mut self, at: Stamp, pick: &Pick) {
        self.guard.first_token(at);
        let observer = Arc::clone(self.guard.observer());
        if let Some(first) = note_first_token(self.guard.record(), pick, at) {
            observer.first_token(&first);
        }
    }

    #[inline]
    fn gaps(&mut self, gaps: &Gaps<'_>, pick: &Pick, bytes_per_event: f64) {
        self.series.gaps(gaps);
        self.guard.gaps(gaps, || {
            let usual = pick.pool.dispatcher.model.tokens_per_event()?;
            // Answers differ, by what a draft model foresees: none is slow whose text is as long as it should be by now.
            Some(usual.max(bytes_per_event / pick.pool.ratio.bytes_per_token()))
        });
        if let Some(pace) = &mut self.pace {
            pace.take(gaps);
        }
    }
}

impl StreamBody {
    /// To be made when the response head goes out. With a migration it goes on elsewhere when it breaks; with a heartbeat a comment
    /// is sent after each silence of this length.
    pub fn new(
        reader: Box<StreamReader>,
        mut guard: RecordGuard,
        pick: Box<Pick>,
        pins: Arc<ResponsePins>,
        migration: Option<Box<Migration>>,
        heartbeat: Option<Duration>,
    ) -> Self {
        let pulse = heartbeat.map(|every| Box::new(Pulse::new(every, guard.clock())));
        let record = guard.record();
        let key = StreamKey::new(record, &pick.replica.served());
        let pace = ItlSlo::new(record.slo.itl);
        let series = guard.observer().stream_series(&key);
        let mut this = Self {
            pump: StreamPump::new(reader, pick),
            bytes_out: 0,
            is_settled: false,
            broken: None,
            migration,
            pulse,
            is_cut: false,
            client: ClientSink { guard, series, pace },
            pins,
        };
        this.pump.note_first_token(&mut this.client);
        this.remember_response();
        this
    }

    /// Its record, for the head.
    pub fn record(&mut self) -> &mut Record {
        self.client.guard.record()
    }

    /// Polled by hyper: the next frame, the end, or an error event and the abort.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Polled {
        match self.poll_answer(cx) {
            Poll::Pending => self.poll_pulse(cx),
            ready => ready,
        }
    }

    /// A comment in a pause of the answer, between its events.
    fn poll_pulse(&mut self, cx: &mut Context<'_>) -> Polled {
        let Some(pulse) = &mut self.pulse else { return Poll::Pending };
        loop {
            let now = std::task::ready!(pulse.poll(cx));
            // A replica that was left has left nothing half sent.
            if self.migration.as_ref().is_none_or(|migration| !migration.is_pending()) {
                if self.pump.reader.event_context().tail != LineState::Boundary {
                    continue;
                }
                self.pump.reader.timeline.pause(now);
                self.pump.reader.watch.waits_for_client(now);
            }
            pulse.sent(now);
            return comment();
        }
    }

    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Polled {
        loop {
            if let Some(broken) = &mut self.broken {
                return broken.poll(cx);
            }
            if self.migration.as_ref().is_some_and(|migration| migration.is_pending()) {
                std::task::ready!(self.poll_migration(cx));
                continue;
            }
            match std::task::ready!(self.pump.poll(cx, &mut self.client)) {
                Pumped::Bytes(bytes, at) => {
                    let Some(bytes) = self.fitted(bytes) else { continue };
                    return self.hand(bytes, at);
                }
                Pumped::End(end) => match self.end(end) {
                    Some(failure) => self.fail(&failure),
                    None if self.broken.is_some() => {}
                    None => return Poll::Ready(None),
                },
                Pumped::Expired(expiry) => self.fail(&self.pump.failure_of_expiry(expiry)),
            }
        }
    }

    /// What of the engine's bytes goes to the client: all of them, but for a continued stream. `None` where nothing is left.
    fn fitted(&mut self, bytes: Bytes) -> Option<Bytes> {
        let Some(migration) = &mut self.migration else { return Some(bytes) };
        if !self.pump.reader.is_between_events() {
            migration.give_up();
        }
        let fitted = migration.transcript.pass(bytes);
        migration.note_obstacle(&self.pump.pick);
        (!fitted.is_empty()).then_some(fitted)
    }

    fn hand(&mut self, bytes: Bytes, now: Stamp) -> Polled {
        self.pump.reader.timeline.pause(now);
        self.pump.reader.watch.waits_for_client(now);
        self.bytes_out += bytes.len() as u64;
        self.client.guard.captures(|capture| capture.events(&bytes));
        if self.pump.reader.is_whole() && self.pump.reader.is_taken() {
            self.client.guard.is_answered();
        }
        if let Some(pulse) = &mut self.pulse {
            pulse.sent(now);
        }
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }

    /// The failure of a stream that ended early.
    fn end(&mut self, end: StreamEnd) -> Option<Failure> {
        match end {
            StreamEnd::Complete => {
                self.complete();
                None
            }
            // What the engine blames on the request says nothing about the replica. It is relayed as it is; half an answer before
            // it must not look complete.
            StreamEnd::Failed(error) if error.is_of_request() => {
                self.settle(error);
                if self.pump.has_first_token() {
                    self.broken = Some(Box::new(AbortingBody::new(Bytes::new())));
                }
                None
            }
            // Any other error before content is the engine's whole answer: relayed as it is, but no success.
            StreamEnd::Failed(error) if !self.pump.has_first_token() => {
                self.settle(error);
                let (now, replica) = (self.client.guard.clock().now(), self.pump.pick.replica.name());
                let why = ReplicaFailure::ErrorEvent { replica };
                self.pump.pick.failed(&why, now);
                None
            }
            _ => Some(Failure::Replica(self.pump.failure_of_end(end))),
        }
    }

    /// An error of the engine is the end.
    fn settle(&mut self, error: EngineError) {
        self.is_settled = true;
        let (outcome, code) = verdict::of_error(error);
        self.client.guard.settle(outcome, code);
    }

    fn complete(&mut self) {
        let now = self.client.guard.clock().now();
        self.is_settled = true;
        self.client.guard.settle(Outcome::Ok, None);
        if self.pump.reader.is_carried {
            self.pump.pick.carried_to_end(false, now);
        }
        if self.is_cut {
            return;
        }
        if self.client.guard.record().empty.is_some() && !self.pump.has_first_token() {
            self.pump.pick.shows_life(now);
        } else {
            self.pump.pick.answered(!self.pump.has_first_token(), now);
        }
        self.pump.learn();
        self.remember_response();
    }

    /// Pins a stored response: from its first event on, for a client that leaves and asks for it later.
    fn remember_response(&mut self) {
        let record = self.client.guard.record();
        if !record.dialect.is_stateful() {
            return;
        }
        if let Some(id) = self.pump.facts().id.as_deref() {
            self.pins.remember(&record.tenant, id, &self.pump.pick.replica.identity.url);
        }
    }

    /// The stream broke: goes on elsewhere where that is possible, else ends the answer with an error event.
    fn fail(&mut self, failure: &Failure) {
        if self.pump.reader.is_whole() {
            // Nothing follows a stream's own end, and a body that is left open behind it is nobody's failure.
            return self.pump.reader.conclude(Bytes::new());
        }
        if self.migration.is_some() && self.pump.has_first_token() && migration::is_curable(failure) {
            if self.pump.reader.has_told_finish() {
                // The answer is whole: nobody needs to be asked for its terminator.
                self.blame(failure);
                return self.conclude(Transcript::end);
            }
            match self.migration.as_mut().map(|migration| migration.begin(failure, &self.pump.pick)) {
                Some(Ok(())) => return self.leave(failure),
                Some(Err(reason)) => self.client.guard.record().migration_refused = Some(reason),
                None => {}
            }
        }
        self.break_off(failure);
    }

    /// Gives the broken replica up, while another one is looked for.
    fn leave(&mut self, failure: &Failure) {
        self.blame(failure);
        self.note_broken(failure);
        let facts = self.pump.facts();
        let (id, model) = (facts.id.clone(), facts.model.clone());
        let record = self.client.guard.record();
        if record.migrations == 0 {
            (record.response_id, record.response_model) = (id, model);
        }
        self.pump.reader.watch.close();
        // What the client does not have yet is generated again.
        drop(self.pump.reader.close());
    }

    /// The attempt that was answered has failed after all.
    fn note_broken(&mut self, failure: &Failure) {
        let now = self.client.guard.clock().now();
        if let Some(attempt) = self.client.guard.record().attempts.last_mut() {
            attempt.error = Some(failure.code());
            attempt.end = now;
        }
    }

    fn poll_migration(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(migration) = &mut self.migration else { return Poll::Ready(()) };
        let (Succession { attempts, next }, broken_by) = std::task::ready!(migration.poll(cx));
        self.client.guard.record().attempts.extend(attempts);
        match next {
            Ok(Some(next)) => self.continue_with(*next),
            Ok(None) => self.conclude(Transcript::end_at_limit),
            Err(none) => {
                self.client.guard.record().migration_refused = Some(none.reason);
                // It is charged already.
                self.is_settled = true;
                let failure = none.failure.unwrap_or(broken_by);
                self.client.guard.settle(Outcome::of(&failure), Some(failure.code()));
                self.break_off(&failure);
            }
        }
        Poll::Ready(())
    }

    fn continue_with(&mut self, next: NextLeg) {
        let NextLeg { reader, pick, by, successor } = next;
        let now = self.client.guard.clock().now();
        self.pump.continue_with(reader, pick, now, &mut self.client);
        if let Some(migration) = &mut self.migration {
            migration.resume(by, successor);
        }
        let record = self.client.guard.record();
        record.migrations += 1;
        let key = StreamKey::new(record, &self.pump.pick.replica.served());
        self.client.series = self.client.guard.observer().stream_series(&key);
        self.client.guard.observer().metrics.families.requests.migrations.inc();
    }

    /// Only the end of the answer was lost, which the transcript can write.
    fn conclude(&mut self, end: fn(&Transcript, Dialect, TokenCounts) -> Bytes) {
        let (dialect, tokens) = (self.client.guard.record().dialect, self.pump.facts().tokens);
        let transcript = self.migration.as_ref().map(|migration| &migration.transcript);
        // Of a continued stream it passes the transcript, which adds what came before.
        let last = transcript.map(|transcript| end(transcript, dialect, tokens));
        self.is_cut = true;
        self.pump.reader.conclude(last.unwrap_or_default());
    }

    /// Ends the answer with an error event and charges the failure.
    fn break_off(&mut self, failure: &Failure) {
        self.charge(failure);
        let dialect = self.client.guard.record().dialect;
        let left = self.pump.reader.close();
        let left = self.fitted(left).unwrap_or_default();
        let shown = self.client.guard.shown(failure);
        let event = error_event::event(dialect, &shown, &self.pump.reader.event_context());
        let last: Bytes = [left, event].concat().into();
        self.bytes_out += last.len() as u64;
        self.broken = Some(Box::new(AbortingBody::new(last)));
    }

    fn charge(&mut self, failure: &Failure) {
        if std::mem::replace(&mut self.is_settled, true) {
            return;
        }
        // Until now: what follows, until the body is dropped, is ours.
        self.pump.reader.timeline.left_waiting(self.client.guard.clock().now());
        self.client.guard.fail(failure);
        self.blame(failure);
    }

    /// Counts the failure against the replica, if it is to blame.
    fn blame(&self, failure: &Failure) {
        let now = self.client.guard.clock().now();
        match failure {
            Failure::Replica(why) => self.pump.pick.failed(why, now),
            Failure::Timeout { timer: Timer::InterToken, .. } => self.pump.pick.silent(now),
            _ if !self.pump.has_first_token() => self.pump.pick.overdue(failure, now),
            _ => {}
        }
    }
}

impl Drop for StreamBody {
    fn drop(&mut self) {
        self.pump.reader.watch.close();
        // A client that was cut from outside never polled again: its failure is not charged yet. One that left while a replica was
        // looked for was not.
        let is_pending = self.migration.as_ref().is_some_and(|migration| migration.is_pending());
        let expiry = self.pump.reader.watch.expiry().filter(|_| !is_pending);
        let is_stalled = expiry == Some(Expiry::Deadline(Timer::ClientStall));
        let now = self.client.guard.clock().now();
        if self.pump.reader.is_whole() && self.pump.reader.is_taken() && !is_stalled {
            // Clients leave at the stream's own end, before that of its body.
            if !self.is_settled {
                self.complete();
            }
        } else if let Some(expiry) = expiry {
            self.charge(&self.pump.failure_of_expiry(expiry));
        } else if !self.is_settled && self.pump.reader.is_carried && self.pump.has_first_token() {
            self.pump.pick.carried_to_end(true, now);
        } else if !self.is_settled && !is_pending && !self.pump.has_first_token() {
            // Its head was passed on, and its client left before any content.
            if let Some(sent) = self.client.guard.record().attempts.last().and_then(|made| made.connected) {
                self.pump.pick.given_up(sent, false, now);
            }
        }
        if !self.pump.reader.is_whole() && !self.is_settled {
            self.pump.reader.timeline.left_waiting(now);
        }
        let mut tokens = self.pump.facts().tokens;
        if let Some(migration) = &self.migration {
            tokens = migration.transcript.whole(tokens);
        }
        let record = self.client.guard.record();
        let first =
            (record.migrations > 0).then(|| (record.response_id.take(), record.response_model.take()));
        self.pump.finish(now, tokens, &mut self.client);
        let record = self.client.guard.record();
        record.bytes_out += self.bytes_out;
        record.relay_blocked = self.pump.reader.timeline.blocked(now);
        record.itl_missed = self.client.pace.as_ref().and_then(|pace| pace.missed());
        if self.is_cut && record.finish_reasons.is_empty() {
            record.finish_reasons.push("length".into());
        }
        if let Some((id, model)) = first {
            (record.response_id, record.response_model) = (id, model);
        }
        self.pins.owe_usage_of(self.client.guard.record());
    }
}
