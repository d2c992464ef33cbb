//! What the admin port may do to the gateway: read its state, reload, drain, change the log filter.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::App;
use super::launch::Launch;
use super::observers::Observers;
use crate::admin::Control;
use crate::config::{Config, ReplicaSpec};
use crate::fleet::discovery::{ChangeError, ReplicaChange, SourceStatus};
use crate::fleet::status::{PoolCalibration, ReplicaStatus};
use crate::gateway::local;

/// The gateway as signals and the admin port see it.
pub(super) struct Controls {
    app: Arc<App>,
    observers: Observers,
    launch: Arc<Launch>,
    /// In force; the control plane follows it.
    config: watch::Sender<Arc<Config>>,
    reloading: Mutex<()>,
    /// Files that were read for the configuration in force, and for one that was refused since.
    files: Mutex<Vec<PathBuf>>,
    /// Notified by the admin port's drain request.
    pub(super) drain: Notify,
}

impl Controls {
    pub(super) fn new(
        app: Arc<App>,
        observers: Observers,
        launch: Arc<Launch>,
        config: watch::Sender<Arc<Config>>,
    ) -> Arc<Self> {
        let (reloading, drain) = (Mutex::new(()), Notify::new());
        let files = Mutex::new(config.borrow().files.clone());
        Arc::new(Self { app, observers, launch, config, reloading, files, drain })
    }

    /// Files that a reload is due for when they change, beside the configuration's own.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        self.files.lock().clone()
    }

    fn load_and_apply(&self) -> Result<Vec<String>, String> {
        let _one_at_a_time = self.reloading.lock();
        let old = Arc::clone(&self.config.borrow());
        let new = self.launch.reload(&old).map_err(|error| {
            *self.files.lock() = [&old.files, error.files()].concat();
            error.to_string()
        })?;
        for warning in &new.warnings {
            tracing::warn!("{warning}");
        }
        let config = Arc::new(new.config);
        self.files.lock().clone_from(&config.files);
        self.app.reload(Arc::clone(&config)).map_err(|error| format!("certificates: {error}"))?;
        self.observers.observer.reconfigure(&config);
        // Also on loopback: whoever reaches the port was refused a moment ago.
        if config.tenants.is_empty() && !old.tenants.is_empty() {
            let listen = config.server.listen;
            tracing::warn!(%listen, "the data port is open from now on: no [[tenant]] asks for a key");
        }
        self.config.send_replace(config);
        Ok(new.warnings)
    }
}

impl Control for Controls {
    fn replicas(&self) -> Vec<ReplicaStatus> {
        self.app.fleet.statuses()
    }

    fn sources(&self) -> Vec<SourceStatus> {
        self.app.fleet.sources()
    }

    fn change_replica(&self, change: &ReplicaChange) -> Result<(Arc<str>, ReplicaSpec), ChangeError> {
        self.app.fleet.change(change)
    }

    fn calibrations(&self) -> Vec<PoolCalibration> {
        self.app.fleet.calibrations()
    }

    fn is_degrading(&self, route: &str) -> Option<bool> {
        let table = self.app.gateway.table.load();
        let route = table.routes.iter().find(|known| *known.config.name == *route)?;
        route.is_degrading(self.app.gateway.clock.now())
    }

    fn pool_shares(&self, route: &str) -> Vec<f64> {
        let table = self.app.gateway.table.load();
        let route = table.routes.iter().find(|known| *known.config.name == *route);
        route.map(|route| route.wheel.fractions()).unwrap_or_default()
    }

    fn health(&self) -> Response<Bytes> {
        let gateway = &self.app.gateway;
        local::health(&gateway.table.load(), gateway.drain.is_on())
    }

    fn unready(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if self.app.gateway.drain.is_on() {
            reasons.push("draining".to_owned());
        }
        let table = self.app.gateway.table.load();
        for route in table.routes.iter().filter(|r| r.config.required && !r.takes_requests()) {
            reasons.push(format!(
                "route {} has no ready replica: {}",
                route.config.name,
                route.why_unready(None)
            ));
        }
        reasons
    }

    fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.borrow())
    }

    fn reload(&self) -> Result<Vec<String>, String> {
        // Who rotates logs reloads, by whatever way.
        self.observers.observer.reopen();
        let result = self.load_and_apply();
        self.observers.observer.metrics.config_reload(result.is_ok());
        match &result {
            Ok(restart) => tracing::info!(?restart, "configuration reloaded"),
            Err(error) => tracing::error!(%error, "configuration refused; the old one stays"),
        }
        result
    }

    fn warm_up(&self, pool: &str, replica: Option<&str>) -> Vec<Arc<str>> {
        self.app.fleet.warm_up(pool, replica)
    }

    fn drain(&self) {
        self.drain.notify_one();
    }

    fn log_level(&self) -> String {
        self.launch.log.text()
    }

    fn set_log_level(&self, filter: &str) -> Result<(), String> {
        self.launch.log.set(filter)
    }
}
