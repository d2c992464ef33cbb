//! Handlers that change the gateway: reload, drain, log level.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;

use super::AdminState;
use super::error::AdminError;
use crate::api::actions::{Draining, LogLevel, Reloaded, WarmingUp};

/// POST `/api/reload`
pub(super) async fn reload(State(admin): State<Arc<AdminState>>) -> Result<Json<Reloaded>, AdminError> {
    // Reads files, which blocks.
    match tokio::task::spawn_blocking(move || admin.control.reload()).await {
        Ok(Ok(restart)) => Ok(Json(Reloaded { restart, status: "reloaded" })),
        Ok(Err(message)) => Err(AdminError::InvalidConfig(message)),
        Err(_) => Err(AdminError::ReloadFailed),
    }
}

/// POST `/api/drain`, without a body: who names a replica there means another path.
pub(super) async fn drain(
    State(admin): State<Arc<AdminState>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<Draining>), AdminError> {
    let body = body.map_err(|_| AdminError::InvalidBody)?;
    if !matches!(body.trim_ascii(), b"" | b"{}") {
        return Err(AdminError::DrainsAll);
    }
    tracing::info!("drain requested on the admin port");
    admin.control.drain();
    Ok((StatusCode::ACCEPTED, Json(Draining { status: "draining" })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WarmUpOrder {
    pool: String,
    replica: Option<String>,
}

/// POST `/api/warm-up`: `{"pool":"p","replica":"r"}`; without a replica, all of the pool.
pub(super) async fn warm_up(
    State(admin): State<Arc<AdminState>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<WarmingUp>), AdminError> {
    let body = body.map_err(|_| AdminError::InvalidBody)?;
    let WarmUpOrder { pool, replica } =
        serde_json::from_slice(&body).map_err(|error| AdminError::InvalidWarmUp(error.to_string()))?;
    let replicas = admin.control.warm_up(&pool, replica.as_deref());
    if replicas.is_empty() {
        return Err(AdminError::UnknownReplica("no such pool or replica; /api/fleet lists them".to_owned()));
    }
    tracing::info!(pool, ?replicas, "warm-up requested on the admin port");
    let replicas = replicas.iter().map(|name| name.to_string()).collect();
    Ok((StatusCode::ACCEPTED, Json(WarmingUp { replicas, status: "warming" })))
}

/// GET `/api/log-level`
pub(super) async fn log_level(State(admin): State<Arc<AdminState>>) -> Json<LogLevel> {
    Json(LogLevel { level: admin.control.log_level() })
}

/// POST `/api/log-level`: `{"level":"debug"}` or the bare text.
pub(super) async fn set_log_level(
    State(admin): State<Arc<AdminState>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<LogLevel>, AdminError> {
    let body = body.map_err(|_| AdminError::InvalidBody)?;
    let parsed = serde_json::from_slice::<Value>(&body).ok();
    let filter = match parsed.as_ref().map(|json| &json["level"]) {
        Some(Value::String(level)) => level.as_str(),
        _ => std::str::from_utf8(&body).unwrap_or_default().trim(),
    };
    admin.control.set_log_level(filter).map_err(AdminError::InvalidLevel)?;
    Ok(Json(LogLevel { level: admin.control.log_level() }))
}
