//! `/api/v1/routes`: every route with its pools.

use serde::{Deserialize, Serialize};

/// `/routes`
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Routes {
    pub(crate) routes: Vec<Route>,
}

/// A route.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct Route {
    /// `None` without a `[route.degrade]`.
    pub(crate) is_degrading: Option<bool>,
    pub(crate) model: String,
    pub(crate) policy: String,
    pub(crate) pools: Vec<RoutePool>,
    /// Whether readiness of the gateway needs it.
    pub(crate) required: bool,
    pub(crate) route: String,
    /// Name of its SLO class.
    pub(crate) slo: String,
}

/// A pool of a route.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(crate) struct RoutePool {
    pub(crate) pool: String,
    pub(crate) ready: usize,
    pub(crate) replicas: usize,
    pub(crate) revision: String,
    pub(crate) weight: u32,
}
