//! Where a gateway's configuration comes from, at start and at each reload.

use std::path::PathBuf;

use super::logging::LogFilter;
use crate::config::load::{ConfigError, Source, load};
use crate::config::reload::{Reloaded, reload};
use crate::config::watch::Watched;
use crate::config::{Config, Overrides};

/// Sources of a gateway's configuration, and the handle to its log.
pub struct Launch {
    /// A configuration file, or replica URLs from the command line.
    pub source: Source,
    /// Flags and variables that win over the source.
    pub overrides: Overrides,
    /// Handle to the filter of the process log.
    pub log: LogFilter,
    /// What the data port speaks.
    pub front: Front,
}

/// What the data port speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Front {
    /// The OpenAI API: `tokenway serve`.
    #[default]
    OpenAi,
    /// Envoy's ext_proc over gRPC: `tokenway epp`.
    EndpointPicker,
}

impl Launch {
    pub(super) fn load(&self) -> Result<Config, ConfigError> {
        load(&self.source, &self.overrides, &from_env)
    }

    /// Watches the configuration's own file, if it has one.
    pub(super) fn watch(&self) -> Watched {
        watched(match &self.source {
            Source::File(path) => std::slice::from_ref(path),
            Source::Upstreams(_) => &[],
        })
    }

    pub(super) fn reload(&self, old: &Config) -> Result<Reloaded, ConfigError> {
        reload(&self.source, &self.overrides, &from_env, old)
    }
}

/// Watches files of a configuration.
pub(super) fn watched(files: &[PathBuf]) -> Watched {
    Watched::of(files, |error| tracing::warn!(%error, "files cannot be watched; SIGHUP reloads"))
}

fn from_env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
