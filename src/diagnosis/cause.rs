//! A cause with the numbers that speak for it, and how causes are ranked.
//!
//! Every rule that has evidence makes one [`Case`]: first who differs alone, then what happened just before, then the largest
//! change upstream of the stage that rose. The next other cause is the runner-up; without a case the cause is unknown.

use std::borrow::Cow;

use serde::{Deserialize, Serialize, Serializer};

use crate::labels::labels;

labels! {
    /// The most likely cause (label `diagnosis`).
    #[derive(Deserialize, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Diagnosis {
        /// The tail alone, on all replicas: network, noisy neighbours, garbage collection, name resolution.
        InfrastructureVariability = "infrastructure_variability",
        /// All engines changed at once without a new revision: one of their settings.
        Configuration = "configuration",
        /// The same work takes longer at stable load: contention, throttling, batching.
        Contention = "contention",
        /// The KV cache is short: preemption, eviction.
        KvPressure = "kv_pressure",
        /// The gateway itself waits for CPU.
        Gateway = "gateway",
        /// One replica alone.
        Replica = "replica",
        /// All at once with a new revision.
        Revision = "revision",
        /// More work than capacity: queues grow.
        Capacity = "capacity",
        /// Replicas that start cold.
        ColdStarts = "cold_starts",
        /// Other requests than before: longer, or sharing less.
        TrafficMix = "traffic_mix",
        /// Time spent before the engine: preprocessing, network.
        PreprocessingOrNetwork = "preprocessing_or_network",
        /// Nothing known explains it.
        Unknown = "unknown",
    }
}

/// What kind of evidence speaks for a cause, the weakest first.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Tier {
    /// The tail has grown, or the hour is the busiest.
    Shape,
    /// A change upstream of the stage that rose.
    Change,
    /// Something happened just before.
    Event,
    /// One alone differs from its peers.
    Alone,
    /// The gateway was late: all that it measured meanwhile may be its own.
    Lateness,
}

/// One cause and what speaks for it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Case {
    /// The cause.
    pub cause: Diagnosis,
    pub(crate) tier: Tier,
    /// Size of the change, in thresholds: causes of one look are ranked by it.
    #[serde(skip)]
    pub(crate) strength: f64,
    /// The numbers that speak for it; in a file those that JSON has.
    #[serde(serialize_with = "finite")]
    pub facts: Vec<(Cow<'static, str>, f64)>,
}

impl Case {
    pub(crate) fn new(cause: Diagnosis, tier: Tier) -> Self {
        Self { cause, tier, strength: 1.0, facts: Vec::new() }
    }

    /// A change, in thresholds.
    pub(super) fn change(cause: Diagnosis, strength: f64) -> Self {
        Self { strength, ..Self::new(cause, Tier::Change) }
    }

    /// Adds a known number.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<Option<f64>>) -> Self {
        self.facts.extend(value.into().map(|value| (Cow::Borrowed(name), value)));
        self
    }
}

fn finite<S: Serializer>(facts: &[(Cow<'static, str>, f64)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(facts.iter().filter(|(_, value)| value.is_finite()))
}

/// The diagnosis of a finding.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Causes {
    /// The most likely cause; `None` is [`Diagnosis::Unknown`].
    pub first: Option<Case>,
    /// What was next, and is another cause.
    #[serde(skip)]
    pub runner_up: Option<Case>,
}

impl Causes {
    /// Ranks the cases that were made, each cause by its strongest.
    pub(crate) fn of(mut cases: Vec<Case>) -> Self {
        // Stable: of equal ones the first made wins.
        cases.sort_by(|a, b| b.tier.cmp(&a.tier).then(b.strength.total_cmp(&a.strength)));
        let mut ranked = cases.into_iter();
        let first = ranked.next();
        let runner_up = first.as_ref().and_then(|first| ranked.find(|case| case.cause != first.cause));
        Self { first, runner_up }
    }

    /// The cause, as a label.
    pub fn diagnosis(&self) -> Diagnosis {
        self.first.as_ref().map_or(Diagnosis::Unknown, |case| case.cause)
    }

    /// Takes a later look at the same finding: a known cause gives way only to evidence as strong, or when
    /// nothing speaks for it any more and something speaks for another.
    pub(crate) fn revise(&mut self, later: Self) {
        let Some(new) = &later.first else { return };
        let still =
            |old: &Case| [&later.first, &later.runner_up].into_iter().flatten().any(|c| c.cause == old.cause);
        if self.first.as_ref().is_none_or(|old| new.tier >= old.tier || !still(old)) {
            *self = later;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(cause: Diagnosis, tier: Tier) -> Case {
        Case::new(cause, tier)
    }

    #[test]
    fn the_runner_up_is_another_cause_and_the_larger_change_comes_first() {
        let causes = Causes::of(vec![
            Case::change(Diagnosis::Contention, 1.2),
            Case::change(Diagnosis::Capacity, 2.0),
            case(Diagnosis::Replica, Tier::Alone),
            case(Diagnosis::Replica, Tier::Event),
        ]);
        assert_eq!(causes.diagnosis(), Diagnosis::Replica);
        assert_eq!(causes.runner_up.unwrap().cause, Diagnosis::Capacity);
        assert_eq!(Causes::of(Vec::new()).diagnosis(), Diagnosis::Unknown);
    }

    #[test]
    fn a_later_look_replaces_a_weaker_cause_or_one_without_evidence() {
        use Tier::{Alone, Change, Event};
        let one = |cause, tier| Causes::of(vec![case(cause, tier)]);
        let table = [
            (one(Diagnosis::Contention, Change), one(Diagnosis::Replica, Alone), Diagnosis::Replica),
            (one(Diagnosis::ColdStarts, Event), one(Diagnosis::Contention, Change), Diagnosis::Contention),
            (one(Diagnosis::Replica, Alone), Causes::default(), Diagnosis::Replica),
            (Causes::default(), one(Diagnosis::Capacity, Change), Diagnosis::Capacity),
        ];
        for (mut causes, later, expected) in table {
            causes.revise(later);
            assert_eq!(causes.diagnosis(), expected);
        }
    }
}
