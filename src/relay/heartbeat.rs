//! SSE comments while nothing else is sent (`server.heartbeat`): until there is an answer, and in its pauses.
//!
//! For proxies in front of the gateway that close silent connections. Before the answer the exchange goes on inside the body, so
//! retries stay possible; a failure can only be reported by an error event then.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Sleep;

use crate::clock::{Clock, Stamp};

/// An exchange that resolves to the body `B` of its answer.
pub type PendingReply<B> = Pin<Box<dyn Future<Output = B> + Send>>;

/// Comments until the exchange is over.
pub struct HeartbeatBody<B> {
    exchange: PendingReply<B>,
    pulse: Pulse,
    is_first: bool,
}

/// The result of a poll.
#[derive(Debug)]
pub enum HeartbeatPoll<B> {
    /// A comment to send.
    Beat(Bytes),
    /// The exchange is over: this is the body from now on.
    Over(B),
}

impl<B> HeartbeatBody<B> {
    /// The head went out because the first pause of `every` passed.
    pub fn new(exchange: PendingReply<B>, every: Duration, clock: Clock) -> Self {
        Self { exchange, pulse: Pulse::new(every, clock), is_first: true }
    }

    /// The next comment, or the body.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<HeartbeatPoll<B>> {
        if let Poll::Ready(body) = self.exchange.as_mut().poll(cx) {
            return Poll::Ready(HeartbeatPoll::Over(body));
        }
        if !std::mem::take(&mut self.is_first) {
            let now = std::task::ready!(self.pulse.poll(cx));
            self.pulse.sent(now);
        }
        Poll::Ready(HeartbeatPoll::Beat(Bytes::from_static(COMMENT)))
    }
}

impl<B> std::fmt::Debug for HeartbeatBody<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeartbeatBody").field("pulse", &self.pulse).finish_non_exhaustive()
    }
}

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

/// Ignored by every reader of events.
pub const COMMENT: &[u8] = b": heartbeat\n\n";
