//! The body of an engine's answer: over a connection of ours, or fed by the proxy that has it.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use bytes::Bytes;

use super::http1::BodyError;
use super::pool::Lease;
use crate::request::arriving::FedBody;

/// The body of an engine's answer; dropped before its end it closes the connection, which makes the engine abort the request.
#[derive(Debug)]
pub enum AnswerBody {
    /// Over this connection, which goes back to its pool at the end.
    Leased(Lease),
    /// Fed by a proxy.
    Fed(FedBody),
    /// Read to its end.
    Ended,
    /// Given up.
    Closed,
}

impl AnswerBody {
    /// The next bytes; `None` at the end.
    #[inline]
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        let (next, is_end) = match self {
            Self::Leased(Lease { connection, .. }) => (ready!(connection.poll_body(cx)), connection.is_end()),
            Self::Fed(body) => {
                let next = ready!(body.poll(cx)).map(|piece| piece.map_err(|_| BodyError::Truncated));
                (next, body.is_over())
            }
            Self::Ended => return Poll::Ready(None),
            Self::Closed => return Poll::Ready(Some(Err(BodyError::Truncated))),
        };
        if is_end {
            self.end();
        } else if matches!(next, Some(Err(_))) {
            self.close();
        }
        Poll::Ready(next)
    }

    /// [`AnswerBody::poll`], awaited.
    pub async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// Closes the connection, unless the answer was read to its end.
    pub fn close(&mut self) {
        if !self.is_end() {
            *self = Self::Closed;
        }
    }

    fn end(&mut self) {
        if let Self::Leased(lease) = std::mem::replace(self, Self::Ended) {
            lease.give_back();
        }
    }

    /// Whether it was read to its end.
    pub fn is_end(&self) -> bool {
        match self {
            Self::Leased(_) | Self::Closed => false,
            Self::Fed(body) => body.is_over(),
            Self::Ended => true,
        }
    }

    /// Bytes that are not read, where its head has their number.
    pub fn length(&self) -> Option<u64> {
        match self {
            Self::Leased(lease) => lease.connection.left(),
            Self::Fed(body) => body.length(),
            Self::Ended | Self::Closed => Some(0),
        }
    }
}
