//! Priorities by name: the InferenceObjectives of a pool, as its source reported them last.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;

/// The InferenceObjectives of one pool.
#[derive(Debug, Default)]
pub struct Objectives {
    /// `None` where none are followed.
    known: ArcSwapOption<Priorities>,
    /// A request named another one since they changed.
    was_missed: AtomicBool,
}

/// Priority by name of the object; higher goes first, one below 0 may be shed.
pub type Priorities = BTreeMap<Box<str>, i32>;

impl Objectives {
    /// All that there are, or that none are followed.
    pub(super) fn set(&self, known: Option<Priorities>) {
        self.known.store(known.map(Arc::new));
        self.was_missed.store(false, Ordering::Relaxed);
    }

    /// The priority of one; `None` where it is not known.
    pub fn priority(&self, name: &str) -> Option<i32> {
        self.known.load().as_ref()?.get(name).copied()
    }

    /// Whether any could be known.
    pub fn are_followed(&self) -> bool {
        self.known.load().is_some()
    }

    /// A request named one that is not known; `true` for the first since they changed.
    pub fn note_missed(&self) -> bool {
        !self.was_missed.swap(true, Ordering::Relaxed)
    }
}
