//! Replicas that a list of objects stands for, reported whenever it is current.

use super::object::{Event, Object};
use super::watching::Collection;
use crate::fleet::discovery::report::Report;
use crate::fleet::discovery::roster::Found;

/// What one kind of object means for replicas.
pub(super) trait Replicas {
    /// The kind.
    type Object: Object;

    /// A list has all that there is; the rest is no more.
    fn replace(&mut self, objects: Vec<Self::Object>);

    /// Takes in an event.
    fn apply(&mut self, event: Event<Self::Object>);

    /// The replicas, in a stable order.
    fn targets(&self) -> Vec<Found>;
}

/// Replicas that are reported.
pub(super) struct Reported<'r, R> {
    /// By what is known now.
    pub(super) replicas: R,
    /// Of the source.
    pub(super) report: &'r Report,
}

impl<R: Replicas> Collection for Reported<'_, R> {
    type Object = R::Object;

    fn replace(&mut self, objects: Vec<R::Object>) {
        self.replicas.replace(objects);
    }

    fn apply(&mut self, event: Event<R::Object>) {
        self.replicas.apply(event);
    }

    fn is_current(&self) {
        self.report.answered(self.replicas.targets());
    }

    fn failed(&self, error: &str) {
        self.report.failed(error);
    }
}
