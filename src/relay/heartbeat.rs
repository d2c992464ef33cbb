//! SSE comments while nothing else is sent (`server.heartbeat`): until there is an answer, and in its pauses.
//!
//! For proxies in front of the gateway that close silent connections.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Frame;
use tokio::time::Sleep;

use super::aborting::Polled;
use crate::clock::{Clock, Stamp};

/// Comes due in the pauses of an answer.
#[derive(Debug)]
pub struct Pulse {
    every: Duration,
    due: Pin<Box<Sleep>>,
    /// When something was sent last.
    last: Stamp,
    clock: Clock,
}

impl Pulse {
    /// The head was sent.
    pub fn new(every: Duration, clock: Clock) -> Self {
        Self { every, due: Box::pin(tokio::time::sleep(every)), last: clock.now(), clock }
    }

    /// Something was sent.
    pub fn sent(&mut self, now: Stamp) {
        self.last = now;
    }

    /// Ready when nothing was sent for as long as a pause may be.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Stamp> {
        loop {
            std::task::ready!(self.due.as_mut().poll(cx));
            let now = self.clock.now();
            let left = self.every.saturating_sub(now.since(self.last));
            let is_due = left.is_zero();
            let next = self.due.deadline() + if is_due { self.every } else { left };
            self.due.as_mut().reset(next);
            if is_due {
                return Poll::Ready(now);
            }
        }
    }
}

/// A comment, which every reader of events ignores.
pub fn comment() -> Polled {
    Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b": heartbeat\n\n")))))
}
