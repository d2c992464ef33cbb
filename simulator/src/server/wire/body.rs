//! Response bodies: prepared bytes, or a stream that follows the engine, with its faults.
//!
//! Each SSE event is a frame of its own, hence an HTTP chunk of its own, as with vLLM. The body owns the jobs and the log
//! entry, so that a client that leaves cancels the former and closes the latter.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::Sleep;

use super::api::Api;
use crate::engine::EngineEvent;
use crate::server::driver::Submission;
use crate::server::faults::{Applied, FaultKind};
use crate::server::replica::Replica;
use crate::server::request_log::Visit;

use super::chunk::DONE;
use super::error::ApiError;
use super::generation::{Generation, Render};

/// What is to be written next.
#[derive(Debug)]
enum Step {
    Data(Bytes),
    /// Broken off: what is before it is flushed first.
    Cut {
        flushed: bool,
    },
}

/// A response body.
pub(in crate::server) struct SimBody {
    steps: VecDeque<Step>,
    live: Option<Box<Live>>,
    visit: Option<Visit>,
}

impl SimBody {
    /// A prepared body.
    pub(super) fn full(content: impl Into<Bytes>) -> Self {
        let mut body = Self { steps: VecDeque::from([Step::Data(content.into())]), live: None, visit: None };
        body.steps.retain(|step| !matches!(step, Step::Data(data) if data.is_empty()));
        body
    }

    /// The first half of `content`, then the end of the connection.
    pub(super) fn half(content: &str) -> Self {
        let half = Bytes::copy_from_slice(&content.as_bytes()[..content.len() / 2]);
        Self {
            steps: VecDeque::from([Step::Data(half), Step::Cut { flushed: false }]),
            live: None,
            visit: None,
        }
    }

    /// Follows the engine.
    pub(super) fn live(live: Box<Live>) -> Self {
        Self { steps: VecDeque::new(), live: Some(live), visit: None }
    }

    /// Closes the log entry with this body.
    pub(super) fn with_visit(mut self, visit: Visit) -> Self {
        self.visit = Some(visit);
        self.close_visit_if_over();
        self
    }

    /// hyper does not poll a body again that reported its end.
    fn close_visit_if_over(&mut self) {
        if self.live.is_none()
            && self.steps.is_empty()
            && let Some(visit) = &mut self.visit
        {
            visit.served();
        }
    }
}

impl Body for SimBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = &mut *self;
        loop {
            match this.steps.pop_front() {
                Some(Step::Data(data)) => {
                    this.close_visit_if_over();
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Step::Cut { flushed: false }) => {
                    // Pending once: hyper flushes before it polls again.
                    this.steps.push_front(Step::Cut { flushed: true });
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Some(Step::Cut { flushed: true }) => {
                    return Poll::Ready(Some(Err(io::Error::other("cut by a fault"))));
                }
                None => {}
            }
            let Some(live) = &mut this.live else {
                this.close_visit_if_over();
                return Poll::Ready(None);
            };
            if ready!(live.poll(cx, &mut this.steps)) == Flow::Over {
                this.live = None;
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.steps.is_empty() && self.live.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        if self.live.is_some() {
            return SizeHint::default();
        }
        let mut bytes = 0;
        for step in &self.steps {
            match step {
                Step::Data(data) => bytes += data.len() as u64,
                Step::Cut { .. } => return SizeHint::default(),
            }
        }
        SizeHint::with_exact(bytes)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    More,
    Over,
}

/// What a stream is made of.
pub(super) struct Stream {
    pub(super) replica: Arc<Replica>,
    pub(super) submission: Submission,
    pub(super) generation: Generation,
    pub(super) render: Box<dyn Render>,
    pub(super) api: Api,
    pub(super) faults: Applied,
}

/// A stream in progress.
pub(super) struct Live {
    stream: Stream,
    /// Tokens written so far.
    written: u64,
    is_silent: bool,
    /// A token that a `slow` fault holds back, and until when.
    held: Option<(EngineEvent, Pin<Box<Sleep>>)>,
    /// Comments while nothing else is sent.
    comments: Option<(Duration, Pin<Box<Sleep>>)>,
}

impl Live {
    pub(super) fn new(stream: Stream) -> Self {
        let comments = stream.faults.of(FaultKind::KeepaliveComments).map(|fault| {
            let every = Duration::from_millis(fault.interval_ms.max(1));
            (every, Box::pin(tokio::time::sleep(every)))
        });
        Self { stream, written: 0, is_silent: false, held: None, comments }
    }

    fn poll(&mut self, cx: &mut Context<'_>, steps: &mut VecDeque<Step>) -> Poll<Flow> {
        if let Some((every, timer)) = &mut self.comments
            && timer.as_mut().poll(cx).is_ready()
        {
            *timer = Box::pin(tokio::time::sleep(*every));
            steps.push_back(Step::Data(COMMENT));
            return Poll::Ready(Flow::More);
        }
        if self.is_silent {
            return Poll::Pending;
        }
        if self.strike(steps) {
            return Poll::Ready(if self.is_silent { Flow::More } else { Flow::Over });
        }
        let event = match self.held.take() {
            Some((event, mut until)) => {
                if until.as_mut().poll(cx).is_pending() {
                    self.held = Some((event, until));
                    return Poll::Pending;
                }
                event
            }
            None => match ready!(self.stream.submission.events.poll_recv(cx)) {
                Some(event) => {
                    if let Some(slow) = self.stream.faults.of(FaultKind::Slow) {
                        let due = self.stream.submission.due(&event, slow.factor);
                        self.held = Some((event, Box::pin(tokio::time::sleep_until(due))));
                        return Poll::Ready(Flow::More);
                    }
                    event
                }
                None => return Poll::Ready(self.interrupted(steps)),
            },
        };
        Poll::Ready(self.write(&event, steps))
    }

    /// Carries out a fault that is due at this token; `true` when one was.
    fn strike(&mut self, steps: &mut VecDeque<Step>) -> bool {
        let now = |kind| self.stream.faults.of(kind).is_some_and(|fault| fault.after_events == self.written);
        if now(FaultKind::Stall) {
            self.is_silent = true;
        } else if now(FaultKind::Cut) {
            steps.push_back(Step::Cut { flushed: false });
        } else if now(FaultKind::EngineDeath) {
            self.stream.replica.die();
            self.interrupted(steps);
        } else {
            return false;
        }
        true
    }

    fn write(&mut self, event: &EngineEvent, steps: &mut VecDeque<Step>) -> Flow {
        let place = self.stream.submission.place(event.job);
        let token = self.stream.generation.note(place, event);
        let mut events = Vec::new();
        self.stream.render.token(&self.stream.generation, token, &mut events);
        self.written += 1;
        if let Some((every, timer)) = &mut self.comments {
            *timer = Box::pin(tokio::time::sleep(*every));
        }
        let is_over = self.stream.generation.is_complete();
        steps.extend(events.drain(..).map(Step::Data));
        if is_over && self.strike(steps) {
            return if self.is_silent { Flow::More } else { Flow::Over };
        }
        if !is_over {
            return Flow::More;
        }
        self.stream.render.close(&self.stream.generation, &mut events);
        steps.extend(events.into_iter().map(Step::Data));
        Flow::Over
    }

    /// The engine gave up on this stream: it died, or its whole process did.
    fn interrupted(&self, steps: &mut VecDeque<Step>) -> Flow {
        if self.stream.replica.is_dead() {
            let error = ApiError::engine_dead();
            if self.stream.api.ends_with_done() {
                steps.push_back(Step::Data(error.event().into()));
                steps.push_back(Step::Data(DONE));
            } else {
                let body = error.body(self.stream.api.error_shape());
                steps.push_back(Step::Data(format!("event: error\ndata: {body}\n\n").into()));
            }
        } else {
            steps.push_back(Step::Cut { flushed: false });
        }
        Flow::Over
    }
}

const COMMENT: Bytes = Bytes::from_static(b": keep-alive\n\n");
