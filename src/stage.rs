//! The stages of a request: one list for records, budgets, metrics, spans and the configuration.
//!
//! Below both the configuration, which budgets stages, and the observers, which measure them. `observe::stages` assigns
//! times to stages.

use std::ops::{Index, IndexMut};
use std::time::Duration;

use crate::labels::labels;

labels! {
    /// A stage of a request (label `stage`).
    pub enum Stage {
        /// Reading the request body.
        Read = "read",
        /// Waiting for admission.
        Admit = "admit",
        /// Choosing a replica.
        Route = "route",
        /// Connecting, failed attempts included.
        Connect = "connect",
        /// In the engine's queue.
        EngineQueue = "engine_queue",
        /// Computing the prompt, until the first token.
        Prefill = "prefill",
        /// Fetching the KV of a prompt that another replica computed.
        KvTransfer = "kv_transfer",
        /// From the first token to the response's end, without the time in which the client blocked the stream.
        Decode = "decode",
        /// At the replica but in none of its reported times: all of it for a unary response without any.
        EngineOther = "engine_other",
        /// The client blocked the stream; for a unary response, from its first to its last byte.
        Relay = "relay",
    }
}

impl Stage {
    /// Whether its time is the gateway's and its clients': no replica has a part in it.
    pub fn is_of_gateway(self) -> bool {
        matches!(self, Self::Read | Self::Admit | Self::Route | Self::Relay)
    }

    /// Whether its time is part of TTFT.
    pub fn is_before_first_token(self) -> bool {
        match self {
            Self::Admit
            | Self::Route
            | Self::Connect
            | Self::EngineQueue
            | Self::Prefill
            | Self::KvTransfer
            | Self::EngineOther => true,
            Self::Read | Self::Decode | Self::Relay => false,
        }
    }
}

/// One of each stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByStage<T>([T; Stage::ALL.len()]);

impl<T> ByStage<T> {
    /// In the order of [`Stage::ALL`].
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Stage, &T)> {
        Stage::ALL.into_iter().zip(&self.0)
    }
}

impl<T> Index<Stage> for ByStage<T> {
    type Output = T;

    fn index(&self, stage: Stage) -> &T {
        &self.0[stage as usize]
    }
}

impl<T> IndexMut<Stage> for ByStage<T> {
    fn index_mut(&mut self, stage: Stage) -> &mut T {
        &mut self.0[stage as usize]
    }
}

/// Time budget of a route by stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageBudget(ByStage<Option<Duration>>);

impl StageBudget {
    /// Sets the budget of one stage.
    pub fn set(&mut self, stage: Stage, share: Duration) {
        self.0[stage] = Some(share);
    }

    /// Budget of one stage; `None` is unbounded.
    pub fn share(&self, stage: Stage) -> Option<Duration> {
        self.0[stage]
    }

    /// Of the stages that are bounded.
    pub fn shares(&self) -> impl Iterator<Item = (Stage, Duration)> {
        self.0.iter().filter_map(|(stage, share)| Some((stage, (*share)?)))
    }

    /// Sum over the stages that `counts`.
    pub fn total(&self, counts: impl Fn(Stage) -> bool) -> Duration {
        self.shares().filter(|(stage, _)| counts(*stage)).map(|(_, share)| share).sum()
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
        assert_eq!(budget.total(|_| true), Duration::from_secs(1023));
        assert_eq!(budget.total(|stage| stage == Stage::Relay), Duration::from_secs(512));
    }
}
