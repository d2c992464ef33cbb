//! The policies that a route may name, behind one interface.
//!
//! A policy sees only eligible candidates, each already weighed (cached tokens, work ahead, prediction where it
//! asks for one), and answers with one of them and the reason. It keeps no more state than a counter: load,
//! caches and speed live beside it, so that policies can be changed without forgetting anything.

mod latency;
mod least_loaded;
mod prefix;
mod round_robin;
mod session;

use std::sync::atomic::{AtomicUsize, Ordering};

pub use self::latency::Latency;
pub use self::least_loaded::LeastLoaded;
pub use self::prefix::Prefix;
pub use self::round_robin::RoundRobin;
pub use self::session::Session;
use super::{Candidate, Query, SlotSet};
use crate::config::PolicyName;
use crate::debug::debug_as;
use crate::labels::labels;

/// A way to choose a replica. One instance serves one route, from many threads.
pub trait Policy: Send + Sync {
    /// Its name in TOML and labels.
    fn name(&self) -> PolicyName;

    /// Whether it wants each candidate priced.
    fn predicts(&self) -> bool {
        false
    }

    /// Chooses one of the eligible candidates, of which there are at least two.
    fn choose(&self, query: &Query<'_>, eligible: &Eligible<'_>) -> Option<Choice>;
}

/// Whose turn it is; it passes where the request may be placed by the answer.
fn turn(turn: &AtomicUsize, query: &Query<'_>) -> usize {
    if query.ask.is_quote { turn.load(Ordering::Relaxed) } else { turn.fetch_add(1, Ordering::Relaxed) }
}

debug_as!(dyn Policy => "Policy");

/// A fresh policy of that name, for one route.
pub fn named(name: PolicyName) -> Box<dyn Policy> {
    match name {
        PolicyName::Latency => Box::new(Latency::default()),
        PolicyName::Prefix => Box::new(Prefix::default()),
        PolicyName::Session => Box::new(Session::default()),
        PolicyName::LeastLoaded => Box::new(LeastLoaded::default()),
        PolicyName::RoundRobin => Box::new(RoundRobin::default()),
    }
}

/// What a policy answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Index into the candidates.
    pub at: usize,
    /// Why this one.
    pub reason: Reason,
}

labels! {
    /// Why a replica won (label `reason`).
    pub enum Reason {
        /// It holds the longest prefix of the prompt.
        Prefix = "prefix",
        /// It has the least to do.
        Load = "load",
        /// The session belongs to it.
        Session = "session",
        /// It was its turn.
        RoundRobin = "round_robin",
        /// It was as good as others, and hashing picked it.
        Tie = "tie",
        /// There was no other.
        Only = "only",
        /// It holds the adapter or model that was asked for, and another does not.
        Adapter = "adapter",
    }
}

/// The candidates that this request has not tried yet.
#[derive(Clone, Copy, Debug)]
pub struct Eligible<'a> {
    candidates: &'a [Candidate<'a>],
    /// `None` where nobody is, which is nearly always.
    excluded: Option<&'a SlotSet>,
    /// How many there are.
    pub(super) count: usize,
}

impl<'a> Eligible<'a> {
    pub(super) fn new(candidates: &'a [Candidate<'a>], excluded: &'a SlotSet) -> Self {
        if excluded.is_empty() {
            return Self { candidates, excluded: None, count: candidates.len() };
        }
        let all = Self { candidates, excluded: Some(excluded), count: 0 };
        Self { count: all.iter().count(), ..all }
    }

    /// Each with its index.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &'a Candidate<'a>)> + Clone + use<'a> {
        let excluded = self.excluded;
        let is_open = move |candidate: &Candidate<'_>| {
            excluded.is_none_or(|excluded| !excluded.contains(candidate.slot))
        };
        self.candidates.iter().enumerate().filter(move |(_, candidate)| is_open(candidate))
    }
}
