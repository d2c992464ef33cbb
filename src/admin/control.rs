//! What the admin port asks of the gateway.
//!
//! A trait, so that the admin port knows nothing of the data path and is tested without one.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;

use crate::config::{Config, ReplicaSpec};
use crate::fleet::discovery::{ChangeError, ReplicaChange, SourceStatus};
use crate::fleet::status::{PoolCalibration, ReplicaStatus};

/// The gateway, as the admin port sees it. Calls are short; [`reload`](Self::reload) may read files.
pub trait Control: Send + Sync {
    /// Every replica as it is now.
    fn replicas(&self) -> Vec<ReplicaStatus>;

    /// Every source of replicas.
    fn sources(&self) -> Vec<SourceStatus>;

    /// Adds, drains or removes a replica; returns its pool, name and URL.
    ///
    /// # Errors
    /// [`ChangeError`]; nothing has changed then.
    fn change_replica(&self, change: &ReplicaChange) -> Result<(Arc<str>, ReplicaSpec), ChangeError>;

    /// How well predicted times fit what came, by pool.
    fn calibrations(&self) -> Vec<PoolCalibration>;

    /// Whether a route's requests are degraded now; `None` without a `[route.degrade]`.
    fn is_degrading(&self, _route: &str) -> Option<bool> {
        None
    }

    /// Each pool's share of a route's new requests, in the order of the route, 0 to 1.
    fn pool_shares(&self, _route: &str) -> Vec<f64> {
        Vec::new()
    }

    /// What `/health` of the data port answers, for probes that cannot speak its TLS.
    fn health(&self) -> Response<Bytes>;

    /// Why the gateway should get no traffic, for people; empty is ready.
    fn unready(&self) -> Vec<String>;

    /// The configuration that runs.
    fn config(&self) -> Arc<Config>;

    /// Reads the configuration again. Returns the keys that changed and need a restart, for people.
    ///
    /// # Errors
    /// What `tokenway check` would print; the old configuration stays.
    fn reload(&self) -> Result<Vec<String>, String>;

    /// Has replicas of a pool warmed up again, one of them or all; returns the names of those that it concerns.
    fn warm_up(&self, _pool: &str, _replica: Option<&str>) -> Vec<Arc<str>> {
        Vec::new()
    }

    /// Starts to drain, as SIGTERM does.
    fn drain(&self);

    /// The log filter that is in force.
    fn log_level(&self) -> String;

    /// Takes a level (`debug`) or a filter (`tokenway::upstream=trace,info`).
    ///
    /// # Errors
    /// Why the filter is not understood.
    fn set_log_level(&self, filter: &str) -> Result<(), String>;
}
