//! `tokenway serve`: the configuration's source and its overrides.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args};

use crate::config::check::{parse_http_url, parse_model_name};
use crate::config::load::Source;
use crate::config::{Endpoint, Overrides, PolicyName, Secret, parse_endpoint};

/// Arguments of `tokenway serve`.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    #[command(flatten)]
    pub(super) source: SourceArgs,
    /// Address of the data port [default: the file's, else 127.0.0.1:8080]
    #[arg(long, env = "TOKENWAY_LISTEN", value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    around: AroundArgs,
}

/// Where the configuration comes from.
#[derive(Args, Clone, Debug)]
pub(super) struct SourceArgs {
    /// Configuration file
    #[arg(long, env = "TOKENWAY_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Replica to serve without a file; may be repeated
    #[arg(long, aliases = ["worker-urls", "worker-url"], num_args = 1.., env = "TOKENWAY_UPSTREAM", value_name = "URL", value_delimiter = ',', value_parser = parse_endpoint)]
    upstream: Vec<Endpoint>,
}

/// What wins over the configuration, whatever the data port speaks.
#[derive(Args, Clone, Debug)]
pub(super) struct AroundArgs {
    /// Address of the admin port [default: the file's, else 127.0.0.1:9090]
    #[arg(long, env = "TOKENWAY_ADMIN_LISTEN", value_name = "ADDRESS")]
    admin_listen: Option<SocketAddr>,
    /// admin.token: env:NAME, file:PATH or the token itself [default: the file's]
    #[arg(long, env = "TOKENWAY_ADMIN_TOKEN", hide_env_values = true, value_name = "TOKEN", value_parser = secret)]
    admin_token: Option<Secret>,
    /// admin.read_token, which may look and change nothing; given like --admin-token [default: the file's]
    #[arg(long, env = "TOKENWAY_ADMIN_READ_TOKEN", hide_env_values = true, value_name = "TOKEN", value_parser = secret)]
    admin_read_token: Option<Secret>,
    /// Address of a port for /metrics and health alone, without a token [default: the file's, else none]
    #[arg(long, env = "TOKENWAY_ADMIN_METRICS_LISTEN", value_name = "ADDRESS")]
    admin_metrics_listen: Option<SocketAddr>,
    /// How every route chooses a replica [default: the file's, else latency]
    #[arg(long, env = "TOKENWAY_POLICY", value_name = "POLICY", value_parser = policies())]
    policy: Option<PolicyName>,
    /// Model name that clients ask for [default: every name that the replicas know]
    #[arg(long, env = "TOKENWAY_SERVED_MODEL_NAME", value_name = "NAME", value_parser = parse_model_name)]
    served_model_name: Option<String>,
    /// Base URL of an OpenTelemetry collector (OTLP over HTTP) that receives spans
    #[arg(long, env = "TOKENWAY_OTLP_ENDPOINT", value_name = "URL", value_parser = parse_http_url)]
    otlp_endpoint: Option<String>,
}

impl ServeArgs {
    /// A file, or the `--upstream` URLs.
    pub fn source(&self) -> Source {
        self.source.source()
    }

    /// Values that take precedence over the source.
    pub fn overrides(&self) -> Overrides {
        self.around.overrides(self.listen)
    }
}

impl SourceArgs {
    /// A file, or the `--upstream` URLs.
    pub(super) fn source(&self) -> Source {
        match &self.config {
            Some(path) => Source::File(path.clone()),
            None => Source::Upstreams(self.upstream.clone()),
        }
    }

    /// Leaves exactly one source. A flag takes precedence over the environment variable of the other source; two flags or two
    /// variables are a conflict.
    pub(super) fn settle(&mut self, given: &ArgMatches) -> Result<(), clap::Error> {
        let is_flag = |id| given.value_source(id) == Some(ValueSource::CommandLine);
        match (self.config.is_some(), !self.upstream.is_empty()) {
            (true, true) => match (is_flag("config"), is_flag("upstream")) {
                (true, false) => self.upstream.clear(),
                (false, true) => self.config = None,
                _ => return Err(usage(ErrorKind::ArgumentConflict, CONFLICT)),
            },
            (false, false) => return Err(usage(ErrorKind::MissingRequiredArgument, MISSING)),
            _ => {}
        }
        Ok(())
    }
}

impl AroundArgs {
    /// With the address of the data port.
    pub(super) fn overrides(&self, listen: Option<SocketAddr>) -> Overrides {
        Overrides {
            listen,
            admin_listen: self.admin_listen,
            admin_token: self.admin_token.clone(),
            admin_read_token: self.admin_read_token.clone(),
            admin_metrics_listen: self.admin_metrics_listen,
            policy: self.policy,
            served_model_name: self.served_model_name.as_deref().map(Into::into),
            otlp_endpoint: self.otlp_endpoint.clone(),
            allow_missing_secrets: false,
            leaves_nothing: false,
        }
    }
}

/// Looked up when the configuration is loaded, so that a reload reads a file of it again.
#[expect(clippy::unnecessary_wraps, reason = "clap's value parsers return a Result")]
pub(super) fn secret(text: &str) -> Result<Secret, String> {
    Ok(Secret::new(text))
}

fn usage(kind: ErrorKind, message: &str) -> clap::Error {
    clap::Error::raw(kind, message)
}

fn policies() -> impl clap::builder::TypedValueParser<Value = PolicyName> {
    let names = PossibleValuesParser::new(PolicyName::ALL.map(PolicyName::as_str));
    names.try_map(|name| PolicyName::named(&name).ok_or("unknown policy"))
}

const CONFLICT: &str = "--config (TOKENWAY_CONFIG) cannot be used with --upstream (TOKENWAY_UPSTREAM): list the replicas in the file\n";
const MISSING: &str = "nothing to serve: give --config FILE, or --upstream URL for each replica\n";
