//! The live admission queue of a pool: tasks sleep in it until they are called.
//!
//! A [`Ticket`] is an RAII position: dropping it leaves the queue. A call goes out when a first token or an end at one of the
//! pool's replicas may have made room ([`PoolQueue::turn`]) and every [`ROUND_EVERY`]; the called request retries routing and then
//! stays or leaves, which calls the next. When no replica has room a round is one decision, however many wait.
//! `crate::gateway` decides how long a request waits.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Refusal;
use super::flow::Position;
use super::outlook::{Deferral, Outlook};
use super::queue::{Entered, Line, WaitQueue};
use super::waiter::{Lane, Share, WaitReason, Waiter};
use crate::clock::Stamp;

/// The queue of one pool; it outlives reloads with its pool.
#[derive(Debug, Default)]
pub struct PoolQueue {
    state: Mutex<QueueState>,
    /// Waiting requests, so that an empty queue costs two loads.
    len: AtomicUsize,
    has_promised: AtomicBool,
    is_strict: AtomicBool,
    /// Of those, the ones that wait for the first replica.
    cold: AtomicUsize,
}

#[derive(Debug, Default)]
struct QueueState {
    waiting: WaitQueue<Arc<Call>>,
    /// Whether a task runs [`PoolQueue::drive`].
    is_driven: bool,
}

/// How a waiting task is told something.
#[derive(Debug, Default)]
struct Call {
    notify: Notify,
    /// It lost its position.
    evicted: OnceLock<Refusal>,
}

/// A position in a pool's queue, freed on drop.
#[derive(Debug)]
pub struct Ticket {
    queue: Arc<PoolQueue>,
    position: Position,
    reason: WaitReason,
    lane: Lane,
    call: Arc<Call>,
}

impl PoolQueue {
    /// Says whether any route of the pool has a `[route.queue]`.
    pub fn set_strict(&self, is_strict: bool) {
        self.is_strict.store(is_strict, Ordering::Relaxed);
    }

    /// Whether requests of the pool may be refused; otherwise they are ordered only.
    pub fn is_strict(&self) -> bool {
        self.is_strict.load(Ordering::Relaxed)
    }

    /// Adds a request. The flag is true if no task drives the queue: the caller must then spawn [`PoolQueue::drive`].
    ///
    /// # Errors
    /// The limit that it would exceed.
    pub fn enter(self: &Arc<Self>, waiter: &Waiter) -> Result<(Ticket, bool), Refusal> {
        let call = Arc::new(Call::default());
        let mut state = self.state.lock();
        let entered = state.waiting.enter(waiter, Arc::clone(&call));
        self.note(&state);
        let Entered { position, evicted } = entered?;
        let is_first = !std::mem::replace(&mut state.is_driven, true);
        drop(state);
        for (call, refusal) in evicted {
            let _ = call.evicted.set(refusal);
            call.notify.notify_one();
        }
        let (reason, lane) = (waiter.reason, waiter.lane());
        if reason == WaitReason::NoReplica {
            self.cold.fetch_add(1, Ordering::Relaxed);
        }
        Ok((Ticket { queue: Arc::clone(self), position, reason, lane, call }, is_first))
    }

    /// As [`WaitQueue::promise`].
    pub fn promise(&self, share: &Share, outlook: &Outlook, until_it_fits: Duration) -> Duration {
        let mut state = self.state.lock();
        let retry_after = state.waiting.promise(share, outlook, until_it_fits);
        self.note(&state);
        retry_after
    }

    /// A replica of the pool may have room: calls the first in order.
    pub fn turn(&self) {
        if !self.is_empty() {
            self.call(WaitQueue::turn);
        }
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Requests that wait, held ones included.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Requests that wait for a pool without a ready replica, or for their turn after that.
    pub fn waiting_for_replica(&self) -> usize {
        self.cold.load(Ordering::Relaxed)
    }

    /// Begins rounds until the queue is empty. Once `is_closed`, each calls every request that the gateway does not wait for then.
    pub async fn drive(self: Arc<Self>, is_closed: impl Fn() -> bool) {
        let driver = Driver(&self);
        loop {
            tokio::time::sleep(ROUND_EVERY).await;
            let mut state = self.state.lock();
            if state.waiting.is_empty() {
                state.is_driven = false;
                // From here on another may drive it.
                std::mem::forget(driver);
                return;
            }
            if is_closed() {
                state.waiting.refusable().for_each(|call| call.notify.notify_one());
            }
            drop(state);
            self.call(WaitQueue::tick);
        }
    }

    fn call(&self, next: impl FnOnce(&mut WaitQueue<Arc<Call>>) -> Option<Arc<Call>>) {
        let mut state = self.state.lock();
        let called = next(&mut state.waiting);
        self.note(&state);
        drop(state);
        if let Some(call) = called {
            call.notify.notify_one();
        }
    }

    /// No request waits, and none is to come back.
    fn is_idle(&self) -> bool {
        self.is_empty() && !self.has_promised.load(Ordering::Relaxed)
    }

    fn note(&self, state: &QueueState) {
        self.len.store(state.waiting.len(), Ordering::Relaxed);
        self.has_promised.store(state.waiting.has_promised(), Ordering::Relaxed);
    }
}

impl Line for &PoolQueue {
    fn ahead(&self, waiter: &Waiter) -> Option<Duration> {
        if self.is_idle() { None } else { self.state.lock().waiting.ahead(waiter) }
    }

    fn passed(&mut self, waiter: &Waiter, now: Stamp) {
        if !self.is_idle() {
            let mut state = self.state.lock();
            state.waiting.passed(waiter, now);
            self.note(&state);
        }
    }
}

/// Marks the queue as not driven if its task is dropped early.
struct Driver<'q>(&'q PoolQueue);

impl Drop for Driver<'_> {
    fn drop(&mut self) {
        self.0.state.lock().is_driven = false;
    }
}

impl Ticket {
    /// Whether it is a position for a request that waits like this one.
    pub fn suits(&self, waiter: &Waiter, queue: &Arc<PoolQueue>) -> bool {
        Arc::ptr_eq(&self.queue, queue) && (self.reason, self.lane) == (waiter.reason, waiter.lane())
    }

    /// Whether others wait for this one to be placed or refused.
    pub fn is_late(&self) -> bool {
        self.reason == WaitReason::Late
    }

    /// Whether it waits for the first replica.
    pub fn is_for_replica(&self) -> bool {
        self.reason == WaitReason::NoReplica
    }

    /// Waits until the request is to retry routing. Cancel-safe: an unawaited call wakes the next wait.
    ///
    /// # Errors
    /// It lost its position to a request of a tenant with less than its share of the queue.
    pub async fn called(&self) -> Result<(), Refusal> {
        self.call.notify.notified().await;
        self.call.evicted.get().map_or(Ok(()), |refusal| Err(*refusal))
    }

    /// The request could not be placed: calls the next.
    pub fn stays(&self, stay: Deferral) {
        self.queue.call(|waiting| waiting.stays(self.position, stay));
    }

    /// The request was placed: frees its position and counts its work as its tenant's.
    pub fn placed(self, now: Stamp) {
        self.queue.call(|waiting| waiting.placed(self.position, now));
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.is_for_replica() {
            self.queue.cold.fetch_sub(1, Ordering::Relaxed);
        }
        self.queue.call(|waiting| waiting.leave(self.position));
    }
}

/// Calls [`PoolQueue::turn`] on drop: for the end of a request, after its load was released.
#[derive(Debug)]
pub struct TurnOnDrop(pub Arc<PoolQueue>);

impl Drop for TurnOnDrop {
    fn drop(&mut self) {
        self.0.turn();
    }
}

/// Period of rounds: half a decode step, since predictions do not change faster.
pub const ROUND_EVERY: Duration = Duration::from_millis(10);
