//! `tokenway serve`: the configuration's source and its overrides.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args};

use crate::config::load::Source;
use crate::config::{Endpoint, Overrides, parse_endpoint};

/// Arguments of `tokenway serve`.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    /// Where the configuration comes from.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Address of the data port [default: the file's, else 127.0.0.1:8080]
    #[arg(long, env = "TOKENWAY_LISTEN", value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    around: Overrides,
}

/// Where the configuration comes from.
#[derive(Args, Clone, Debug)]
pub struct SourceArgs {
    /// Configuration file
    #[arg(long, env = "TOKENWAY_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Replica to serve without a file; may be repeated
    #[arg(long, aliases = ["worker-urls", "worker-url"], num_args = 1.., env = "TOKENWAY_UPSTREAM", value_name = "URL", value_delimiter = ',', value_parser = parse_endpoint)]
    upstream: Vec<Endpoint>,
}

impl ServeArgs {
    /// Values that take precedence over the source.
    pub fn overrides(&self) -> Overrides {
        Overrides { listen: self.listen, ..self.around.clone() }
    }
}

impl SourceArgs {
    /// A file, or the `--upstream` URLs.
    pub fn source(&self) -> Source {
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

fn usage(kind: ErrorKind, message: &str) -> clap::Error {
    clap::Error::raw(kind, message)
}

const CONFLICT: &str = "--config (TOKENWAY_CONFIG) cannot be used with --upstream (TOKENWAY_UPSTREAM): list the replicas in the file\n";
const MISSING: &str = "nothing to serve: give --config FILE, or --upstream URL for each replica\n";
