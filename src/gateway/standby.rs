//! Pools that take traffic only while those before them cannot (`pool.standby`).
//!
//! A request goes to the first standby pool with a ready replica where no other pool of its route has one, or where the queue of the
//! pool that it was given refuses it. Both last for a while beyond the last request that had no other way, so that pools which
//! come and go, or are full at every other moment, do not take their requests with them: the requests that come meanwhile go to the standby
//! pool as well, after a failure all of them, after a refusal those that would wait.

use std::sync::Arc;
use std::time::Duration;

use super::Gateway;
use super::asking::PickContext;
use super::prepared::Prepared;
use super::table::RouteState;
use crate::admission::WaitReason;
use crate::clock::Stamp;
use crate::error::Failure;
use crate::fleet::pool::PoolState;

/// The standby pool that a request is to be given now; `is_open`: whether a pool has a replica that it may try.
pub(super) fn place(
    request: &Prepared,
    past: &PickContext<'_>,
    now: Stamp,
    is_open: impl Fn(usize) -> bool,
) -> Option<usize> {
    let route = &request.route;
    if past.pool.is_some_and(&is_open) && !past.overflows {
        return None;
    }
    let open = route.standbys().find(|at| is_open(*at))?;
    if !past.overflows && (0..route.pools.len()).any(|at| route.wheel.may_use(at) && is_open(at)) {
        return route.standby.down.is_on(now, DWELL).then_some(open);
    }
    // What one request has tried is no evidence about the pool.
    if !past.overflows && past.tried.is_empty() {
        route.standby.down.note(now);
    }
    Some(open)
}

/// Whether a request that is to wait goes to a standby pool at once.
pub(super) fn takes_waiting(request: &Prepared, reason: WaitReason, now: Stamp) -> bool {
    let is_refusable = reason == WaitReason::Late && request.rules.queue.is_some();
    is_refusable && has_open(request, now) && request.route.standby.full.is_on(now, DWELL)
}

/// Whether a request that was refused goes to a standby pool instead.
pub(super) fn takes_refused(request: &Prepared, failure: &Failure, now: Stamp) -> bool {
    let takes = matches!(failure, Failure::NotAdmitted { .. }) && has_open(request, now);
    if takes {
        request.route.standby.full.note(now);
    }
    takes
}

fn has_open(request: &Prepared, now: Stamp) -> bool {
    let takes = |pool: &PoolState| pool.is_ready() && pool.has_room(request.outside_demand(), now);
    let is_ready = |at: usize| request.route.pools.get(at).is_some_and(|pool| takes(pool));
    request.pinned.is_none() && request.route.standbys().any(is_ready)
}

impl RouteState {
    /// Counts a request that a standby pool of the route got.
    pub(super) fn count_standby(&self, gateway: &Gateway, pool: &Arc<PoolState>, reason: &'static str) {
        let place = self.pools.iter().position(|known| Arc::ptr_eq(known, pool));
        if place.is_some_and(|place| self.is_standby(place)) {
            gateway.observer.metrics.families.routes.standby.inc([&self.config.name, &pool.name, reason]);
        }
    }
}

/// How long the last request without another way is reason enough.
const DWELL: Duration = Duration::from_secs(10);
