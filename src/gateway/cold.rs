//! Requests for a pool that has scaled to zero: they wait for its first replica, and are then let go one after the other.
//!
//! The first replica has an empty cache and nothing learned. Each gets the next request when it has computed most of those before,
//! so that the first ones are answered soon instead of all late; who comes meanwhile goes behind those that wait.

use std::sync::Arc;
use std::time::Duration;

use super::prepared::Prepared;
use crate::admission::{Deferral, WaitReason, Waiter};
use crate::config::{ColdWait, QueueLimits};
use crate::fleet::pool::PoolState;

impl Prepared {
    /// How it waits where none of its pools has a replica; `None` where it does not.
    pub(super) fn cold_wait(&self) -> Option<ColdWait> {
        if self.pinned.is_some() {
            return None;
        }
        self.route.cold_wait()
    }

    /// Interval of comments to its client while it waits for the first replica.
    pub(super) fn cold_heartbeat(&self) -> Option<Duration> {
        let every = self.cold_wait()?.heartbeat?;
        let is_awake = self.route.is_ready()
            && self.route.pools.iter().all(|pool| pool.queue.waiting_for_replica() == 0);
        (!is_awake).then_some(every)
    }

    /// As [`Prepared::waiter`], with the limits that hold without a replica.
    pub(super) fn waiter_for(&self, reason: WaitReason) -> Waiter {
        let waiter = self.waiter(reason);
        match self.cold_wait().filter(|_| reason == WaitReason::NoReplica) {
            Some(ColdWait { max_requests, max_bytes, max_wait, .. }) => {
                let limits = QueueLimits { max_requests, max_bytes, max_wait, isolate_long: false };
                Waiter { limits: Some(limits), ..waiter }
            }
            None => waiter,
        }
    }
}

/// Whether a request waits for its turn after a cold start, and whether others may be called meanwhile; `None` if it need not.
/// `waits`: it waits for a replica already; the others go behind.
pub(super) fn turn(request: &Prepared, pool: &Arc<PoolState>, waits: bool) -> Option<Deferral> {
    let first = request.route.pools.first()?;
    let others = first.queue.waiting_for_replica();
    if others == 0 || request.cold_wait().is_none() || (waits && has_room(pool)) {
        return None;
    }
    Some(if request.route.pools.len() == 1 { Deferral::NoCapacity } else { Deferral::Request })
}

/// Whether a ready replica has computed nearly all that it was sent, and has a place in its batch.
fn has_room(pool: &Arc<PoolState>) -> bool {
    let limits = pool.engine_limits();
    pool.replicas().iter().filter(|replica| replica.is_ready()).any(|replica| {
        let (load, view) = (&replica.target.load, replica.target.load.view());
        let batch = limits.batch_limit.or(load.batch_limit()).unwrap_or(u64::MAX);
        view.awaiting < MAX_AWAITING && view.inflight < batch
    })
}

/// Prompts at a replica without a first token: one is computed, and the next ones fill the step after it.
const MAX_AWAITING: u64 = 4;
