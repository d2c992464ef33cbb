//! Reads an engine's stream: relays its bytes unchanged, scans and times them.
//!
//! The same reader serves before the head goes out (it holds back until the first content event) and after. It
//! owns the upstream half: dropping it closes the connection, which cancels the engine's work.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use smallvec::SmallVec;

use super::error_event::EventContext;
use super::frame::LineState;
use super::sse::Scanner;
use super::stream_state::{Echo, Event, StreamEnd};
use super::timeline::Timeline;
use super::usage_filter::{AskedUsage, UsageFilter};
use super::watch::StreamWatch;
use super::whole_events::WholeEvents;
use crate::clock::{Clock, Stamp};
use crate::request::dialect::Dialect;
use crate::upstream::answer_body::AnswerBody;

/// What the reader must know of a stream.
#[derive(Clone, Debug)]
pub struct StreamShape {
    /// Dialect of the request.
    pub dialect: Dialect,
    /// Whether the prompt comes back in it.
    pub echo: Echo,
    /// `n`, of each prompt.
    pub choices: u32,
    /// The usage-only chunk is ours and does not go to the client.
    pub asked_usage: Option<AskedUsage>,
    /// No other replica may be asked, so that there is nothing to hold it back for: its first event has the id by which its client finds
    /// what the engine keeps.
    pub passes_at_once: bool,
}

/// The reader of one stream. What an ordinary event touches comes first (see [`Timeline`]).
#[derive(Debug)]
#[repr(C, align(64))]
pub struct StreamReader {
    /// State shared with the watchdog.
    pub watch: Arc<StreamWatch>,
    body: AnswerBody,
    /// A proxy has the answer, and shows it.
    pub(super) is_carried: bool,
    clock: Clock,
    looked_at: Stamp,
    /// For the client: nearly always all there is.
    next: Option<Bytes>,
    has_more: bool,
    passes_at_once: bool,
    ending: Option<StreamEnd>,
    filter: Option<Box<UsageFilter>>,
    /// Facts of its events.
    pub scanner: Scanner,
    /// Latency of its events.
    pub timeline: Timeline,
    whole: WholeEvents,
    /// Frames after `next`.
    more: VecDeque<Bytes>,
    held: usize,
    /// Where the relayed bytes stop, if that is not where the scanner stands.
    tail: Option<LineState>,
}

/// The result of a poll.
#[derive(Debug)]
pub enum Next {
    /// Bytes for the client, and when they arrived.
    Bytes(Bytes, Stamp),
    /// The end of the stream.
    End(StreamEnd),
}

impl StreamReader {
    /// A stream whose head just came.
    pub fn new(body: AnswerBody, watch: Arc<StreamWatch>, shape: StreamShape, clock: Clock) -> Self {
        Self {
            watch,
            is_carried: matches!(body, AnswerBody::Fed(_)),
            body,
            clock,
            looked_at: clock.now(),
            next: None,
            has_more: false,
            passes_at_once: shape.passes_at_once,
            ending: None,
            filter: shape.asked_usage.map(|asked| Box::new(UsageFilter::new(asked))),
            scanner: Scanner::new(shape.dialect, shape.echo).of_choices(shape.choices),
            timeline: Timeline::default(),
            whole: WholeEvents::default(),
            more: VecDeque::new(),
            held: 0,
            tail: None,
        }
    }

    /// When bytes last arrived, or when it was last found that none had.
    pub fn looked_at(&self) -> Stamp {
        self.looked_at
    }

    /// Reads on, holding everything back, until the head may go out: the first content event came, or the stream ended without any, or it
    /// is too much to hold. How the stream ended where it broke off, or its engine reported an error, before any content.
    pub fn poll_hold(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamEnd>> {
        loop {
            let is_done = self.scanner.state().is_done();
            match self.ending.or_else(|| is_done.then(|| self.scanner.finish(true))) {
                Some(StreamEnd::Complete) if self.is_no_answer() => {
                    return Poll::Ready(Err(StreamEnd::Truncated));
                }
                Some(StreamEnd::Complete) => return Poll::Ready(Ok(())),
                Some(end) => return Poll::Ready(Err(end)),
                None if self.timeline.first_token().is_some() || self.held > MAX_HELD => {
                    return Poll::Ready(Ok(()));
                }
                None => {}
            }
            let answer = &self.scanner.state().answer;
            if let Some(error) = answer.error {
                return Poll::Ready(Err(StreamEnd::Failed(error)));
            }
            if self.passes_at_once && answer.id.is_some() {
                return Poll::Ready(Ok(()));
            }
            if self.poll_read(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    fn is_no_answer(&self) -> bool {
        self.timeline.first_token().is_none() && self.scanner.state().gives_no_reason()
    }

    /// Whether all of it was read and it has no content, though its model ended it.
    pub fn is_empty_answer(&self) -> bool {
        let state = self.scanner.state();
        let is_complete = state.is_done() || self.ending == Some(StreamEnd::Complete);
        self.timeline.first_token().is_none()
            && is_complete
            && state.answer.error.is_none()
            && state.answer.has_stopped()
    }

    /// The next bytes for the client, or the end. The clock is read once: for what was read, or for having found
    /// nothing to read.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Next> {
        let mut read_at = None;
        loop {
            if let Some(bytes) = self.take() {
                let at = read_at.unwrap_or_else(|| self.resume());
                return Poll::Ready(Next::Bytes(bytes, at));
            }
            if let Some(ending) = self.ending {
                return Poll::Ready(Next::End(ending));
            }
            if self.poll_read(cx).is_pending() {
                self.looked_at = self.resume();
                self.watch.waits_for_replica();
                self.timeline.found_nothing(self.looked_at);
                return Poll::Pending;
            }
            read_at = Some(self.looked_at);
        }
    }

    /// hyper asks again: if it did not for long, that was the client's doing, and no silence of the replica.
    fn resume(&mut self) -> Stamp {
        let now = self.clock.now();
        self.resumed(now);
        now
    }

    #[inline]
    fn resumed(&mut self, now: Stamp) {
        if self.timeline.resume(now).is_some() {
            // Before `waits`: the watchdog may look at any moment.
            self.watch.restart_silence(now);
        }
    }

    fn take(&mut self) -> Option<Bytes> {
        let bytes = self.next.take()?;
        if self.has_more {
            self.next = self.more.pop_front();
            self.has_more = !self.more.is_empty();
        }
        Some(bytes)
    }

    fn put(&mut self, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        if self.next.is_none() {
            self.next = Some(bytes);
        } else {
            self.more.push_back(bytes);
            self.has_more = true;
        }
    }

    /// Closes the connection, unless the answer was read to its end. Returns what was read for the client and not taken.
    pub fn close(&mut self) -> Bytes {
        self.body.close();
        self.release_finish();
        let mut left = self.take().unwrap_or_default();
        while let Some(more) = self.take() {
            left = [left, more].concat().into();
        }
        left
    }

    /// Whether the stream's own end was read, so that nothing is missing, whatever becomes of its body.
    pub fn is_whole(&self) -> bool {
        let state = self.scanner.state();
        state.is_done() && state.answer.error.is_none()
    }

    /// Whether the body ended, or was ended: what is left to take is all there is.
    pub fn has_ended(&self) -> bool {
        self.ending.is_some()
    }

    /// Whether everything that was read was taken.
    pub fn is_taken(&self) -> bool {
        self.next.is_none()
    }

    /// Whether the client has got a finish reason for every choice: only the stream's terminator can be missing.
    pub fn has_told_finish(&self) -> bool {
        self.next.is_none() && self.scanner.state().is_finished()
    }

    /// Whether what was passed ends with a whole event.
    pub fn is_between_events(&self) -> bool {
        self.whole.is_between()
    }

    /// Ends the stream in order with `last`, in place of what its engine did not send any more.
    pub fn conclude(&mut self, last: Bytes) {
        self.body.close();
        self.release_finish();
        self.put(last);
        self.ending = Some(StreamEnd::Complete);
    }

    /// What an error event after the relayed bytes needs to know.
    pub fn event_context(&self) -> EventContext<'_> {
        let behind = EventContext::behind(&self.scanner);
        let tail =
            if self.is_between_events() { LineState::Boundary } else { self.tail.unwrap_or(behind.tail) };
        EventContext { tail, ..behind }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match std::task::ready!(self.body.poll(cx)) {
            Some(Ok(data)) => self.feed(data),
            ended => {
                self.resume();
                self.end(ended.is_none());
            }
        }
        Poll::Ready(())
    }

    /// The end of the engine's body.
    fn end(&mut self, is_clean: bool) {
        let ending = *self.ending.get_or_insert(self.scanner.finish(is_clean));
        // What a complete stream ends with is relayed, terminated or not; half an event of a broken one is lost.
        if ending == StreamEnd::Complete {
            let rest = self.whole.rest();
            self.pass(rest);
        }
        self.release_finish();
    }

    fn feed(&mut self, data: Bytes) {
        let now = self.resume();
        self.looked_at = now;
        let had_content = self.timeline.first_token().is_some();
        if !had_content {
            self.timeline.byte(now);
            self.held += data.len();
        }
        let tail = self.scanner.tail();
        let timeline = &mut self.timeline;
        let (mut has_content, mut has_moved, mut is_done) = (false, false, false);
        let (mut broken, mut before, mut at) = (None, 0, 0);
        let fed = self.scanner.feed(&data, |event, end| {
            // An event may have several facts: one that ends with an error is held back with all that it has.
            if end != at {
                (before, at) = (at, end);
            }
            match event {
                Event::Content { choice, tokens } if broken.is_none() => {
                    timeline.content(now, choice, tokens);
                    (has_content, has_moved) = (true, true);
                }
                Event::HeldBack => has_moved = true,
                Event::Done => is_done = true,
                Event::Error(error) => {
                    // What the engine blames on the request is the client's to read.
                    let told = if error.is_of_request() { end } else { before };
                    broken = broken.or(Some((error, told)));
                }
                _ => {}
            }
        });
        if has_moved {
            self.watch.progressed(now);
        }
        if !(had_content || has_content) && self.scanner.state().has_begun() {
            self.watch.begins(now);
        }
        if is_done {
            self.watch.only_body_left(now);
        }
        match broken {
            // After content an engine's error is a broken stream, without a `[DONE]`: ours takes its place.
            Some((error, at)) if had_content || has_content => {
                let before = self.whole.cut(data.slice(..at), at);
                self.pass(before);
                self.release_finish();
                // An event too long to be held back is with the client as far as the reads before it went.
                self.tail = Some(tail);
                self.ending = Some(StreamEnd::Failed(error));
            }
            _ if fed.is_ordinary && self.holds_nothing() => self.put(data),
            _ => {
                let whole = self.whole.cut(data, fed.end);
                self.pass(whole);
            }
        }
    }

    /// Whether nothing is held back, so that a read of whole events may pass as it is.
    fn holds_nothing(&self) -> bool {
        self.whole.is_empty() && self.filter.as_ref().is_none_or(|filter| filter.is_between_events())
    }

    fn release_finish(&mut self) {
        if let Some(finish) = self.filter.as_mut().and_then(|filter| filter.release()) {
            self.put(finish);
        }
    }

    fn pass(&mut self, data: Bytes) {
        let Some(filter) = &mut self.filter else { return self.put(data) };
        let mut out: SmallVec<[Bytes; 4]> = SmallVec::new();
        filter.filter(data, &mut out);
        out.into_iter().for_each(|bytes| self.put(bytes));
    }
}

/// What comes before the first content is a role and comments; more than this is no prelude.
const MAX_HELD: usize = 256 * 1024;
