//! From what moved to what most likely moved it.
//!
//! A decision list, most specific first: which replicas, which revision, then what else moved at the same time. Every
//! rule rests on a ratio of now to what is ordinary, never on an absolute figure, so that it holds for any fleet.
//! Where nothing speaks for a cause it says so: a wrong cause costs an hour of somebody's night.

use super::finding::{Diagnosis, Kind};

/// What is known when a finding is made. Ratios are of now to what is ordinary; `None` where not known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Context {
    /// Replicas with enough requests to be judged, and those among them that moved.
    pub(super) replicas: usize,
    pub(super) affected: usize,
    /// Whether just one replica is known to be slower than its peers.
    pub(super) has_slow_replica: bool,
    /// Seconds since the revision was first seen, where the route had another before.
    pub(super) revision_age: Option<f64>,
    /// Whether the median stayed.
    pub(super) is_median_flat: bool,
    /// Arrivals.
    pub(super) load: Option<f64>,
    /// Median inter-token latency.
    pub(super) itl: Option<f64>,
}

impl Context {
    /// The most likely cause.
    pub(super) fn diagnose(&self, kind: Kind) -> Diagnosis {
        let is_about_ttft = matches!(kind, Kind::TtftDoubled | Kind::TtftShift | Kind::TtftP99OverSlo);
        if (self.replicas >= 2 && self.affected == 1) || (self.has_slow_replica && is_about_ttft) {
            return Diagnosis::Replica;
        }
        if self.revision_age.is_some_and(|age| age < kind.revision_suspect_for()) {
            return Diagnosis::Revision;
        }
        match kind {
            Kind::ReplicaSlow => Diagnosis::Replica,
            Kind::ItlJitter | Kind::ItlDrift => Diagnosis::KvPressure,
            Kind::AvailabilityBurn => Diagnosis::Unknown,
            Kind::AvailabilityHour if self.load.is_some_and(|load| load > PEAK) => Diagnosis::Capacity,
            Kind::AvailabilityHour => Diagnosis::Unknown,
            _ if self.is_median_flat => Diagnosis::InfrastructureVariability,
            _ if self.load.is_some_and(|load| load > MORE) => Diagnosis::Capacity,
            _ => Diagnosis::Contention,
        }
    }
}

impl Kind {
    /// For how many seconds after a change of revision it is taken for the cause.
    fn revision_suspect_for(self) -> f64 {
        match self {
            Self::TtftTailDrift | Self::TtftDrift | Self::ResidualDrift | Self::ItlDrift => 9.0 * 86_400.0,
            Self::AvailabilityHour => 3.0 * 86_400.0,
            _ => 12.0 * 3600.0,
        }
    }
}

/// So many times the ordinary arrivals are more load.
const MORE: f64 = 1.3;
/// An hour with so many times the mean hour's requests is a peak.
const PEAK: f64 = 1.1;
