//! The end of an answer that is incomplete: an error event, then an abort, because it must never look complete.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Frame;
use thiserror::Error;
use tokio::time::Sleep;

/// Ends a body so that the client sees it is incomplete: no last chunk (HTTP/1.1), RST_STREAM (HTTP/2).
#[derive(Clone, Copy, Debug, Error)]
#[error("the answer is incomplete")]
pub struct Aborted;

/// The result of a poll of a body.
pub type Polled = Poll<Option<Result<Frame<Bytes>, Aborted>>>;

/// Sends an error event, leaves time to flush it, and aborts.
#[derive(Debug)]
pub struct AbortingBody {
    event: Option<Bytes>,
    grace: Option<Pin<Box<Sleep>>>,
}

impl AbortingBody {
    /// Sends `event`, then aborts.
    pub fn new(event: Bytes) -> Self {
        Self { event: Some(event).filter(|event| !event.is_empty()), grace: None }
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
