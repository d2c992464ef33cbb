//! From text to a [`Config`], or to everything that is wrong with it.
//!
//! The text is parsed into a tree with spans. Declared sections read themselves (`config::declare`), with what these files
//! know of values; what refers to other parts of the file is read here. Faults are collected, never thrown: all of them
//! are reported at once. Nothing here reads clocks or opens sockets; files are read
//! where the configuration names them (TLS, secrets), relative to the configuration file's directory.

pub(super) mod admission;
pub(super) mod codec;
mod engine;
mod files;
mod lint;
pub(super) mod pem;
pub(super) mod pool;
mod ports;
pub(super) mod route;
pub(super) mod secret;
pub(super) mod section;
pub(super) mod shape;
mod stage_budget;
mod telemetry;
pub(super) mod values;

use std::path::{Path, PathBuf};

use toml::de::DeTable;

pub(super) use self::ports::{PORTS_HINT, is_one_port, one_port};
pub use self::secret::secret_of;
use self::section::{Checking, Section};
use self::shape::Shapes;
pub use self::values::duration as parse_duration;
use super::diagnostics::{Diagnostic, Diagnostics, Fault, in_order};
use super::{Config, Declared, Overrides, Retry, Routing, Timeouts, auth, bounds, drift, server};

/// Checks the text of a file that was called `file_name`; `env` looks up environment variables.
///
/// # Errors
/// Every fault of the text, in its order.
pub fn check_str(
    file_name: &str,
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Config, Diagnostics> {
    check_with(file_name, text, env, &Overrides::default()).map(|checked| checked.config)
}

/// A configuration without faults.
#[derive(Debug)]
pub struct Checked {
    /// The configuration.
    pub config: Config,
    /// What is hardly meant as it is written, in the order of the file.
    pub warnings: Vec<Diagnostic>,
}

/// Like [`check_str`], for a text that flags win over.
pub(super) fn check_with(
    file_name: &str,
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
    overrides: &Overrides,
) -> Result<Checked, Diagnostics> {
    let (tree, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let fault = |message: &str| Fault::new(message, toml_hint(message));
        let faults = errors.iter().map(|error| (error.span().unwrap_or(0..0), fault(error.message())));
        let faults = in_order(file_name, text, faults.collect());
        return Err(Diagnostics { faults, files: Vec::new() });
    }
    let directory = Path::new(file_name).parent().unwrap_or_else(|| Path::new(""));
    let checking = Checking::new(directory, env, overrides);
    let root = Section::open(&checking, ROOT, 0..0, Some(tree.get_ref()));
    let mut config = read(&root);
    // Lists of replicas have readers of their own.
    let is_list = |path: &PathBuf| config.pools.iter().any(|pool| pool.discovery.file.as_ref() == Some(path));
    config.files = checking.inputs.borrow().iter().filter(|path| !is_list(path)).cloned().collect();
    ports::expect_ports_apart(&root, &config);
    files::expect_files_apart(&root, &config, Path::new(file_name));
    lint::lint(&root, &config);
    drop(root);
    let faults = in_order(file_name, text, checking.faults.take());
    if !faults.is_empty() {
        return Err(Diagnostics { faults, files: config.files });
    }
    Ok(Checked { config, warnings: in_order(file_name, text, checking.warnings.take()) })
}

/// Checks the text of a file for a machine that is not this one: its secrets need not be here.
///
/// # Errors
/// Every fault of the text, in its order.
pub(crate) fn check_elsewhere(text: &str) -> Result<Config, Diagnostics> {
    let overrides = Overrides { allow_missing_secrets: true, ..Overrides::default() };
    check_with("gateway.toml", text, &|_| None, &overrides).map(|checked| checked.config)
}

/// What the keys of these texts are read as; faults do not matter.
pub(super) fn shapes_of(texts: &[&str]) -> Shapes {
    let overrides = Overrides::default();
    let checking = Checking::new(Path::new(""), &|_| None, &overrides);
    for tree in texts.iter().filter_map(|text| DeTable::parse(text).ok()) {
        read(&Section::open(&checking, ROOT, 0..0, Some(tree.get_ref())));
    }
    checking.shapes.take()
}

/// Reads a duration above zero, as a flag gives it.
pub fn parse_span(text: &str) -> Result<std::time::Duration, String> {
    let form = values::POSITIVE_DURATION;
    (form.parse)(text).map_err(|message| format!("{message}: {}", form.hint))
}

/// Reads a URL that is used as it is, as a flag gives it.
pub fn parse_http_url(text: &str) -> Result<String, String> {
    (values::HTTP_URL.parse)(text)
}

/// Reads the name of a model, as a flag gives it.
pub fn parse_model_name(text: &str) -> Result<String, String> {
    (values::MODEL.parse)(text).map(|name| name.to_string())
}

fn read(root: &Section<'_>) -> Config {
    let timeouts = Timeouts::of(root);
    let slo = crate::config::slo::slo(root);
    let pools = pool::pools(root);
    let routes = route::routes(root, &route::Referred { pools: &pools, slo: &slo, timeouts });
    let routing = Routing::of(root);
    let tenants = crate::config::tenant::tenants(root, &routes, routing.cache_isolation);
    let telemetry = telemetry::telemetry(root, tenants.len());
    let hook = crate::config::content::hook(root, &routes);
    Config {
        server: server::server(root, !tenants.is_empty()),
        admin: server::admin(root),
        retry: Retry::of(root),
        slo,
        routing,
        classes: bounds::classes(root),
        pools,
        routes,
        tenants,
        jwt: auth::jwt(root),
        telemetry,
        hook,
        drift: drift::drift(root),
        cluster: crate::config::cluster::cluster(root),
        state: None,
        files: Vec::new(),
    }
}

/// How messages call the whole of a file.
pub(super) const ROOT: &str = "a configuration";

fn toml_hint(message: &str) -> &'static str {
    if message == "duplicate key" {
        "keep one of the two; a header that repeats has double brackets: [[pool]], [[route]]"
    } else {
        "this is not TOML: look for a missing quote, bracket or equals sign"
    }
}

/// A pool of one replica, in four lines with their ends.
#[cfg(test)]
pub(crate) const ONE_POOL: &str = "[[pool]]\nname = \"p\"\nreplicas = [\"http://127.0.0.1:1\"]\n";

/// Checks [`ONE_POOL`] with `rest` below it.
#[cfg(test)]
pub(crate) fn check_with_pool(rest: &str) -> Result<Config, Diagnostics> {
    check_str("f.toml", &format!("{ONE_POOL}{rest}"), &|_| None)
}

/// What is wrong with [`ONE_POOL`] and `rest` below it, a line for each fault.
#[cfg(test)]
pub(crate) fn faults_with_pool(rest: &str) -> Vec<String> {
    let first_line = |fault: &Diagnostic| fault.to_string().lines().next().unwrap_or_default().to_owned();
    check_with_pool(rest).err().iter().flat_map(Diagnostics::iter).map(first_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::QueueLimits;
    use crate::config::schema::every_key;

    #[test]
    fn the_reference_has_every_key() {
        let reference = include_str!("../../../config/reference.toml");
        for (header, key) in shapes_of(&[&every_key()]).keys() {
            let forms = [format!("{key} = "), format!("[{key}]"), format!("[{key}."), format!(".{key}]")];
            assert!(forms.iter().any(|form| reference.contains(form)), "{key} of {header} is not in it");
        }
    }

    #[test]
    fn every_key_of_the_reference_is_taken() {
        let others = "[[pool]]\nname = \"llama-8b-r2\"\nreplicas = [\"http://127.0.0.1:1\"]\n\
                      [[pool]]\nname = \"llama-8b-prefill\"\nrevision = \"llama-8b-r1\"\n\
                      replicas = [\"http://127.0.0.1:1\"]\n\
                      [[route]]\nmodel = \"llama-1b\"\npools = [\"llama-8b-r1\"]\n";
        // A pool of this house cannot be an outside one as well.
        let keys = every_key();
        let (before, outside) = keys.split_once("[pool.outside]").unwrap();
        let (outside, after) = outside.split_once("\n[").unwrap();
        let far = "[[pool]]\nname = \"far\"\nreplicas = [\"https://far.example\"]\nstandby = true\nengine = \"generic\"\n\
                   engine_api_key = \"env:FAR\"\n[pool.outside]";
        let text = format!("{before}[{after}\n{others}{far}{outside}\n");
        let env = |name: &str| Some(format!("value of {name}"));
        let overrides = Overrides { allow_missing_secrets: true, ..Overrides::default() };
        let checked = check_with("f.toml", &text, &env, &overrides);
        let config = checked.unwrap_or_else(|faults| panic!("{faults}")).config;
        assert_eq!(config.admin.token.unwrap().reveal(), "value of TOKENWAY_ADMIN_TOKEN");
        let route = &config.routes[0];
        assert_eq!(route.degrade.as_ref().map(|degrade| (degrade.to, degrade.over)), Some((1, 1.5)));
        assert_eq!(route.queue, Some(QueueLimits::default()));
    }
}
