//! The bodies of responses: what hyper polls.
//!
//! A stream's body passes on what its reader gives, keeps the watchdog informed whether it waits for the replica or for
//! the client, and ends in one of two ways: complete, or with an error event and an abort, because an incomplete
//! answer must never look complete. Everything that lives as long as the answer (load, connection, record) lives
//! in it and is released by its drop.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use super::aborting::{Aborted, AbortingBody, Polled};
use super::error_event::{self, EventContext};
use super::heartbeat::{Pulse, comment};
use super::large_body::LargeBody;
use super::stream::StreamBody;
use super::whole_body::WholeBody;
use crate::clock::Clock;
use crate::debug::debug_as;
use crate::error::Failure;
use crate::observe::record_guard::RecordGuard;

/// The body of a response to a client.
#[derive(Debug)]
pub enum ReplyBody {
    /// In memory.
    Whole(WholeBody),
    /// A stream of an engine.
    Stream(Box<StreamBody>),
    /// A large unary answer.
    Large(Box<LargeBody>),
    /// No answer yet: SSE comments until there is one.
    Waiting(Box<WaitingBody>),
    /// An error event, then an abort.
    Broken(AbortingBody, Box<RecordGuard>),
}

impl ReplyBody {
    /// An answer of ours without a record.
    pub fn own(bytes: Bytes) -> Self {
        Self::Whole(WholeBody::new(bytes, None))
    }

    /// The body of a request that failed after its head went out.
    pub fn failed(mut guard: RecordGuard, failure: &Failure) -> Self {
        guard.fail(failure);
        let dialect = guard.record().dialect;
        let event = error_event::event(dialect, &guard.shown(failure), &EventContext::default());
        Self::Broken(AbortingBody::new(event), Box::new(guard))
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Polled {
        loop {
            match self {
                Self::Whole(whole) => return Poll::Ready(whole.take().map(|piece| Ok(Frame::data(piece)))),
                Self::Stream(stream) => return stream.poll(cx),
                Self::Large(large) => return large.poll(cx),
                Self::Broken(broken, _) => return broken.poll(cx),
                Self::Waiting(waiting) => match waiting.exchange.as_mut().poll(cx) {
                    Poll::Ready(body) => *self = body,
                    Poll::Pending => return waiting.poll_comment(cx),
                },
            }
        }
    }
}

/// Comments until the exchange is over, which continues in here, so that retries stay possible; a failure can only be reported by an
/// error event then.
pub struct WaitingBody {
    exchange: PendingReply,
    pulse: Pulse,
    is_first: bool,
}

/// An exchange that resolves to the body of its answer.
pub type PendingReply = Pin<Box<dyn Future<Output = ReplyBody> + Send>>;

impl WaitingBody {
    /// The head went out because the first pause of `every` passed.
    pub fn new(exchange: PendingReply, every: Duration, clock: Clock) -> Self {
        Self { exchange, pulse: Pulse::new(every, clock), is_first: true }
    }

    fn poll_comment(&mut self, cx: &mut Context<'_>) -> Polled {
        if !std::mem::take(&mut self.is_first) {
            let now = ready!(self.pulse.poll(cx));
            self.pulse.sent(now);
        }
        comment()
    }
}

debug_as!(WaitingBody => "WaitingBody");

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Aborted;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled {
        self.get_mut().poll(cx)
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(whole) if whole.left() == 0)
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(whole) => SizeHint::with_exact(whole.left() as u64),
            _ => SizeHint::default(),
        }
    }
}
