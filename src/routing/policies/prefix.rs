//! Longest cached prefix, within a bound on load; else the least loaded.
//!
//! The bound keeps a hot prefix from piling up: a replica with a quarter more requests than the mean is passed
//! over, the next one computes the prefix too, and from then on both hold it. A nearly idle replica keeps what is its own, a
//! conversation's history, whatever the mean is. What several prompts had in common before, a system prompt, is no such
//! reason: the replica with fewer requests computes it once and has it from then on. Requests are counted, not work: weighing
//! both in time is what `latency` is for.

use super::least_loaded::fewest_requests;
use super::{Choice, Eligible, LeastLoaded, Policy, Reason};
use crate::config::PolicyName;
use crate::routing::tuning::prices;
use crate::routing::{Candidate, Query, longest, rendezvous};
use crate::units::Tokens;

/// Takes the candidate with the longest hit that is not overloaded.
#[derive(Debug, Default)]
pub struct Prefix {
    without_prompt: LeastLoaded,
}

impl Policy for Prefix {
    fn name(&self) -> PolicyName {
        PolicyName::Prefix
    }

    fn choose(&self, query: &Query<'_>, eligible: &Eligible<'_>) -> Option<Choice> {
        let Some(root) = query.ask.prompt.root() else { return self.without_prompt.choose(query, eligible) };
        let rank = |candidate: &Candidate<'_>| rendezvous::rank(root, candidate.identity);
        let fair = fair_share(eligible);
        let longest = longest(&query.ask.prompt, eligible.iter().map(|(_, candidate)| candidate));
        let is_shared = query.index.sharing(longest, query.aim.now) >= prices::SHARED_FROM;
        let free = if is_shared { 1.0 } else { prices::FREE_REQUESTS };
        let holder = eligible
            .iter()
            .filter(|(_, c)| c.hit > Tokens(0) && c.requests + 1.0 <= bound(c, fair, free))
            .max_by(|(_, a), (_, b)| {
                let by_load = b.requests.total_cmp(&a.requests);
                a.hit.cmp(&b.hit).then(by_load).then(rank(a).cmp(&rank(b)))
            });
        if let Some((at, _)) = holder {
            return Some(Choice { at, reason: Reason::Prefix });
        }
        let least = fewest_requests(eligible);
        let equal = eligible.iter().filter(|(_, candidate)| candidate.requests <= least);
        let (at, _) = equal.max_by_key(|(_, candidate)| rank(candidate))?;
        Some(Choice { at, reason: Reason::Load })
    }
}

/// Requests at each replica if all had the same, this one included.
fn fair_share(eligible: &Eligible<'_>) -> f64 {
    let total: f64 = eligible.iter().map(|(_, candidate)| candidate.requests).sum();
    (total + 1.0) / eligible.count.max(1) as f64
}

/// How many requests a replica may have and still be taken for its cache.
fn bound(candidate: &Candidate<'_>, fair: f64, free: f64) -> f64 {
    let free = candidate.batch_limit.map_or(free, |limit| free.min(limit as f64));
    free.max(prices::LOAD_FACTOR * fair)
}
