//! Handler of autoscaling: what one pool should have, and why.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};

use super::AdminState;
use super::error::AdminError;
use crate::api::scale::PoolScale;

/// GET `/pools/{pool}/scale`
pub(super) async fn scale(
    State(admin): State<Arc<AdminState>>,
    Path(pool): Path<String>,
) -> Result<Json<PoolScale>, AdminError> {
    let wanted = admin.scale.of(&pool).ok_or_else(|| {
        let config = admin.control.config();
        let names: Vec<&str> = config.pools.iter().map(|pool| &*pool.name).collect();
        match names.contains(&&*pool) {
            true => AdminError::NotLookedAt(pool.clone()),
            false => AdminError::UnknownPool(pool.clone(), names.join(", ")),
        }
    })?;
    Ok(Json(wanted.scale))
}
