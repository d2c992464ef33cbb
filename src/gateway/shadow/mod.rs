//! Copies of requests for a canary at its shadow step (`route.canary.shadow`).
//!
//! A share of the requests that go to the route's other pools is sent to the canary as well. The client's request knows nothing of its
//! copy: it waits for nothing, fails by nothing, and what the copy's answer says goes to the judge of the canary alone. A copy holds
//! one of a bounded number of places and its body's bytes; without room for either it is not made, and counted. It ends when the
//! client leaves before its own answer is complete, because the baseline is rid of that load too, and when it has no content long after
//! the original was answered: a canary that hangs would otherwise take all places and be judged by the rest.

mod copy;
mod shares;

use std::sync::Arc;

use self::copy::Copy;
pub use self::shares::{Shadow, Shadows};
use super::prepared::Prepared;
use super::{Gateway, IncomingRequest};
use crate::background::boxed_until;
use crate::fleet::pick::Pick;
use crate::fleet::pool::PoolState;
use crate::observe::record_guard::{OriginalEnd, RecordGuard};
use crate::request::dialect::Dialect;

/// Copies a request that is about to be sent to `pick`, if it is one of those that the canary gets copies of.
pub(super) fn offer(incoming: &IncomingRequest, prepared: &Prepared, guard: &mut RecordGuard, pick: &Pick) {
    let Some(shadow) = &prepared.route.shadow else { return };
    let route = &prepared.route;
    let Some(canary) = &route.config.canary else { return };
    let Some(limits) = &canary.shadow else { return };
    let record = guard.record();
    let is_first = record.attempts.is_empty();
    if !is_first || !may_be_copied(prepared, record.dialect) || incoming.gateway.drain.is_on() {
        return;
    }
    let at = route.config.pools.iter().position(|weighted| weighted.pool == canary.pool);
    let Some((at, pool)) = at.and_then(|at| Some((at, route.pools.get(at)?))) else { return };
    if Arc::ptr_eq(pool, &pick.pool) || !shadow.is_due(prepared.conversation()) {
        return;
    }
    let gateway = &incoming.gateway;
    match shadow.reserve(limits, prepared.body.len()) {
        Ok(place) => {
            let original = OriginalEnd::default();
            let copy = Copy::new(incoming, prepared, record, (at, place), original.clone());
            guard.signals(original);
            gateway.tasks.spawn(boxed_until(&gateway.shadows.stop, copy.run()));
        }
        Err(reason) => count(gateway, &route.config.name, pool, reason),
    }
}

/// Counts a copy that the canary's pool did not get.
fn count(gateway: &Gateway, route: &str, pool: &PoolState, reason: &'static str) {
    let config = pool.config();
    let labels = [route, &config.name, &config.revision, reason];
    gateway.observer.metrics.families.canaries.shadow_requests.inc(labels);
}

/// Whether a request changes nothing at its engine, and may be asked twice: no answer that is stored or belongs to a stored one, no
/// socket, nothing that is relayed without being understood. Of responses the body decides ([`copy`]).
fn may_be_copied(prepared: &Prepared, dialect: Dialect) -> bool {
    let is_known = matches!(
        dialect,
        Dialect::Chat
            | Dialect::Completions
            | Dialect::Messages
            | Dialect::Responses
            | Dialect::Embeddings
            | Dialect::Rerank
            | Dialect::Score
            | Dialect::Classify
            | Dialect::Pooling
    );
    is_known && prepared.pinned.is_none()
}
