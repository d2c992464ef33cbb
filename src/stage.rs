//! The parts of a request's life, by name: one list for records, budgets, metrics, spans and the configuration.
//!
//! Here because the configuration names stages (budgets) and the observers measure them, and neither should know the
//! other. Which time belongs to which stage is decided in [`crate::observe::stages`].

use std::time::Duration;

/// A part of a request's life (label `stage`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// The request body arrives.
    Read,
    /// Admission.
    Admit,
    /// The choice of a replica.
    Route,
    /// Until the connection that carried the answer was at hand; tries that failed before are in it.
    Connect,
    /// The engine's queue.
    EngineQueue,
    /// The prompt is computed, until the first token.
    Prefill,
    /// From the first to the last token, what the client held up left out.
    Decode,
    /// At the replica, in none of its own figures: all of its time where an answer is no stream and tells none.
    EngineOther,
    /// Towards the client, its slowness included.
    Relay,
}

impl Stage {
    /// Every stage, in the order in which a request meets them.
    pub const ALL: [Self; 9] = [
        Self::Read,
        Self::Admit,
        Self::Route,
        Self::Connect,
        Self::EngineQueue,
        Self::Prefill,
        Self::Decode,
        Self::EngineOther,
        Self::Relay,
    ];

    /// The label's value, and the key in `stage_budget`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Admit => "admit",
            Self::Route => "route",
            Self::Connect => "connect",
            Self::EngineQueue => "engine_queue",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::EngineOther => "engine_other",
            Self::Relay => "relay",
        }
    }

    /// Whether its time is part of TTFT: after the request was read and before the first token.
    #[must_use]
    pub fn is_before_first_token(self) -> bool {
        match self {
            Self::Admit
            | Self::Route
            | Self::Connect
            | Self::EngineQueue
            | Self::Prefill
            | Self::EngineOther => true,
            Self::Read | Self::Decode | Self::Relay => false,
        }
    }
}

/// How long each stage of a route may take; stages without a budget have none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageBudget([Option<Duration>; Stage::ALL.len()]);

impl StageBudget {
    /// Gives a stage its share.
    pub fn set(&mut self, stage: Stage, share: Duration) {
        if let Some(slot) = self.0.get_mut(stage as usize) {
            *slot = Some(share);
        }
    }

    /// The share of a stage.
    #[must_use]
    pub fn share(&self, stage: Stage) -> Option<Duration> {
        self.0.get(stage as usize).copied().flatten()
    }

    /// All shares together, of the stages that `counts`.
    #[must_use]
    pub fn total(&self, counts: impl Fn(Stage) -> bool) -> Duration {
        Stage::ALL.into_iter().filter(|stage| counts(*stage)).filter_map(|stage| self.share(stage)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_has_a_place_of_its_own_in_a_budget() {
        let mut budget = StageBudget::default();
        for (place, stage) in Stage::ALL.into_iter().enumerate() {
            assert_eq!(budget.share(stage), None, "{stage:?}");
            budget.set(stage, Duration::from_secs(1 << place));
        }
        assert_eq!(budget.total(|_| true), Duration::from_secs(511));
        assert_eq!(budget.total(|stage| stage == Stage::Relay), Duration::from_secs(256));
    }
}
