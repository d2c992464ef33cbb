//! Handlers that read: health, metrics and the JSON API.
//!
//! JSON is built by hand from the shared types, so that a field added to one does not become part of the API unnoticed.
//! Durations are seconds.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::IntoResponse;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};

use super::replicas::source;
use super::{AdminState, config_view};
use crate::fleet::status::{
    GpuFigures, LifeStatus, PoolCalibration, ReplicaState, ReplicaStatus, Throttling,
};
use crate::observe::judgement::Judgement;
use crate::observe::metrics::Exposition;
use crate::observe::slo::Missed;
use crate::observe::stages::Stage;
use crate::observe::{Observer, rfc3339};
use crate::record::{Record, Weighed};
use crate::routing::Calibration;
use crate::routing::EngineSignals;

/// `/healthz`
pub(super) async fn alive() -> Json<Value> {
    Json(json!({ "status": "alive" }))
}

/// `/readyz`
pub(super) async fn ready(State(admin): State<Arc<AdminState>>) -> (StatusCode, Json<Value>) {
    let readiness = admin.control.readiness();
    let (status, text) = match readiness.is_ready() {
        true => (StatusCode::OK, "ready"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not ready"),
    };
    (status, Json(json!({ "status": text, "reasons": readiness.reasons })))
}

/// `/metrics`
pub(super) async fn metrics(State(admin): State<Arc<AdminState>>, headers: HeaderMap) -> impl IntoResponse {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    let exposition = Exposition::wanted(accept);
    admin.observer.metrics().set_sources(&admin.control.sources());
    let page = admin.observer.metrics().render_as(&admin.control.replicas(), exposition);
    ([(CONTENT_TYPE, exposition.content_type())], page)
}

/// `/api/fleet`
pub(super) async fn fleet(State(admin): State<Arc<AdminState>>) -> Json<Value> {
    let calibrations = admin.control.calibrations();
    let replicas = admin.control.replicas();
    let replicas = replicas.iter().map(|status| replica(status, &calibrations)).collect::<Vec<_>>();
    let pools = calibrations
        .iter()
        .map(|pool| json!({ "pool": &*pool.pool, "calibration": pool.whole.as_ref().map(calibration) }))
        .collect::<Vec<_>>();
    let sources = admin.control.sources();
    let sources = sources.iter().map(source).collect::<Vec<_>>();
    Json(json!({ "replicas": replicas, "pools": pools, "sources": sources }))
}

fn replica(status: &ReplicaStatus, calibrations: &[PoolCalibration]) -> Value {
    let pool = calibrations.iter().find(|pool| pool.pool == status.pool);
    let of_replica = pool.and_then(|pool| pool.replicas.iter().find(|(name, _)| *name == status.replica));
    let known = of_replica.and_then(|(_, known)| known.as_ref());
    json!({
        "pool": &*status.pool,
        "revision": &*status.revision,
        "replica": &*status.replica,
        "url": &*status.url,
        "state": status.state.as_str(),
        "reason": &*status.reason,
        "since": status.life.since.as_secs_f64(),
        "life": life(&status.life),
        "zone": status.life.zone.as_deref(),
        "failure_ratio": status.failure_ratio,
        "traffic_share": status.traffic_share,
        "on_trial": status.is_on_trial,
        "inflight": status.inflight,
        "inflight_prompt_tokens": status.inflight_prompt_tokens,
        "connections": status.connections,
        "models": status.models.iter().map(|model| &**model).collect::<Vec<_>>(),
        "adapters": status.adapters.iter().map(|adapter| &**adapter).collect::<Vec<_>>(),
        "signals": status.signals.as_ref().map(signals),
        "absent_figures": &*status.absent,
        "gpu": status.gpu.as_ref().map(gpu),
        "scrape_failures": status.failures.scrapes,
        "probe_failures": status.failures.probes,
        "calibration": known.map(calibration),
    })
}

/// State changes by the state entered; cold starts in seconds. `since` beside it: seconds in the present state.
fn life(life: &LifeStatus) -> Value {
    let entered = ReplicaState::ALL.iter().zip(life.entered);
    json!({
        "entered": entered.map(|(state, count)| (state.as_str(), count)).collect::<BTreeMap<_, _>>(),
        "in_slow_start": life.is_in_slow_start,
        "cold_starts": life.cold_starts,
        "last_cold_start": life.latest_cold_starts.last().map(std::time::Duration::as_secs_f64),
        "lacks": life.lacks.iter().map(|model| &**model).collect::<Vec<_>>(),
        "warm_up": life.warm_up.as_ref().map(|report| json!({
            "requests": report.requests,
            "took": report.took.as_secs_f64(),
            "slowest": report.slowest.as_secs_f64(),
            "problems": report.problems,
        })),
    })
}

/// Of TTFT; errors as fractions of the actual time.
fn calibration(known: &Calibration) -> Value {
    json!({
        "answers": known.answers,
        "median_error": known.median_error,
        "p90_error": known.p90_error,
        "bias": known.bias,
        "coverage": known.coverage,
    })
}

fn signals(signals: &EngineSignals) -> Value {
    json!({
        "age": signals.age.as_secs_f64(),
        "running": signals.running,
        "waiting": signals.waiting,
        "kv_cache_usage": signals.kv_cache_usage,
        "batch_limit": signals.batch_limit,
        "block_tokens": signals.block_tokens,
        "total_blocks": signals.total_blocks,
    })
}

fn gpu(figures: &GpuFigures) -> Value {
    let reasons = |throttling: Throttling| {
        let holding = throttling.each().filter(|(_, holds)| *holds);
        holding.map(|(reason, _)| reason).collect::<Vec<_>>()
    };
    json!({
        "gpus": figures.gpus,
        "utilization": figures.utilization,
        "memory_used_bytes": figures.memory_used,
        "memory_free_bytes": figures.memory_free,
        "clocks_throttled": figures.throttling.map(reasons),
        "xid": figures.xid,
    })
}

/// `/api/routes`
pub(super) async fn routes(State(admin): State<Arc<AdminState>>) -> Json<Value> {
    let (config, fleet) = (admin.control.config(), admin.control.replicas());
    let routes = config.routes.iter().map(|route| {
        let pools = route.pools.iter().filter_map(|weighted| {
            let pool = config.pools.get(weighted.pool)?;
            let of_pool = || fleet.iter().filter(|status| status.pool == pool.name);
            Some(json!({
                "pool": &*pool.name,
                "revision": &*pool.revision,
                "weight": weighted.weight,
                "replicas": of_pool().count(),
                "ready": of_pool().filter(|status| status.state == ReplicaState::Ready).count(),
            }))
        });
        json!({
            "route": &*route.name,
            "model": route.model.as_str(),
            "policy": route.policy.as_str(),
            "slo": &*route.slo,
            "required": route.required,
            "is_degrading": admin.control.is_degrading(&route.name),
            "pools": pools.collect::<Vec<_>>(),
        })
    });
    Json(json!({ "routes": routes.collect::<Vec<_>>() }))
}

/// `/api/decisions`
pub(super) async fn decisions(State(admin): State<Arc<AdminState>>) -> Json<Value> {
    let latest = admin.observer.decisions().latest();
    let decisions = latest.iter().filter_map(|record| decision(&admin.observer, record));
    Json(json!({ "decisions": decisions.collect::<Vec<_>>() }))
}

fn decision(observer: &Observer, record: &Record) -> Option<Value> {
    let decision = record.decision.as_ref()?;
    let judgement = Judgement::of(record);
    let routed = record.at.routed.unwrap_or(record.at.head);
    Some(json!({
        "time": rfc3339::utc(observer.clock().wall(routed)),
        "request_id": &*record.request_id,
        "route": &*record.route,
        "model": &*record.model,
        "class": record.class.as_str(),
        "policy": decision.policy,
        "reason": decision.reason,
        "candidates": decision.candidates,
        "cold": decision.is_cold,
        "replica": record.served().map(|served| &*served.replica),
        "waited": decision.waited.as_secs_f64(),
        "predicted_ttft": decision.predicted_ttft.map(|ttft| ttft.as_secs_f64()),
        "ttft": record.ttft().map(|ttft| ttft.as_secs_f64()),
        "predicted_hit_tokens": decision.predicted_hit.0,
        "cached_tokens": record.tokens.cached.map(|cached| cached.0),
        "attempts": record.attempts.len(),
        "outcome": record.outcome.as_str(),
        "slo_missed": judgement.missed().map(Missed::as_str),
        "slo_missed_in": judgement.blamed.map(Stage::as_str),
        "over_budget": judgement.over_budget.iter().map(|stage| stage.as_str()).collect::<Vec<_>>(),
        "why": decision.why(),
        "weighed": decision.weighed.iter().map(weighed).collect::<Vec<_>>(),
    }))
}

/// A candidate of a decision.
pub(super) fn weighed(candidate: &Weighed) -> Value {
    let cost = candidate.cost.named().into_iter().map(|(name, seconds)| (name.to_owned(), seconds.into()));
    json!({
        "replica": &*candidate.replica,
        "predicted_ttft": candidate.predicted_ttft.as_secs_f64(),
        "predicted_hit_tokens": candidate.predicted_hit.0,
        "chosen": candidate.is_chosen,
        "wait": candidate.cost.wait,
        "prefill": candidate.cost.prefill,
        "harm": candidate.harm,
        "late": candidate.late,
        "cost": candidate.cost.total(),
        "cost_seconds": Value::Object(cost.collect()),
    })
}

/// `/api/config`
pub(super) async fn config(State(admin): State<Arc<AdminState>>) -> Json<Value> {
    Json(config_view::config(&admin.control.config()))
}
