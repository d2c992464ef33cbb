//! How the tasks of sources report what they learn of replicas.

use super::roster::Found;
use crate::fleet::objectives::Priorities;
use crate::upstream::connect::Connector;

/// What a source's task learned.
pub(super) enum News<'n> {
    /// The whole list, while another part of the source may fail.
    Named(Vec<Found>),
    /// All of the source can be read.
    Recovered,
    /// It did not answer, or its answer makes no sense: the last list stays.
    Failed(&'n str),
    /// There is nothing of the name, which resolvers answer too easily.
    Absent(&'n str),
    /// Priorities that requests may name, all of them; `None` where none are followed any more.
    Objectives(Option<Priorities>),
}

/// What a source's task reports to.
pub(super) struct Report {
    /// Takes news in.
    pub(super) take: Box<dyn Fn(News<'_>) + Send + Sync>,
    /// Opens connections to the source.
    pub(super) connector: Connector,
}

impl Report {
    pub(super) fn note(&self, news: News<'_>) {
        (self.take)(news);
    }

    /// The whole list, as of now.
    pub(super) fn answered(&self, targets: Vec<Found>) {
        self.note(News::Named(targets));
        self.note(News::Recovered);
    }
}
