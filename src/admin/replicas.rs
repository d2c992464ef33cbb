//! POST `/api/replicas`: an operator adds, drains or removes a replica.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use bytes::Bytes;
use serde::Deserialize;

use super::AdminState;
use super::error::AdminError;
use crate::api::actions::ReplicaChanged;
use crate::fleet::discovery::{ChangeError, ReplicaAction, ReplicaChange};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    action: String,
    pool: Option<String>,
    url: Option<String>,
    #[serde(alias = "replica")]
    name: Option<String>,
    zone: Option<String>,
}

/// `{"action":"add","pool":"main","url":"http://gpu-9:8000"}`
pub(super) async fn change(
    State(admin): State<Arc<AdminState>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<ReplicaChanged>, AdminError> {
    let body = body.map_err(|_| AdminError::InvalidBody)?;
    let body: Body = serde_json::from_slice(&body)
        .map_err(|error| AdminError::InvalidReplica(format!("{error}; {FORM}")))?;
    let (action, status) = match body.action.as_str() {
        "add" => (ReplicaAction::Add, "added"),
        "drain" => (ReplicaAction::Drain, "draining"),
        "remove" => (ReplicaAction::Remove, "removed"),
        other => return Err(AdminError::InvalidReplica(format!("unknown action {other:?}; {FORM}"))),
    };
    let Body { pool, url, name, zone, .. } = body;
    if url.is_none() && name.is_none() {
        return Err(AdminError::InvalidReplica(format!("neither \"url\" nor \"name\"; {FORM}")));
    }
    let change = ReplicaChange { action, pool, url, name, zone };
    let (pool, replica) = admin.control.change_replica(&change).map_err(|error| match error {
        ChangeError::Invalid(why) => AdminError::InvalidReplica(why),
        taken @ ChangeError::NameTaken { .. } => AdminError::NameTaken(taken.to_string()),
        unknown => AdminError::UnknownReplica(unknown.to_string()),
    })?;
    Ok(Json(ReplicaChanged {
        pool: pool.to_string(),
        replica: replica.name.to_string(),
        status,
        url: replica.endpoint.to_string(),
    }))
}

const FORM: &str = "send {\"action\":\"add\"|\"drain\"|\"remove\",\"pool\":\"…\",\"url\":\"http://host:port\"}, or \"name\" of a known replica";
