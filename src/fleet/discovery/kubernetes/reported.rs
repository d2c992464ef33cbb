//! Replicas that a list of objects stands for, and whether all of their source can be read.

use std::sync::atomic::{AtomicBool, Ordering};

use serde::de::DeserializeOwned;

use super::object::Event;
use super::watching::Collection;
use crate::fleet::discovery::report::Report;
use crate::fleet::discovery::roster::Found;

/// What one kind of object means for replicas.
pub(super) trait Replicas {
    type Object: DeserializeOwned;

    /// A list has all that there is; the rest is no more.
    fn replace(&mut self, objects: Vec<Self::Object>);

    /// Takes in an event.
    fn apply(&mut self, event: Event<Self::Object>);

    /// The replicas, in a stable order.
    fn targets(&self) -> Vec<Found>;

    /// Why the objects, which could be read, stand for no replicas.
    fn fault(&self) -> Option<String> {
        None
    }
}

/// Replicas that are reported.
pub(super) struct Reported<'r, R> {
    /// By what is known now.
    pub(super) replicas: R,
    /// Of their source.
    pub(super) part: Part<'r>,
}

/// One watch of a source, which is well when all of its watches are.
pub(super) struct Part<'r> {
    /// Of the source.
    pub(super) report: &'r Report,
    /// Whether this watch is well.
    pub(super) own: &'r AtomicBool,
    /// The same of all, with its own.
    pub(super) all: &'r [AtomicBool],
}

impl Part<'_> {
    /// Nothing of it is read yet, which is no failure.
    pub(super) fn begins(&self) {
        self.own.store(false, Ordering::Relaxed);
    }

    pub(super) fn is_current(&self) {
        self.own.store(true, Ordering::Relaxed);
        if self.all.iter().all(|watch| watch.load(Ordering::Relaxed)) {
            self.report.recovered();
        }
    }

    pub(super) fn failed(&self, error: &str) {
        self.own.store(false, Ordering::Relaxed);
        self.report.failed(error);
    }
}

impl<R: Replicas> Reported<'_, R> {
    /// What was named before a fault stays.
    fn name_targets(&self) {
        if self.replicas.fault().is_none() {
            self.part.report.named(self.replicas.targets());
        }
    }
}

impl<R: Replicas> Collection for Reported<'_, R> {
    type Object = R::Object;

    fn replace(&mut self, objects: Vec<R::Object>) {
        self.replicas.replace(objects);
        self.name_targets();
    }

    fn apply(&mut self, event: Event<R::Object>) {
        self.replicas.apply(event);
        self.name_targets();
    }

    fn is_current(&self) {
        match self.replicas.fault() {
            None => self.part.is_current(),
            Some(fault) => self.part.failed(&fault),
        }
    }

    fn failed(&self, error: &str) {
        self.part.failed(error);
    }
}
