//! Handler of autoscaling: what one pool should have, and why.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde_json::Value;

use super::AdminState;
use super::error::AdminError;

/// GET `/pools/{pool}/scale`
pub(super) async fn scale(
    State(admin): State<Arc<AdminState>>,
    Path(pool): Path<String>,
) -> Result<Json<Value>, AdminError> {
    let is_known = admin.control.config().pools.iter().any(|known| *known.name == *pool);
    let wanted = admin.scale.of(&pool).ok_or_else(|| {
        let config = admin.control.config();
        let names = config.pools.iter().map(|pool| &*pool.name).collect::<Vec<_>>().join(", ");
        if is_known { AdminError::Overloaded } else { AdminError::UnknownPool(pool.clone(), names) }
    })?;
    Ok(Json(wanted.to_json(&pool)))
}
