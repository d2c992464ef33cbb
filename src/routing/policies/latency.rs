//! Least predicted cost: affinity, queue depth, speed and harm to others in one unit, time. The default.
//!
//! What a choice costs is made up in [`crate::routing::score`]. Near ties go by rendezvous hash of the session or else the
//! prompt's first block: several gateways agree without talking, and a burst follows its own reservations instead of a
//! stale figure. Stickiness is worth a near tie and what the cache holds, no more.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Choice, Eligible, Policy, Reason};
use crate::config::PolicyName;
use crate::routing::{Candidate, Query, rendezvous};

/// Takes the candidate with the least predicted cost in seconds.
#[derive(Debug, Default)]
pub struct Latency {
    /// Stands in for the root of prompts that have none, so that they do not all tie to one replica.
    turn: AtomicU64,
}

impl Policy for Latency {
    fn name(&self) -> PolicyName {
        PolicyName::Latency
    }

    fn predicts(&self) -> bool {
        true
    }

    fn choose(&self, query: &Query<'_>, eligible: &Eligible<'_>) -> Option<Choice> {
        let key = query
            .session
            .or(query.prompt.root())
            .unwrap_or_else(|| self.turn.fetch_add(1, Ordering::Relaxed));
        let least = eligible.iter().map(|(_, candidate)| candidate.cost).fold(f64::INFINITY, f64::min);
        let near = || eligible.iter().filter(|(_, candidate)| candidate.cost <= least + NEAR);
        let (at, winner) = near().max_by_key(|(_, c)| rendezvous::rank(key, c.identity))?;
        let reason = if has_longest_hit(winner, eligible) {
            Reason::Prefix
        } else if near().nth(1).is_some() {
            Reason::Tie
        } else {
            Reason::Load
        };
        Some(Choice { at, reason })
    }
}

/// Whether no other holds more of the prompt, and some hold less.
fn has_longest_hit(winner: &Candidate<'_>, eligible: &Eligible<'_>) -> bool {
    let mut hits = eligible.iter().map(|(_, candidate)| candidate.hit);
    hits.clone().all(|hit| hit <= winner.hit) && hits.any(|hit| hit < winner.hit)
}

/// Seconds below which two costs say the same.
pub(in crate::routing) const NEAR: f64 = 0.005;
