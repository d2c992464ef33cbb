//! From text to a [`Config`], or to everything that is wrong with it.
//!
//! The text is parsed into a tree with spans; each file here reads one part of it into the checked types. Faults are
//! collected, never thrown: all of them are reported at once. Nothing here reads clocks or opens sockets; files are read
//! where the configuration names them (TLS, secrets), relative to the configuration file's directory.

mod admission;
mod auth;
mod bounds;
mod canary;
mod dcgm;
mod discovery;
mod drift;
mod engine;
mod hedge;
mod lint;
mod pool;
mod route;
mod scale;
mod secret;
mod section;
mod server;
pub(super) mod shape;
mod slo;
mod stage_budget;
mod telemetry;
mod tenant;
mod unbuilt;
mod values;
mod warmup;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use toml::de::DeTable;

use self::section::{Checking, Section};
pub(super) use self::server::{ADMIN_TOKEN_HINT, PORTS_HINT, is_one_port, one_port};
use self::shape::Shapes;
use super::diagnostics::{Diagnostic, Diagnostics, Fault};
use super::{Config, Endpoint, Overrides, Secret};

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
    let faults: Vec<_> = errors
        .iter()
        .map(|error| (error.span().unwrap_or(0..0), Fault::new(error.message(), TOML_HINT)))
        .collect();
    if let Some(faults) = Diagnostics::from_faults(file_name, text, faults) {
        return Err(faults);
    }
    let directory = Path::new(file_name).parent().unwrap_or_else(|| Path::new(""));
    let checking = Checking::new(directory, env, overrides);
    let root = Section::open(&checking, ROOT, 0..0, Some(tree.get_ref()));
    let config = read(&root);
    server::expect_ports_apart(&root, &config);
    lint::lint(&root, &config);
    drop(root);
    let faults = checking.faults.take();
    match Diagnostics::from_faults(file_name, text, faults) {
        Some(faults) => Err(faults),
        None => {
            let warnings = Diagnostics::from_faults(file_name, text, checking.warnings.take());
            Ok(Checked { config, warnings: warnings.map(Diagnostics::into_vec).unwrap_or_default() })
        }
    }
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

/// Reads the base URL of a replica, as a flag gives it.
///
/// # Errors
/// What is wrong with it.
pub fn parse_endpoint(text: &str) -> Result<Endpoint, String> {
    (values::ENDPOINT.parse)(text)
}

/// Reads a duration as the file has it, zero included.
///
/// # Errors
/// What is wrong with it.
pub fn parse_duration(text: &str) -> Result<std::time::Duration, String> {
    values::duration(text)
}

/// Reads a URL that is used as it is, as a flag gives it.
///
/// # Errors
/// What is wrong with it.
pub fn parse_http_url(text: &str) -> Result<String, String> {
    (values::HTTP_URL.parse)(text)
}

/// Reads the name of a model, as a flag gives it.
///
/// # Errors
/// What is wrong with it.
pub fn parse_model_name(text: &str) -> Result<String, String> {
    (values::MODEL.parse)(text).map(|name| name.to_string())
}

fn read(root: &Section<'_>) -> Config {
    let timeouts = bounds::timeouts(&root.section("timeouts", "[timeouts]"), &bounds::DEFAULT_TIMEOUTS);
    let slo = slo::slo(root);
    let pools = pool::pools(root);
    let routes = route::routes(root, &route::Referred { pools: &pools, slo: &slo, timeouts });
    let tenants = tenant::tenants(root, &routes);
    let telemetry = telemetry::telemetry(root, tenants.len());
    Config {
        server: server::server(root, !tenants.is_empty()),
        admin: server::admin(root),
        retry: bounds::retry(root),
        slo,
        seed: seed(root),
        classes: bounds::classes(root),
        pools,
        routes,
        tenants,
        jwt: auth::jwt(root),
        telemetry,
        drift: drift::drift(root),
    }
}

fn seed(root: &Section<'_>) -> Secret {
    let section = root.section("routing", "[routing]");
    let seed = section.get("seed").and_then(|item| secret::read_or_plain(&item));
    seed.unwrap_or_else(|| Secret::new(DEFAULT_SEED))
}

/// `routing.seed` of a file that does not say: the same on all gateways, and no secret.
const DEFAULT_SEED: &str = "tokenway";
/// `server.listen` of a file that does not say.
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
/// `admin.listen` of a file that does not say.
const DEFAULT_ADMIN_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);
/// How messages call the whole of a file.
pub(super) const ROOT: &str = "a configuration";
const TOML_HINT: &str = "this is not TOML: look for a missing quote, bracket or equals sign";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_and_the_fixture_have_every_key() {
        let reference = include_str!("../../../config/reference.toml");
        // The fixture is accepted as a file, and so has no certificates.
        let tls = "[server]\ntls = { cert = \"c\", key = \"k\", client_ca = \"a\" }\n";
        let pool_tls = "[[pool]]\ntls = { ca = \"a\", cert = \"c\", key = \"k\", server_name = \"n\" }\n";
        let fixture = include_str!("../../../tests/fixtures/every-key.toml").replace("[server]\n", tls);
        let fixture = &fixture.replace("[[pool]]\n", pool_tls);
        let shapes = shapes_of(&[fixture]);
        for (header, key) in shapes.keys() {
            for (name, text) in [("config/reference.toml", reference), ("every-key.toml", fixture)] {
                let forms = [format!("{key} = "), format!("[{key}]"), format!("[{key}."), format!(".{key}]")];
                assert!(forms.iter().any(|form| text.contains(form)), "{key} of {header} is not in {name}");
            }
        }
    }
}
