//! Reads one engine's stream to its end: polls the reader and its deadlines, and reports first token, progress and gaps.
//!
//! Two sinks stand on it: the body of a client's answer ([`super::stream`]) and the copy that a canary got of a request. A stream
//! that is continued elsewhere keeps its pump and changes its source.

use std::task::{Context, Poll};

use bytes::Bytes;

use super::reader::{Next, StreamReader};
use super::stream_state::StreamEnd;
use super::usage::AnswerFacts;
use super::watch::Expiry;
use crate::clock::Stamp;
use crate::error::{Failure, ReplicaFailure};
use crate::fleet::pick::Pick;
use crate::record::{FirstToken, Gaps, Record, TokenCounts};
use crate::units::Tokens;

/// Observes a stream.
pub trait StreamSink {
    /// The record of its request.
    fn record(&mut self) -> &mut Record;
    /// Called at the first content event.
    fn first_token(&mut self, at: Stamp, pick: &Pick);
    /// Called with gaps between content events of its replica, of which each had so many bytes of text on average.
    fn gaps(&mut self, gaps: &Gaps<'_>, pick: &Pick, bytes_per_event: f64);
}

/// A stream with the replica that sends it.
#[derive(Debug)]
#[repr(C)]
pub struct StreamPump {
    /// Reads what its replica sends.
    pub reader: Box<StreamReader>,
    /// The replica, with the load reserved on it.
    pub pick: Box<Pick>,
    has_first_token: bool,
    /// Content events of the replicas before the present one.
    events_before: u64,
    /// Bytes of their text.
    text_before: u64,
    /// The present replica is not the first one.
    is_continued: bool,
}

/// The result of a poll.
#[derive(Debug)]
pub enum Pumped {
    /// Bytes of the stream, and when they arrived.
    Bytes(Bytes, Stamp),
    /// The end of the stream.
    End(StreamEnd),
    /// A deadline passed.
    Expired(Expiry),
}

impl StreamPump {
    /// To be made when the head of the stream is passed on.
    pub fn new(reader: Box<StreamReader>, pick: Box<Pick>) -> Self {
        Self { reader, pick, has_first_token: false, events_before: 0, text_before: 0, is_continued: false }
    }

    /// The next bytes, the end, or an expiry. Nothing is lost where the poll is not repeated.
    #[inline]
    pub fn poll(&mut self, cx: &mut Context<'_>, sink: &mut impl StreamSink) -> Poll<Pumped> {
        if let Some(expiry) = self.reader.watch.expiry().filter(|_| !self.reader.has_ended()) {
            return Poll::Ready(Pumped::Expired(expiry));
        }
        match self.reader.poll_next(cx) {
            Poll::Ready(Next::Bytes(bytes, at)) => {
                self.progressed(at, sink);
                Poll::Ready(Pumped::Bytes(bytes, at))
            }
            Poll::Ready(Next::End(end)) => Poll::Ready(Pumped::End(end)),
            Poll::Pending => {
                if self.reader.watch.take_flush_request() {
                    self.flush(self.reader.looked_at(), sink);
                }
                self.reader.watch.poll_expiry(cx).map(Pumped::Expired)
            }
        }
    }

    fn progressed(&mut self, now: Stamp, sink: &mut impl StreamSink) {
        if !self.has_first_token {
            self.note_first_token(sink);
        }
        self.pick.progress(self.segment_events(), self.reader.timeline.choices(), now);
        if self.reader.timeline.should_flush(now) {
            self.flush(now, sink);
        }
    }

    /// Reports the first token, if it came before the head was passed on. To be called by an owner whose drop closes the watch: an
    /// observer may panic.
    pub fn note_first_token(&mut self, sink: &mut impl StreamSink) {
        let Some(at) = self.reader.timeline.first_token() else { return };
        self.has_first_token = true;
        self.reader.watch.decodes(at);
        self.pick.first_token(at);
        sink.first_token(at, &self.pick);
    }

    fn flush(&mut self, now: Stamp, sink: &mut impl StreamSink) {
        let bytes_per_event = self.bytes_per_event();
        let warmth = &self.pick.replica.health.warmth;
        self.reader.timeline.flush(now, |gaps| {
            let is_filling = warmth.has_filled_since(now.before(gaps.span()));
            sink.gaps(&Gaps { is_filling, ..gaps }, &self.pick, bytes_per_event);
        });
    }

    /// Whether content came.
    pub fn has_first_token(&self) -> bool {
        self.has_first_token
    }

    /// Facts of the present replica's part of the answer.
    pub fn facts(&self) -> &AnswerFacts {
        &self.reader.scanner.state().answer
    }

    /// Content events of the present replica.
    fn segment_events(&self) -> u64 {
        self.reader.timeline.content_events().saturating_sub(self.events_before)
    }

    /// Another replica continues the stream.
    pub fn continue_with(
        &mut self,
        mut reader: Box<StreamReader>,
        pick: Box<Pick>,
        now: Stamp,
        sink: &mut impl StreamSink,
    ) {
        let at = reader.timeline.first_token().unwrap_or(now);
        let bytes_per_event = self.bytes_per_event();
        let mut timeline = std::mem::take(&mut self.reader.timeline);
        self.events_before = timeline.content_events();
        timeline.join(&reader.timeline);
        // The break and the gaps before it are those of the replica that is left, which has not counted their tokens.
        let output = self.estimated_output(self.events_before);
        self.text_before = self.text_bytes();
        timeline.finish(now, Some(output.0), |gaps| sink.gaps(&gaps, &self.pick, bytes_per_event));
        reader.timeline = timeline;
        (self.reader, self.pick) = (reader, pick);
        self.reader.watch.decodes(at);
        self.pick.first_token(at);
        self.is_continued = true;
    }

    /// Learns from a stream that is complete.
    pub fn learn(&mut self) {
        let tokens = self.facts().tokens;
        // The prompt of a continuation is not the request's: it says nothing of the size and the cached part of that.
        if !self.is_continued {
            self.pick.learn(tokens);
        }
        let has_begun = self.is_continued || self.reader.timeline.first_token().is_some();
        let events = self.segment_events();
        match tokens.output {
            _ if !has_begun => {}
            Some(output) => self.pick.assignment.served(output, events),
            None => self.pick.assignment.served_uncounted(self.estimated_output(events)),
        }
    }

    /// Completes the record with what was observed; `tokens` are those of the whole answer.
    pub fn finish(&mut self, now: Stamp, tokens: TokenCounts, sink: &mut impl StreamSink) {
        let output = tokens.output.map(|n| n.0);
        let bytes_per_event = self.bytes_per_event();
        // When each of these gaps was is not kept.
        let begun = self.reader.timeline.first_token().unwrap_or(now);
        let is_filling = self.pick.replica.health.warmth.has_filled_since(begun);
        self.reader.timeline.finish(now, output, |gaps| {
            sink.gaps(&Gaps { is_filling, ..gaps }, &self.pick, bytes_per_event);
        });
        let is_alone = !self.is_continued && self.pick.assignment.is_alone();
        let (timeline, record) = (&self.reader.timeline, sink.record());
        if let Some(decision) = &mut record.decision {
            (decision.is_filling_beside, decision.is_alone) = (is_filling, is_alone);
        }
        record.text_bytes = self.text_bytes();
        record.at.last_token = timeline.last_token();
        record.side_by_side = timeline.side_by_side();
        record.content_events = timeline.content_events();
        (record.longest_gap, record.longest_gap_at) = timeline.longest_gap();
        record_facts(record, self.facts().clone());
        record.tokens = tokens;
        if self.is_continued {
            // Its times are those of the continuation, and the client's wait for the first token was another's.
            record.engine = None;
        }
        if tokens.output.is_none() {
            record.estimated_output = self.estimated_output(self.reader.timeline.content_events());
        }
        self.pick.used(self.facts().tokens);
    }

    /// Tokens in these events, which the engine did not count: as many to each as is usual in its pool, within what the text allows.
    /// What is usual depends on answers to others.
    fn estimated_output(&self, events: u64) -> Tokens {
        let usual = self.pick.pool.dispatcher.model.tokens_in(events).0 as f64;
        let by_text = self.text_bytes() as f64 / self.pick.pool.ratio.bytes_per_token();
        let plausible = usual.max(by_text / PLAUSIBLE).min(by_text * PLAUSIBLE);
        Tokens((plausible.round() as u64).max(events))
    }

    fn bytes_per_event(&self) -> f64 {
        self.text_bytes() as f64 / self.reader.timeline.content_events().max(1) as f64
    }

    fn text_bytes(&self) -> u64 {
        self.text_before + self.reader.scanner.state().text_bytes
    }

    /// The failure of a stream that did not end complete.
    pub fn failure_of_end(&self, end: StreamEnd) -> ReplicaFailure {
        let replica = self.pick.replica.name();
        match end {
            StreamEnd::Failed(error) => {
                error.of_engine(&replica).unwrap_or(ReplicaFailure::ErrorEvent { replica })
            }
            _ => ReplicaFailure::Truncated { replica },
        }
    }

    /// The failure of a stream that has to end.
    pub fn failure_of_expiry(&self, expiry: Expiry) -> Failure {
        self.reader.watch.failure(expiry, self.pick.replica.name())
    }
}

/// Notes a first token in the record; as the observers get it, `None` of a request that was not read.
pub fn note_first_token<'a>(record: &'a mut Record, pick: &Pick, at: Stamp) -> Option<FirstToken<'a>> {
    if let Some(made) = record.attempts.last_mut() {
        made.seen = pick.replica.engine.seen(made.start, at);
        if let Some(decision) = &mut record.decision {
            decision.is_filling |= pick.replica.health.warmth.has_filled_since(made.start);
        }
    }
    Some(FirstToken {
        record,
        served: record.served()?,
        ttft: at.since(record.at.read?),
        predicted: pick.decision.predicted_ttft,
        is_cold: pick.decision.is_cold,
    })
}

/// Moves the facts of an answer into the record.
pub fn record_facts(record: &mut Record, facts: AnswerFacts) {
    record.tokens = facts.tokens;
    record.engine = facts.engine;
    record.response_id = facts.id;
    record.response_model = facts.model;
    record.finish_reasons = facts.finish_reasons;
}

/// Texts differ in their bytes for a token: words of prose from code, words from signs. Half or twice the mean are not rare.
const PLAUSIBLE: f64 = 2.0;
