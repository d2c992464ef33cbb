//! Handlers of canaries: the list, and what an operator does to one.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::BytesRejection;
use axum::extract::{RawQuery, State};
use bytes::Bytes;
use serde_json::{Value, json};

use super::AdminState;
use super::error::AdminError;
use crate::rollout::plan::Action;
use crate::rollout::service::{ActError, RolloutView};

/// GET `/api/canaries`
pub(super) async fn list(State(admin): State<Arc<AdminState>>) -> Json<Value> {
    let canaries: Vec<_> = admin.rollouts.board().read().iter().map(RolloutView::to_json).collect();
    Json(json!({ "canaries": canaries }))
}

/// POST `/api/canaries/promote`: the route by `{"route":"chat"}` or `?route=chat`; without one, the only canary.
pub(super) async fn promote(admin: Admin, query: RawQuery, body: Body) -> Answer {
    act(admin, query, body, Action::Promote).await
}

/// POST `/api/canaries/rollback`
pub(super) async fn rollback(admin: Admin, query: RawQuery, body: Body) -> Answer {
    act(admin, query, body, Action::Rollback).await
}

/// POST `/api/canaries/pause`
pub(super) async fn pause(admin: Admin, query: RawQuery, body: Body) -> Answer {
    act(admin, query, body, Action::Pause).await
}

/// POST `/api/canaries/resume`
pub(super) async fn resume(admin: Admin, query: RawQuery, body: Body) -> Answer {
    act(admin, query, body, Action::Resume).await
}

async fn act(State(admin): Admin, RawQuery(query): RawQuery, body: Body, action: Action) -> Answer {
    let body = body.map_err(|_| AdminError::InvalidBody)?;
    let in_body = || Some(serde_json::from_slice::<Value>(&body).ok()?["route"].as_str()?.to_owned());
    let named = query.as_deref().and_then(route_of).or_else(in_body);
    let canaries = admin.rollouts.board().read();
    let route = match (named, &*canaries) {
        (Some(route), _) => route,
        (None, [only]) => only.route.to_string(),
        (None, _) => return Err(AdminError::NoCanary("name the route: {\"route\":\"…\"}".to_owned())),
    };
    tracing::info!(?action, route, "canary: asked for on the admin port");
    admin.rollouts.act(&route, action).await.map_err(|error| match error {
        ActError::NoCanary(_) => AdminError::NoCanary(error.to_string()),
        ActError::State(message) => AdminError::CanaryState(message),
        ActError::NoAnswer => AdminError::Overloaded,
    })?;
    let now = admin.rollouts.board().read();
    let view = now.iter().find(|canary| *canary.route == *route).map(RolloutView::to_json);
    Ok(Json(json!({ "canary": view })))
}

/// `route` of a query, percent-decoded.
fn route_of(query: &str) -> Option<String> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix("route="))?;
    let mut bytes = Vec::new();
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let (high, low) = (digit(rest.next()?)?, digit(rest.next()?)?);
                u8::try_from(high * 16 + low).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

type Admin = State<Arc<AdminState>>;
type Body = Result<Bytes, BytesRejection>;
type Answer = Result<Json<Value>, AdminError>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_of_queries() {
        for (query, expected) in [
            ("route=chat", Some("chat")),
            ("a=b&route=meta%2Fllama", Some("meta/llama")),
            ("route=%", None),
            ("rout=chat", None),
        ] {
            assert_eq!(route_of(query).as_deref(), expected, "{query}");
        }
    }
}
