//! One after the other, whatever they have to do.
//!
//! The yardstick for the others, and right where all requests cost the same. A replica that this request has
//! tried already is skipped, the turn goes to the next. It looks at no load, cache or session.

use std::sync::atomic::AtomicUsize;

use super::{Choice, Eligible, Policy, Reason, turn};
use crate::config::PolicyName;
use crate::routing::Query;

/// Takes turns among the eligible candidates.
#[derive(Debug, Default)]
pub struct RoundRobin {
    turn: AtomicUsize,
}

impl Policy for RoundRobin {
    fn name(&self) -> PolicyName {
        PolicyName::RoundRobin
    }

    fn choose(&self, query: &Query<'_>, eligible: &Eligible<'_>) -> Option<Choice> {
        let turn = turn(&self.turn, query).checked_rem(eligible.count)?;
        let (at, _) = eligible.iter().nth(turn)?;
        Some(Choice { at, reason: Reason::RoundRobin })
    }
}
