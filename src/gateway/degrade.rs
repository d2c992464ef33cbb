//! `[route.degrade]`: moves a request to another route if its own would miss the TTFT bound by the configured factor.
//!
//! The request is parsed again for the other route: model name, prompt identity, pools, SLO and deadlines are that
//! route's; the session and the time of arrival stay. It happens at most once per request: the other route's own
//! `[route.degrade]` does not apply.

use std::sync::Arc;

use super::prepare::{self, Prepared};
use super::table::RouteState;
use crate::config::ModelMatch;
use crate::observe::metrics::Metrics;
use crate::observe::record_guard::RecordGuard;
use crate::request::body::HeldBody;

/// Moves the request to the fallback route. False if the body does not parse for it: the request then stays on its route.
pub(super) fn degrade(prepared: &mut Box<Prepared>, guard: &mut RecordGuard, metrics: &Metrics) -> bool {
    let degrade = prepared.rules.degrade.take();
    let to = degrade.and_then(|degrade| prepared.table.routes.get(degrade.to)).cloned();
    let Some(mut after) = to.and_then(|to| prepared_for(&to, prepared, guard)) else { return false };
    metrics.admission("degrade", "predicted_ttft");
    let from = Arc::clone(&prepared.route.config.name);
    after.held = std::mem::replace(&mut prepared.held, HeldBody::empty());
    *prepared = after;
    let record = guard.record();
    record.degraded_from = Some(from);
    record.slo = prepared.slo;
    record.slo_class = Arc::clone(&prepared.route.config.slo);
    record.stage_budget.clone_from(&prepared.route.config.stage_budget);
    true
}

/// The request, prepared for another route.
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
    after.share.clone_from(&before.share);
    after.apply_slo(&to.config.slo);
    Some(after)
}
