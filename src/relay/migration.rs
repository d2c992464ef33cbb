//! Goes on with a broken stream at another replica: the state of it inside the response body.
//!
//! The gateway says how ([`Successor`]); here is when, and what is kept meanwhile. Dropping it frees the prompt.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use super::reader::StreamReader;
use super::transcript::Transcript;
use crate::debug::debug_as;
use crate::error::{Failure, Timer};
use crate::fleet::pick::Pick;
use crate::record;
use crate::request::continuation::{Continuation, Obstacle, Progress};

/// Finds another replica for a stream and asks it to go on.
pub trait Successor: Send {
    /// Continues what the client was told, after the replica of `broken` failed.
    fn succeed(self: Box<Self>, progress: Progress, broken: &Pick) -> PendingLeg;
}

/// A search for a replica that continues a stream.
pub type PendingLeg = Pin<Box<dyn Future<Output = Succession> + Send>>;

/// The result of such a search.
pub struct Succession {
    /// Attempts that were made, in order; the last one is that of `next`, if there is one.
    pub attempts: Vec<record::Attempt>,
    /// The continued stream, or why there is none; `Ok(None)` where the answer has all the tokens that it may have.
    pub next: Result<Option<Box<NextLeg>>, NoSuccessor>,
}

/// The part of a stream that another replica gives.
pub struct NextLeg {
    /// Its reader, which has its first content.
    pub reader: Box<StreamReader>,
    /// Its replica.
    pub pick: Box<Pick>,
    /// What it was asked.
    pub by: Continuation,
    /// For the next time.
    pub successor: Box<dyn Successor>,
}

/// Why a stream was not continued.
#[derive(Debug)]
pub struct NoSuccessor {
    /// Value of the log field.
    pub reason: &'static str,
    /// What the client is told, where that is not the failure that broke the stream.
    pub failure: Option<Failure>,
}

impl NoSuccessor {
    /// Nothing but a reason.
    pub fn because(reason: &'static str) -> Self {
        Self { reason, failure: None }
    }
}

/// A stream that may be continued elsewhere.
pub struct Migration {
    /// What the client was told.
    pub transcript: Transcript,
    successor: Option<Box<dyn Successor>>,
    pending: Option<(PendingLeg, Failure)>,
}

impl Migration {
    /// For a stream that begins.
    pub fn new(transcript: Transcript, successor: Box<dyn Successor>) -> Box<Self> {
        Box::new(Self { transcript, successor: Some(successor), pending: None })
    }

    /// Frees the prompt as soon as the stream of `pick` cannot be continued any more.
    pub fn note_obstacle(&mut self, pick: &Pick) {
        let Some(obstacle) = self.transcript.obstacle().filter(|_| self.successor.is_some()) else { return };
        self.successor = None;
        if obstacle == Obstacle::Reasoning {
            pick.replica.engine.streams_reasoning.store(true, Ordering::Relaxed);
        }
    }

    /// Frees the prompt: the client has seen part of an event.
    pub fn give_up(&mut self) {
        self.successor = None;
    }

    /// Looks for a replica to continue the stream that broke by `failure`.
    ///
    /// # Errors
    /// Why that is not done.
    pub fn begin(&mut self, failure: &Failure, broken: &Pick) -> Result<(), &'static str> {
        let progress = self.transcript.progress().map_err(Obstacle::as_str)?;
        let successor = self.successor.take().ok_or(Obstacle::TooLong.as_str())?;
        self.pending = Some((successor.succeed(progress, broken), failure.clone()));
        Ok(())
    }

    /// Whether a replica is being looked for.
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// The result of the search, with the failure that made it necessary.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(Succession, Failure)> {
        let Some((search, _)) = &mut self.pending else { return Poll::Pending };
        let found = std::task::ready!(search.as_mut().poll(cx));
        self.pending.take().map_or(Poll::Pending, |(_, failure)| Poll::Ready((found, failure)))
    }

    /// The stream goes on.
    pub fn resume(&mut self, by: Continuation, successor: Box<dyn Successor>) {
        self.transcript.continued(by);
        self.successor = Some(successor);
    }
}

/// Whether another replica could do better: not where the client, the gateway or the request's own time is at an end.
pub fn is_curable(failure: &Failure) -> bool {
    matches!(failure, Failure::Replica(_) | Failure::Timeout { timer: Timer::InterToken, .. })
}

debug_as!(Migration => "Migration");
