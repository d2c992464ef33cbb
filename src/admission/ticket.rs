//! The live admission queue of a route: tasks sleep in it until they are called.
//!
//! A [`Ticket`] is an RAII position: dropping it leaves the queue. While the queue is not empty, one task begins a round
//! every [`ROUND_EVERY`]; each called request retries routing and then stays or leaves, which calls the next. A thousand
//! waiters therefore cost one timer and a few decisions a tick. `crate::gateway` decides how long a request waits.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Refusal;
use super::queue::{Position, WaitQueue, WaitReason, Waiter};
use crate::clock::Stamp;
use crate::config::QueueLimits;

/// The queue of one route.
#[derive(Debug)]
pub struct RouteQueue {
    state: Mutex<QueueState>,
}

#[derive(Debug)]
struct QueueState {
    waiting: WaitQueue<Arc<Notify>>,
    /// Whether a task runs [`RouteQueue::drive`].
    is_driven: bool,
}

/// A position in a route's queue, freed on drop.
#[derive(Debug)]
pub struct Ticket {
    queue: Arc<RouteQueue>,
    position: Position,
    reason: WaitReason,
    call: Arc<Notify>,
}

impl RouteQueue {
    /// An empty queue with the limits of `[route.queue]`.
    #[must_use]
    pub fn new(limits: Option<QueueLimits>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(QueueState { waiting: WaitQueue::new(limits), is_driven: false }) })
    }

    /// Adds a request. The flag is true if no task drives the queue: the caller must then spawn [`RouteQueue::drive`].
    ///
    /// # Errors
    /// The limit of its lane that it would exceed.
    pub fn enter(self: &Arc<Self>, waiter: &Waiter) -> Result<(Ticket, bool), Refusal> {
        let call = Arc::new(Notify::new());
        let mut state = self.state.lock();
        let position = state.waiting.enter(waiter, Arc::clone(&call))?;
        let is_first = !std::mem::replace(&mut state.is_driven, true);
        drop(state);
        Ok((Ticket { queue: Arc::clone(self), position, reason: waiter.reason, call }, is_first))
    }

    /// As [`WaitQueue::has_late_before`].
    #[must_use]
    pub fn has_late_before(&self, is_long: bool, deadline: Stamp) -> bool {
        self.state.lock().waiting.has_late_before(is_long, deadline)
    }

    /// Begins rounds until the queue is empty. Once `is_closed`, each round calls every late request.
    pub async fn drive(self: Arc<Self>, is_closed: impl Fn() -> bool) {
        let mut driver = Driver { queue: &self, is_done: false };
        loop {
            tokio::time::sleep(ROUND_EVERY).await;
            let mut state = self.state.lock();
            if state.waiting.is_empty() {
                state.is_driven = false;
                driver.is_done = true;
                return;
            }
            if is_closed() {
                state.waiting.late().for_each(|call| call.notify_one());
            }
            state.waiting.round(MAX_STAYS, |call| call.notify_one());
        }
    }
}

/// Marks the queue as not driven if its task is dropped early.
struct Driver<'q> {
    queue: &'q RouteQueue,
    is_done: bool,
}

impl Drop for Driver<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.queue.state.lock().is_driven = false;
        }
    }
}

impl Ticket {
    /// The reason given to [`RouteQueue::enter`].
    #[must_use]
    pub fn reason(&self) -> WaitReason {
        self.reason
    }

    /// Waits until the request is to retry routing. Cancel-safe: an unawaited call wakes the next wait.
    pub async fn called(&self) {
        self.call.notified().await;
    }

    /// The request could not be placed: calls the next in its lane.
    pub fn stays(&self) {
        if let Some(next) = self.queue.state.lock().waiting.stays(self.position) {
            next.notify_one();
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(next) = self.queue.state.lock().waiting.leave(self.position) {
            next.notify_one();
        }
    }
}

/// Period of rounds: half a decode step, since predictions do not change faster.
pub const ROUND_EVERY: Duration = Duration::from_millis(10);
/// Failed retries per lane and round, after which the lane waits for the next round.
pub const MAX_STAYS: usize = 16;
