//! JSON of the admin API.
//!
//! Built by hand from the shared types, so that a field added inside does not become part of the API unseen.
//! Durations are seconds.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value as Json, json};

use crate::config::{Config, ModelMatch};
use crate::drift::detectors::Finding;
use crate::drift::service::Feed;
use crate::fleet::status::{PoolCalibration, ReplicaState, ReplicaStatus};
use crate::observe::judgement::Judgement;
use crate::observe::slo::Missed;
use crate::observe::stages::Stage;
use crate::observe::windows::{Percentiles, Window};
use crate::observe::{Observer, rfc3339};
use crate::record::{Record, Weighed};
use crate::routing::Calibration;
use crate::routing::EngineSignals;

/// `/api/fleet`
pub(super) fn fleet(fleet: &[ReplicaStatus], calibrations: &[PoolCalibration]) -> Json {
    let replicas = fleet.iter().map(|status| {
        let pool = calibrations.iter().find(|pool| pool.pool == status.pool);
        let of_replica = pool.and_then(|pool| pool.replicas.iter().find(|(name, _)| *name == status.replica));
        let mut json = replica(status);
        json["calibration"] = calibration(of_replica.and_then(|(_, known)| known.as_ref()));
        json
    });
    let pools = calibrations.iter();
    let pools =
        pools.map(|pool| json!({ "pool": &*pool.pool, "calibration": calibration(pool.whole.as_ref()) }));
    json!({ "replicas": replicas.collect::<Vec<_>>(), "pools": pools.collect::<Vec<_>>() })
}

/// Of TTFT; errors as shares of what came.
fn calibration(known: Option<&Calibration>) -> Json {
    known.map_or(Json::Null, |known| {
        json!({
            "answers": known.answers,
            "median_error": known.median_error,
            "p90_error": known.p90_error,
            "bias": known.bias,
            "coverage": known.coverage,
        })
    })
}

fn replica(status: &ReplicaStatus) -> Json {
    json!({
        "pool": &*status.pool,
        "revision": &*status.revision,
        "replica": &*status.replica,
        "url": &*status.url,
        "state": status.state.as_str(),
        "reason": &*status.reason,
        "inflight": status.inflight,
        "inflight_prompt_tokens": status.inflight_prompt_tokens,
        "connections": status.connections,
        "models": status.models.iter().map(|model| &**model).collect::<Vec<_>>(),
        "signals": status.signals.as_ref().map(signals),
    })
}

fn signals(signals: &EngineSignals) -> Json {
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

/// `/api/routes`
pub(super) fn routes(config: &Config, fleet: &[ReplicaStatus]) -> Json {
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
            "model": model(&route.model),
            "policy": route.policy.as_str(),
            "slo": &*route.slo,
            "required": route.required,
            "pools": pools.collect::<Vec<_>>(),
        })
    });
    json!({ "routes": routes.collect::<Vec<_>>() })
}

/// A route's model as the configuration writes it.
pub(super) fn model(model: &ModelMatch) -> &str {
    match model {
        ModelMatch::Any => "*",
        ModelMatch::Named(name) => name,
    }
}

/// `/api/latency`
pub(super) fn latency(observer: &Observer, window: Window) -> Json {
    let series = observer.windows().read(window, observer.clock().now());
    let series = series.iter().map(|view| {
        json!({
            "route": &*view.key.route,
            "model": &*view.key.model,
            "revision": &*view.key.revision,
            "ttft": percentiles(&view.ttft),
            "icl": percentiles(&view.icl),
            "itl": percentiles(&view.itl),
            "duration": percentiles(&view.duration),
        })
    });
    json!({ "window": window.as_str(), "series": series.collect::<Vec<_>>() })
}

fn percentiles(values: &Percentiles) -> Json {
    if values.count == 0 {
        return json!({ "count": 0 });
    }
    json!({
        "count": values.count,
        "p50": values.p50,
        "p90": values.p90,
        "p95": values.p95,
        "p99": values.p99,
        "p99.9": values.p999,
        "max": values.max,
    })
}

/// `/api/drift`
pub(super) fn drift(drift: &Feed) -> Json {
    let found = drift.board().read();
    let list = |findings: &mut dyn Iterator<Item = &Finding>| findings.map(finding).collect::<Vec<_>>();
    json!({
        "series": found.series,
        "active": list(&mut found.active.iter()),
        "recent": list(&mut found.recent.iter()),
    })
}

fn finding(finding: &Finding) -> Json {
    let mut json = finding.to_json();
    let at = Duration::try_from_secs_f64(finding.at).unwrap_or_default();
    json["time"] = rfc3339::utc(UNIX_EPOCH + at).into();
    json
}

/// `/api/decisions`
pub(super) fn decisions(observer: &Observer) -> Json {
    let latest = observer.decisions().latest();
    let decisions = latest.iter().filter_map(|record| decision(observer, record));
    json!({ "decisions": decisions.collect::<Vec<_>>() })
}

fn decision(observer: &Observer, record: &Record) -> Option<Json> {
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
        "weighed": decision.weighed.iter().map(weighed).collect::<Vec<_>>(),
    }))
}

fn weighed(candidate: &Weighed) -> Json {
    json!({
        "replica": &*candidate.replica,
        "predicted_ttft": candidate.predicted_ttft.as_secs_f64(),
        "predicted_hit_tokens": candidate.predicted_hit.0,
        "wait": candidate.wait,
        "prefill": candidate.prefill,
        "harm": candidate.harm,
        "late": candidate.late,
        "cost": candidate.cost,
    })
}
