//! `GET /v1/models` and `/v1/models/{id}`: what a tenant may ask for.
//!
//! The objects are the engines' own, byte for byte, in the order of routes and pools: base models first, because clients
//! that are given no name take the first. A route whose name the engines do not list has the object of the engine's model,
//! with the route's name for its id.

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Response, StatusCode};
use serde_json::json;

use super::local::json_response;
use super::table::{RouteState, RoutingTable};
use crate::config::paths::is_plain_path;
use crate::config::{ModelMatch, percent_decoded};
use crate::error::Failure;
use crate::fleet::engine::EngineModel;
use crate::fleet::pool::PoolState;
use crate::request::tenant::TenantRef;

/// The list of models, and one of them.
pub(super) fn respond(
    table: &RoutingTable,
    tenant: &TenantRef,
    path: &str,
) -> Result<Response<Bytes>, Failure> {
    let mut listed = visible(table, tenant);
    let Some(id) = path.strip_prefix(PREFIX) else {
        listed.sort_by_key(|model| !model.is_base);
        let objects: Vec<&str> = listed.iter().map(|model| &*model.object).collect();
        let page = format!(r#"{{"object":"list","data":[{}]}}"#, objects.join(","));
        return Ok(json_response(StatusCode::OK, page));
    };
    // Clients differ in whether they escape the slash of a name.
    let id = unescaped(id);
    match listed.into_iter().find(|model| model.id == id) {
        Some(model) => Ok(json_response(StatusCode::OK, model.object)),
        None => Err(Failure::ModelNotFound { model: super::table::shortened(&id) }),
    }
}

/// Whether the path is one of these two.
pub(super) fn is_path(path: &str) -> bool {
    path == LIST || path.strip_prefix(PREFIX).is_some_and(|id| !id.is_empty())
}

/// The route whose engine answers in place of the gateway: its list needs a key, which clients may have and the gateway does not.
pub(super) fn relayed_by(table: &RoutingTable) -> Option<&Arc<RouteState>> {
    let [route] = &*table.routes else { return None };
    let is_theirs = route.config.model == ModelMatch::Any && !table.tenants.ask_for_keys();
    let is_refused =
        |pool: &Arc<PoolState>| pool.replicas().iter().any(|replica| replica.engine.refuses_list());
    (is_theirs && route.pools.iter().any(is_refused)).then_some(route)
}

/// Whether a client's look is passed on to that engine.
pub(super) fn is_relayed(table: &RoutingTable, parts: &Parts) -> bool {
    let path = parts.uri.path();
    // An engine, or a proxy before it, resolves what is no name of a model: to its control endpoints, for all we know.
    let is_plain = || path.strip_prefix(PREFIX).is_some_and(|id| is_plain_path(&unescaped(id)));
    (path == LIST || is_plain())
        && matches!(parts.method, Method::GET | Method::HEAD)
        && relayed_by(table).is_some()
}

/// One entry of the list.
struct Listed {
    id: String,
    object: String,
    is_base: bool,
}

/// Every model that a tenant may ask for, each once.
fn visible(table: &RoutingTable, tenant: &TenantRef) -> Vec<Listed> {
    let mut all: Vec<Listed> = Vec::new();
    let mut add = |listed: Listed| {
        if !all.iter().any(|known| known.id == listed.id) {
            all.push(listed);
        }
    };
    for route in table.routes.iter().filter(|route| route.is_visible_to(tenant)) {
        match &route.config.model {
            ModelMatch::Any => served(route, |model| {
                // Another route may claim it.
                if table.route_for(tenant, &model.id).is_some() {
                    add(as_it_is(model));
                }
            }),
            ModelMatch::Named(name) => add(named(route, name)),
        }
    }
    all
}

/// The object of a route of one model.
fn named(route: &RouteState, name: &str) -> Listed {
    let engine_name = route.engine_model();
    let engine_name = engine_name.as_deref().unwrap_or(name);
    let mut found = None;
    served(route, |model| {
        if found.is_none() && &*model.id == engine_name {
            found = Some(if engine_name == name { as_it_is(model) } else { renamed(model, name) });
        }
    });
    // No engine has told yet: what clients read of an object is there.
    found.unwrap_or_else(|| Listed {
        id: name.to_owned(),
        object: json!({
            "id": name, "object": "model", "created": 0, "owned_by": "tokenway", "root": name, "parent": null
        })
        .to_string(),
        is_base: true,
    })
}

fn as_it_is(model: &EngineModel) -> Listed {
    Listed { id: model.id.to_string(), object: model.entry.to_string(), is_base: model.is_base }
}

fn renamed(model: &EngineModel, name: &str) -> Listed {
    let (before, after) = (model.entry.get(..model.id_at.start), model.entry.get(model.id_at.end..));
    let mut object = before.unwrap_or_default().to_owned();
    // Writing into a String cannot fail.
    let _ = write!(object, "{}", json!(name));
    object.push_str(after.unwrap_or_default());
    Listed { id: name.to_owned(), object, is_base: model.is_base }
}

/// The models that a route's replicas list, in the order of its pools.
fn served(route: &RouteState, mut each: impl FnMut(&EngineModel)) {
    for pool in &route.pools {
        for replica in pool.replicas().iter() {
            replica.engine.models.load().iter().for_each(&mut each);
        }
    }
}

/// A path's text without its percent-encoding; what is no such encoding stays.
pub(super) fn unescaped(text: &str) -> String {
    String::from_utf8_lossy(&percent_decoded(text)).into_owned()
}

pub(super) const LIST: &str = "/v1/models";
const PREFIX: &str = "/v1/models/";
