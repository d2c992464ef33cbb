//! A session keeps its replica: rendezvous hash of `x-session-id`.
//!
//! No table to share or to lose: all gateways agree, and when a replica goes only its own sessions move. Load
//! is not looked at, except without the header: then the least loaded replica is taken.

use super::{Choice, Eligible, LeastLoaded, Policy, Reason};
use crate::config::PolicyName;
use crate::routing::{Candidate, Query, rendezvous};

/// Takes the candidate that ranks highest for the session.
#[derive(Debug, Default)]
pub struct Session {
    without_session: LeastLoaded,
}

impl Policy for Session {
    fn name(&self) -> PolicyName {
        PolicyName::Session
    }

    fn choose(&self, query: &Query<'_>, eligible: &Eligible<'_>) -> Option<Choice> {
        let Some(session) = query.ask.session else { return self.without_session.choose(query, eligible) };
        let rank = |candidate: &Candidate<'_>| rendezvous::rank(session, candidate.identity);
        let (at, _) = eligible.iter().max_by_key(|(_, candidate)| rank(candidate))?;
        Some(Choice { at, reason: Reason::Session })
    }
}
