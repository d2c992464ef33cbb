//! The tasks that ask a pool's sources.
//!
//! A source whose configuration stays the same over a reload goes on; one that changed is asked anew while the replicas of
//! its old form stay until the new one answers.

use std::path::PathBuf;

use tokio_util::sync::{CancellationToken, DropGuard};

use super::report::Report;
use super::roster::SourceKind;
use super::{dns, file, kubernetes};
use crate::background::Background;
use crate::config::{Discovery, DnsSource, KubernetesSource};

/// A source that is being asked; dropping it ends its task.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) source: Source,
    _stop: DropGuard,
}

/// A source as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Dns(DnsSource),
    File(PathBuf),
    Kubernetes(KubernetesSource),
}

impl Source {
    /// The sources of a pool.
    pub(super) fn all(discovery: &Discovery) -> impl Iterator<Item = Self> {
        let Discovery { dns, file, kubernetes } = discovery.clone();
        let all = [dns.map(Self::Dns), file.map(Self::File), kubernetes.map(Self::Kubernetes)];
        all.into_iter().flatten()
    }

    pub(super) fn kind(&self) -> SourceKind {
        match self {
            Self::Dns(_) => SourceKind::Dns,
            Self::File(_) => SourceKind::File,
            Self::Kubernetes(_) => SourceKind::Kubernetes,
        }
    }

    /// Starts to ask it.
    pub(super) fn start(self, report: Report, background: &Background) -> Running {
        let stop = CancellationToken::new();
        let source = self.clone();
        let asking = async move {
            match source {
                Self::Dns(source) => dns::run(source, report).await,
                Self::File(path) => file::run(path, report).await,
                Self::Kubernetes(source) => kubernetes::run(source, report).await,
            }
        };
        background.spawn_until(&stop, asking);
        Running { source: self, _stop: stop.drop_guard() }
    }
}
