//! How those that learn of replicas say so: the tasks of sources, and scrapes that see several engines behind one URL.

use std::sync::Arc;

use super::roster::{Found, SourceKind};
use crate::config::Endpoint;
use crate::debug::debug_as;
use crate::fleet::objectives::Priorities;
use crate::upstream::connect::Connector;

/// The members of a pool, as those see them that report.
pub(in crate::fleet) trait SourceSink: Send + Sync {
    /// A source named its replicas.
    fn named(self: Arc<Self>, kind: SourceKind, targets: Vec<Found>);

    /// All of a source can be read.
    fn recovered(&self, kind: SourceKind);

    /// A source failed: its last list stays.
    fn failed(&self, kind: SourceKind, error: &str);

    /// A source says that it has none, which it says too easily.
    fn absent(self: Arc<Self>, kind: SourceKind, error: &str);

    /// Priorities that requests may name, all of them; `None` where none are followed any more.
    fn has_objectives(&self, priorities: Option<Priorities>);

    /// The metrics page of a URL shows so many engines.
    fn saw_ranks(self: Arc<Self>, endpoint: &Endpoint, ranks: u32);
}

debug_as!(dyn SourceSink => "SourceSink");

/// What a source's task reports to.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) sink: Arc<dyn SourceSink>,
    pub(super) kind: SourceKind,
    /// Opens connections to the source.
    pub(super) connector: Connector,
}

impl Report {
    /// The whole list, as of now.
    pub(super) fn answered(&self, targets: Vec<Found>) {
        self.named(targets);
        self.recovered();
    }

    /// The whole list, while another part of the source may fail.
    pub(super) fn named(&self, targets: Vec<Found>) {
        Arc::clone(&self.sink).named(self.kind, targets);
    }

    /// All of the source can be read.
    pub(super) fn recovered(&self) {
        self.sink.recovered(self.kind);
    }

    /// Priorities that requests may name.
    pub(super) fn has_objectives(&self, priorities: Option<Priorities>) {
        self.sink.has_objectives(priorities);
    }

    /// It did not answer, or what it said makes no sense: the last list stays.
    pub(super) fn failed(&self, error: &str) {
        self.sink.failed(self.kind, error);
    }

    /// It says that there is nothing of the name, which resolvers say too easily.
    pub(super) fn absent(&self, error: &str) {
        Arc::clone(&self.sink).absent(self.kind, error);
    }
}
