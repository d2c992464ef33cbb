//! The admission queue of a route in operation: requests sleep in it until they are called, and leave it however they end.
//!
//! A [`Ticket`] is a position that gives itself back. While anybody waits, one task ticks and begins rounds; each request that
//! is called asks routing again and answers by staying or leaving, which calls the next. So a thousand waiters cost one
//! timer and a few decisions a tick. What they wait for, and for how long, is decided in `crate::gateway`.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Refusal;
use super::queue::{Position, WaitQueue, WaitReason, Waiter};
use crate::clock::Stamp;
use crate::config::Queue;

/// The queue of one route.
#[derive(Debug)]
pub struct RouteQueue {
    shared: Mutex<Shared>,
}

#[derive(Debug)]
struct Shared {
    waiting: WaitQueue<Arc<Notify>>,
    /// A task begins rounds.
    is_driven: bool,
}

/// A position in a route's queue, for as long as it lives.
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
    pub fn new(limits: Option<Queue>) -> Arc<Self> {
        Arc::new(Self { shared: Mutex::new(Shared { waiting: WaitQueue::new(limits), is_driven: false }) })
    }

    /// Adds a request. The second value says that nobody drives the queue: the caller is to run [`RouteQueue::drive`]
    /// beside it.
    ///
    /// # Errors
    /// The limit that it would exceed.
    pub fn enter(self: &Arc<Self>, waiter: &Waiter) -> Result<(Ticket, bool), Refusal> {
        let call = Arc::new(Notify::new());
        let mut shared = self.shared.lock();
        let position = shared.waiting.enter(waiter, Arc::clone(&call))?;
        let is_first = !std::mem::replace(&mut shared.is_driven, true);
        drop(shared);
        Ok((Ticket { queue: Arc::clone(self), position, reason: waiter.reason, call }, is_first))
    }

    /// Whether a late request waits that comes before one with this deadline.
    #[must_use]
    pub fn has_late_before(&self, is_long: bool, deadline: Stamp) -> bool {
        self.shared.lock().waiting.has_late_before(is_long, deadline)
    }

    /// Begins rounds until nobody waits any more. Once the gateway refuses, every late request is called at once.
    pub async fn drive(self: Arc<Self>, is_closed: impl Fn() -> bool) {
        let mut driver = Driver { queue: &self, is_done: false };
        loop {
            tokio::time::sleep(ROUND_EVERY).await;
            let mut shared = self.shared.lock();
            if shared.waiting.is_empty() {
                shared.is_driven = false;
                driver.is_done = true;
                return;
            }
            if is_closed() {
                shared.waiting.late().for_each(|call| call.notify_one());
            }
            shared.waiting.round(MAX_STAYS, |call| call.notify_one());
        }
    }
}

/// Marks the queue as not driven, should its task end early.
struct Driver<'q> {
    queue: &'q RouteQueue,
    is_done: bool,
}

impl Drop for Driver<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.queue.shared.lock().is_driven = false;
        }
    }
}

impl Ticket {
    /// Why the request waits.
    #[must_use]
    pub fn reason(&self) -> WaitReason {
        self.reason
    }

    /// Until the request is to ask routing again. Cancel-safe: a call that was not awaited wakes the next wait.
    pub async fn called(&self) {
        self.call.notified().await;
    }

    /// The request asked and must stay: the next in line is called.
    pub fn stays(&self) {
        if let Some(next) = self.queue.shared.lock().waiting.stays(self.position) {
            next.notify_one();
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(next) = self.queue.shared.lock().waiting.leave(self.position) {
            next.notify_one();
        }
    }
}

/// Between two rounds: half a decoding step; the picture does not change faster.
pub const ROUND_EVERY: Duration = Duration::from_millis(10);
/// How many called requests of a lane may have to stay before the rest of the lane is not asked in this round.
pub const MAX_STAYS: usize = 16;
