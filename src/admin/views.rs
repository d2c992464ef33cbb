//! Handlers that read: health, metrics, routes and the configuration.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::IntoResponse;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use serde_json::Value;

use super::AdminState;
use crate::api::health::{Alive, Ready};
use crate::api::routes::{PrefillPool, Route, RoutePool, Routes};
use crate::config::Pool;
use crate::config::view::view;
use crate::fleet::status::ReplicaState;
use crate::observe::metrics::Exposition;

/// `/healthz`
pub(super) async fn alive() -> Json<Alive> {
    Json(Alive { status: "alive" })
}

/// `/readyz`
pub(super) async fn ready(State(admin): State<Arc<AdminState>>) -> (StatusCode, Json<Ready>) {
    let reasons = admin.control.unready();
    let (code, status) = match reasons.is_empty() {
        true => (StatusCode::OK, "ready"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready"),
    };
    (code, Json(Ready { reasons, status }))
}

/// `/metrics`
pub(super) async fn metrics(State(admin): State<Arc<AdminState>>, headers: HeaderMap) -> impl IntoResponse {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let exposition = Exposition::wanted(accept);
    admin.observer.metrics.set_sources(&admin.control.sources());
    let page = admin.observer.metrics.render_as(&admin.control.replicas(), exposition);
    ([(CONTENT_TYPE, exposition.content_type())], page)
}

/// `/api/routes`
pub(super) async fn routes(State(admin): State<Arc<AdminState>>) -> Json<Routes> {
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
            Some(RoutePool {
                pool: pool.name.to_string(),
                ready,
                replicas,
                revision: pool.revision.to_string(),
                share: shares.get(at).copied().unwrap_or_default(),
                weight: weighted.weight,
            })
        });
        let prefill = route.prefill.as_ref().and_then(|keys| {
            let pool = config.pools.get(keys.pool)?;
            let (ready, replicas) = counted(pool);
            let (pool, when) = (pool.name.to_string(), keys.when.as_str().to_owned());
            Some(PrefillPool { pool, ready, replicas, when })
        });
        Route {
            is_degrading: admin.control.is_degrading(&route.name),
            model: route.model.as_str().to_owned(),
            policy: route.policy.as_str().to_owned(),
            pools: pools.collect(),
            prefill,
            required: route.required,
            route: route.name.to_string(),
            slo: route.slo.to_string(),
        }
    });
    Json(Routes { routes: routes.collect() })
}

/// `/api/config`
pub(super) async fn config(State(admin): State<Arc<AdminState>>) -> Json<Value> {
    Json(view(&admin.control.config()))
}
