//! Findings of drift, and what an operator says of them: known, over, silence.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::routing::post;
use axum::{Json, Router};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::AdminState;
use super::error::AdminError;
use crate::config::check::parse_duration;
use crate::drift::detectors::{Finding, Kind, Mute};
use crate::drift::service::Busy;
use crate::observe::rfc3339;

/// POST paths, below `/api/drift` and `/api/v1/drift`.
pub(super) fn actions() -> Router<Arc<AdminState>> {
    let below = |prefix: &str| {
        Router::new()
            .route(&format!("{prefix}/{{id}}/acknowledge"), post(acknowledge).delete(forget))
            .route(&format!("{prefix}/{{id}}/reset"), post(reset))
            .route(&format!("{prefix}/mute"), post(mute))
    };
    below("/api/drift").merge(below("/api/v1/drift"))
}

/// GET `/api/drift`
pub(super) async fn findings(State(admin): State<Arc<AdminState>>) -> Json<Value> {
    let found = admin.drift.board().read();
    let now = admin.drift.now();
    let show = |one: &Finding| finding(one, found.mutes.iter().any(|mute| mute.covers(one, now)));
    let mutes = found.mutes.iter().filter(|mute| now < mute.until).map(|mute| {
        json!({
            "route": mute.route,
            "kind": mute.kind.map(Kind::as_str),
            "until": date(mute.until),
        })
    });
    Json(json!({
        "series": found.series,
        "active": found.active.iter().map(show).collect::<Vec<_>>(),
        "recent": found.recent.iter().map(show).collect::<Vec<_>>(),
        "mutes": mutes.collect::<Vec<_>>(),
    }))
}

fn finding(finding: &Finding, is_muted: bool) -> Value {
    let mut json = finding.to_json();
    json["time"] = date(finding.at).into();
    json["muted"] = is_muted.into();
    json
}

fn date(seconds: f64) -> String {
    rfc3339::utc(UNIX_EPOCH + Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

/// POST `/api/drift/{id}/acknowledge`
async fn acknowledge(
    State(admin): State<Arc<AdminState>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, AdminError> {
    answer(admin.drift.acknowledge(&id, true).await)
}

/// DELETE `/api/drift/{id}/acknowledge`
async fn forget(
    State(admin): State<Arc<AdminState>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, AdminError> {
    answer(admin.drift.acknowledge(&id, false).await)
}

/// POST `/api/drift/{id}/reset`
async fn reset(
    State(admin): State<Arc<AdminState>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, AdminError> {
    answer(admin.drift.reset(&id).await)
}

fn answer(found: Result<Option<Finding>, Busy>) -> Result<Json<Value>, AdminError> {
    let found = found.map_err(|_| AdminError::Overloaded)?.ok_or(AdminError::UnknownFinding)?;
    Ok(Json(finding(&found, false)))
}

/// Body of `mute`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MuteRequest {
    route: Option<String>,
    kind: Option<String>,
    r#for: String,
}

/// POST `/api/drift/mute`: `{"route":"chat","kind":"ttft_shift","for":"2h"}`; without a route or a kind it is every one, and `"0s"`
/// ends it.
async fn mute(
    State(admin): State<Arc<AdminState>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Value>, AdminError> {
    let body = body.map_err(|_| AdminError::InvalidBody)?;
    let request: MuteRequest =
        serde_json::from_slice(&body).map_err(|error| AdminError::InvalidMute(error.to_string()))?;
    let kind = match request.kind.as_deref() {
        None => None,
        Some(name) => Some(Kind::parse(name).ok_or_else(|| {
            let known = Kind::ALL.map(Kind::as_str).join(", ");
            AdminError::InvalidMute(format!("unknown kind \"{}\"; known: {known}", name.escape_debug()))
        })?),
    };
    let length = parse_duration(&request.r#for).map_err(AdminError::InvalidMute)?;
    if length > MAX_MUTE {
        return Err(AdminError::InvalidMute(
            "for is more than 30 days: mute again when they are over".to_owned(),
        ));
    }
    let until = admin.drift.now() + length.as_secs_f64();
    let mute = Mute { route: request.route, kind, until };
    let answer = json!({ "route": mute.route, "kind": kind.map(Kind::as_str), "until": date(until) });
    admin.drift.mute(mute).await.map_err(|_| AdminError::Overloaded)?;
    Ok(Json(answer))
}

const MAX_MUTE: Duration = Duration::from_secs(30 * 86_400);
