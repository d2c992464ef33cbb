//! Paths answered by the gateway itself on the data port: `/v1/models`, `/health`, `/version`.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

use super::table::{RouteState, RoutingTable};
use crate::config::ModelMatch;
use crate::request::tenant::TenantRef;

/// `GET /v1/models`: models, aliases and adapters of the routes that the tenant may use.
#[must_use]
pub fn models(table: &RoutingTable, tenant: &TenantRef) -> Response<Bytes> {
    let mut entries: BTreeMap<String, Value> = BTreeMap::new();
    for route in &table.routes {
        if !tenant.may_use(&route.config.name) {
            continue;
        }
        match &route.config.model {
            ModelMatch::Any => {
                for (id, entry) in served(route) {
                    entries.entry(id).or_insert(entry);
                }
            }
            ModelMatch::Named(model) => {
                let engine_name = route.engine_model();
                let engine_name = engine_name.as_deref().unwrap_or(model);
                let mut entry = served(route)
                    .into_iter()
                    .find(|(id, _)| id == engine_name)
                    .map_or_else(|| json!({ "object": "model", "owned_by": "tokenway" }), |(_, entry)| entry);
                if let Some(entry) = entry.as_object_mut() {
                    entry.insert("id".into(), json!(&**model));
                    entry.remove("root");
                }
                entries.insert(model.to_string(), entry);
            }
        }
    }
    let data: Vec<Value> = entries.into_values().collect();
    json_response(StatusCode::OK, &json!({ "object": "list", "data": data }))
}

/// `GET /health`: 200 if a route is ready and the gateway does not drain, else 503.
#[must_use]
pub fn health(table: &RoutingTable, is_draining: bool) -> Response<Bytes> {
    let (status, text) = if is_draining {
        (StatusCode::SERVICE_UNAVAILABLE, "draining")
    } else if table.routes.iter().any(|r| r.is_ready()) {
        (StatusCode::OK, "ok")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "no route is ready")
    };
    json_response(status, &json!({ "status": text }))
}

/// `GET /version`: the crate's version.
#[must_use]
pub fn version() -> Response<Bytes> {
    json_response(StatusCode::OK, &json!({ "version": env!("CARGO_PKG_VERSION"), "gateway": "tokenway" }))
}

/// The models that a route's replicas list, without `permission` and `root` (a path on the engine's host).
fn served(route: &RouteState) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for (pool, _) in &route.pools {
        for replica in pool.replicas().iter() {
            for model in replica.models.load().iter() {
                let mut entry = model.entry.clone();
                if let Some(entry) = entry.as_object_mut() {
                    entry.remove("permission");
                    entry.remove("root");
                }
                all.push((model.id.to_string(), entry));
            }
        }
    }
    all
}

fn json_response(status: StatusCode, body: &Value) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
