//! A cause with the numbers that speak for it, and how causes are ranked.
//!
//! Every rule that has evidence makes one [`Case`]; the one with the most weight is the diagnosis, the next the runner-up.
//! No case is no diagnosis: a wrong cause costs an hour of somebody's night.

use serde::{Deserialize, Serialize};

/// The most likely cause (label `diagnosis`).
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Diagnosis {
    /// The tail alone, on all replicas: network, noisy neighbours, garbage collection, name resolution.
    InfrastructureVariability,
    /// All engines changed at once without a new revision: one of their settings.
    Configuration,
    /// The same work takes longer at stable load: contention, throttling, batching.
    Contention,
    /// The KV cache is short: preemption, eviction.
    KvPressure,
    /// One replica alone.
    Replica,
    /// All at once with a new revision.
    Revision,
    /// More work than capacity: queues grow.
    Capacity,
    /// Replicas that start cold.
    ColdStarts,
    /// Other requests than before: longer, or sharing less.
    TrafficMix,
    /// Time spent before the engine: preprocessing, network.
    PreprocessingOrNetwork,
    /// Nothing known explains it.
    Unknown,
}

impl Diagnosis {
    /// The label's value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InfrastructureVariability => "infrastructure_variability",
            Self::Configuration => "configuration",
            Self::Contention => "contention",
            Self::KvPressure => "kv_pressure",
            Self::Replica => "replica",
            Self::Revision => "revision",
            Self::Capacity => "capacity",
            Self::ColdStarts => "cold_starts",
            Self::TrafficMix => "traffic_mix",
            Self::PreprocessingOrNetwork => "preprocessing_or_network",
            Self::Unknown => "unknown",
        }
    }
}

/// One cause and what speaks for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The cause.
    pub cause: Diagnosis,
    /// 0 to 1: how far its evidence is from what other causes bring about too. Orders causes; no probability.
    pub weight: f64,
    /// The numbers that speak for it.
    pub facts: Vec<(&'static str, f64)>,
}

impl Case {
    pub(super) fn new(cause: Diagnosis, weight: f64) -> Self {
        Self { cause, weight, facts: Vec::new() }
    }

    /// Adds a known number.
    pub(super) fn with(mut self, name: &'static str, value: impl Into<Option<f64>>) -> Self {
        self.facts.extend(value.into().map(|value| (name, value)));
        self
    }
}

/// The diagnosis of a finding.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Causes {
    /// The most likely cause; `None` is [`Diagnosis::Unknown`].
    pub first: Option<Case>,
    /// What was next, and is another cause.
    pub runner_up: Option<Case>,
}

impl Causes {
    /// Ranks the cases that were made, each cause by its strongest.
    pub(super) fn of(mut cases: Vec<Case>) -> Self {
        // Stable: of equal ones the first made wins.
        cases.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        let mut ranked = cases.into_iter();
        let first = ranked.next();
        let runner_up = first.as_ref().and_then(|first| ranked.find(|case| case.cause != first.cause));
        Self { first, runner_up }
    }

    /// The cause, as a label.
    #[must_use]
    pub fn diagnosis(&self) -> Diagnosis {
        self.first.as_ref().map_or(Diagnosis::Unknown, |case| case.cause)
    }

    /// Takes a later look at the same finding: a known cause gives way only to one with at least its weight, or when
    /// nothing speaks for it any more and something speaks for another.
    pub(super) fn revise(&mut self, later: Self) {
        let Some(new) = &later.first else { return };
        let still =
            |old: &Case| [&later.first, &later.runner_up].into_iter().flatten().any(|c| c.cause == old.cause);
        if self.first.as_ref().is_none_or(|old| new.weight >= old.weight || !still(old)) {
            *self = later;
        }
    }
}

/// A diagnosis in the state file; numbers come back with the next look.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct SavedCause {
    pub(super) cause: Diagnosis,
    pub(super) weight: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(cause: Diagnosis, weight: f64) -> Case {
        Case::new(cause, weight)
    }

    #[test]
    fn the_runner_up_is_another_cause() {
        let causes = Causes::of(vec![
            case(Diagnosis::Contention, 0.6),
            case(Diagnosis::Replica, 0.9),
            case(Diagnosis::Replica, 0.8),
        ]);
        assert_eq!(causes.diagnosis(), Diagnosis::Replica);
        assert_eq!(causes.runner_up.unwrap().cause, Diagnosis::Contention);
        assert_eq!(Causes::of(Vec::new()).diagnosis(), Diagnosis::Unknown);
    }

    #[test]
    fn a_later_look_replaces_a_weaker_cause_or_one_without_evidence() {
        let one = |cause, weight| Causes::of(vec![case(cause, weight)]);
        let table = [
            (one(Diagnosis::Contention, 0.6), one(Diagnosis::Replica, 0.9), Diagnosis::Replica),
            (one(Diagnosis::ColdStarts, 0.85), one(Diagnosis::Contention, 0.6), Diagnosis::Contention),
            (one(Diagnosis::Replica, 0.9), Causes::default(), Diagnosis::Replica),
            (Causes::default(), one(Diagnosis::Capacity, 0.8), Diagnosis::Capacity),
        ];
        for (mut causes, later, expected) in table {
            causes.revise(later);
            assert_eq!(causes.diagnosis(), expected);
        }
    }
}
