//! Least predicted cost: affinity, queue depth, speed and harm to others in one unit, time. The default.
//!
//! What a choice costs is made up in [`crate::routing::score`]. Near ties go by rendezvous hash of the session or else the
//! prompt's first block: several gateways agree without talking, and a burst follows its own reservations instead of a
//! stale figure. Stickiness is worth a near tie and what the cache holds, no more.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Choice, Eligible, Policy, Reason};
use crate::config::PolicyName;
use crate::routing::float::least;
use crate::routing::{Query, rendezvous};
use crate::units::Tokens;

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
        let least = eligible.iter().map(|(_, candidate)| candidate.cost).fold(f64::INFINITY, least);
        let (mut near, mut best) = (0, None);
        let (mut longest, mut shortest) = (Tokens(0), Tokens(u64::MAX));
        for (at, candidate) in eligible.iter() {
            (longest, shortest) = (longest.max(candidate.hit), shortest.min(candidate.hit));
            if candidate.cost <= least + NEAR {
                near += 1;
                let rank = rendezvous::rank(key, candidate.identity);
                if best.is_none_or(|(highest, _, _)| rank >= highest) {
                    best = Some((rank, at, candidate.hit));
                }
            }
        }
        let (_, at, hit) = best?;
        let reason = if hit == longest && hit > shortest {
            Reason::Prefix
        } else if near > 1 {
            Reason::Tie
        } else {
            Reason::Load
        };
        Some(Choice { at, reason })
    }
}

/// Seconds below which two costs say the same.
pub(in crate::routing) const NEAR: f64 = 0.005;
