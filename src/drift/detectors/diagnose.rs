//! From what changed to its most likely cause.
//!
//! A decision list, most specific first: which replicas, which revision, then what else changed at the same time. Every
//! rule compares now with before, never with an absolute figure, so that it holds for any fleet. Where nothing speaks for
//! a cause the diagnosis is `unknown`: a wrong cause costs an hour of somebody's night.

use super::finding::{Diagnosis, Kind};
use super::scale::median;
use super::signals::{SignalChange, SignalHistory, Signals};

/// What is known when a finding is made. Ratios are of now to the baseline; `None` is unknown.
#[derive(Clone, Debug, Default)]
pub(super) struct Symptoms {
    /// Replicas with enough requests to be judged.
    pub(super) replicas: usize,
    /// Those of them that are affected.
    pub(super) affected: usize,
    /// Whether exactly one replica is known to be slower than its peers.
    pub(super) has_slow_replica: bool,
    /// Seconds since the revision was first seen, where the route had another before.
    pub(super) revision_age: Option<f64>,
    pub(super) is_median_flat: bool,
    /// Requests, as a ratio.
    pub(super) load: Option<f64>,
    /// Median inter-token latency, as a ratio.
    pub(super) itl: Option<f64>,
    /// Signals of the replicas, where there are any.
    pub(super) changes: Vec<SignalChange>,
}

impl Symptoms {
    /// The most likely cause.
    pub(super) fn diagnose(&self, kind: Kind) -> Diagnosis {
        let is_about_ttft = matches!(kind, Kind::TtftDoubled | Kind::TtftShift | Kind::TtftP99OverSlo);
        if (self.replicas >= 2 && self.affected == 1) || (self.has_slow_replica && is_about_ttft) {
            return Diagnosis::Replica;
        }
        if self.revision_age.is_some_and(|age| age < kind.revision_suspect_for()) {
            return Diagnosis::Revision;
        }
        let is_of_minutes = is_about_ttft || matches!(kind, Kind::ItlShift | Kind::ItlJitter);
        if let Some(cause) = of_changes(&self.changes).filter(|_| is_of_minutes) {
            return cause;
        }
        match kind {
            Kind::ReplicaSlow => Diagnosis::Replica,
            Kind::ItlJitter | Kind::ItlDrift => Diagnosis::KvPressure,
            Kind::AvailabilityHour if exceeds(self.load, PEAK_HOUR) => Diagnosis::Capacity,
            Kind::AvailabilityBurn | Kind::AvailabilityHour => Diagnosis::Unknown,
            _ if self.is_median_flat => Diagnosis::InfrastructureVariability,
            _ if exceeds(self.load, MORE_LOAD) => Diagnosis::Capacity,
            _ => Diagnosis::Contention,
        }
    }
}

/// What the signals of all replicas together point to, as of `minute`; `None` where they point to nothing.
#[must_use]
pub fn diagnose_signals(history: &SignalHistory, minute: i64) -> Option<Diagnosis> {
    of_changes(&history.changes(minute))
}

fn of_changes(changes: &[SignalChange]) -> Option<Diagnosis> {
    if changes.is_empty() {
        return None;
    }
    of_engines(changes).or_else(|| of_load(changes)).or_else(|| of_time(changes))
}

/// Which engines changed: one alone, by their configuration, or by a restart.
fn of_engines(changes: &[SignalChange]) -> Option<Diagnosis> {
    let last_start = changes.iter().filter_map(|change| change.started_ago).min();
    if last_start.is_none() && has_outlier(changes) {
        return Some(Diagnosis::Replica);
    }
    let mut batch_limits = changes.iter().filter_map(|change| change.ratio(|s| s.batch_limit));
    if batch_limits.any(|ratio| (ratio - 1.0).abs() > 0.01) {
        return Some(Diagnosis::Configuration);
    }
    // A start of minutes ago is cold; what is slow long after it, with warm caches everywhere, was configured so.
    let is_cold =
        |change: &SignalChange| change.started_ago.is_some() && is_below(change.ratio(|s| s.hit_rate), COLD);
    let has_restarted = changes.iter().all(|change| change.started_ago.is_some());
    let is_configured = last_start? >= WARM_AFTER && has_restarted && !changes.iter().any(is_cold);
    Some(if is_configured { Diagnosis::Configuration } else { Diagnosis::ColdStarts })
}

/// More requests, or too little cache for them.
fn of_load(changes: &[SignalChange]) -> Option<Diagnosis> {
    let load = changes.iter().map(|change| change.ratio(|s| Some(s.requests)).unwrap_or(1.0)).sum::<f64>();
    if load > MORE_LOAD * changes.len() as f64 {
        return Some(Diagnosis::Capacity);
    }
    let most = |holds: fn(&SignalChange) -> bool| {
        2 * changes.iter().filter(|change| holds(change)).count() > changes.len()
    };
    // Prefixes that no longer hit while the cache is fuller than before were evicted.
    let is_evicting = most(|change| {
        exceeds(change.ratio(|s| s.kv_cache_usage), FULLER) && is_below(change.ratio(|s| s.hit_rate), EVICTED)
    });
    let is_preempting = exceeds(middle(changes, |change| change.difference(|s| s.preemptions)), PREEMPTIONS);
    // Prompts that wait for cache with places in the batch to spare are short of cache as well.
    let is_full = most(|change| {
        exceeds(change.now.kv_cache_usage, FULL)
            && exceeds(change.ratio(|s| s.kv_cache_usage), FULLER_WHEN_FULL)
    });
    let is_held_up = exceeds(middle(changes, |change| change.difference(|s| s.waiting)), WAITING)
        || exceeds(middle(changes, |change| change.ratio(|s| s.itl_tail)), SLOWER);
    (is_evicting || is_preempting || (is_full && is_held_up)).then_some(Diagnosis::KvPressure)
}

/// Where the time goes: in front of the engines, or in their decoding.
fn of_time(changes: &[SignalChange]) -> Option<Diagnosis> {
    let engine_ttft = middle(changes, |change| change.ratio(|s| s.engine_ttft));
    let is_slower = exceeds(middle(changes, |change| change.ratio(|s| s.ttft)), SLOWER);
    if is_slower && !exceeds(engine_ttft, UNCHANGED) {
        let connect = middle(changes, |change| Some(change.difference(|s| s.connect)? / change.now.ttft?));
        if engine_ttft.is_some() || exceeds(connect, MIN_CONNECT_SHARE) {
            return Some(Diagnosis::PreprocessingOrNetwork);
        }
    }
    exceeds(middle(changes, |change| change.ratio(|s| s.itl)), UNCHANGED).then_some(Diagnosis::Contention)
}

/// Whether one replica is slower and no other is. A slow replica decodes slowly; affinity sends the others' work around it,
/// so that TTFT alone may blur.
fn has_outlier(changes: &[SignalChange]) -> bool {
    let stands_out = |signal: fn(&Signals) -> Option<f64>, by: f64| {
        let mut values: Vec<f64> = changes.iter().filter_map(|change| change.ratio(signal)).collect();
        values.sort_by(f64::total_cmp);
        matches!(values[..], [.., rest, highest] if highest > by && rest < UNCHANGED && highest / rest > by)
    };
    stands_out(|s| s.itl, OUTLIER_ITL) || stands_out(|s| s.ttft, SLOWER)
}

/// The median of what is known.
pub(super) fn middle(changes: &[SignalChange], pick: fn(&SignalChange) -> Option<f64>) -> Option<f64> {
    median(&changes.iter().filter_map(pick).collect::<Vec<_>>())
}

fn exceeds(value: Option<f64>, bound: f64) -> bool {
    value.is_some_and(|value| value > bound)
}

fn is_below(value: Option<f64>, bound: f64) -> bool {
    value.is_some_and(|value| value < bound)
}

impl Kind {
    /// Seconds for which a new revision is taken for the cause.
    fn revision_suspect_for(self) -> f64 {
        match self {
            Self::TtftTailDrift | Self::TtftDrift | Self::ResidualDrift | Self::ItlDrift => 9.0 * 86_400.0,
            Self::AvailabilityHour => 3.0 * 86_400.0,
            _ => 12.0 * 3600.0,
        }
    }
}

/// Requests now over before: more than the swing of ten minutes.
const MORE_LOAD: f64 = 1.3;
/// Requests of an hour of the day over those of the mean hour.
const PEAK_HOUR: f64 = 1.1;
/// Latency now over before.
const SLOWER: f64 = 1.3;
const UNCHANGED: f64 = 1.15;
/// Inter-token latency of one replica, while the others' is unchanged.
const OUTLIER_ITL: f64 = 1.2;
/// KV cache in use, now over before: of a cache that evicts, and of a full one that is short.
const FULLER: f64 = 1.5;
const FULLER_WHEN_FULL: f64 = 1.1;
/// Hit rate now over before: of a cold cache, and of one that is too small.
const COLD: f64 = 0.7;
const EVICTED: f64 = 0.8;
/// Preemptions per minute and replica, now minus before.
const PREEMPTIONS: f64 = 0.5;
/// Share of the KV cache in use that hardly leaves room for another prompt.
const FULL: f64 = 0.8;
/// Requests waiting in an engine, now minus before.
const WAITING: f64 = 0.5;
/// Share of TTFT by which connecting takes longer.
const MIN_CONNECT_SHARE: f64 = 0.3;
/// Minutes after which a start no longer explains slowness.
const WARM_AFTER: i64 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: Signals = Signals {
        requests: 10.0,
        ttft: Some(0.1),
        engine_ttft: Some(0.1),
        connect: Some(0.0),
        itl: Some(0.02),
        itl_tail: Some(0.02),
        hit_rate: Some(0.5),
        waiting: Some(0.0),
        kv_cache_usage: Some(0.5),
        preemptions: Some(0.0),
        batch_limit: Some(16.0),
        has_started: false,
    };

    /// Ratios of TTFT and inter-token latency; the engine reports no TTFT of its own.
    fn slow(ttft: f64, itl: f64) -> SignalChange {
        let now = Signals { ttft: Some(0.1 * ttft), itl: Some(0.02 * itl), engine_ttft: None, ..BEFORE };
        SignalChange { before: BEFORE, now, started_ago: None }
    }

    fn with(change: SignalChange, set: impl Fn(&mut Signals)) -> SignalChange {
        let mut now = change.now;
        set(&mut now);
        SignalChange { now, ..change }
    }

    #[test]
    fn causes_by_what_moved_with_it() {
        let busy = with(slow(3.0, 1.3), |now| (now.requests, now.waiting) = (16.0, Some(9.0)));
        let preempted = with(slow(1.6, 1.0), |now| (now.preemptions, now.itl_tail) = (Some(4.0), Some(0.12)));
        let cold = with(slow(2.0, 1.0), |now| now.hit_rate = Some(0.1));
        let cold = SignalChange { started_ago: Some(2), ..cold };
        let changed = with(slow(2.0, 0.9), |now| now.batch_limit = Some(4.0));
        let changed = SignalChange { started_ago: Some(6), ..changed };
        let outside = with(slow(2.0, 1.0), |now| now.engine_ttft = Some(0.1));
        let table = [
            (vec![slow(2.0, 1.6); 4], Some(Diagnosis::Contention)),
            (vec![slow(1.0, 1.0), slow(1.0, 1.0), slow(1.9, 1.7), slow(1.1, 1.0)], Some(Diagnosis::Replica)),
            (vec![busy; 4], Some(Diagnosis::Capacity)),
            (vec![preempted; 4], Some(Diagnosis::KvPressure)),
            (vec![cold; 4], Some(Diagnosis::ColdStarts)),
            (vec![changed; 4], Some(Diagnosis::Configuration)),
            (vec![outside; 4], Some(Diagnosis::PreprocessingOrNetwork)),
            (vec![slow(2.0, 1.0); 4], None),
            (Vec::new(), None),
        ];
        for (changes, expected) in table {
            assert_eq!(of_changes(&changes), expected, "{changes:?}");
        }
    }
}
