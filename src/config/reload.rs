//! Loading a configuration again while the gateway runs.
//!
//! `watch` notices that the file's content changed; [`reload`] checks the new content whole and keeps the old
//! values of the few keys that only a restart can change. Applying the new configuration, and the triggers SIGHUP and admin
//! API, are the application's.

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
    let (server, telemetry) = (&mut config.server, &mut config.telemetry);
    fixed.keep("server.listen", &mut server.listen, &old.server.listen);
    // Other files are other certificates, which a running listener takes up; on or off is another listener.
    if server.tls.is_some() != old.server.tls.is_some() {
        fixed.keep("server.tls (on or off)", &mut server.tls, &old.server.tls);
    }
    fixed.keep("server.body_memory", &mut server.body_memory, &old.server.body_memory);
    // A body that is larger than the memory of all would wait for ever.
    server.body_limit = server.body_limit.min(server.body_memory);
    fixed.keep("server.header_timeout", &mut server.header_timeout, &old.server.header_timeout);
    fixed.keep("server.keep_alive", &mut server.keep_alive, &old.server.keep_alive);
    let handshake = "server.tls_handshake_timeout";
    fixed.keep(handshake, &mut server.tls_handshake_timeout, &old.server.tls_handshake_timeout);
    fixed.keep("server.max_connections", &mut server.max_connections, &old.server.max_connections);
    fixed.keep("admin.listen", &mut config.admin.listen, &old.admin.listen);
    // The prefix index is made of hashes under the old seed.
    fixed.keep("routing.seed", &mut config.seed, &old.seed);
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

/// Warnings about keys that only a restart changes.
#[derive(Default)]
struct Fixed {
    warnings: Vec<String>,
}

impl Fixed {
    fn keep<T: Clone + PartialEq>(&mut self, key: &str, new: &mut T, old: &T) {
        if new != old {
            new.clone_from(old);
            self.warnings.push(format!("{key} changed and needs a restart: the old value stays"));
        }
    }
}
