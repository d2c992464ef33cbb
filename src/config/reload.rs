//! Loading a configuration again while the gateway runs.
//!
//! `watch` notices that the file's content changed; [`reload`] checks the new content whole and keeps the old
//! values of the few keys that only a restart can change. Applying the new configuration, and the triggers SIGHUP and admin
//! API, are the application's.

use super::declare::{Declared, Fixed};
use super::load::{ConfigError, Source, load};
use super::{Config, Overrides};

/// A configuration that replaces a running one.
#[derive(Clone, Debug)]
pub struct Reloaded {
    /// The new configuration, with old values where a restart is needed.
    pub config: Config,
    /// Keys that changed in the file and keep their old value until a restart, for the log.
    pub warnings: Vec<String>,
}

/// Loads the configuration again; nothing changes where it is wrong.
///
/// # Errors
/// As [`load`].
pub fn reload(
    source: &Source,
    overrides: &Overrides,
    env: &dyn Fn(&str) -> Option<String>,
    old: &Config,
) -> Result<Reloaded, ConfigError> {
    let mut config = load(source, overrides, env)?;
    let warnings = keep_fixed(&mut config, old);
    Ok(Reloaded { config, warnings })
}

/// Keeps the old value of each key that is read once, at start; a warning for each that changed.
fn keep_fixed(config: &mut Config, old: &Config) -> Vec<String> {
    let mut fixed = Fixed::default();
    config.server.keep_listener(&old.server, &mut fixed);
    config.admin.keep_fixed(&old.admin, &mut fixed);
    let telemetry = &mut config.telemetry;
    config.routing.keep_fixed(&old.routing, &mut fixed);
    fixed.keep("telemetry.access_log", &mut telemetry.access_log, &old.telemetry.access_log);
    fixed.keep("[telemetry.otlp]", &mut telemetry.otlp, &old.telemetry.otlp);
    fixed.keep("telemetry.otlp.metrics", &mut telemetry.otlp_metrics, &old.telemetry.otlp_metrics);
    fixed.keep("[telemetry.engine_spans]", &mut telemetry.engine_spans, &old.telemetry.engine_spans);
    let by_tenant = &mut telemetry.stages_by_tenant;
    fixed.keep("telemetry.stages_by_tenant", by_tenant, &old.telemetry.stages_by_tenant);
    let by_tenant = &mut telemetry.ttft_by_tenant;
    fixed.keep("telemetry.ttft_by_tenant", by_tenant, &old.telemetry.ttft_by_tenant);
    // Baselines are cut into blocks; other blocks are other baselines.
    fixed.keep("[drift]", &mut config.drift, &old.drift);
    fixed.warnings
}
