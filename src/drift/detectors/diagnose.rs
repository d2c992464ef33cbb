//! From what changed to its most likely cause.
//!
//! Each rule compares now with before, never with an absolute figure, so that it holds for any fleet; where its evidence is
//! there it makes a [`Case`] with the numbers. First where the time went (the stages of requests), then engines' queues and
//! caches, what kind of requests came, one replica against its peers, the revision. Without evidence: `unknown`.

use super::cause::{Case, Causes, Diagnosis, Grounds};
use super::finding::Kind;
use super::signals::{SignalChange, SignalHistory, Signals};
use crate::stats::median;

/// What is known when a finding is made. Ratios are of now to the baseline; `None` is unknown.
#[derive(Clone, Debug, Default)]
pub(super) struct Symptoms {
    /// Replicas with enough requests to be judged.
    pub(super) replicas: usize,
    /// Those of them that are affected.
    pub(super) affected: usize,
    /// Whether exactly one replica is known to be slower than its peers.
    pub(super) has_slow_replica: bool,
    /// Seconds from the revision's first request to when the trouble began, at the earliest; where the route had another before.
    pub(super) onset_after_revision: Option<f64>,
    /// The tail alone has grown.
    pub(super) is_median_flat: bool,
    /// Requests, as a ratio.
    pub(super) load: Option<f64>,
    /// Median inter-token latency, as a ratio.
    pub(super) itl: Option<f64>,
    /// Share of prompts that are long for this route, now and in the baseline of days.
    pub(super) long_prompts: Option<(f64, f64)>,
    /// By how much the share of slow requests grew over days.
    pub(super) more_slow: Option<f64>,
    /// Signals of the replicas, where there are any.
    pub(super) changes: Vec<SignalChange>,
}

impl Symptoms {
    /// Every cause that something speaks for.
    pub(super) fn diagnose(&self, kind: Kind) -> Causes {
        let mut cases = self.of_place(kind);
        let is_about_ttft = matches!(kind, Kind::TtftDoubled | Kind::TtftShift | Kind::TtftP99OverSlo);
        if is_about_ttft || matches!(kind, Kind::ItlShift | Kind::ItlJitter) {
            cases.extend(of_changes(&self.changes));
        }
        if is_about_ttft && let Some(load) = self.load.filter(|load| *load > MORE_LOAD) {
            cases.push(Case::new(Diagnosis::Capacity, Grounds::OtherTraffic).with("load_ratio", load));
        }
        let is_busier = exceeds(self.load, MORE_LOAD);
        if is_about_ttft && self.changes.is_empty() && !is_busier {
            let itl = self.itl.filter(|itl| *itl > UNCHANGED);
            cases.extend(
                itl.map(|itl| Case::new(Diagnosis::Contention, Grounds::SlowerSteps).with("itl_ratio", itl)),
            );
        }
        if kind == Kind::AvailabilityHour
            && let Some(load) = self.load.filter(|load| *load > PEAK_HOUR)
        {
            cases.push(
                Case::new(Diagnosis::Capacity, Grounds::TailAlone).with("load_of_this_hour_ratio", load),
            );
        }
        cases.extend(self.of_days());
        if kind.is_of_ttft() && self.is_median_flat {
            cases.push(
                Case::new(Diagnosis::InfrastructureVariability, Grounds::TailAlone).with("p50_is_flat", 1.0),
            );
        }
        Causes::of(cases)
    }

    /// One replica, or a new revision.
    fn of_place(&self, kind: Kind) -> Vec<Case> {
        let mut cases = Vec::new();
        if kind == Kind::ReplicaSlow || (self.replicas >= 2 && self.affected == 1) {
            let counts = |case: Case| {
                case.with("replicas_affected", self.affected as f64)
                    .with("replicas_compared", self.replicas as f64)
            };
            cases.push(counts(Case::new(Diagnosis::Replica, Grounds::Alone)));
        } else if self.has_slow_replica && kind.is_of_ttft() {
            cases.push(Case::new(Diagnosis::Replica, Grounds::SlowReplica).with("slow_replicas", 1.0));
        }
        if let Some(after) = self.onset_after_revision.filter(|after| *after <= CHANGE_BEFORE_ONSET) {
            let case = Case::new(Diagnosis::Revision, Grounds::NewRevision);
            cases.push(case.with("onset_after_revision_seconds", after.max(0.0)));
        }
        cases
    }

    /// More long prompts than before, enough of them to account for the slow requests.
    fn of_days(&self) -> Option<Case> {
        let ((now, before), more_slow) = (self.long_prompts?, self.more_slow?);
        let is_enough = now >= MORE_LONG * before && now - before >= more_slow / 2.0;
        let case = || {
            Case::new(Diagnosis::TrafficMix, Grounds::OtherTraffic)
                .with("long_prompt_share", now)
                .with("long_prompt_share_before", before)
        };
        is_enough.then(case)
    }
}

/// What the signals of all replicas together point to, as of `minute`.
#[must_use]
pub fn diagnose_signals(history: &SignalHistory, minute: i64) -> Causes {
    Causes::of(of_changes(&history.changes(minute)))
}

/// The same, against what was before the trouble began: history alone forgets it after hours, and at a restart.
#[must_use]
pub fn diagnose_against(history: &SignalHistory, before: &super::signals::Snapshot, minute: i64) -> Causes {
    Causes::of(of_changes(&history.changes_from(before, minute)))
}

fn of_changes(changes: &[SignalChange]) -> Vec<Case> {
    if changes.is_empty() {
        return Vec::new();
    }
    let fleet = Fleet::of(changes);
    [of_one(changes), of_engines(changes), of_load(&fleet), of_mix(&fleet), of_cache(changes, &fleet)]
        .into_iter()
        .chain([of_the_way(changes, &fleet), of_decoding(&fleet)])
        .flatten()
        .collect()
}

/// The fleet as a whole.
struct Fleet {
    load: f64,
    prompt: Option<f64>,
    output: Option<f64>,
    hit_rate: Option<f64>,
    kv_usage: Option<f64>,
    kv_cache: Option<f64>,
    ttft: Option<f64>,
    itl: Option<f64>,
    waiting: Option<f64>,
    /// By how many seconds the mean of each stage grew.
    rise: [(&'static str, Option<f64>); 5],
}

impl Fleet {
    fn of(changes: &[SignalChange]) -> Self {
        let requests = |pick: fn(&SignalChange) -> f64| changes.iter().map(pick).sum::<f64>();
        let before = requests(|change| change.before.requests);
        let load = if before > 0.0 { requests(|change| change.now.requests) / before } else { 1.0 };
        let grew = |signal: fn(&Signals) -> Option<f64>| {
            median(&changes.iter().filter_map(|change| change.difference(signal)).collect::<Vec<_>>())
        };
        Self {
            load,
            prompt: pooled_ratio(changes, |s| s.prompt),
            output: pooled_ratio(changes, |s| s.output),
            hit_rate: pooled_ratio(changes, |s| s.hit_rate),
            kv_usage: middle(changes, |change| change.now.kv_cache_usage),
            kv_cache: middle(changes, |change| change.ratio(|s| s.kv_cache_usage)),
            ttft: middle(changes, |change| change.ratio(|s| s.ttft)),
            itl: middle(changes, |change| change.ratio(|s| s.itl)),
            waiting: middle(changes, |change| change.difference(|s| s.waiting)),
            rise: [
                ("admit_rise", grew(|s| s.held)),
                ("connect_rise", grew(|s| s.connect)),
                ("engine_queue_rise", grew(|s| s.queue)),
                ("prefill_rise", grew(|s| s.prefill)),
                ("engine_other_rise", grew(|s| s.other)),
            ],
        }
    }

    /// Share of the rise of the wait for the first token that went into these stages.
    fn share(&self, stages: [&str; 2]) -> Option<f64> {
        let known = || self.rise.iter().filter_map(|(name, rise)| Some((*name, (*rise)?.max(0.0))));
        let all: f64 = known().map(|(_, rise)| rise).sum();
        let own: f64 = known().filter(|(name, _)| stages.contains(name)).map(|(_, rise)| rise).sum();
        (all > 0.0).then_some(own / all)
    }

    /// The stages, for people: where the time went is evidence for every cause.
    fn tell(&self, case: Case) -> Case {
        self.rise.iter().fold(case, |case, (name, rise)| case.with(name, *rise))
    }

    fn is_busier(&self) -> bool {
        self.load > MORE_LOAD
    }
}

/// The mean of a signal over all requests, now over before.
fn pooled_ratio(changes: &[SignalChange], signal: fn(&Signals) -> Option<f64>) -> Option<f64> {
    let mean = |pick: fn(&SignalChange) -> &Signals| {
        let known = || changes.iter().map(pick).filter_map(|s| Some((s.requests, signal(s)?)));
        let requests: f64 = known().map(|(requests, _)| requests).sum();
        (requests > 0.0).then(|| known().map(|(requests, value)| requests * value).sum::<f64>() / requests)
    };
    let (now, before) = (mean(|change| &change.now)?, mean(|change| &change.before)?);
    (before > 0.0).then(|| now / before)
}

/// One replica is slower and no other is. A slow replica decodes slowly; TTFT does not tell, because affinity sends the others'
/// work around it.
fn of_one(changes: &[SignalChange]) -> Option<Case> {
    if changes.iter().any(|change| change.started_ago.is_some()) {
        return None;
    }
    let mut ratios: Vec<f64> = changes.iter().filter_map(|change| change.ratio(|s| s.itl)).collect();
    ratios.sort_by(f64::total_cmp);
    let [.., rest, highest] = ratios[..] else { return None };
    if highest <= OUTLIER_ITL || rest >= UNCHANGED || highest / rest <= OUTLIER_ITL {
        return None;
    }
    // Why it may be slow: evidence, and no ground for the diagnosis.
    let ratio = |change: &&SignalChange| change.ratio(|s| s.itl).unwrap_or_default();
    let slowest = changes.iter().max_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    let case = Case::new(Diagnosis::Replica, Grounds::StandsOut)
        .with("itl_ratio", highest)
        .with("itl_ratio_of_peers", rest)
        .with("gpu_clocks_throttled", slowest.and_then(|change| change.now.gpu_throttled));
    Some(case)
}

/// Engines that were configured otherwise, or restarted.
fn of_engines(changes: &[SignalChange]) -> Option<Case> {
    let mut batch_limits = changes.iter().filter_map(|change| change.ratio(|s| s.batch_limit));
    if let Some(ratio) = batch_limits.find(|ratio| (ratio - 1.0).abs() > 0.01) {
        return Some(Case::new(Diagnosis::Configuration, Grounds::Setting).with("batch_limit_ratio", ratio));
    }
    let last_start = changes.iter().filter_map(|change| change.started_ago).min()?;
    let started = changes.iter().filter(|change| change.started_ago.is_some()).count();
    // A start of minutes ago is cold; what all of them are long after it was configured so.
    let is_configured = last_start >= WARM_AFTER && started == changes.len();
    let cause = if is_configured { Diagnosis::Configuration } else { Diagnosis::ColdStarts };
    let case = Case::new(cause, Grounds::Restarted)
        .with("replicas_restarted", started as f64)
        .with("minutes_since_start", last_start as f64);
    Some(case.with("hit_rate_ratio", pooled_ratio(changes, |s| s.hit_rate)))
}

/// More requests.
fn of_load(fleet: &Fleet) -> Option<Case> {
    let case = |grounds| {
        let case = Case::new(Diagnosis::Capacity, grounds).with("load_ratio", fleet.load);
        fleet.tell(case.with("waiting_change", fleet.waiting))
    };
    if fleet.is_busier() {
        return Some(case(Grounds::OtherTraffic));
    }
    // The gateway itself holds requests back, and engines decode as ever: there is less room than there was.
    let is_held =
        exceeds(fleet.share(["admit_rise", "admit_rise"]), MOST_OF_IT) && exceeds(fleet.ttft, SLOWER);
    (is_held && !exceeds(fleet.itl, UNCHANGED)).then(|| case(Grounds::Partly))
}

/// Other requests: longer prompts, longer answers, fewer shared prefixes.
fn of_mix(fleet: &Fleet) -> Option<Case> {
    let longest = [fleet.prompt, fleet.output].into_iter().flatten().fold(1.0, f64::max);
    let tell = |case: Case| {
        fleet.tell(
            case.with("prompt_tokens_ratio", fleet.prompt)
                .with("output_tokens_ratio", fleet.output)
                .with("hit_rate_ratio", fleet.hit_rate),
        )
    };
    if longest > LONGER {
        return Some(tell(Case::new(Diagnosis::TrafficMix, Grounds::OtherTraffic)));
    }
    // Misses with cache to spare: prefixes were not evicted, they are others.
    let shares_less = is_below(fleet.hit_rate, SHARES_LESS) && is_below(fleet.kv_usage, SPARE);
    (shares_less && exceeds(fleet.ttft, UNCHANGED))
        .then(|| tell(Case::new(Diagnosis::TrafficMix, Grounds::Partly)))
}

/// Too little KV cache: prefixes evicted, sequences preempted.
fn of_cache(changes: &[SignalChange], fleet: &Fleet) -> Option<Case> {
    let most = |holds: fn(&SignalChange) -> bool| {
        2 * changes.iter().filter(|change| holds(change)).count() > changes.len()
    };
    // Prefixes that no longer hit while running requests hold most of the cache were evicted.
    let is_evicting = most(|change| {
        exceeds(change.now.kv_cache_usage, SPARE)
            && exceeds(change.ratio(|s| s.kv_cache_usage), FULLER)
            && is_below(change.ratio(|s| s.hit_rate), EVICTED)
    });
    let preemptions = middle(changes, |change| change.difference(|s| s.preemptions));
    let is_short = is_evicting || exceeds(preemptions, PREEMPTIONS);
    let case = || {
        Case::new(Diagnosis::KvPressure, Grounds::ShortCache)
            .with("kv_cache_usage", fleet.kv_usage)
            .with("kv_cache_usage_ratio", fleet.kv_cache)
            .with("hit_rate_ratio", fleet.hit_rate)
            .with("preemptions_change", preemptions)
            .with("waiting_change", fleet.waiting)
    };
    is_short.then(case)
}

/// The time goes in front of the engines: connecting, HTTP, tokenising; the engines' own TTFT is what it was.
fn of_the_way(changes: &[SignalChange], fleet: &Fleet) -> Option<Case> {
    if !exceeds(fleet.ttft, SLOWER) {
        return None;
    }
    let engine_ttft = middle(changes, |change| change.ratio(|s| s.engine_ttft));
    let on_the_way = fleet.share(["connect_rise", "engine_other_rise"]);
    let is_there = match engine_ttft {
        Some(ratio) => ratio <= UNCHANGED && !exceeds(fleet.share(["admit_rise", "admit_rise"]), MOST_OF_IT),
        None => exceeds(on_the_way, MOST_OF_IT),
    };
    let case = Case::new(Diagnosis::PreprocessingOrNetwork, Grounds::OnTheWay)
        .with("engine_ttft_ratio", engine_ttft);
    is_there.then(|| fleet.tell(case.with("ttft_ratio", fleet.ttft)))
}

/// The same work takes longer.
fn of_decoding(fleet: &Fleet) -> Option<Case> {
    let case = Case::new(Diagnosis::Contention, Grounds::SlowerSteps)
        .with("itl_ratio", fleet.itl)
        .with("load_ratio", fleet.load);
    exceeds(fleet.itl, UNCHANGED).then(|| fleet.tell(case))
}

/// The median of what is known.
fn middle(changes: &[SignalChange], pick: fn(&SignalChange) -> Option<f64>) -> Option<f64> {
    median(&changes.iter().filter_map(pick).collect::<Vec<_>>())
}

fn exceeds(value: Option<f64>, bound: f64) -> bool {
    value.is_some_and(|value| value > bound)
}

fn is_below(value: Option<f64>, bound: f64) -> bool {
    value.is_some_and(|value| value < bound)
}

impl Kind {
    fn is_of_ttft(self) -> bool {
        matches!(
            self,
            Self::TtftTailDrift
                | Self::TtftDrift
                | Self::TtftShift
                | Self::TtftP99OverSlo
                | Self::TtftDoubled
        )
    }
}

/// Seconds: what changed longer before the onset did not cause it.
const CHANGE_BEFORE_ONSET: f64 = 15.0 * 60.0;
/// Requests now over before: more than the swing of ten minutes.
const MORE_LOAD: f64 = 1.3;
/// Requests of an hour of the day over those of the mean hour.
const PEAK_HOUR: f64 = 1.1;
/// Mean length of prompts or answers now over before.
const LONGER: f64 = 1.25;
/// Share of long prompts, over that of days before.
const MORE_LONG: f64 = 1.25;
/// Latency now over before.
const SLOWER: f64 = 1.3;
const UNCHANGED: f64 = 1.15;
/// Inter-token latency of one replica, while the others' is unchanged.
const OUTLIER_ITL: f64 = 1.2;
/// KV cache in use, now over before, of a cache that evicts.
const FULLER: f64 = 1.5;
/// Hit rate now over before: of prompts that share less, and of a cache that is too small.
const SHARES_LESS: f64 = 0.7;
const EVICTED: f64 = 0.8;
/// Preemptions per minute and replica, now minus before.
const PREEMPTIONS: f64 = 0.5;
/// Share of the KV cache in use below which nothing is evicted for want of room.
const SPARE: f64 = 0.3;
/// Share of a rise that decides.
const MOST_OF_IT: f64 = 0.5;
/// Minutes after which a start no longer explains slowness.
const WARM_AFTER: i64 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: Signals = Signals {
        requests: 10.0,
        ttft: Some(0.1),
        engine_ttft: Some(0.1),
        held: Some(0.0),
        connect: Some(0.0),
        queue: Some(0.02),
        prefill: Some(0.07),
        other: Some(0.01),
        prompt: Some(1000.0),
        output: Some(200.0),
        itl: Some(0.02),
        hit_rate: Some(0.5),
        waiting: Some(0.0),
        kv_cache_usage: Some(0.5),
        preemptions: Some(0.0),
        batch_limit: Some(16.0),
        gpu_throttled: None,
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
        let preempted = with(slow(1.6, 1.0), |now| now.preemptions = Some(4.0));
        let cold = with(slow(2.0, 1.0), |now| now.hit_rate = Some(0.1));
        let cold = SignalChange { started_ago: Some(2), ..cold };
        let changed = SignalChange { started_ago: Some(6), ..slow(2.0, 0.9) };
        let limited = with(slow(2.0, 0.9), |now| now.batch_limit = Some(4.0));
        let outside = with(slow(2.0, 1.0), |now| now.engine_ttft = Some(0.1));
        let connecting = with(slow(2.0, 1.0), |now| now.connect = Some(0.1));
        let longer = with(slow(2.0, 1.2), |now| now.prompt = Some(1600.0));
        let chattier = with(slow(2.0, 1.2), |now| now.output = Some(500.0));
        let fresher = with(slow(1.5, 1.0), |now| (now.hit_rate, now.kv_cache_usage) = (Some(0.2), Some(0.2)));
        let held = with(slow(2.0, 1.0), |now| now.held = Some(0.1));
        let table = [
            (vec![slow(2.0, 1.6); 4], Diagnosis::Contention),
            (vec![slow(1.0, 1.0), slow(1.0, 1.0), slow(1.9, 1.7), slow(1.1, 1.0)], Diagnosis::Replica),
            (vec![busy; 4], Diagnosis::Capacity),
            (vec![preempted; 4], Diagnosis::KvPressure),
            (vec![cold; 4], Diagnosis::ColdStarts),
            (vec![changed; 4], Diagnosis::Configuration),
            (vec![limited; 4], Diagnosis::Configuration),
            (vec![outside; 4], Diagnosis::PreprocessingOrNetwork),
            (vec![connecting; 4], Diagnosis::PreprocessingOrNetwork),
            (vec![longer; 4], Diagnosis::TrafficMix),
            (vec![chattier; 4], Diagnosis::TrafficMix),
            (vec![fresher; 4], Diagnosis::TrafficMix),
            (vec![held; 4], Diagnosis::Capacity),
            (vec![slow(2.0, 1.0); 4], Diagnosis::Unknown),
            (Vec::new(), Diagnosis::Unknown),
        ];
        for (changes, expected) in table {
            let causes = Causes::of(of_changes(&changes));
            assert_eq!(causes.diagnosis(), expected, "{causes:?}");
        }
    }

    #[test]
    fn lowered_clocks_of_the_slow_replica_are_told_and_decide_nothing() {
        let throttled = |ttft, itl, gpu| with(slow(ttft, itl), |now| now.gpu_throttled = gpu);
        let others = [throttled(1.0, 1.0, Some(0.0)), throttled(1.1, 1.0, None)];
        let facts = |gpu| {
            let changes = [others[0], throttled(1.9, 1.7, gpu), others[1]];
            let case = Causes::of(of_changes(&changes)).first.unwrap();
            assert_eq!(case.cause, Diagnosis::Replica);
            case.facts
        };
        assert!(facts(Some(1.0)).contains(&("gpu_clocks_throttled", 1.0)));
        assert!(facts(None).iter().all(|(name, _)| *name != "gpu_clocks_throttled"));
        let all = vec![throttled(1.0, 1.0, Some(1.0)); 3];
        assert_eq!(Causes::of(of_changes(&all)).diagnosis(), Diagnosis::Unknown);
    }

    #[test]
    fn the_runner_up_is_told_with_its_numbers() {
        let busy = with(slow(3.0, 1.3), |now| (now.requests, now.waiting) = (16.0, Some(9.0)));
        let causes = Causes::of(of_changes(&[busy; 4]));
        let (first, next) = (causes.first.unwrap(), causes.runner_up.unwrap());
        assert!(first.facts.contains(&("load_ratio", 1.6)), "{first:?}");
        assert_eq!(next.cause, Diagnosis::Contention);
        assert!(
            next.facts.iter().any(|(name, value)| *name == "itl_ratio" && (value - 1.3).abs() < 1e-9),
            "{next:?}"
        );
    }

    #[test]
    fn no_kind_has_a_cause_of_its_own() {
        for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::ReplicaSlow) {
            assert_eq!(Symptoms::default().diagnose(kind).diagnosis(), Diagnosis::Unknown, "{kind:?}");
        }
    }

    #[test]
    fn a_tail_that_long_prompts_account_for_is_a_change_of_mix() {
        let flat = Symptoms { is_median_flat: true, more_slow: Some(0.01), ..Symptoms::default() };
        let diagnosis = |long_prompts| {
            Symptoms { long_prompts, ..flat.clone() }.diagnose(Kind::TtftTailDrift).diagnosis()
        };
        assert_eq!(diagnosis(Some((0.14, 0.10))), Diagnosis::TrafficMix);
        assert_eq!(diagnosis(Some((0.102, 0.10))), Diagnosis::InfrastructureVariability);
        assert_eq!(diagnosis(None), Diagnosis::InfrastructureVariability);
    }
}
