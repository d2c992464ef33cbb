//! Where a configuration comes from: a file or a list of URLs, and the flags that win over it.
//!
//! A list of URLs is turned into the file that a person would have written for it, so that both have the same
//! defaults and the same checks.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::check::{Checked, PORTS_HINT, check_with, is_one_port, one_port, secret_of};
use super::diagnostics::{Diagnostic, Diagnostics, Fault};
use super::server::{ADMIN_TOKEN_HINT, ONE_TOKEN, ONE_TOKEN_HINT};
use super::state::{DriftState, StatePlace};
use super::{
    AccessLog, Admin, Config, Endpoint, Hedge, HedgeAfter, ModelMatch, Overrides, PolicyName, PrefillWhen,
    Route,
};
use crate::whole_file;

/// Where the configuration is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A TOML file.
    File(PathBuf),
    /// Replicas of the one pool `default`.
    Upstreams(Vec<Endpoint>),
}

/// Why there is no configuration.
#[expect(missing_docs, reason = "the messages are it")]
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{}: cannot read it: {error}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        error: std::io::Error,
    },
    #[error("{0}")]
    Invalid(#[from] Diagnostics),
    #[error("{flag}: {message}\nhint: {hint}")]
    Flag { flag: &'static str, message: String, hint: &'static str },
}

impl ConfigError {
    /// Files that the configuration names, where it could be read.
    pub fn files(&self) -> &[PathBuf] {
        if let Self::Invalid(faults) = self { &faults.files } else { &[] }
    }
}

/// Loads and checks a configuration; `env` looks up environment variables.
///
/// # Errors
/// A file that cannot be read or is wrong, or flags that do not fit it.
pub fn load(
    source: &Source,
    overrides: &Overrides,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Config, ConfigError> {
    load_with_warnings(None, source, overrides, env).map(|checked| checked.config)
}

/// Like [`load`], with what is worth a look; for a gateway whose admin port is open at `admin`, whatever address is configured now.
pub fn load_with_warnings(
    admin: Option<SocketAddr>,
    source: &Source,
    overrides: &Overrides,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Checked, ConfigError> {
    let (mut checked, file) = match source {
        Source::File(path) => {
            let text = read(path)?;
            (check_with(&path.to_string_lossy(), &text, env, overrides)?, Some(path.as_path()))
        }
        Source::Upstreams(endpoints) => {
            (check_with("--upstream", &file_of(endpoints)?, env, overrides)?, None)
        }
    };
    let config = &mut checked.config;
    apply(overrides, env, config)?;
    if overrides.leaves_nothing {
        (config.drift.state, config.telemetry.access_log) = (DriftState::Off, AccessLog::Off);
        return Ok(checked);
    }
    config.state = StatePlace::of(admin.unwrap_or(config.admin.listen), file, env);
    config.drift.state = config.drift.state.clone().settled(config.state.as_ref());
    Ok(checked)
}

fn read(path: &Path) -> Result<String, ConfigError> {
    let bytes = whole_file::read(path).map_err(|error| ConfigError::Read { path: path.to_owned(), error })?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let text = String::from_utf8_lossy(error.as_bytes());
        let fault = Fault::new("the file is not UTF-8 here", "save it as UTF-8");
        // Up to the fault both texts are the same, so the offset holds in the readable one.
        let diagnostic = Diagnostic::at(&path.to_string_lossy(), &text, &(at..at), fault);
        ConfigError::Invalid(Diagnostics { faults: vec![diagnostic], files: Vec::new() })
    })
}

/// The file that says the same as a list of URLs.
fn file_of(endpoints: &[Endpoint]) -> Result<String, ConfigError> {
    for (index, endpoint) in endpoints.iter().enumerate() {
        if endpoints.iter().take(index).any(|earlier| earlier == endpoint) {
            let message = format!("{endpoint} is given twice");
            return Err(refused("--upstream", message, "give each replica once"));
        }
    }
    let quoted = |endpoint: &Endpoint| toml::Value::String(endpoint.to_string()).to_string();
    let replicas: Vec<_> = endpoints.iter().map(quoted).collect();
    Ok(format!("[[pool]]\nname = \"default\"\nreplicas = [{}]\n", replicas.join(", ")))
}

fn refused(flag: &'static str, message: String, hint: &'static str) -> ConfigError {
    ConfigError::Flag { flag, message, hint }
}

fn apply(
    overrides: &Overrides,
    env: &dyn Fn(&str) -> Option<String>,
    config: &mut Config,
) -> Result<(), ConfigError> {
    if let Some(listen) = overrides.listen {
        config.server.listen = listen;
    }
    apply_admin(overrides, env, &mut config.admin, &mut config.files)?;
    let (data, admin, metrics) = (config.server.listen, config.admin.listen, config.admin.metrics_listen);
    let taken = |addr, flag| refused(flag, one_port(addr), PORTS_HINT);
    if is_one_port(data, admin) {
        return Err(taken(admin, "--admin-listen"));
    }
    if let Some(metrics) = metrics.filter(|it| is_one_port(*it, data) || is_one_port(*it, admin)) {
        return Err(taken(metrics, "--admin-metrics-listen"));
    }
    if let Some(policy) = overrides.policy {
        route_by(policy, &mut config.routes)?;
    }
    if let Some(name) = &overrides.served_model_name {
        serve_as(&name.as_str().into(), config)?;
    }
    Ok(())
}

fn apply_admin(
    overrides: &Overrides,
    env: &dyn Fn(&str) -> Option<String>,
    admin: &mut Admin,
    files: &mut Vec<PathBuf>,
) -> Result<(), ConfigError> {
    let tokens = [
        ("--admin-token", &overrides.admin_token, &mut admin.token),
        ("--admin-read-token", &overrides.admin_read_token, &mut admin.read_token),
    ];
    for (flag, given, token) in tokens {
        let Some(given) = given else { continue };
        let failed = |message| refused(flag, message, "env:NAME, file:PATH or the token itself");
        *token = Some(secret_of(given.reveal(), env).map_err(failed)?);
        files.extend(given.reveal().strip_prefix("file:").map(PathBuf::from));
    }
    if admin.has_one_token_for_both() {
        return Err(refused("--admin-read-token", ONE_TOKEN.to_owned(), ONE_TOKEN_HINT));
    }
    admin.listen = overrides.admin_listen.unwrap_or(admin.listen);
    admin.metrics_listen = overrides.admin_metrics_listen.or(admin.metrics_listen);
    if overrides.admin_listen.is_some() && !admin.listen.ip().is_loopback() && !admin.is_guarded() {
        let message = format!("{} is not loopback and there is no admin token", admin.listen);
        return Err(refused("--admin-listen", message, ADMIN_TOKEN_HINT));
    }
    Ok(())
}

/// As in a file: a policy that predicts nothing is none for a route that acts on predictions.
fn route_by(policy: PolicyName, routes: &mut [Route]) -> Result<(), ConfigError> {
    let acts = |route: &Route| {
        let by_quantile = |hedge: &Hedge| matches!(hedge.after, HedgeAfter::Quantile(_));
        let parts = [
            ("queue", route.queue.is_some()),
            ("degrade", route.degrade.is_some()),
            ("hedge", route.hedge.as_ref().is_some_and(by_quantile)),
            ("prefill", route.prefill.as_ref().is_some_and(|prefill| prefill.when == PrefillWhen::Auto)),
        ];
        parts.into_iter().find_map(|(key, does)| does.then_some(key))
    };
    for route in routes {
        if let Some(key) = acts(route).filter(|_| policy != PolicyName::Latency) {
            let (policy, name) = (policy.as_str(), &route.name);
            let message =
                format!("{policy} predicts no time to first token, which {key} of route {name:?} acts on");
            return Err(refused("--policy", message, "leave the flag out, or remove that section"));
        }
        route.policy = policy;
    }
    Ok(())
}

fn serve_as(name: &Arc<str>, config: &mut Config) -> Result<(), ConfigError> {
    let [route] = config.routes.as_mut_slice() else {
        let message = format!("there are {} routes, and one name", config.routes.len());
        let hint = "name the models in the file, one [[route]] each";
        return Err(refused("--served-model-name", message, hint));
    };
    for budget in config.tenants.iter_mut().flat_map(|tenant| &mut tenant.budgets) {
        let Some(model) = budget.model.as_mut().filter(|model| *model != name) else { continue };
        if route.model.named().is_none() {
            let message =
                format!("no request names model {model:?} any more, which a tenant has a budget for");
            let hint = "leave the model out of that budget, or the flag out";
            return Err(refused("--served-model-name", message, hint));
        }
        if route.model.named() == Some(model) {
            model.clone_from(name);
        }
    }
    if *route.name == *route.model.as_str() {
        let former = std::mem::replace(&mut route.name, name.clone());
        let of_tenants = config.tenants.iter_mut().filter_map(|tenant| tenant.routes.as_mut());
        let of_hook = config.hook.as_mut().and_then(|hook| hook.routes.as_mut());
        for named in of_tenants.chain(of_hook).flatten().filter(|named| **named == former) {
            named.clone_from(name);
        }
    }
    // Requests upstream keep the engine's own model name.
    route.upstream_model = route.asked_model().cloned();
    route.model = ModelMatch::Named(name.clone());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PolicyName;
    use crate::config::parse_endpoint;

    fn upstreams(urls: &[&str]) -> Source {
        Source::Upstreams(urls.iter().map(|url| parse_endpoint(url).unwrap()).collect())
    }

    fn no_env(_: &str) -> Option<String> {
        None
    }

    fn load_text(text: &str, overrides: &Overrides) -> Result<Config, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        load(&Source::File(file.path().into()), overrides, &no_env).map_err(|error| error.to_string())
    }

    #[test]
    fn urls_alone_make_one_pool_and_a_route_for_every_model() {
        let source = upstreams(&["http://127.0.0.1:8001", "http://127.0.0.1:8002"]);
        let config = load(&source, &Overrides::default(), &no_env).unwrap();
        assert_eq!(&*config.pools[0].name, "default");
        assert_eq!(config.pools[0].replicas.len(), 2);
        assert_eq!(config.routes[0].model, ModelMatch::Any);
        assert_eq!(config.server.listen.to_string(), "127.0.0.1:8080");
    }

    #[test]
    fn a_demonstration_leaves_nothing_for_the_gateway_that_comes_after_it() {
        let (source, env) = (upstreams(&["http://a:1"]), |_: &str| Some("/var/lib/x".to_owned()));
        let kept = load(&source, &Overrides::default(), &env).unwrap();
        assert!(kept.state.is_some() && kept.drift.state.path().is_some());
        let shown = load(&source, &Overrides { leaves_nothing: true, ..Overrides::default() }, &env).unwrap();
        assert_eq!((shown.state, shown.drift.state), (None, DriftState::Off));
        assert_eq!(shown.telemetry.access_log, AccessLog::Off);
    }

    #[test]
    fn flags_win() {
        let overrides = Overrides {
            listen: Some("0.0.0.0:1".parse().unwrap()),
            admin_listen: Some("127.0.0.1:2".parse().unwrap()),
            policy: Some(PolicyName::RoundRobin),
            served_model_name: Some("mine".into()),
            otlp_endpoint: Some("http://flag:4318".into()),
            ..Overrides::default()
        };
        let env = |name: &str| (name == "OTEL_EXPORTER_OTLP_ENDPOINT").then(|| "http://env:4318".to_owned());
        let config = load(&upstreams(&["http://a:1"]), &overrides, &env).unwrap();
        assert_eq!(config.server.listen.to_string(), "0.0.0.0:1");
        assert_eq!(config.admin.listen.to_string(), "127.0.0.1:2");
        assert_eq!(config.routes[0].policy, PolicyName::RoundRobin);
        assert_eq!(config.routes[0].model, ModelMatch::Named("mine".into()));
        assert_eq!(config.telemetry.otlp.unwrap().traces.endpoint, "http://flag:4318/v1/traces");
    }

    #[test]
    fn a_policy_that_predicts_nothing_is_no_flag_for_a_queue() {
        let text =
            "[[pool]]\nname = \"p\"\nreplicas = [\"http://a:1\"]\n[[route]]\nmodel = \"m\"\n[route.queue]\n";
        let with = |policy| load_text(text, &Overrides { policy: Some(policy), ..Overrides::default() });
        assert!(with(PolicyName::Latency).is_ok());
        let refused = with(PolicyName::RoundRobin).unwrap_err();
        let expected = "round_robin predicts no time to first token, which queue of route \"m\" acts on";
        assert!(refused.contains(expected), "{refused}");
    }

    #[test]
    fn another_name_for_the_model_takes_the_hook_along() {
        let text = "[[pool]]\nname = \"p\"\nreplicas = [\"http://a:1\"]\n[[route]]\nmodel = \"m\"\n\
            [hook]\nbefore = \"http://127.0.0.1:2/ask\"\nroutes = [\"m\"]\n";
        let overrides = Overrides { served_model_name: Some("mine".into()), ..Overrides::default() };
        let config = load_text(text, &overrides).unwrap();
        assert!(config.hook.unwrap().is_for(&config.routes[0].name));
    }

    #[test]
    fn another_name_for_the_model_takes_its_budgets_along() {
        let budget_of = |route: &str| {
            let text = format!(
                "[[pool]]\nname = \"p\"\nreplicas = [\"http://a:1\"]\n[[route]]\nmodel = \"{route}\"\n\
                 [[tenant]]\nname = \"t\"\nkey_sha256 = []\n[[tenant.budget]]\nrequests = 2\nmodel = \"m\"\n"
            );
            load_text(&text, &Overrides { served_model_name: Some("mine".into()), ..Overrides::default() })
        };
        assert!(budget_of("m").unwrap().tenants[0].budgets[0].is_of("mine"));
        let error = budget_of("*").unwrap_err();
        assert!(error.starts_with("--served-model-name: no request names model \"m\" any more"), "{error}");
    }

    #[test]
    fn metrics_go_beside_the_spans_where_they_are_asked_for() {
        let metrics = |env: &[(&str, &str)], flag: Option<&str>| {
            let env = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into());
            let overrides = Overrides { otlp_endpoint: flag.map(Into::into), ..Overrides::default() };
            let config = load(&upstreams(&["http://a:1"]), &overrides, &env).unwrap();
            config.telemetry.otlp_metrics.map(|otlp| otlp.target.endpoint)
        };
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://env:4318");
        let asked = ("OTEL_METRICS_EXPORTER", "otlp");
        let exact = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://env:1/exact");
        assert_eq!(metrics(&[base], None), None, "spans alone, as before");
        assert_eq!(metrics(&[base, asked], None).as_deref(), Some("http://env:4318/v1/metrics"));
        assert_eq!(metrics(&[exact], None).as_deref(), Some("http://env:1/exact"));
        assert_eq!(metrics(&[exact], Some("http://f:1")).as_deref(), Some("http://f:1/v1/metrics"));
        assert_eq!(metrics(&[asked], None).as_deref(), Some("http://127.0.0.1:4318/v1/metrics"));
    }

    #[test]
    fn flags_that_do_not_fit_are_refused() {
        let open = Overrides { admin_listen: Some("0.0.0.0:2".parse().unwrap()), ..Overrides::default() };
        let error = load(&upstreams(&["http://a:1"]), &open, &no_env).unwrap_err().to_string();
        assert!(error.starts_with("--admin-listen: 0.0.0.0:2 is not loopback"), "{error}");
        let twice = upstreams(&["http://a:1", "http://a:1/"]);
        let error = load(&twice, &Overrides::default(), &no_env).unwrap_err().to_string();
        assert!(error.starts_with("--upstream: http://a:1 is given twice"), "{error}");
    }

    #[test]
    fn a_file_that_is_missing_or_not_text_is_told_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gateway.toml");
        let source = Source::File(path.clone());
        let error = load(&source, &Overrides::default(), &no_env).unwrap_err().to_string();
        assert!(error.contains("gateway.toml: cannot read it: "), "{error}");
        std::fs::write(&path, b"[server]\nlisten = \"\xff\"\n").unwrap();
        let error = load(&source, &Overrides::default(), &no_env).unwrap_err().to_string();
        assert!(error.contains("gateway.toml:2:11: the file is not UTF-8 here"), "{error}");
    }
}
