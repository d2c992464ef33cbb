//! Where the time went, and the largest change upstream of it.
//!
//! Now is compared with before, never with an absolute figure, so that it holds for any fleet. The stage that holds most of
//! a rise limits which changes can be behind it; of those the largest, in units of its threshold, is the cause. What more or
//! longer requests explain of fuller caches and slower steps is theirs.

use super::cause::{Case, Causes, Diagnosis, Tier};
use super::events::{self, Onset};
use super::signals::{SignalChange, SignalHistory, Signals, Snapshot};
use super::table::{
    BUSIER, DIFFERS_FROM_USUAL, EVICTS, KV_FULLER, KV_ROOM, LONGER, MAJORITY, PREEMPTIONS, SHARES_LESS,
    UNMOVED,
};
use crate::stats::median;

/// What the signals of all replicas together point to, as of `minute`.
pub fn diagnose_signals(history: &SignalHistory, minute: i64) -> Causes {
    Causes::of(of_changes(&history.changes(minute), None, None, minute))
}

/// The same, against what was before the trouble began (history alone forgets it after hours, and at a restart), with the
/// minute of the first request of a revision that replaced another.
pub fn diagnose_against(
    history: &SignalHistory,
    before: &Snapshot,
    deploy: Option<i64>,
    minute: i64,
) -> Causes {
    let onset = history.onset(minute, |signals| signals.ttft).map(Onset::at);
    Causes::of(of_changes(&history.changes_from(before, minute), onset, deploy, minute))
}

/// Every cause that something speaks for, as of the minute `now`.
pub(crate) fn of_changes(
    changes: &[SignalChange],
    onset: Option<Onset>,
    deploy: Option<i64>,
    now: i64,
) -> Vec<Case> {
    let mut cases: Vec<Case> = onset.and_then(|onset| events::deploy(onset, deploy)).into_iter().collect();
    if changes.is_empty() {
        return cases;
    }
    let fleet = Fleet::of(changes);
    cases.extend(of_one(changes));
    cases
        .extend(events::engines(onset, changes, now).map(|case| case.with("hit_rate_ratio", fleet.hit_rate)));
    let upstream = match fleet.stage(changes) {
        Place::OnTheWay => vec![fleet.on_the_way()],
        Place::Gateway => vec![fleet.busier().or_else(|| fleet.held())],
        Place::Engine => {
            vec![fleet.busier(), fleet.longer(), fleet.shares_less(), fleet.evicts(changes), fleet.slower()]
        }
    };
    // Where the time went is evidence for every cause.
    cases.extend(
        upstream
            .into_iter()
            .flatten()
            .map(|case| fleet.rise.iter().fold(case, |case, (name, rise)| case.with(name, *rise))),
    );
    cases
}

/// Where most of a rise is.
enum Place {
    Gateway,
    OnTheWay,
    Engine,
}

/// The fleet as a whole: ratios of now to before.
struct Fleet {
    load: f64,
    prompt: Option<f64>,
    output: Option<f64>,
    hit_rate: Option<f64>,
    kv_usage: Option<f64>,
    kv_ratio: Option<f64>,
    preemptions: Option<f64>,
    ttft: Option<f64>,
    engine_ttft: Option<f64>,
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
        let middle = |pick: fn(&SignalChange) -> Option<f64>| {
            median(&changes.iter().filter_map(pick).collect::<Vec<_>>())
        };
        Self {
            load,
            prompt: pooled_ratio(changes, |s| s.prompt),
            output: pooled_ratio(changes, |s| s.output),
            hit_rate: pooled_ratio(changes, |s| s.hit_rate),
            kv_usage: middle(|change| change.now.kv_cache_usage),
            kv_ratio: middle(|change| change.ratio(|s| s.kv_cache_usage)),
            preemptions: middle(|change| change.difference(|s| s.preemptions)),
            ttft: middle(|change| change.ratio(|s| s.ttft)),
            engine_ttft: middle(|change| change.ratio(|s| s.engine_ttft)),
            itl: middle(|change| change.ratio(|s| s.itl)),
            waiting: middle(|change| change.difference(|s| s.waiting)),
            rise: [
                ("admit_rise", middle(|change| change.difference(|s| s.held))),
                ("connect_rise", middle(|change| change.difference(|s| s.connect))),
                ("engine_queue_rise", middle(|change| change.difference(|s| s.queue))),
                ("prefill_rise", middle(|change| change.difference(|s| s.prefill))),
                ("engine_other_rise", middle(|change| change.difference(|s| s.other))),
            ],
        }
    }

    /// Where most of the rise of the wait for the first token is; the engine's own clock knows better than our split.
    fn stage(&self, changes: &[SignalChange]) -> Place {
        let share = |stages: &[&str]| {
            let known = || self.rise.iter().filter_map(|(name, rise)| Some((*name, (*rise)?.max(0.0))));
            let all: f64 = known().map(|(_, rise)| rise).sum();
            let own: f64 = known().filter(|(name, _)| stages.contains(name)).map(|(_, rise)| rise).sum();
            all > 0.0 && own > MAJORITY * all
        };
        let has_risen = exceeds(self.ttft, DIFFERS_FROM_USUAL) && !changes.is_empty();
        if has_risen && share(&["admit_rise"]) {
            return Place::Gateway;
        }
        let is_on_the_way = match self.engine_ttft {
            Some(ratio) => ratio <= UNMOVED,
            None => share(&["connect_rise", "engine_other_rise"]),
        };
        if has_risen && is_on_the_way { Place::OnTheWay } else { Place::Engine }
    }

    /// By how much (logarithm) there is more to do.
    fn more_work(&self) -> f64 {
        [Some(self.load), self.prompt, self.output].into_iter().flatten().fold(1.0, f64::max).ln()
    }

    fn busier(&self) -> Option<Case> {
        let case =
            thresholds(self.load.ln(), BUSIER).map(|strength| Case::change(Diagnosis::Capacity, strength));
        Some(case?.with("load_ratio", self.load).with("waiting_change", self.waiting))
    }

    /// The gateway holds requests back while engines decode as ever: there is less room than there was.
    fn held(&self) -> Option<Case> {
        let case = Case::change(Diagnosis::Capacity, 1.0).with("load_ratio", self.load);
        (!exceeds(self.itl, UNMOVED)).then(|| case.with("waiting_change", self.waiting))
    }

    /// Longer prompts or answers.
    fn longer(&self) -> Option<Case> {
        let longest = [self.prompt, self.output].into_iter().flatten().fold(1.0, f64::max);
        Some(self.mix(thresholds(longest.ln(), LONGER)?))
    }

    /// Misses with cache to spare: prefixes were not evicted, they are others.
    fn shares_less(&self) -> Option<Case> {
        let is_it = is_below(self.kv_usage, KV_ROOM) && exceeds(self.ttft, UNMOVED);
        let strength = thresholds(-self.hit_rate.filter(|_| is_it)?.max(0.01).ln(), 1.0 / SHARES_LESS)?;
        Some(self.mix(strength))
    }

    fn mix(&self, strength: f64) -> Case {
        Case::change(Diagnosis::TrafficMix, strength)
            .with("prompt_tokens_ratio", self.prompt)
            .with("output_tokens_ratio", self.output)
            .with("hit_rate_ratio", self.hit_rate)
    }

    /// Too little KV cache: prefixes that no longer hit while running requests hold most of it, or sequences preempted.
    fn evicts(&self, changes: &[SignalChange]) -> Option<Case> {
        let evicting = changes.iter().filter(|change| {
            exceeds(change.now.kv_cache_usage, KV_ROOM)
                && exceeds(change.ratio(|s| s.kv_cache_usage), KV_FULLER)
                && is_below(change.ratio(|s| s.hit_rate), EVICTS)
        });
        let is_evicting = 2 * evicting.count() > changes.len();
        let fuller =
            (self.kv_ratio.filter(|_| is_evicting).unwrap_or(1.0).ln() - self.more_work()) / KV_FULLER.ln();
        let preempted = self.preemptions.unwrap_or_default() / PREEMPTIONS;
        let strength = fuller.max(if preempted > 1.0 { preempted } else { 0.0 });
        (strength >= 1.0).then(|| {
            Case::change(Diagnosis::KvPressure, strength)
                .with("kv_cache_usage", self.kv_usage)
                .with("kv_cache_usage_ratio", self.kv_ratio)
                .with("hit_rate_ratio", self.hit_rate)
                .with("preemptions_change", self.preemptions)
                .with("waiting_change", self.waiting)
        })
    }

    /// The same work takes longer.
    fn slower(&self) -> Option<Case> {
        let itl = self.itl.filter(|itl| *itl > UNMOVED)?;
        let strength = (itl.ln() - self.more_work()) / UNMOVED.ln();
        let case = Case::change(Diagnosis::Contention, strength).with("itl_ratio", itl);
        Some(case.with("load_ratio", self.load))
    }

    /// Connecting, HTTP, tokenising; the engines' own TTFT is what it was.
    fn on_the_way(&self) -> Option<Case> {
        let case = Case::change(Diagnosis::PreprocessingOrNetwork, 1.0);
        Some(case.with("engine_ttft_ratio", self.engine_ttft).with("ttft_ratio", self.ttft))
    }
}

/// A change (logarithm) in units of its threshold, where it reaches that.
fn thresholds(change: f64, threshold: f64) -> Option<f64> {
    let strength = change / threshold.ln();
    (strength > 1.0).then_some(strength)
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

/// One replica is slower and no other is. A slow replica decodes slowly; TTFT does not show it, because affinity sends the others'
/// work around it.
fn of_one(changes: &[SignalChange]) -> Option<Case> {
    if changes.iter().any(|change| change.started_ago.is_some()) {
        return None;
    }
    let ratio = |change: &&SignalChange| change.ratio(|s| s.itl);
    let mut ratios: Vec<f64> = changes.iter().filter_map(|change| ratio(&change)).collect();
    ratios.sort_by(f64::total_cmp);
    let [.., rest, highest] = ratios[..] else { return None };
    if rest >= UNMOVED || highest / rest.max(1.0) <= DIFFERS_FROM_USUAL {
        return None;
    }
    // Why it may be slow: evidence, and no ground for the diagnosis.
    let slowest = changes.iter().max_by(|a, b| ratio(a).unwrap_or(0.0).total_cmp(&ratio(b).unwrap_or(0.0)));
    let case = Case::new(Diagnosis::Replica, Tier::Alone)
        .with("itl_ratio", highest)
        .with("itl_ratio_of_peers", rest)
        .with("gpu_clocks_throttled", slowest.and_then(|change| change.now.gpu_throttled));
    Some(case)
}

fn exceeds(value: Option<f64>, bound: f64) -> bool {
    value.is_some_and(|value| value > bound)
}

fn is_below(value: Option<f64>, bound: f64) -> bool {
    value.is_some_and(|value| value < bound)
}

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
        gateway_late: None,
        has_started: false,
    };

    /// Ratios of TTFT and inter-token latency; the engine reports no TTFT of its own.
    fn slow(ttft: f64, itl: f64) -> SignalChange {
        let now = Signals { ttft: Some(0.1 * ttft), itl: Some(0.02 * itl), engine_ttft: None, ..BEFORE };
        SignalChange { before: BEFORE, now, started_ago: None, first_started_ago: None }
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
            let causes = Causes::of(of_changes(&changes, None, None, 0));
            assert_eq!(causes.diagnosis(), expected, "{causes:?}");
        }
    }

    #[test]
    fn lowered_clocks_of_the_slow_replica_are_told_and_decide_nothing() {
        let throttled = |ttft, itl, gpu| with(slow(ttft, itl), |now| now.gpu_throttled = gpu);
        let others = [throttled(1.0, 1.0, Some(0.0)), throttled(1.1, 1.0, None)];
        let facts = |gpu| {
            let changes = [others[0], throttled(1.9, 1.7, gpu), others[1]];
            let case = Causes::of(of_changes(&changes, None, None, 0)).first.unwrap();
            assert_eq!(case.cause, Diagnosis::Replica);
            case.facts
        };
        assert!(facts(Some(1.0)).contains(&("gpu_clocks_throttled".into(), 1.0)));
        assert!(facts(None).iter().all(|(name, _)| *name != "gpu_clocks_throttled"));
        let all = vec![throttled(1.0, 1.0, Some(1.0)); 3];
        assert_eq!(Causes::of(of_changes(&all, None, None, 0)).diagnosis(), Diagnosis::Unknown);
    }

    #[test]
    fn the_runner_up_is_told_with_its_numbers() {
        let busy = with(slow(3.0, 1.3), |now| (now.requests, now.waiting) = (16.0, Some(9.0)));
        let causes = Causes::of(of_changes(&[busy; 4], None, None, 0));
        let (first, next) = (causes.first.unwrap(), causes.runner_up.unwrap());
        assert!(first.facts.contains(&("load_ratio".into(), 1.6)), "{first:?}");
        assert_eq!(next.cause, Diagnosis::Contention);
        assert!(next.facts.iter().any(|(name, value)| *name == "itl_ratio" && (value - 1.3).abs() < 1e-9));
    }
}
