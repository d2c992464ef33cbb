//! Replicas that a list of objects stands for, and whether all of their source can be read.

use std::sync::atomic::{AtomicBool, Ordering};

use serde::de::DeserializeOwned;

use super::object::Objects;
use super::watching::Collection;
use crate::fleet::discovery::report::{News, Report};
use crate::fleet::discovery::roster::Found;

/// The replicas that objects stand for, in a stable order; or why those, which could be read, stand for none.
type Targets<O> = Box<dyn Fn(&Objects<O>) -> Result<Vec<Found>, String> + Send + Sync>;

/// Replicas that are reported.
pub(super) struct Reported<'r, O> {
    targets: Targets<O>,
    /// Of their source.
    part: Part<'r>,
    /// Why the objects stand for no replicas now.
    fault: Option<String>,
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
            self.report.note(News::Recovered);
        }
    }

    pub(super) fn failed(&self, error: &str) {
        self.own.store(false, Ordering::Relaxed);
        self.report.note(News::Failed(error));
    }
}

impl<'r, O> Reported<'r, O> {
    pub(super) fn new(targets: Targets<O>, part: Part<'r>) -> Self {
        Self { targets, part, fault: None }
    }
}

impl<O: DeserializeOwned> Collection for Reported<'_, O> {
    type Object = O;

    /// What was named before a fault stays.
    fn changed(&mut self, objects: &Objects<O>) {
        match (self.targets)(objects) {
            Ok(targets) => {
                self.fault = None;
                self.part.report.note(News::Named(targets));
            }
            Err(fault) => self.fault = Some(fault),
        }
    }

    fn is_current(&self) {
        match &self.fault {
            None => self.part.is_current(),
            Some(fault) => self.part.failed(fault),
        }
    }

    fn failed(&self, error: &str) {
        self.part.failed(error);
    }
}
