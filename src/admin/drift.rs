//! Findings of drift, and what an operator says of them: known, over, silence.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::Json;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::AdminState;
use super::error::AdminError;
use crate::config::check::parse_duration;
use crate::drift::detectors::{Finding, Kind, Mute};
use crate::drift::service::Busy;
use crate::observe::rfc3339;

/// GET `/drift`
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

/// Body of `acknowledge`.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct AcknowledgeRequest {
    undo: bool,
}

/// POST `/drift/{id}/acknowledge`: `{"undo":true}` takes it back.
pub(super) async fn acknowledge(
    State(admin): State<Arc<AdminState>>,
    Path(id): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Value>, AdminError> {
    let body = body.map_err(|_| AdminError::InvalidBody)?;
    let request: AcknowledgeRequest = match &body[..] {
        [] => AcknowledgeRequest::default(),
        text => serde_json::from_slice(text).map_err(|_| AdminError::InvalidBody)?,
    };
    answer(admin.drift.acknowledge(&id, !request.undo).await)
}

/// POST `/drift/{id}/reset`
pub(super) async fn reset(
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

/// POST `/drift/mute`: `{"route":"chat","kind":"ttft_shift","for":"2h"}`; without a route or a kind it is every one, and `"0s"`
/// ends it.
pub(super) async fn mute(
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
