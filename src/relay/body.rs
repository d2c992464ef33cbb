//! The bodies of responses: what hyper polls.
//!
//! A stream's body passes on what its reader gives, tells the watchdog whether it waits for the replica or for
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

use super::failure;
use super::heartbeat::{Waited, Waiting};
use super::large::LargeBody;
use super::stream::StreamBody;
use crate::error::Failure;
use crate::observe::record_guard::RecordGuard;

/// Ends a body so that the client sees it is incomplete: no last chunk (HTTP/1.1), RST_STREAM (HTTP/2).
#[derive(Clone, Copy, Debug, Error)]
#[error("the answer is incomplete")]
pub struct Aborted;

/// What a poll of a body gives.
pub type Polled = Poll<Option<Result<Frame<Bytes>, Aborted>>>;

/// The body of a response to a client.
#[derive(Debug)]
pub enum ReplyBody {
    /// In memory; the journal reports when hyper lets go of it.
    Whole(Option<Bytes>, Option<Box<RecordGuard>>),
    /// A stream of an engine.
    Stream(Box<StreamBody>),
    /// A large unary answer.
    Large(Box<LargeBody>),
    /// Nothing decided yet: SSE comments until it is.
    Waiting(Box<Waiting>),
    /// An error event, then an abort.
    Broken(BrokenOff, Box<RecordGuard>),
}

impl ReplyBody {
    /// The body of a request that failed after its head went out.
    #[must_use]
    pub fn failed(mut journal: RecordGuard, failure: &Failure) -> Self {
        journal.fail(failure);
        let dialect = journal.record().dialect;
        let event = words(failure, dialect.error_shape(), |words| {
            failure::event(dialect, words, &failure::Place::default())
        });
        Self::Broken(BrokenOff::new(event), Box::new(journal))
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Polled {
        loop {
            let waited = match self {
                Self::Whole(body, _) => {
                    return Poll::Ready(body.take().filter(|b| !b.is_empty()).map(|b| Ok(Frame::data(b))));
                }
                Self::Stream(stream) => return stream.poll(cx),
                Self::Large(large) => return large.poll(cx),
                Self::Broken(broken, _) => return broken.poll(cx),
                Self::Waiting(waiting) => std::task::ready!(waiting.poll(cx)),
            };
            match waited {
                Waited::Beat(comment) => return Poll::Ready(Some(Ok(Frame::data(comment)))),
                Waited::Over(body) => *self = body,
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

/// Sends an error event, sees it flushed, and aborts.
#[derive(Debug)]
pub struct BrokenOff {
    event: Option<Bytes>,
    grace: Option<Pin<Box<Sleep>>>,
}

impl BrokenOff {
    /// With this event.
    #[must_use]
    pub fn new(event: Bytes) -> Self {
        Self { event: Some(event), grace: None }
    }

    /// The event, a moment for hyper to flush it, the abort.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Polled {
        if let Some(event) = self.event.take() {
            return Poll::Ready(Some(Ok(Frame::data(event))));
        }
        let grace = self.grace.get_or_insert_with(|| Box::pin(tokio::time::sleep(FLUSH_GRACE)));
        std::task::ready!(grace.as_mut().poll(cx));
        Poll::Ready(Some(Err(Aborted)))
    }
}

/// A failure in the words of its dialect.
pub fn words<T>(
    failure: &Failure,
    shape: crate::error::ErrorShape,
    write: impl FnOnce(&failure::Failure<'_>) -> T,
) -> T {
    let message = failure.to_string();
    write(&failure::Failure { kind: failure.kind(shape), message: &message, code: failure.code() })
}

// hyper drops what it has not flushed when a body fails, and h2 drops queued frames on a reset.
const FLUSH_GRACE: Duration = Duration::from_millis(20);
