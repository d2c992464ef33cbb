//! Where stored responses live: each exists on the replica that made it, and for the tenant that made it.

use std::sync::Arc;

use super::Gateway;
use super::table::{RouteState, RoutingTable, shortened};
use crate::error::Failure;
use crate::fleet::replica::Replica;
use crate::fleet::status::ReplicaState;
use crate::relay::pins::StoredAnswer;
use crate::request::tenant::TenantRef;

/// The replica that a request with `previous_response_id` has to go to.
///
/// # Errors
/// [`Failure::PreviousResponseNotFound`] for one that is unknown, another tenant's, or on a replica that is gone.
pub(super) fn previous(
    gateway: &Gateway,
    tenant: &TenantRef,
    route: &RouteState,
    id: &str,
) -> Result<Arc<Replica>, Failure> {
    let url = gateway.pins.replica_of(tenant.name(), id);
    url.and_then(|url| maker(route, &url))
        .ok_or_else(|| Failure::PreviousResponseNotFound { id: shortened(id) })
}

/// The route that made a response in place of the one that is asked: that of its `[route.degrade]`.
pub(super) fn stood_in<'t>(
    gateway: &Gateway,
    tenant: &TenantRef,
    table: &'t RoutingTable,
    route: &RouteState,
    id: &str,
) -> Option<&'t Arc<RouteState>> {
    let to = table.routes.get(route.config.degrade.as_ref()?.to)?;
    let url = gateway.pins.replica_of(tenant.name(), id)?;
    let is_its = maker(route, &url).is_none() && maker(to, &url).is_some();
    (is_its && to.is_visible_to(tenant)).then_some(to)
}

/// The route and replica of `/v1/responses/{id}` and what lies below it.
///
/// # Errors
/// [`Failure::ResponseNotFound`], as for [`previous`].
pub(super) fn of_path<'t>(
    gateway: &Gateway,
    tenant: &TenantRef,
    table: &'t RoutingTable,
    path: &str,
) -> Result<(&'t Arc<RouteState>, Arc<Replica>), Failure> {
    let id = id_of(path);
    let url = gateway.pins.replica_of(tenant.name(), id);
    let visible = table.routes.iter().filter(|route| route.is_visible_to(tenant));
    url.and_then(|url| visible.into_iter().find_map(|route| Some((route, maker(route, &url)?))))
        .ok_or_else(|| Failure::ResponseNotFound { id: shortened(id) })
}

/// Asks the other gateways for a response that is not known here.
///
/// # Errors
/// [`Failure::OthersUnreachable`] where they cannot be asked.
pub(super) async fn fetch(gateway: &Gateway, tenant: &TenantRef, id: &str) -> Result<(), Failure> {
    let is_final = gateway.pins.fetch(tenant.name(), id).await;
    if is_final { Ok(()) } else { Err(Failure::OthersUnreachable { id: shortened(id) }) }
}

/// The response that a path names.
pub(super) fn answer(gateway: &Gateway, path: &str) -> StoredAnswer {
    StoredAnswer { pins: Arc::clone(&gateway.pins), id: id_of(path).into() }
}

/// Of the response that a path names.
pub(super) fn id_of(path: &str) -> &str {
    path.split('/').nth(3).unwrap_or_default()
}

/// The replica that made a response, whether it takes requests now or not, unless its process seems to be gone and the response with it.
fn maker(route: &RouteState, url: &str) -> Option<Arc<Replica>> {
    let of_pool = |pool: &crate::fleet::pool::PoolState| {
        pool.replicas().iter().find(|r| *r.identity.url == *url).cloned()
    };
    let made = route.pools.iter().find_map(|pool| of_pool(pool));
    made.filter(|replica| replica.state() != ReplicaState::Unreachable)
}
