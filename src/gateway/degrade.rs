//! `[route.degrade]`: moves a request to another route if its own would miss the TTFT bound by the configured factor, or has no
//! replica left.
//!
//! The request is parsed again for the other route: model name, prompt identity, pools, SLO and deadlines are that
//! route's; the session and the time of arrival stay. It happens at most once per request: the other route's own
//! `[route.degrade]` does not apply. One that waits for a replica moves in the same way where a reload drops its pools.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::Gateway;
use super::classify::{Client, classify};
use super::prepare;
use super::prepared::Prepared;
use super::table::{RouteState, RoutingTable};
use crate::admission::{DegradeRule, Rules};
use crate::clock::Stamp;
use crate::fleet::pool::PoolState;
use crate::observe::record_guard::RecordGuard;
use crate::request::body::HeldBody;
use crate::request::dialect::{BodyForm, Dialect};
use crate::request::engine_priority::EnginePriority;

/// Moves the request to the fallback route. False if the body does not parse for it: the request then stays on its route.
pub(super) async fn degrade(
    prepared: &mut Box<Prepared>,
    guard: &mut RecordGuard,
    gateway: &Gateway,
    reason: &'static str,
) -> bool {
    let degrade = prepared.rules.degrade.take();
    let to = degrade.and_then(|degrade| prepared.table.routes.get(degrade.to)).cloned();
    let Some(to) = to else { return false };
    let (table, dialect) = (Arc::clone(&prepared.table), guard.record().dialect);
    let Some(after) = classified_for(table, to, prepared, dialect, gateway).await else { return false };
    let families = &gateway.observer.metrics.families;
    families.requests.admissions.inc(["degrade", reason]);
    prepared.route.degrading.note(gateway.clock.now());
    families.routes.degraded.inc([&prepared.route.config.name, &after.route.config.name]);
    guard.record().degraded_from = Some(Arc::clone(&prepared.route.config.name));
    let class = Arc::clone(&after.route.config.slo);
    go_on(prepared, guard, after, class);
    true
}

/// Moves a request that waits for a replica to its route of the configuration in force, where a reload has dropped all pools that it
/// could get one of. False if there is no such route, or the body does not parse for it.
pub(super) async fn renew(prepared: &mut Box<Prepared>, guard: &mut RecordGuard, gateway: &Gateway) -> bool {
    let table = gateway.table.load_full();
    let is_kept = |pool: &Arc<PoolState>| table.pools.iter().any(|known| Arc::ptr_eq(known, pool));
    if prepared.route.pools.iter().any(is_kept) {
        return false;
    }
    let before = &prepared.route.config;
    let by_name = table.routes.iter().find(|route| route.config.name == before.name);
    let to = by_name.or_else(|| table.routes.iter().find(|route| route.config.model == before.model));
    let Some(to) = to.filter(|route| route.is_visible_to(&prepared.tenant)).cloned() else { return false };
    let dialect = guard.record().dialect;
    if dialect.body_form() != BodyForm::Json {
        return false;
    }
    let own = Arc::clone(&guard.record().slo_class);
    let class = if table.config.slo.contains_key(&own) { own } else { Arc::clone(&to.config.slo) };
    let Some(after) = classified_for(table, to, prepared, dialect, gateway).await else { return false };
    let first_token = prepared.timeouts.first_token;
    go_on(prepared, guard, after, class);
    // What it has waited is no part of it.
    prepared.timeouts.first_token = first_token;
    true
}

/// The request continues as it is classified now, in this SLO class.
fn go_on(prepared: &mut Box<Prepared>, guard: &mut RecordGuard, mut after: Box<Prepared>, class: Arc<str>) {
    let record = guard.record();
    (after.session, after.read) = (prepared.session, prepared.read);
    after.note(record);
    after.end_within(prepared.timeouts.total, prepared.total_timer);
    after.share.clone_from(&prepared.share);
    after.carrier.clone_from(&prepared.carrier);
    after.apply_slo(&class);
    after.held = std::mem::replace(&mut prepared.held, HeldBody::empty());
    *prepared = after;
    record.slo = prepared.slo;
    record.slo_class = class;
    record.stage_budget.clone_from(&prepared.route.config.stage_budget);
    guard.watch_bounds();
}

/// The request, classified for a route of this table.
async fn classified_for(
    table: Arc<RoutingTable>,
    to: Arc<RouteState>,
    before: &Prepared,
    dialect: Dialect,
    gateway: &Gateway,
) -> Option<Box<Prepared>> {
    let body = before.held.bytes.clone();
    let (tenant, has_priority) = (before.tenant.clone(), before.engine_priority == EnginePriority::Client);
    let gets_answer_here = before.carrier.as_ref().is_none_or(|carrier| carrier.returns_answer());
    let work = move || {
        let fields = prepare::read_fields(dialect, None, &body).ok()?;
        let model = to.model_in_place();
        let client = Client { tenant: &tenant, slo_class: None, has_priority, gets_answer_here };
        Some(classify(&table, &to, dialect, &fields, model, &body, client))
    };
    gateway.body_work.run(before.tenant.name(), before.held.bytes.len(), work).await.ok()?
}

/// The rules of a request as they are at this moment.
pub(super) fn rules(request: &Prepared, now: Stamp) -> Rules {
    let own = |rule: DegradeRule| {
        let degrade = request.route.config.degrade.as_ref()?;
        let is_on = degrade.is_for(&request.share.tenant, request.share.priority);
        let over =
            if request.route.degrading.is_on(now, degrade.min_dwell) { degrade.until } else { degrade.over };
        is_on.then_some(DegradeRule { over, ..rule })
    };
    Rules { degrade: request.rules.degrade.and_then(own), ..request.rules }
}

/// Logs and counts every change of a route's state, forever.
pub async fn watch(gateway: Arc<Gateway>) {
    let mut known: HashMap<Arc<str>, bool> = HashMap::new();
    loop {
        let degrades = |route: &Arc<RouteState>| route.config.degrade.is_some();
        if known.is_empty() && !gateway.table.load().routes.iter().any(degrades) {
            gateway.table_changed.notified().await;
            continue;
        }
        tokio::time::sleep(LOOK_EVERY).await;
        let (table, now) = (gateway.table.load_full(), gateway.clock.now());
        let families = &gateway.observer.metrics.families.routes;
        let is_left = |route: &Arc<str>| {
            table.routes.iter().any(|known| known.config.name == *route && degrades(known))
        };
        known.retain(|route, _| {
            let keeps = is_left(route);
            if !keeps {
                families.degrading.remove([route]);
            }
            keeps
        });
        for route in &table.routes {
            let Some(is_on) = route.is_degrading(now) else { continue };
            let name = &route.config.name;
            families.degrading.set([name], Some(f64::from(u8::from(is_on))));
            if known.insert(Arc::clone(name), is_on).unwrap_or(false) != is_on {
                let state = if is_on { "on" } else { "off" };
                tracing::warn!(route = %name, state, "route.degrade changed");
                families.degrade_transitions.inc([name, state]);
            }
        }
    }
}

/// Below the shortest `min_dwell`, so that no change is missed.
const LOOK_EVERY: Duration = Duration::from_millis(500);
