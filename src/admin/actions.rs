//! Handlers that change the gateway: reload, drain, warm-up, replicas, canaries, log level.

use axum::Json;
use axum::extract::{Path, State};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::AdminError;
use super::query::{Admin, Answer, Sent};
use crate::api::canaries::CanaryAnswer;
use crate::fleet::discovery::{ChangeError, ReplicaAction, ReplicaChange};
use crate::rollout::plan::Action;
use crate::rollout::service::ActError;

pub(super) async fn reload(State(admin): Admin) -> Answer<Value> {
    // Reads files, which blocks.
    match tokio::task::spawn_blocking(move || admin.control.reload()).await {
        Ok(Ok(restart)) => Ok(Json(json!({ "restart": restart, "status": "reloaded" }))),
        Ok(Err(message)) => Err(AdminError::InvalidConfig(message)),
        Err(_) => Err(AdminError::ReloadFailed),
    }
}

/// POST `/api/drain`, without a body: who names a replica there means another path.
pub(super) async fn drain(
    State(admin): Admin,
    Sent(body): Sent,
) -> Result<(StatusCode, Json<Value>), AdminError> {
    if !matches!(body.trim_ascii(), b"" | b"{}") {
        return Err(AdminError::DrainsAll);
    }
    tracing::info!("drain requested on the admin port");
    admin.control.drain();
    Ok((StatusCode::ACCEPTED, Json(json!({ "status": "draining" }))))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WarmUpOrder {
    pool: String,
    replica: Option<String>,
}

/// POST `/api/warm-up`: `{"pool":"p","replica":"r"}`; without a replica, all of the pool.
pub(super) async fn warm_up(
    State(admin): Admin,
    Sent(body): Sent,
) -> Result<(StatusCode, Json<Value>), AdminError> {
    let WarmUpOrder { pool, replica } =
        serde_json::from_slice(&body).map_err(|error| AdminError::InvalidWarmUp(error.to_string()))?;
    let replicas = admin.control.warm_up(&pool, replica.as_deref());
    if replicas.is_empty() {
        return Err(AdminError::UnknownReplica("no such pool or replica; /api/fleet lists them".to_owned()));
    }
    tracing::info!(pool, ?replicas, "warm-up requested on the admin port");
    let replicas: Vec<&str> = replicas.iter().map(|name| &**name).collect();
    Ok((StatusCode::ACCEPTED, Json(json!({ "replicas": replicas, "status": "warming" }))))
}

pub(super) async fn log_level(State(admin): Admin) -> Json<Value> {
    Json(json!({ "level": admin.control.log_level() }))
}

/// POST `/api/log-level`: `{"level":"debug"}` or the bare text.
pub(super) async fn set_log_level(State(admin): Admin, Sent(body): Sent) -> Answer<Value> {
    let parsed = serde_json::from_slice::<Value>(&body).ok();
    let filter = match parsed.as_ref().map(|json| &json["level"]) {
        Some(Value::String(level)) => level.as_str(),
        _ => std::str::from_utf8(&body).unwrap_or_default().trim(),
    };
    admin.control.set_log_level(filter).map_err(AdminError::InvalidLevel)?;
    Ok(log_level(State(admin)).await)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplicaOrder {
    action: String,
    pool: Option<String>,
    url: Option<String>,
    #[serde(alias = "replica")]
    name: Option<String>,
    zone: Option<String>,
}

/// POST `/api/replicas`: `{"action":"add","pool":"main","url":"http://gpu-9:8000"}`
pub(super) async fn replica(State(admin): Admin, Sent(body): Sent) -> Answer<Value> {
    let body: ReplicaOrder = serde_json::from_slice(&body)
        .map_err(|error| AdminError::InvalidReplica(format!("{error}; {FORM}")))?;
    let (action, status) = match body.action.as_str() {
        "add" => (ReplicaAction::Add, "added"),
        "drain" => (ReplicaAction::Drain, "draining"),
        "remove" => (ReplicaAction::Remove, "removed"),
        other => return Err(AdminError::InvalidReplica(format!("unknown action {other:?}; {FORM}"))),
    };
    let ReplicaOrder { pool, url, name, zone, .. } = body;
    if url.is_none() && name.is_none() {
        return Err(AdminError::InvalidReplica(format!("neither \"url\" nor \"name\"; {FORM}")));
    }
    let change = ReplicaChange { action, pool, url, name, zone };
    let (pool, replica) = admin.control.change_replica(&change).map_err(|error| match error {
        ChangeError::Invalid(why) => AdminError::InvalidReplica(why),
        taken @ ChangeError::NameTaken { .. } => AdminError::NameTaken(taken.to_string()),
        unknown => AdminError::UnknownReplica(unknown.to_string()),
    })?;
    let (name, url) = (&*replica.name, replica.endpoint.to_string());
    Ok(Json(json!({ "pool": &*pool, "replica": name, "status": status, "url": url })))
}

pub(super) async fn canary(
    State(admin): Admin,
    Path((route, action)): Path<(String, String)>,
) -> Answer<CanaryAnswer> {
    let action = Action::named(&action).ok_or(AdminError::UnknownPath)?;
    tracing::info!(?action, route, "canary: asked for on the admin port");
    admin.rollouts.act(&route, action).await.map_err(|error| match error {
        ActError::NoCanary(_) => AdminError::NoCanary(error.to_string()),
        ActError::State(message) => AdminError::CanaryState(message),
        ActError::NotKept { .. } => AdminError::NotKept(error.to_string()),
        ActError::NoAnswer => AdminError::Overloaded,
    })?;
    let canary = admin.rollouts.canaries().into_iter().find(|canary| canary.route == route);
    Ok(Json(CanaryAnswer { canary }))
}

const FORM: &str = "send {\"action\":\"add\"|\"drain\"|\"remove\",\"pool\":\"…\",\"url\":\"http://host:port\"}, or \"name\" of a known replica";
