//! Least predicted cost: affinity, queue depth, speed and harm to others in one unit, time. The default.
//!
//! What a choice costs is made up in [`crate::routing::score`]. Costs that differ by less than predictions err are a tie: the
//! replica where fewer prompts wait wins it, then the one with less running. Only among equals does the rendezvous hash of the
//! session, or else of the prompt's first block, decide: several gateways agree without talking. A pool that has answered
//! nothing yet has no costs worth comparing: its replicas take turns.

use std::cmp::Reverse;
use std::sync::atomic::AtomicUsize;

use super::{Choice, Eligible, LeastLoaded, Policy, Reason, turn};
use crate::config::PolicyName;
use crate::routing::score::tolerance;
use crate::routing::{Query, rendezvous};
use crate::units::Tokens;

/// Takes the candidate with the least predicted cost in seconds.
#[derive(Debug, Default)]
pub struct Latency {
    /// Stands in for the root of prompts that have none, so that they do not all tie to one replica.
    turn: AtomicUsize,
    untaught: LeastLoaded,
}

impl Policy for Latency {
    fn name(&self) -> PolicyName {
        PolicyName::Latency
    }

    fn predicts(&self) -> bool {
        true
    }

    fn choose(&self, query: &Query<'_>, eligible: &Eligible<'_>) -> Option<Choice> {
        if !query.model.pool.is_taught() && !query.aim.has_answers {
            return self.untaught.choose(query, eligible);
        }
        let key =
            query.ask.session.or(query.ask.prompt.root()).unwrap_or_else(|| turn(&self.turn, query) as u64);
        let (first, cheapest) = eligible.iter().min_by(|(_, a), (_, b)| a.cost.total_cmp(&b.cost))?;
        let enough = cheapest.cost + tolerance(cheapest.ttft);
        let (mut near, mut best) = (0, None);
        let (mut longest, mut shortest) = (Tokens(0), Tokens(u64::MAX));
        for (at, candidate) in eligible.iter() {
            (longest, shortest) = (longest.max(candidate.hit), shortest.min(candidate.hit));
            if candidate.cost <= enough {
                near += 1;
                // Requests of others fade with age: loads differ by fractions of a request.
                let load = (candidate.ahead().round() as u64, candidate.running().round() as u64);
                let order = (Reverse(load), rendezvous::rank(key, candidate.identity));
                if best.is_none_or(|(highest, _, _)| order >= highest) {
                    best = Some((order, at, candidate.hit));
                }
            }
        }
        // A cost that is no number is near nothing, not even itself.
        let (at, hit) = best.map_or((first, cheapest.hit), |(_, at, hit)| (at, hit));
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
