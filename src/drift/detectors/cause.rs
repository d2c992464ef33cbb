//! A cause with the numbers that speak for it, and how causes are ranked.
//!
//! Every rule that has evidence makes one [`Case`]; the one on the strongest grounds is the diagnosis, the next the runner-up.
//! No case is no diagnosis: a wrong cause costs an hour of somebody's night.

use std::cmp::Reverse;

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

/// Why a cause is believed, the weakest first. A stronger one brings the symptoms of the weaker with it (a restart empties caches, load
/// fills queues and caches and slows decoding), never the other way round.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Grounds {
    /// The tail has grown, or the hour is the busiest.
    #[default]
    TailAlone,
    /// The same work takes longer.
    SlowerSteps,
    /// The time goes between gateway and engine.
    OnTheWay,
    /// A part of what the cause would show.
    Partly,
    /// Figures of the cache.
    ShortCache,
    /// More requests, or others, than before.
    OtherTraffic,
    /// Engines have started.
    Restarted,
    /// The revision is new.
    NewRevision,
    /// A setting of the engines is another.
    Setting,
    /// A replica is known to be slow.
    SlowReplica,
    /// The signals of one replica stand out.
    StandsOut,
    /// One replica alone is affected.
    Alone,
}

/// One cause and what speaks for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The cause.
    pub cause: Diagnosis,
    /// Why it is believed.
    pub grounds: Grounds,
    /// The numbers that speak for it.
    pub facts: Vec<(&'static str, f64)>,
}

impl Case {
    pub(super) fn new(cause: Diagnosis, grounds: Grounds) -> Self {
        Self { cause, grounds, facts: Vec::new() }
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
        cases.sort_by_key(|case| Reverse(case.grounds));
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

    /// Takes a later look at the same finding: a known cause gives way only to one on grounds as strong, or when
    /// nothing speaks for it any more and something speaks for another.
    pub(super) fn revise(&mut self, later: Self) {
        let Some(new) = &later.first else { return };
        let still =
            |old: &Case| [&later.first, &later.runner_up].into_iter().flatten().any(|c| c.cause == old.cause);
        if self.first.as_ref().is_none_or(|old| new.grounds >= old.grounds || !still(old)) {
            *self = later;
        }
    }
}

/// A diagnosis in the state file; numbers come back with the next look.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(super) struct SavedCause {
    pub(super) cause: Diagnosis,
    #[serde(default)]
    pub(super) grounds: Grounds,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(cause: Diagnosis, grounds: Grounds) -> Case {
        Case::new(cause, grounds)
    }

    #[test]
    fn the_runner_up_is_another_cause() {
        let causes = Causes::of(vec![
            case(Diagnosis::Contention, Grounds::SlowerSteps),
            case(Diagnosis::Replica, Grounds::Alone),
            case(Diagnosis::Replica, Grounds::SlowReplica),
        ]);
        assert_eq!(causes.diagnosis(), Diagnosis::Replica);
        assert_eq!(causes.runner_up.unwrap().cause, Diagnosis::Contention);
        assert_eq!(Causes::of(Vec::new()).diagnosis(), Diagnosis::Unknown);
    }

    #[test]
    fn a_later_look_replaces_a_weaker_cause_or_one_without_evidence() {
        use Grounds::{Alone, OtherTraffic, Restarted, SlowerSteps};
        let one = |cause, grounds| Causes::of(vec![case(cause, grounds)]);
        let table = [
            (one(Diagnosis::Contention, SlowerSteps), one(Diagnosis::Replica, Alone), Diagnosis::Replica),
            (
                one(Diagnosis::ColdStarts, Restarted),
                one(Diagnosis::Contention, SlowerSteps),
                Diagnosis::Contention,
            ),
            (one(Diagnosis::Replica, Alone), Causes::default(), Diagnosis::Replica),
            (Causes::default(), one(Diagnosis::Capacity, OtherTraffic), Diagnosis::Capacity),
        ];
        for (mut causes, later, expected) in table {
            causes.revise(later);
            assert_eq!(causes.diagnosis(), expected);
        }
    }

    #[test]
    fn a_cause_that_was_saved_with_a_weight_is_read() {
        let saved: SavedCause = serde_json::from_str(r#"{"cause":"replica","weight":0.91}"#).unwrap();
        assert_eq!((saved.cause, saved.grounds), (Diagnosis::Replica, Grounds::TailAlone));
    }
}
