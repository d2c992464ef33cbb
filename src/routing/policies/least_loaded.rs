//! Fewest requests: our own in flight plus what the engine reports of others.
//!
//! Ours are exact and counted at decision time, so a burst spreads without waiting for a scrape; equal replicas
//! take turns. It is blind to the size of requests and to caches.

use std::sync::atomic::AtomicUsize;

use super::{Choice, Eligible, Policy, Reason, turn};
use crate::config::PolicyName;
use crate::routing::Query;

/// Takes the candidate with the fewest requests, equal ones in turn.
#[derive(Debug, Default)]
pub struct LeastLoaded {
    turn: AtomicUsize,
}

impl Policy for LeastLoaded {
    fn name(&self) -> PolicyName {
        PolicyName::LeastLoaded
    }

    fn choose(&self, query: &Query<'_>, eligible: &Eligible<'_>) -> Option<Choice> {
        let least = fewest_requests(eligible);
        let equal = || eligible.iter().filter(|(_, candidate)| candidate.requests <= least);
        let turn = turn(&self.turn, query).checked_rem(equal().count())?;
        let (at, _) = equal().nth(turn)?;
        Some(Choice { at, reason: Reason::Load })
    }
}

/// Requests at the least loaded candidate.
pub(super) fn fewest_requests(eligible: &Eligible<'_>) -> f64 {
    eligible.iter().map(|(_, candidate)| candidate.requests).fold(f64::INFINITY, f64::min)
}
