//! The bodies of responses: what hyper polls.
//!
//! A stream's body passes on what its reader gives, keeps the watchdog informed whether it waits for the replica or for
//! the client, and ends in one of two ways: complete, or with an error event and an abort, because an incomplete
//! answer must never look complete. Everything that lives as long as the answer (load, connection, record) lives
//! in it and is released by its drop.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use thiserror::Error;
use tokio::time::Sleep;

use super::error_event::{self, DialectError, EventContext};
use super::heartbeat::{HeartbeatBody, HeartbeatPoll};
use super::large_body::LargeBody;
use super::stream::StreamBody;
use crate::error::Failure;
use crate::observe::record_guard::RecordGuard;

/// Ends a body so that the client sees it is incomplete: no last chunk (HTTP/1.1), RST_STREAM (HTTP/2).
#[derive(Clone, Copy, Debug, Error)]
#[error("the answer is incomplete")]
pub struct Aborted;

/// The result of a poll of a body.
pub type Polled = Poll<Option<Result<Frame<Bytes>, Aborted>>>;

/// The body of a response to a client.
#[derive(Debug)]
pub enum ReplyBody {
    /// In memory; the guard reports when hyper lets go of it.
    Whole(Option<Bytes>, Option<Box<RecordGuard>>),
    /// A stream of an engine.
    Stream(Box<StreamBody>),
    /// A large unary answer.
    Large(Box<LargeBody>),
    /// No answer yet: SSE comments until there is one.
    Waiting(Box<HeartbeatBody>),
    /// An error event, then an abort.
    Broken(AbortingBody, Box<RecordGuard>),
}

impl ReplyBody {
    /// The body of a request that failed after its head went out.
    #[must_use]
    pub fn failed(mut guard: RecordGuard, failure: &Failure) -> Self {
        guard.fail(failure);
        let dialect = guard.record().dialect;
        let error = DialectError::new(failure, dialect.error_shape());
        let event = error_event::event(dialect, &error, &EventContext::default());
        Self::Broken(AbortingBody::new(event), Box::new(guard))
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Polled {
        loop {
            let polled = match self {
                Self::Whole(body, _) => {
                    return Poll::Ready(body.take().filter(|b| !b.is_empty()).map(|b| Ok(Frame::data(b))));
                }
                Self::Stream(stream) => return stream.poll(cx),
                Self::Large(large) => return large.poll(cx),
                Self::Broken(broken, _) => return broken.poll(cx),
                Self::Waiting(waiting) => std::task::ready!(waiting.poll(cx)),
            };
            match polled {
                HeartbeatPoll::Beat(comment) => return Poll::Ready(Some(Ok(Frame::data(comment)))),
                HeartbeatPoll::Over(body) => *self = body,
            }
        }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Aborted;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        self.get_mut().poll(cx)
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(body, _) if body.as_ref().is_none_or(Bytes::is_empty))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body, _) => SizeHint::with_exact(body.as_ref().map_or(0, |b| b.len() as u64)),
            _ => SizeHint::default(),
        }
    }
}

/// Sends an error event, leaves time to flush it, and aborts.
#[derive(Debug)]
pub struct AbortingBody {
    event: Option<Bytes>,
    grace: Option<Pin<Box<Sleep>>>,
}

impl AbortingBody {
    /// Sends `event`, then aborts.
    #[must_use]
    pub fn new(event: Bytes) -> Self {
        Self { event: Some(event), grace: None }
    }

    /// The event, then [`Aborted`] after [`FLUSH_GRACE`].
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Polled {
        if let Some(event) = self.event.take() {
            return Poll::Ready(Some(Ok(Frame::data(event))));
        }
        let grace = self.grace.get_or_insert_with(|| Box::pin(tokio::time::sleep(FLUSH_GRACE)));
        std::task::ready!(grace.as_mut().poll(cx));
        Poll::Ready(Some(Err(Aborted)))
    }
}

// hyper drops what it has not flushed when a body fails, and h2 drops queued frames on a reset.
const FLUSH_GRACE: Duration = Duration::from_millis(20);
