//! What the gateway answers to an order.

use serde::Serialize;

/// `/reload`
#[derive(Serialize)]
pub(crate) struct Reloaded {
    /// Changed keys that need a restart.
    pub(crate) restart: Vec<String>,
    pub(crate) status: &'static str,
}

/// `/drain`
#[derive(Serialize)]
pub(crate) struct Draining {
    pub(crate) status: &'static str,
}

/// `/warm-up`
#[derive(Serialize)]
pub(crate) struct WarmingUp {
    pub(crate) replicas: Vec<String>,
    pub(crate) status: &'static str,
}

/// `/replicas`
#[derive(Serialize)]
pub(crate) struct ReplicaChanged {
    pub(crate) pool: String,
    pub(crate) replica: String,
    /// `added`, `draining` or `removed`.
    pub(crate) status: &'static str,
    pub(crate) url: String,
}

/// `/log-level`
#[derive(Serialize)]
pub(crate) struct LogLevel {
    pub(crate) level: String,
}
