//! Loading a configuration again while the gateway runs.
//!
//! `watch` notices that the file's content changed; [`reload`] checks the new content whole and keeps the old
//! values of the few keys that only a restart can change. Applying the new configuration, and the triggers SIGHUP and admin
//! API, are the application's.

use super::declare::{Declared, Fixed};
use super::load::{ConfigError, Source, load_with_warnings};
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
/// As [`load`](super::load::load).
pub fn reload(
    source: &Source,
    overrides: &Overrides,
    env: &dyn Fn(&str) -> Option<String>,
    old: &Config,
) -> Result<Reloaded, ConfigError> {
    let mut config = load_with_warnings(Some(old.admin.listen), source, overrides, env)?.config;
    let warnings = keep_fixed(&mut config, old);
    Ok(Reloaded { config, warnings })
}

/// Keeps the old value of each key that is read once, at start; a warning for each that changed.
fn keep_fixed(config: &mut Config, old: &Config) -> Vec<String> {
    let mut fixed = Fixed::default();
    config.server.keep_listener(&old.server, &mut fixed);
    config.admin.keep_fixed(&old.admin, &mut fixed);
    // It may stand without a token where it moves to; it does not move yet.
    if !config.admin.listen.ip().is_loopback() && !config.admin.is_guarded() {
        fixed.keep("admin.token", &mut config.admin.token, &old.admin.token);
        fixed.keep("admin.read_token", &mut config.admin.read_token, &old.admin.read_token);
    }
    config.routing.keep_fixed(&old.routing, &mut fixed);
    let telemetry = &mut config.telemetry;
    telemetry.keep_fixed(&old.telemetry, &mut fixed);
    fixed.keep("[telemetry.otlp]", &mut telemetry.otlp, &old.telemetry.otlp);
    fixed.keep("telemetry.otlp.metrics", &mut telemetry.otlp_metrics, &old.telemetry.otlp_metrics);
    fixed.keep("[telemetry.engine_spans]", &mut telemetry.engine_spans, &old.telemetry.engine_spans);
    fixed.keep("[telemetry.content]", &mut telemetry.content, &old.telemetry.content);
    let hook = old.hook.as_ref().map(|old| old.kept(config.hook.as_ref()));
    fixed.keep("[hook]", &mut config.hook, &hook);
    fixed.keep("[cluster]", &mut config.cluster, &old.cluster);
    // Baselines are cut into blocks; other blocks are other baselines.
    fixed.keep("[drift]", &mut config.drift, &old.drift);
    fixed.warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check::check_with;
    use crate::config::declare::{Declaration, State};
    use crate::config::reference::DECLARED;
    use crate::config::view::view;

    /// Sections of which a reload keeps all.
    const KEPT: [&str; 6] = [
        "[cluster]", "[drift]", "[hook]", "[telemetry.content]", "[telemetry.otlp]",
        "[telemetry.engine_spans]",
    ];
    /// Means nothing without `metrics`.
    const IDLE: &str = "metrics_interval";
    /// What comes before a section below a pool, a route or tenants.
    const ABOVE: &str = "[[pool]]\nname = \"p\"\nreplicas = [\"http://127.0.0.1:1\"]\n\
        [[route]]\nmodel = \"m\"\npools = [\"p\"]\n";

    /// A section with every key as declared, but one.
    fn config(declaration: &Declaration, changed: Option<(&str, &str)>) -> Result<Config, String> {
        let value = |name: &str, value: &str| match changed {
            Some((key, other)) if key == name => other.to_owned(),
            _ => value.to_owned(),
        };
        let is_given = |state, name| state == State::Default || changed.is_some_and(|(key, _)| key == name);
        let keys = declaration.keys.iter().filter(|key| is_given(key.state, key.name));
        let lines: Vec<String> =
            keys.map(|key| format!("{} = {}", key.name, value(key.name, key.value))).collect();
        let text = format!("{ABOVE}{}\n{}\n", declaration.header, lines.join("\n"));
        let env = |_: &str| Some("secret".to_owned());
        let checked = check_with("f.toml", &text, &env, &Overrides::default());
        checked.map(|checked| checked.config).map_err(|faults| faults.to_string())
    }

    /// Another value of the same kind; `None` where there is no rule for one.
    fn other(value: &str) -> Option<String> {
        match value {
            "true" => return Some("false".into()),
            "false" => return Some("true".into()),
            _ => {}
        }
        if value.contains('.')
            && let Ok(number) = value.parse::<f64>()
        {
            return Some(format!("{}", number * 0.75));
        }
        let (quote, inner) =
            if value.starts_with('"') { ("\"", value.trim_matches('"')) } else { ("", value) };
        let digits = inner.find(|c: char| !c.is_ascii_digit()).unwrap_or(inner.len());
        let (number, unit) = inner.split_at(digits);
        let is_unit = unit.chars().all(|c| c.is_ascii_alphabetic());
        let number: u64 = number.parse().ok().filter(|_| is_unit)?;
        Some(format!("{quote}{}{unit}{quote}", number + 1))
    }

    #[test]
    fn a_reload_changes_every_key_that_is_not_named_as_needing_a_restart() {
        let mut tried = 0;
        for declaration in DECLARED.iter().filter(|one| one.header.starts_with('[')) {
            let Ok(old) = config(declaration, None) else { continue };
            for key in declaration.keys.iter().filter(|key| key.name != IDLE) {
                let Some(changed) = other(key.value) else { continue };
                let Ok(new) = config(declaration, Some((key.name, &changed))) else { continue };
                let mut reloaded = new.clone();
                let warnings = keep_fixed(&mut reloaded, &old);
                let shown = [&old, &new].map(view);
                let [old, new, reloaded] = [&old, &new, &reloaded].map(|config| format!("{config:?}"));
                let name = format!("{} {} = {changed}", declaration.header, key.name);
                assert!(old != new, "{name} changes nothing");
                assert!(shown[0] != shown[1], "/api/config does not show {name}");
                let is_kept = key.needs_restart || KEPT.contains(&declaration.header);
                assert_eq!((reloaded == old, reloaded == new), (is_kept, !is_kept), "{name}");
                assert_eq!(warnings.len(), usize::from(is_kept), "{name}: {warnings:?}");
                tried += 1;
            }
        }
        assert!(tried >= 40, "only {tried} keys");
    }

    #[test]
    fn a_hook_follows_its_route_to_another_name() {
        let config = |name: &str, hook: &str| {
            let text = format!("{ABOVE}{name}[[route]]\nmodel = \"n\"\npools = [\"p\"]\n[hook]\n{hook}");
            let env = |_: &str| None;
            check_with("f.toml", &text, &env, &Overrides::default()).unwrap().config
        };
        let of_m = "before = \"http://127.0.0.1:2/ask\"\nroutes = [\"m\"]\n";
        let (old, mut new) = (config("", of_m), config("name = \"chat\"\n", of_m));
        assert_eq!(keep_fixed(&mut new, &old), [""; 0], "nothing waits for a restart");
        assert!(new.hook.as_ref().is_some_and(|hook| hook.is_for("chat") && !hook.is_for("n")));
        let elsewhere = of_m.replace("127.0.0.1:2", "127.0.0.1:3").replace("[\"m\"]", "[\"m\", \"n\"]");
        let mut new = config("", &elsewhere);
        assert_eq!(keep_fixed(&mut new, &old).len(), 1);
        assert!(new.hook.is_some_and(|hook| hook.is_for("n") && hook.before == old.hook.unwrap().before));
    }
}
