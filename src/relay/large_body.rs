//! A unary answer too large to be held: relayed as it comes, and aborted if it breaks off.
//!
//! hyper drops a body as soon as it has as many bytes as `content-length` says, without asking for the end: so the answer
//! is complete with its last byte.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::StatusCode;
use hyper::body::Frame;

use super::aborting::{Aborted, AbortingBody, Polled};
use super::answer_ends::AnswerEnds;
use super::error_event::{self, EventContext};
use super::pins::{ResponsePins, StoredAnswer};
use super::sse::Scanner;
use super::stream_state::StreamEnd;
use super::verdict;
use super::watch::{Expiry, StreamWatch};
use crate::error::{Failure, ReplicaFailure, Timer};
use crate::fleet::pick::Pick;
use crate::observe::record_guard::RecordGuard;
use crate::record::Outcome;
use crate::request::dialect::Dialect;
use crate::upstream::answer_body::AnswerBody;

/// The body of a large unary answer.
#[derive(Debug)]
pub struct LargeBody {
    first: Option<Bytes>,
    rest: AnswerBody,
    guard: RecordGuard,
    watch: Arc<StreamWatch>,
    pick: Box<Pick>,
    status: StatusCode,
    about: About,
    /// The end of a stream that broke.
    last: Option<AbortingBody>,
    is_ended: bool,
}

/// What is known of a large answer from its request and its head.
#[derive(Debug)]
pub struct About {
    /// The state of a stream by its events, where they are understood.
    pub events: Option<Box<Scanner>>,
    /// Where its token counts are, if it may have any of its own.
    pub ends: Option<Box<AnswerEnds>>,
    /// Where it is to be found again, if it is a new response, which its engine may keep, and nothing of it was handed on yet.
    pub makes: Option<Arc<ResponsePins>>,
    /// The response that it is, if that was made before.
    pub stored: Option<StoredAnswer>,
}

impl LargeBody {
    /// What was read already, the rest, and what lives as long as the answer, whose head is sent.
    pub fn new(
        first: Bytes,
        rest: AnswerBody,
        mut guard: RecordGuard,
        watch: Arc<StreamWatch>,
        pick: Box<Pick>,
        about: About,
    ) -> Self {
        let status = StatusCode::from_u16(guard.record().status).unwrap_or_default();
        let first = Some(first).filter(|bytes| !bytes.is_empty());
        Self { first, rest, guard, watch, pick, status, about, last: None, is_ended: false }
    }

    /// Polled by hyper: the next frame, the end, or the abort.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Polled {
        if let Some(last) = &mut self.last {
            return last.poll(cx);
        }
        self.watch.waits_for_replica();
        if let Some(first) = self.first.take() {
            return self.hand(first);
        }
        if self.is_ended {
            return Poll::Ready(None);
        }
        if let Poll::Ready(expiry) = self.watch.poll_expiry(cx) {
            return match self.watch.failure(expiry, self.pick.replica.name()) {
                Failure::Replica(why) => self.replica_failed(cx, why),
                failure => {
                    self.give_up(&failure);
                    Poll::Ready(Some(Err(Aborted)))
                }
            };
        }
        match ready!(self.rest.poll(cx)) {
            Some(Ok(data)) => self.hand(data),
            Some(Err(_)) => {
                let replica = self.pick.replica.name();
                self.replica_failed(cx, ReplicaFailure::Truncated { replica })
            }
            None => {
                self.complete();
                Poll::Ready(None)
            }
        }
    }

    fn hand(&mut self, data: Bytes) -> Polled {
        self.guard.record().bytes_out += data.len() as u64;
        self.guard.captures(|capture| capture.bytes(&data));
        if let Some(events) = &mut self.about.events {
            events.feed(&data, |_, _| {});
        }
        if let Some(ends) = &mut self.about.ends {
            ends.take(&data);
        }
        self.remember();
        let now = self.guard.clock().now();
        self.watch.restart_silence(now);
        self.watch.waits_for_client(now);
        if self.rest.is_end() {
            self.complete();
            self.guard.is_answered();
        }
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    /// Pins a new response, whose id stands at its beginning: what comes first is more than that.
    fn remember(&mut self) {
        let Some(pins) = self.about.makes.take() else { return };
        if let Some(id) = self.about.ends.as_ref().and_then(|ends| ends.id()) {
            pins.remember(&self.guard.record().tenant, &id, &self.pick.replica.identity.url);
        }
    }

    fn complete(&mut self) {
        self.is_ended = true;
        self.settle();
        self.count();
    }

    /// All of it came. A stream may end with an error of long ago, which is no evidence against its replica now.
    fn settle(&mut self) {
        let end = self.about.events.as_ref().map(|events| events.finish(true));
        let (outcome, code) = match end {
            Some(StreamEnd::Failed(error)) => verdict::of_error(error),
            Some(StreamEnd::Truncated) if self.has_begun() => (Outcome::Failed, Some("replica_failed")),
            _ => verdict::of_answer(self.guard.record(), self.status, false, None),
        };
        self.guard.settle(outcome, code);
        if outcome == Outcome::Ok {
            self.pick.answered(false, self.guard.clock().now());
        }
    }

    /// Counts the tokens of its request, or of the one that made it if it was not charged.
    fn count(&mut self) {
        let ends = self.about.ends.take().map(|ends| ends.tokens());
        let Some(mut tokens) = ends.or_else(|| Some(self.about.events.as_ref()?.state().answer.tokens))
        else {
            return;
        };
        let record = self.guard.record();
        if let Some(stored) = &self.about.stored {
            tokens = stored.take_owed(&record.tenant, tokens);
        }
        record.tokens = tokens;
        self.pick.used(tokens);
    }

    /// Whether any event came: of a response whose last event its client has, none does.
    fn has_begun(&self) -> bool {
        self.about.events.as_ref().is_some_and(|events| events.state().next_sequence > 0)
    }

    /// Whether the stream's own end went to its client, who takes what comes: a body that is left open behind it changes nothing.
    fn has_its_end(&self) -> bool {
        let is_stalled = self.watch.expiry() == Some(Expiry::Deadline(Timer::ClientStall));
        let state = self.about.events.as_ref().map(|events| events.state());
        !is_stalled && state.is_some_and(|state| state.is_done() || state.answer.error.is_some())
    }

    fn replica_failed(&mut self, cx: &mut Context<'_>, why: ReplicaFailure) -> Polled {
        self.pick.failed(&why, self.guard.clock().now());
        let failure = Failure::Replica(why);
        let event = self.failure_event(&failure).unwrap_or_default();
        self.give_up(&failure);
        self.guard.record().bytes_out += event.len() as u64;
        self.last.insert(AbortingBody::new(event)).poll(cx)
    }

    /// The event by which the client of a stream that is understood learns that it broke; `None` where its own end has come.
    fn failure_event(&self, failure: &Failure) -> Option<Bytes> {
        let events = self.about.events.as_ref().filter(|_| !self.has_its_end())?;
        let known = EventContext::behind(events);
        let id = self.about.stored.as_ref().map(|stored| &*stored.id);
        let context = EventContext { response_id: known.response_id.or(id), ..known };
        Some(error_event::event(Dialect::Responses, &self.guard.shown(failure), &context))
    }

    fn give_up(&mut self, failure: &Failure) {
        self.is_ended = true;
        if self.has_its_end() {
            self.settle();
        }
        self.guard.fail(failure);
        self.rest.close();
    }
}

impl Drop for LargeBody {
    fn drop(&mut self) {
        self.watch.close();
        // A client that was cut from outside never polled again.
        if !self.is_ended && self.has_its_end() {
            // Clients leave at the stream's own end, before that of its body.
            self.settle();
            self.count();
        } else if let Some(expiry) = self.watch.expiry() {
            self.guard.fail(&self.watch.failure(expiry, self.pick.replica.name()));
        }
    }
}
