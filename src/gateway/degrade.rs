//! `[route.degrade]`: another route answers a request that its own could answer only far too late.
//!
//! The request is read again as one of the other route: its model's name, prompt identity, pools, SLO and deadlines are
//! that route's; what the client may set stays as it is, and the clock does not start anew. It happens once: the
//! other route's own `[route.degrade]` does not apply.

use std::sync::Arc;

use super::prepare::{self, Prepared};
use super::table::RouteState;
use crate::config::ModelMatch;
use crate::observe::metrics::Metrics;
use crate::observe::record_guard::RecordGuard;
use crate::request::body::HeldBody;

/// Moves the request to the route that answers instead. Whether it did: a body that cannot be read again stays where it is.
pub(super) fn degrade(prepared: &mut Box<Prepared>, guard: &mut RecordGuard, metrics: &Metrics) -> bool {
    let degrade = prepared.rules.degrade.take();
    let to = degrade.and_then(|degrade| prepared.table.routes.get(degrade.to)).cloned();
    let Some(mut after) = to.and_then(|to| prepared_for(&to, prepared, guard)) else { return false };
    metrics.admission("degrade", "predicted_ttft");
    let asked = Arc::clone(&prepared.route.config.name);
    after.held = std::mem::replace(&mut prepared.held, HeldBody::empty());
    *prepared = after;
    let record = guard.record();
    record.degraded_from = Some(asked);
    record.slo = prepared.slo;
    record.slo_class = Arc::clone(&prepared.route.config.slo);
    record.stage_budget.clone_from(&prepared.route.config.stage_budget);
    true
}

/// The request as one of another route.
fn prepared_for(to: &Arc<RouteState>, before: &Prepared, guard: &mut RecordGuard) -> Option<Box<Prepared>> {
    let dialect = guard.record().dialect;
    let fields = prepare::parse(dialect, &before.held.bytes).ok()?;
    let named = match &to.config.model {
        ModelMatch::Named(model) => Some(Arc::clone(model)),
        ModelMatch::Any => None,
    };
    let model = to.engine_model().or(named);
    let mut after = prepare::classify(&before.table, to, guard, &fields, model, &before.held.bytes);
    after.timeouts.total = after.timeouts.total.min(before.timeouts.total);
    (after.session, after.read) = (before.session, before.read);
    after.bound_by(&to.config.slo);
    Some(after)
}
