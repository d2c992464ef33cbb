//! Handlers of canaries: the list, and what an operator does to one.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};

use super::AdminState;
use super::error::AdminError;
use crate::api::canaries::{Canaries, CanaryAnswer};
use crate::rollout::plan::Action;
use crate::rollout::service::ActError;

/// GET `/canaries`
pub(super) async fn list(State(admin): State<Arc<AdminState>>) -> Json<Canaries> {
    Json(Canaries { canaries: admin.rollouts.canaries() })
}

/// POST `/canaries/{route}/{action}`
pub(super) async fn act(
    State(admin): State<Arc<AdminState>>,
    Path((route, action)): Path<(String, String)>,
) -> Result<Json<CanaryAnswer>, AdminError> {
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
