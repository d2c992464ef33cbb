//! From what moved to what most likely moved it.
//!
//! A decision list, most specific first: which replicas, which revision, then what else moved at the same time. Every
//! rule rests on a comparison of now with what is ordinary, never on an absolute figure, so that it holds for any
//! fleet. Where nothing speaks for a cause it says so: a wrong cause costs an hour of somebody's night.

use super::finding::{Diagnosis, Kind};
use super::scale::median;
use super::signals::Move;

/// What is known when a finding is made. Ratios are of now to what is ordinary; `None` where not known.
#[derive(Clone, Debug, Default)]
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
    /// Signals of the replicas, where there are any.
    pub(super) moves: Vec<Move>,
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
        let is_quick = is_about_ttft || matches!(kind, Kind::ItlShift | Kind::ItlJitter);
        if let Some(cause) = of_signals(&self.moves).filter(|_| is_quick) {
            return cause;
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

/// What the signals of all replicas together say; `None` where they say nothing.
pub(super) fn of_signals(moves: &[Move]) -> Option<Diagnosis> {
    let all = |pick: fn(&Move) -> Option<f64>| median(&moves.iter().filter_map(pick).collect::<Vec<_>>());
    let is = |value: Option<f64>, above: f64| value.is_some_and(|value| value > above);
    let most =
        |holds: &dyn Fn(&Move) -> bool| 2 * moves.iter().filter(|moved| holds(moved)).count() > moves.len();
    if moves.is_empty() {
        return None;
    }
    if let Some(cause) = lone(moves) {
        return Some(cause);
    }
    // A limit that the engines tell was changed, or all began anew and are slow though their caches are warm again.
    if moves.iter().any(|moved| moved.batch_limit.is_some_and(|ratio| (ratio - 1.0).abs() > 0.01)) {
        return Some(Diagnosis::Configuration);
    }
    if let Some(ago) = moves.iter().filter_map(|moved| moved.started_ago).min() {
        // What began minutes ago is cold; what is slow though its start is over and its cache is back was changed.
        let is_cold =
            moves.iter().any(|m| m.started_ago.is_some() && m.hit_rate.is_some_and(|hits| hits < COLD));
        let is_everywhere = moves.iter().all(|moved| moved.started_ago.is_some());
        let was_changed = ago >= WARM_AFTER && !is_cold && is_everywhere;
        return Some(if was_changed { Diagnosis::Configuration } else { Diagnosis::ColdStarts });
    }
    let load = moves.iter().map(|moved| moved.requests).sum::<f64>() / moves.len() as f64;
    if load > MORE {
        return Some(Diagnosis::Capacity);
    }
    // Prompts that wait for room in the cache, with places in the batch to spare, are short of cache as well.
    let is_full = most(&|moved| is(moved.kv_now, FULL) && is(moved.kv_cache_usage, 1.1));
    let waits = is(all(|moved| moved.waiting), WAITING);
    // Hits that are gone while the cache is fuller than before were evicted.
    let is_evicted = most(&|m| is(m.kv_cache_usage, 1.5) && m.hit_rate.is_some_and(|hits| hits < EVICTED));
    if is_evicted
        || is(all(|moved| moved.preemptions), PREEMPTED)
        || (is_full && (waits || is(all(|moved| moved.itl_tail), SLOWER)))
    {
        return Some(Diagnosis::KvPressure);
    }
    if is(all(|moved| moved.ttft), SLOWER) && !is(all(|moved| moved.engine_ttft), STILL) {
        // Only where the engine tells its own: half of the rise must be outside of it.
        if all(|moved| moved.engine_ttft).is_some() {
            return Some(Diagnosis::PreprocessingOrNetwork);
        }
        let share = all(|moved| Some(moved.connect? / moved.ttft_now?));
        if is(share, 0.3) {
            return Some(Diagnosis::PreprocessingOrNetwork);
        }
    }
    is(all(|moved| moved.itl), STILL).then_some(Diagnosis::Contention)
}

/// One replica that moved while the others did not.
fn lone(moves: &[Move]) -> Option<Diagnosis> {
    let mut ttft: Vec<f64> = moves.iter().filter_map(|moved| moved.ttft).collect();
    let mut itl: Vec<f64> = moves.iter().filter_map(|moved| moved.itl).collect();
    let stands_out = |values: &mut Vec<f64>, by: f64| {
        values.sort_by(f64::total_cmp);
        let (highest, others) = values.split_last()?;
        let rest = others.last()?;
        (*highest > by && *rest < STILL && highest / rest > by).then_some(())
    };
    if moves.iter().any(|moved| moved.started_ago.is_some()) {
        return None;
    }
    // A slow replica decodes slowly as well; affinity sends the others' work around, so that TTFT alone may blur.
    stands_out(&mut itl, LONE).or_else(|| stands_out(&mut ttft, SLOWER)).map(|()| Diagnosis::Replica)
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
/// So many times as slow has moved.
const SLOWER: f64 = 1.3;
/// Within this it has not.
const STILL: f64 = 1.15;
/// A replica whose decoding is slower by this, alone.
const LONE: f64 = 1.2;
/// A hit rate below this share of what it was is that of a cold cache.
const COLD: f64 = 0.7;
/// Or, without a start, that of a cache that is too small.
const EVICTED: f64 = 0.8;
/// Preemptions a minute and replica that were not there before.
const PREEMPTED: f64 = 0.5;
/// A KV cache that has hardly room for the next prompt.
const FULL: f64 = 0.8;
/// So many more requests wait in an engine.
const WAITING: f64 = 0.5;
/// Minutes after which a start is no excuse any more.
const WARM_AFTER: i64 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(ttft: f64, itl: f64) -> Move {
        Move { requests: 1.0, ttft: Some(ttft), itl: Some(itl), ..Move::default() }
    }

    #[test]
    fn causes_by_what_moved_with_it() {
        let busy = Move { requests: 1.6, waiting: Some(9.0), ..slow(3.0, 1.3) };
        let preempted = Move { preemptions: Some(4.0), itl_tail: Some(6.0), ..slow(1.6, 1.0) };
        let cold = Move { started_ago: Some(2), hit_rate: Some(0.2), ..slow(2.0, 1.0) };
        let changed = Move { batch_limit: Some(0.25), started_ago: Some(6), ..slow(2.0, 0.9) };
        let outside = Move { engine_ttft: Some(1.0), ..slow(2.0, 1.0) };
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
        for (moves, expected) in table {
            assert_eq!(of_signals(&moves), expected, "{moves:?}");
        }
    }
}
