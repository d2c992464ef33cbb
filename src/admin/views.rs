//! Handlers that read: health, metrics, routes, the configuration, canaries, and what one pool should have and why.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::IntoResponse;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, Response, StatusCode};
use serde_json::{Value, json};

use super::error::AdminError;
use super::query::{Admin, Answer};
use crate::api::canaries::Canaries;
use crate::api::scale::PoolScale;
use crate::config::Pool;
use crate::config::view::view;
use crate::fleet::status::ReplicaState;
use crate::observe::metrics::Exposition;

pub(super) async fn alive() -> Json<Value> {
    Json(json!({ "status": "alive" }))
}

pub(super) async fn ready(State(admin): Admin) -> (StatusCode, Json<Value>) {
    let reasons = admin.control.unready();
    let (code, status) = match reasons.is_empty() {
        true => (StatusCode::OK, "ready"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready"),
    };
    (code, Json(json!({ "reasons": reasons, "status": status })))
}

/// As `/health` of the data port.
pub(super) async fn ready_for_any(State(admin): Admin) -> Response<Body> {
    admin.control.health().map(Body::from)
}

pub(super) async fn metrics(State(admin): Admin, headers: HeaderMap) -> impl IntoResponse {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let exposition = Exposition::wanted(accept);
    admin.observer.metrics.set_sources(&admin.control.sources());
    let page = admin.observer.metrics.render_as(&admin.control.replicas(), exposition);
    ([(CONTENT_TYPE, exposition.content_type())], page)
}

/// Shares are of new requests: by the weights, and a canary's by the step that it is at.
pub(super) async fn routes(State(admin): Admin) -> Json<Value> {
    let (config, fleet) = (admin.control.config(), admin.control.replicas());
    let counted = |pool: &Pool| {
        let of_pool = || fleet.iter().filter(|status| status.pool == pool.name);
        (of_pool().filter(|status| status.state == ReplicaState::Ready).count(), of_pool().count())
    };
    let routes = config.routes.iter().map(|route| {
        let shares = admin.control.pool_shares(&route.name);
        let pools = route.pools.iter().enumerate().filter_map(|(at, weighted)| {
            let pool = config.pools.get(weighted.pool)?;
            let (ready, replicas) = counted(pool);
            Some(json!({
                "pool": &*pool.name,
                "ready": ready,
                "replicas": replicas,
                "revision": &*pool.revision,
                "share": shares.get(at).copied().unwrap_or_default(),
                "weight": weighted.weight,
            }))
        });
        let prefill = route.prefill.as_ref().and_then(|keys| {
            let pool = config.pools.get(keys.pool)?;
            let (ready, replicas) = counted(pool);
            let (pool, when) = (&*pool.name, keys.when.as_str());
            Some(json!({ "pool": pool, "ready": ready, "replicas": replicas, "when": when }))
        });
        json!({
            "is_degrading": admin.control.is_degrading(&route.name),
            "model": route.model.as_str(),
            "policy": route.policy.as_str(),
            "pools": pools.collect::<Value>(),
            "prefill": prefill,
            "required": route.required,
            "route": &*route.name,
            "slo": &*route.slo,
        })
    });
    Json(json!({ "routes": routes.collect::<Value>() }))
}

pub(super) async fn config(State(admin): Admin) -> Json<Value> {
    Json(view(&admin.control.config()))
}

pub(super) async fn canaries(State(admin): Admin) -> Json<Canaries> {
    Json(Canaries { canaries: admin.rollouts.canaries() })
}

pub(super) async fn scale(State(admin): Admin, Path(pool): Path<String>) -> Answer<PoolScale> {
    let wanted = admin.scale.of(&pool).ok_or_else(|| {
        let config = admin.control.config();
        let names: Vec<&str> = config.pools.iter().map(|pool| &*pool.name).collect();
        match names.contains(&&*pool) {
            true => AdminError::NotLookedAt(pool.clone()),
            false => AdminError::UnknownPool(pool.clone(), names.join(", ")),
        }
    })?;
    Ok(Json(wanted.scale))
}
