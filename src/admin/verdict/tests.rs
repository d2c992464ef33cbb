//! Scripted incidents: figures as the history would have them, and what the sentence has to name.

use std::time::Duration;

use super::*;
use crate::fleet::status::{EngineCounters, KvCounters, LifeStatus, Way};
use crate::observe::history::{Dimension, Part};
use crate::observe::lag::Lateness;
use crate::routing::{EnginePage, EngineSignals};
use crate::stats::{Counts, Histogram, Mean};

/// What one replica did in a window.
struct Did {
    replica: &'static str,
    good: u32,
    missed: u32,
    /// Stage of its misses, and seconds in it of a missed and of a good request.
    stage: (Stage, f64, f64),
}

fn did(replica: &'static str, good: u32, missed: u32, stage: (Stage, f64, f64)) -> Did {
    Did { replica, good, missed, stage }
}

/// A window with these replicas; `reason` is an index into `Missed::ALL`.
fn slot(reason: usize, all: &[Did]) -> WindowFigures {
    let (mut slot, mut ttft) = (Slot::default(), Histogram::default());
    for Did { replica, good, missed, stage: (stage, slow, fast) } in all {
        slot.requests += good + missed;
        slot.good += good;
        slot.missed[reason] += missed;
        slot.missed_in[*stage] += missed;
        let part = slot.parts.entry((Dimension::Replica, (*replica).into())).or_default();
        part.requests += good + missed;
        part.judged += good + missed;
        part.missed_in[*stage] += missed;
        part.wrong_in[*stage] += if [ERROR, EMPTY_ANSWERS].contains(&reason) { *missed } else { 0 };
        part.stages[*stage].add_times(*slow, f64::from(*missed));
        part.stages[*stage].add_times(*fast, f64::from(*good));
        slot.bound.add_times(2.0, f64::from(good + missed));
        ttft.add(Duration::from_secs_f64(*slow), *missed);
        ttft.add(Duration::from_secs_f64(*fast), *good);
    }
    WindowFigures { slot, ttft: ttft.take(), itl: Counts::default() }
}

fn part<'a>(slot: &'a mut Slot, replica: &str) -> &'a mut Part {
    slot.parts.get_mut(&(Dimension::Replica, replica.into())).unwrap()
}

fn ready(replica: &str, waiting: f64) -> ReplicaStatus {
    let signals = EngineSignals {
        age: Duration::from_millis(200),
        page: EnginePage {
            running: Some(8.0),
            waiting: Some(waiting),
            kv_cache_usage: Some(0.4),
            ..EnginePage::default()
        },
        ..EngineSignals::default()
    };
    ReplicaStatus {
        pool: "llama".into(),
        revision: "v1".into(),
        replica: replica.into(),
        state: ReplicaState::Ready,
        reason: "proved".into(),
        traffic_share: 1.0,
        inflight: 3,
        quiet: Duration::ZERO,
        signals: Some(signals),
        connections: 1,
        ..ReplicaStatus::default()
    }
}

/// `r1`, `r2`, … with these queues.
fn queues<const N: usize>(waiting: [f64; N]) -> Vec<ReplicaStatus> {
    waiting.into_iter().zip(1..).map(|(waiting, nth)| ready(&format!("r{nth}"), waiting)).collect()
}

/// Ready, and what its engine counts.
fn counted(replica: &str, counters: EngineCounters) -> ReplicaStatus {
    ReplicaStatus { counters: Some(counters), ..ready(replica, 0.0) }
}

/// The same of one whose last first tokens took so many seconds, of which its engine had the others by its count of ours alone.
fn way(replica: &str, seen: f64, own: f64) -> ReplicaStatus {
    let way = Way { span: Duration::from_secs(15), seen, counted: own, in_engine: own };
    counted(replica, EngineCounters { way: Some(way), ..EngineCounters::default() })
}

fn ejected(replica: &str, reason: &str) -> ReplicaStatus {
    ReplicaStatus { state: ReplicaState::Ejected, reason: reason.into(), ..ready(replica, 0.0) }
}

/// The route `chat`, with the same slot as last minute and as last five.
fn figures(window: WindowFigures, replicas: Vec<ReplicaStatus>) -> RouteFigures {
    RouteFigures {
        route: "chat".into(),
        minute: window.clone(),
        five: window.clone(),
        hour: window.slot,
        before: (Slot::default(), 540.0),
        uptime: Duration::from_secs(86_400),
        replicas,
        ..RouteFigures::default()
    }
}

fn tokens(slot: &mut Slot, dimension: Dimension, shares: &[(&str, u64)]) {
    for (name, tokens) in shares {
        let part = Part { requests: 10, prompt_tokens: *tokens, ..Part::default() };
        slot.parts.insert((dimension, (*name).into()), part);
    }
}

const TTFT: usize = 2;
const ITL: usize = 3;
const ERROR: usize = 0;
const EMPTY_ANSWERS: usize = 6;
const REFUSED: usize = 1;

/// The sentence has these parts, which ` | ` divides.
#[track_caller]
fn names(figures: &RouteFigures, all: &str) {
    names_only(figures, all, "");
}

/// And it has none of the others.
#[track_caller]
fn names_only(figures: &RouteFigures, all: &str, others: &str) {
    let Verdict { sentence, .. } = judge(figures);
    for (parts, is_in) in [(all, true), (others, false)] {
        for part in parts.split('|').map(str::trim).filter(|part| !part.is_empty()) {
            assert_eq!(sentence.contains(part), is_in, "{part:?} in: {sentence}");
        }
    }
}

#[test]
fn a_slow_replica_is_named_with_its_stage() {
    let prefill = |slow| (Stage::Prefill, slow, 0.4);
    let all =
        [did("r1", 30, 0, prefill(3.0)), did("r2", 4, 26, prefill(6.0)), did("r3", 28, 1, prefill(2.2))];
    let figures = figures(slot(TTFT, &all), queues([0.0; 3]));
    assert_eq!(judge(&figures).status, Status::Bad);
    names_only(
        &figures,
        "chat: TTFT p99 | against 2.0 s | 27 of 27 misses in prefill | replica r2 stands out",
        "r1 | r3",
    );
}

#[test]
fn of_two_sick_replicas_each_is_named_with_its_own_fault_and_the_larger_is_the_cause() {
    let prefill = (Stage::Prefill, 6.0, 0.4);
    let all = [
        did("r1", 4, 20, prefill),
        did("r2", 30, 0, prefill),
        did("r3", 30, 0, prefill),
        did("r4", 10, 0, prefill),
    ];
    let mut now = slot(TTFT, &all);
    (now.slot.missed[TTFT], now.slot.missed_in[Stage::EngineQueue]) = (28, 8);
    (now.slot.missed[ITL], now.slot.missed_in[Stage::Decode]) = (24, 24);
    for (name, itl) in [("r1", 0.02), ("r2", 0.02), ("r3", 0.02), ("r4", 0.22)] {
        part(&mut now.slot, name).itl.add_times(itl, 500.0);
    }
    let sick = part(&mut now.slot, "r4");
    (sick.missed_in[Stage::Decode], sick.judged) = (24, 34);
    names_only(
        &figures(now, queues([0.0; 4])),
        "TTFT p99 | 20 of 52 misses in prefill | replica r1 stands out: has 5.1 s of prefill \
         | replica r4 stands out: takes 220 ms for a token, the others 20 ms",
        "r2 | r3",
    );
}

#[test]
fn longer_prompts_at_one_replica_by_chance_are_no_fault_of_it_though_nothing_is_predicted() {
    let prefill = |seconds| (Stage::Prefill, seconds, seconds);
    let now = |tokens: [f64; 3]| {
        let all =
            [did("r1", 20, 6, prefill(0.7)), did("r2", 14, 12, prefill(1.3)), did("r3", 20, 6, prefill(0.7))];
        let mut now = slot(TTFT, &all);
        for (name, tokens) in ["r1", "r2", "r3"].into_iter().zip(tokens) {
            let part = part(&mut now.slot, name);
            part.per_token = Mean { count: tokens, ..part.stages[Stage::Prefill] };
        }
        figures(now, queues([0.0; 3]))
    };
    let longer = now([26.0 * 1_700.0, 26.0 * 3_200.0, 26.0 * 1_700.0]);
    names_only(&longer, "24 of 24 misses in prefill | shared by all 3 replicas", "stands out");
    names(&now([26.0 * 1_700.0; 3]), "replica r2 stands out: has 1.3 s of prefill");
}

#[test]
fn a_replica_with_colder_prompts_is_not_named() {
    let prefill = |slow| (Stage::Prefill, slow, 0.4);
    let all =
        [did("r1", 30, 0, prefill(3.0)), did("r2", 4, 26, prefill(6.0)), did("r3", 28, 1, prefill(2.2))];
    let mut now = slot(TTFT, &all);
    for (name, work) in [("r1", 12.0), ("r2", 150.0), ("r3", 14.0)] {
        part(&mut now.slot, name).over_expected = Mean { sum: 1.1 * work, count: work };
    }
    let figures = figures(now, queues([0.0; 3]));
    names_only(&figures, "27 of 27 misses in prefill | shared by all 3 replicas", "stands out");
}

#[test]
fn what_several_share_hides_nobody_and_is_not_named() {
    let late = |slow| (Stage::Prefill, slow, 0.4);
    let good = |name| did(name, 200, 0, late(0.4));
    let all = [good("r1"), good("r3"), did("r2", 4, 26, late(6.0)), did("other", 0, 8, late(9.0))];
    names_only(&figures(slot(TTFT, &all), queues([0.0; 3])), "replica r2 stands out", "replica other");
}

#[test]
fn a_replica_that_had_no_requests_shares_nothing() {
    let late = (Stage::Prefill, 3.0, 0.4);
    let two = slot(TTFT, &[did("r1", 2, 20, late), did("r2", 2, 20, late)]);
    names(&figures(two, queues([0.0; 3])), "shared by the 2 of 3 replicas that had requests");
}

#[test]
fn a_sick_replica_is_named_by_its_failures() {
    let all = [did("r1", 30, 0, (Stage::Decode, 1.0, 1.0)), did("r2", 5, 12, (Stage::Connect, 0.1, 0.1))];
    let mut sick = slot(ERROR, &all);
    part(&mut sick.slot, "r2").failures = 20;
    let figures = figures(sick, queues([0.0; 2]));
    names_only(
        &figures,
        "12 of 47 requests failed | in connect | replica r2 stands out: 20 of 20 failed attempts",
        "r1",
    );
}

#[test]
fn a_replica_that_answers_nothing_is_named_with_its_share_and_so_are_all_of_them() {
    let all = [did("r1", 40, 20, (Stage::Decode, 0.1, 0.1)), did("r2", 40, 0, (Stage::Decode, 1.0, 1.0))];
    let mut hole = slot(EMPTY_ANSWERS, &all);
    for (name, empty) in [("r1", 51), ("r2", 0)] {
        let part = part(&mut hole.slot, name);
        (part.answers, part.empty) = (100, empty);
    }
    let both = || queues([0.0; 2]);
    names_only(
        &figures(hole, both()),
        "20 of 100 requests got | r1 stands out: answers 51 % of its requests with no text, the others 0 %",
        "r2 | misses in",
    );
    // A fault of both that has shown at one of them first.
    let decode = (Stage::Decode, 0.1, 0.1);
    let mut early = slot(EMPTY_ANSWERS, &[did("r1", 9, 5, decode), did("r2", 20, 2, decode)]);
    for (name, answers, empty) in [("r1", 14, 5), ("r2", 22, 2)] {
        let part = part(&mut early.slot, name);
        (part.answers, part.empty) = (answers, empty);
    }
    names_only(&figures(early, both()), "got no text", "stands out");
    // None stands out, and nothing is judged a miss.
    let of_both =
        |n| [did("r1", n, 0, (Stage::Decode, 1.0, 1.0)), did("r2", n, 0, (Stage::Decode, 1.0, 1.0))];
    let mut alike = slot(EMPTY_ANSWERS, &of_both(15));
    alike.slot.empty = 30;
    let mut figures = figures(alike, both());
    assert_eq!(judge(&figures).status, Status::Ok, "as ever");
    figures.before.0 = slot(EMPTY_ANSWERS, &of_both(150)).slot;
    assert_eq!(judge(&figures).status, Status::Bad);
    names(&figures, "30 of 30 answers have no text (100 %, 0 % before) | shared by all 2 replicas");
}

#[test]
fn what_the_engines_say_of_an_error_is_told_in_place_of_a_stage() {
    let prefill = (Stage::Prefill, 0.01, 0.2);
    let all = [did("r1", 40, 6, prefill), did("r2", 40, 5, prefill)];
    let mut sick = slot(ERROR, &all);
    for (name, failures) in [("r1", 6), ("r2", 5)] {
        let part = part(&mut sick.slot, name);
        (part.failures, part.engine_error) = (failures, Some("CUDA error".into()));
    }
    names_only(
        &figures(sick, queues([0.0; 2])),
        "11 of 91 requests failed | the engine reports \u{201c}CUDA error\u{201d} | shared by all 2 replicas",
        "misses in | stands out",
    );
}

#[test]
fn a_replica_that_routing_avoids_is_named_though_nobody_waits() {
    let all = [did("r1", 60, 0, (Stage::Prefill, 0.4, 0.4)), did("r2", 2, 0, (Stage::Prefill, 0.4, 0.4))];
    let sick = ReplicaStatus { traffic_share: 0.07, failure_ratio: 0.4, ..ready("r2", 0.0) };
    let figures = figures(slot(TTFT, &all), vec![ready("r1", 0.0), sick]);
    assert_eq!(judge(&figures).status, Status::Ok);
    names(
        &figures,
        "replica r2 stands out: is given 7 % of its ordinary traffic: 40 % of its last answers failed",
    );
}

#[test]
fn a_replica_in_slow_start_is_no_outlier() {
    let prefill = (Stage::Prefill, 0.4, 0.4);
    let now = slot(TTFT, &[did("r1", 60, 0, prefill), did("r2", 4, 0, (Stage::Prefill, 3.0, 3.0))]);
    let life = LifeStatus { is_in_slow_start: true, ..LifeStatus::default() };
    let fresh = ReplicaStatus { traffic_share: 0.1, life, ..ready("r2", 0.0) };
    names_only(&figures(now, vec![ready("r1", 0.0), fresh]), "", "r2");
}

#[test]
fn an_overload_is_nobodys_fault() {
    let queue = (Stage::EngineQueue, 12.0, 1.0);
    let all = [did("r1", 3, 14, queue), did("r2", 3, 13, queue)];
    let figures = figures(slot(TTFT, &all), queues([20.0, 19.0]));
    names_only(
        &figures,
        "27 of 27 misses in engine_queue | 39 requests wait in the engines | shared by all 2 replicas",
        "stands out",
    );
}

#[test]
fn the_longest_of_several_queues_is_no_replica_s_fault() {
    let queue = (Stage::EngineQueue, 6.0, 1.0);
    let all = [did("r1", 3, 14, queue), did("r2", 3, 13, queue), did("r3", 3, 15, queue)];
    let figures = figures(slot(TTFT, &all), queues([1.0, 2.0, 6.0]));
    names_only(&figures, "42 of 42 misses in engine_queue | shared by all 3 replicas", "stands out");
    // Nor is one that has just got many, where all have had a queue for some seconds.
    let mut replicas = queues([11.0, 1.0, 1.0]);
    for (status, recent) in replicas.iter_mut().zip([4.5, 0.8, 0.7]) {
        status.counters = Some(EngineCounters { recent_waiting: Some(recent), ..EngineCounters::default() });
    }
    let few = [did("r1", 9, 3, queue), did("r2", 9, 4, queue), did("r3", 9, 3, queue)];
    let mut figures = self::figures(slot(TTFT, &few), replicas);
    names_only(&figures, "10 of 10 misses in engine_queue | shared by all 3 replicas", "stands out");
    for status in &mut figures.replicas[1..] {
        status.counters.as_mut().unwrap().recent_waiting = Some(0.2);
    }
    names(&figures, "replica r1 stands out: has 4 waiting in its engine, the next 0");
}

#[test]
fn where_all_fail_alike_the_one_with_less_traffic_does_not_stand_out() {
    let prefill = (Stage::Prefill, 0.2, 0.2);
    let failing =
        |name, ratio, share| ReplicaStatus { failure_ratio: ratio, traffic_share: share, ..ready(name, 0.0) };
    let replicas = vec![failing("r1", 0.23, 0.48), failing("r2", 0.19, 1.0), failing("r3", 0.2, 0.9)];
    let all = [did("r1", 30, 3, prefill), did("r2", 30, 3, prefill), did("r3", 30, 3, prefill)];
    names_only(&figures(slot(ERROR, &all), replicas), "shared by all 3 replicas", "stands out");
}

#[test]
fn where_all_fail_the_one_that_failed_more_by_chance_does_not_stand_out() {
    let prefill = (Stage::Prefill, 0.2, 0.2);
    let now = |failures: [u32; 3]| {
        let all = ["r1", "r2", "r3"].map(|name| did(name, 15, 0, prefill));
        let mut now = slot(ERROR, &all);
        for (name, failures) in ["r1", "r2", "r3"].into_iter().zip(failures) {
            let part = part(&mut now.slot, name);
            (part.answers, part.failures) = (15, failures);
        }
        let demoted = ReplicaStatus { failure_ratio: 0.19, traffic_share: 0.39, ..ready("r3", 0.0) };
        figures(now, vec![ready("r1", 0.0), ready("r2", 0.0), demoted])
    };
    names_only(&now([1, 1, 4]), "45 of 45 requests within their SLO", "stands out");
    names(&now([1, 1, 12]), "replica r3 stands out: 12 of 14 failed attempts are its own");
    names(&now([0, 0, 2]), "replica r3 stands out: is given 39 % of its ordinary traffic");
    // One is the first to be ejected, and to come back.
    let first = |failures, state, is_on_trial| {
        let mut figures = now(failures);
        let was_ejected = LifeStatus { entered: [1; ReplicaState::ALL.len()], ..LifeStatus::default() };
        let broken = "replica r3 broke off in the middle of the answer";
        figures.replicas[2] =
            ReplicaStatus { state, is_on_trial, life: was_ejected, ..ejected("r3", broken) };
        figures
    };
    for (state, is_on_trial, words) in [
        (ReplicaState::Ejected, false, "is ejected: "),
        (ReplicaState::Ready, true, "gets one request at a time: "),
        (ReplicaState::Ready, false, "was ejected (1 so far)"),
    ] {
        names_only(&first([12, 12, 12], state, is_on_trial), "45 of 45 requests", "stands out");
        names(&first([0, 0, 0], state, is_on_trial), &format!("replica r3 stands out: {words}"));
    }
    names(&first([1, 1, 12], ReplicaState::Ejected, false), "replica r3 stands out: is ejected: ");
}

#[test]
fn where_all_fail_the_one_that_is_asked_last_does_not_stand_out() {
    // A request that two have failed ends at the third, with the third's failure or none.
    let now = |reason| {
        let connect = (Stage::Connect, 0.002, 0.002);
        let all = [did("r1", 46, 4, connect), did("r2", 46, 4, connect), did("r3", 30, 12, connect)];
        let mut now = slot(reason, &all);
        for (name, answers) in [("r1", 46), ("r2", 46), ("r3", 30)] {
            let part = part(&mut now.slot, name);
            (part.answers, part.failures) = (answers, 12);
        }
        figures(now, queues([0.0; 3]))
    };
    names_only(&now(ERROR), "20 of 142 requests failed | shared by all 3 replicas", "stands out");
    names(&now(TTFT), "replica r3 stands out: misses 29 % of its requests, the others 8 %");
}

#[test]
fn a_replica_that_is_ejected_for_empty_answers_is_named_with_the_reason() {
    let prefill = (Stage::Prefill, 0.2, 0.2);
    let mut now = slot(TTFT, &[did("r1", 90, 0, prefill), did("r2", 30, 0, prefill)]);
    let part = part(&mut now.slot, "r2");
    (part.answers, part.empty, part.failures) = (30, 3, 3);
    names(
        &figures(now, queues([0.0; 2])),
        "replica r2 stands out: 3 of 3 failed attempts are its own (answers with no text)",
    );
}

#[test]
fn where_two_of_three_are_slow_neither_stands_out() {
    let queue = |slow| (Stage::EngineQueue, slow, 0.1);
    let all = [did("r1", 3, 14, queue(2.2)), did("r2", 3, 13, queue(2.0)), did("r3", 16, 1, queue(1.2))];
    let figures = figures(slot(TTFT, &all), queues([6.0, 5.0, 0.0]));
    names_only(&figures, "28 of 28 misses in engine_queue | shared by all 3 replicas", "stands out");
}

#[test]
fn a_queue_that_only_one_engine_has_is_named_though_the_gateway_has_learned_nothing() {
    let prefill = (Stage::Prefill, 9.0, 1.0);
    let all = [did("r1", 10, 2, prefill), did("r2", 2, 10, prefill)];
    let figures = figures(slot(TTFT, &all), queues([1.0, 26.0]));
    names(&figures, "misses in engine_queue (by the engines' own count) | replica r2 stands out");
}

#[test]
fn a_way_to_a_replica_that_takes_long_is_no_queue_and_its_network_or_its_server() {
    let queue = |slow| (Stage::EngineQueue, slow, 0.3);
    let now = slot(TTFT, &[did("r1", 2, 20, queue(2.3)), did("r2", 30, 0, queue(0.3))]);
    let mut figures = figures(now, vec![way("r1", 2.1, 0.02), way("r2", 0.3, 0.25)]);
    fn way_of(figures: &mut RouteFigures, at: usize) -> &mut Option<Way> {
        &mut figures.replicas[at].counters.as_mut().unwrap().way
    }
    names_only(
        &figures,
        "misses in engine_other (network, or the engines' own servers) | r1 stands out: its first tokens take 2.1 s, of which its engine has 20 ms at most",
        "engine_queue | r2",
    );
    // Alone it does not stand out: of the other no first tokens are known, or none of the last seconds.
    let known = way_of(&mut figures, 1).take();
    names_only(&figures, "20 of 20 misses in engine_other (network | all at replica r1", "stands out");
    *way_of(&mut figures, 1) = known.map(|way| Way { span: Duration::from_secs(60), ..way });
    names_only(&figures, "20 of 20 misses in engine_other (network | all at replica r1", "stands out");
    *way_of(&mut figures, 1) = known;
    // One that waits at a moment explains nothing, a queue does.
    figures.replicas[0].signals.as_mut().unwrap().page.waiting = Some(2.0);
    figures.replicas[0].counters.as_mut().unwrap().recent_waiting = Some(0.6);
    names(&figures, "20 of 20 misses in engine_other (network");
    figures.replicas[0].counters.as_mut().unwrap().recent_waiting = Some(9.0);
    names_only(&figures, "misses in engine_queue | replica r1 stands out", "network");
}

#[test]
fn a_headline_shows_no_p99_that_is_within_the_bound() {
    let prefill = (Stage::Prefill, 3.0, 0.4);
    let mut now = slot(TTFT, &[did("r1", 90, 10, prefill)]);
    names(&figures(now.clone(), queues([0.0])), "TTFT p99 3.0 s against 2.0 s; 10 of 10 misses");
    // The others still wait.
    now.ttft = slot(TTFT, &[did("r1", 90, 0, prefill)]).ttft;
    names_only(
        &figures(now, queues([0.0])),
        "10 of 100 requests had no first token in time; 10 of 10 misses",
        "p99",
    );
}

#[test]
fn an_engine_that_is_slow_itself_is_no_network_though_its_probes_are_soon() {
    let prefill = |slow| (Stage::Prefill, slow, 0.3);
    let now = slot(TTFT, &[did("r1", 2, 20, prefill(2.3)), did("r2", 30, 0, prefill(0.3))]);
    // Four of our requests beside sixty probes.
    let mut slow = way("r1", 2.1, 0.14);
    slow.counters.as_mut().unwrap().way.as_mut().unwrap().in_engine = 2.2;
    names_only(
        &figures(now, vec![slow, way("r2", 0.3, 0.25)]),
        "20 of 20 misses in prefill | replica r1 stands out",
        "network",
    );
}

#[test]
fn places_that_a_long_way_holds_are_the_networks_and_those_of_one_engine_are_not() {
    // Held for 2 s, and 1.3 s more until the first token.
    let admit = |slow| (Stage::Admit, slow, 0.1);
    let now = slot(TTFT, &[did("r1", 10, 10, admit(2.0)), did("r2", 10, 10, admit(2.0))]);
    let figures = |own: [f64; 2]| figures(now.clone(), vec![way("r1", 1.3, own[0]), way("r2", 1.3, own[1])]);
    names_only(&figures([0.1, 0.1]), "20 of 20 misses in engine_other (network | shared by all 2", "admit");
    names_only(&figures([0.1, 1.2]), "20 of 20 misses in admit", "network");
}

#[test]
fn full_caches_are_named_with_their_preemptions() {
    let decode = (Stage::Decode, 9.0, 2.0);
    let full = |replica: &str| {
        let counters = EngineCounters { recent_preemptions: Some(0.5), ..EngineCounters::default() };
        let mut status = counted(replica, counters);
        status.signals.as_mut().unwrap().page.kv_cache_usage = Some(0.99);
        status
    };
    let all = slot(ITL, &[did("r1", 10, 14, decode), did("r2", 10, 14, decode)]);
    let pressure = "the KV caches of all replicas are full (99 %), 1.0 preemptions a second";
    names(
        &figures(all.clone(), vec![full("r1"), full("r2")]),
        &format!("misses in decode | {pressure} | shared by all 2"),
    );
    // Whose requests are put back is chance.
    let waits = (Stage::EngineQueue, 9.0, 9.0);
    let queued = slot(TTFT, &[did("r1", 10, 14, waits), did("r2", 10, 14, waits)]);
    let mut replicas = vec![full("r1"), full("r2")];
    replicas[1].signals.as_mut().unwrap().page.waiting = Some(5.0);
    names_only(&figures(queued, replicas), &format!("{pressure} | shared by all 2"), "stands out");
    // As long as it lasts, and then the queue is in the gateway.
    let held = (Stage::Admit, 9.0, 9.0);
    let held = slot(TTFT, &[did("r1", 10, 14, held), did("r2", 10, 14, held)]);
    names(
        &figures(held, vec![full("r1"), full("r2")]),
        &format!("misses in admit | {pressure} | shared by all 2"),
    );
    names(&figures(all.clone(), vec![full("r1"), ready("r2", 0.0)]), "the KV cache of r1 is full (99 %)");
    names_only(&figures(all, queues([0.0; 2])), "decode", "KV");
}

#[test]
fn transfers_that_the_engines_saw_fail_are_named_where_kv_is_late() {
    let late = (Stage::KvTransfer, 9.0, 2.0);
    let engine = |replica: &str, failed, expired| {
        let kv = KvCounters { transfers: 9.0, failed, expired, ..KvCounters::default() };
        counted(replica, EngineCounters { recent_kv: Some(kv), ..EngineCounters::default() })
    };
    let all = slot(TTFT, &[did("d1", 10, 14, late), did("d2", 10, 14, late)]);
    for (replicas, expected) in [
        (
            vec![engine("d1", 2.0, 0.0), engine("d2", 7.0, 1.0)],
            "7 KV transfers to d2 failed in the last minute",
        ),
        (vec![engine("d1", 0.0, 3.0), engine("d2", 0.0, 0.0)], "KV of 3 requests expired at d1"),
    ] {
        names(&figures(all.clone(), replicas), &format!("misses in kv_transfer | {expected}"));
    }
    let none = vec![engine("d1", 0.0, 0.0), ready("d2", 0.0)];
    names_only(&figures(all, none), "misses in kv_transfer", "KV");
}

#[test]
fn a_flood_is_named_with_its_tenant_or_class() {
    let queue = (Stage::EngineQueue, 8.0, 1.0);
    let mut now = slot(TTFT, &[did("r1", 10, 14, queue), did("r2", 12, 13, queue)]);
    tokens(&mut now.slot, Dimension::Tenant, &[("acme", 90_000), ("umbrella", 9_000), ("initech", 10_000)]);
    tokens(&mut now.slot, Dimension::Class, &[("long", 95_000), ("short", 14_000)]);
    let mut before = slot(TTFT, &[did("r1", 200, 0, queue)]);
    tokens(
        &mut before.slot,
        Dimension::Tenant,
        &[("acme", 90_000), ("umbrella", 80_000), ("initech", 90_000)],
    );
    tokens(&mut before.slot, Dimension::Class, &[("long", 60_000), ("short", 200_000)]);
    let mut figures = figures(now, queues([9.0, 8.0]));
    figures.before = (before.slot, 540.0);
    names(
        &figures,
        "engine_queue | tenant acme sends 83 % of the prompt tokens, 35 % before | long prompts are 87 %",
    );
}

#[test]
fn a_tenant_that_misses_alone_is_named_where_no_replica_is() {
    let late = (Stage::Relay, 8.0, 0.1);
    let window = |tenants: &[(&str, u32, u32)]| {
        let mut window = slot(TTFT, &[did("r1", 20, 14, late), did("r2", 20, 14, late)]);
        for (name, judged, missed) in tenants {
            let mut part = Part { requests: *judged, judged: *judged, ..Part::default() };
            part.missed_in[Stage::Relay] = *missed;
            window.slot.parts.insert((Dimension::Tenant, (*name).into()), part);
        }
        figures(window, queues([0.0; 2]))
    };
    let alone = window(&[("bulk", 28, 28), ("chat", 30, 0), ("search", 10, 0)]);
    names(&alone, "28 of 28 misses in relay | tenant bulk misses 100 % of its requests, the others 0 %");
    names_only(&window(&[("bulk", 34, 14), ("chat", 34, 14)]), "28 of 28", "tenant");
    names_only(&window(&[("bulk", 28, 28)]), "28 of 28", "tenant");
}

#[test]
fn two_requests_that_are_stuck_make_a_route_bad_and_two_that_were_late_do_not() {
    let relay = (Stage::Prefill, 5.0, 1.0);
    let late = slot(TTFT, &[did("r1", 20, 2, relay), did("r2", 20, 0, relay)]);
    let mut figures = figures(late, queues([0.0; 2]));
    assert_eq!(judge(&figures).status, Status::Ok);
    (figures.overdue, figures.stuck) = ((2, Duration::from_secs(4)), 2);
    assert_eq!(judge(&figures).status, Status::Bad);
}

#[test]
fn who_still_waits_is_counted_and_a_gateway_without_cpu_blames_itself_alone() {
    let relay = (Stage::Prefill, 5.0, 1.0);
    let late = slot(TTFT, &[did("r1", 20, 10, relay), did("r2", 20, 0, relay)]);
    let mut figures = figures(late, queues([0.0; 2]));
    figures.overdue = (12, Duration::from_secs(31));
    names(&figures, "12 requests are late and still wait, the oldest for 31.0 s");
    figures.lateness = Lateness { worst: Duration::from_millis(1200), late: 0.4 };
    names(&figures, "the gateway itself waits for CPU 40 % of the time, up to 1.2 s");
    assert!(!judge(&figures).sentence.contains("stands out"));
}

#[test]
fn a_gateway_without_cpu_names_only_a_replica_that_is_later_than_it_can_have_made_it() {
    let of = |worst, good, missed| {
        let prefill = (Stage::Prefill, 3.0, 0.07);
        let all = [did("r1", good, 0, prefill), did("r2", 0, 20, prefill), did("r3", good, missed, prefill)];
        let lateness = Lateness { worst: Duration::from_millis(worst), late: 0.12 };
        let replicas = vec![ready("r1", 0.0), ready("r2", 0.0), ejected("r3", "probe_timeout")];
        RouteFigures { lateness, ..figures(slot(TTFT, &all), replicas) }
    };
    let sick = "replica r2 stands out: has 3.0 s of prefill on average, the others 7";
    names_only(&of(700, 40, 0), &format!("the gateway itself waits for CPU 12 % of the time | {sick}"), "r3");
    // The gateway can have made it as late, others are late as well, or few are known not to be.
    for figures in [of(1600, 40, 0), of(700, 40, 5), of(700, 4, 0)] {
        names_only(&figures, "the gateway itself waits for CPU 12 % of the time", "stands out");
    }
}

#[test]
fn a_frozen_replica_is_named_when_it_is_ejected_and_before() {
    let relay = (Stage::Decode, 5.0, 1.0);
    let good = slot(TTFT, &[did("r1", 40, 0, relay)]);
    let mut figures = figures(good, vec![ready("r1", 0.0), ejected("r2", "silent: 3 streams")]);
    assert_eq!(judge(&figures).status, Status::Ok);
    names(&figures, "replica r2 stands out: is ejected: silent: 3 streams");
    figures.replicas[1] = ready("r2", 0.0);
    names_only(&figures, "", "stands out");
    figures.replicas[1].quiet = Duration::from_secs(14);
    figures.before.0 = slot(TTFT, &[did("r1", 40, 0, relay), did("r2", 40, 0, relay)]).slot;
    names(&figures, "replica r2 stands out: has 3 requests in flight and nothing came of it for 14.0 s");
    // After an idle minute that was all that it could have had of it.
    figures.replicas[1].quiet = Duration::from_secs(1);
    names_only(&figures, "", "stands out");
}

#[test]
fn a_replica_that_holds_one_request_and_answers_nothing_is_named_while_the_others_answer() {
    let relay = (Stage::Decode, 5.0, 1.0);
    let good = slot(TTFT, &[did("r1", 40, 0, relay), did("r2", 40, 0, relay)]);
    let mut figures = figures(good, queues([0.0; 2]));
    figures.stuck_at.insert("r2".into(), Duration::from_secs(14));
    figures.recent = slot(TTFT, &[did("r1", 8, 0, relay)]).slot;
    names_only(
        &figures,
        "replica r2 stands out: a request has waited there for 14.0 s, and nothing came",
        "r1",
    );
    figures.recent = slot(TTFT, &[did("r1", 8, 0, relay), did("r2", 8, 0, relay)]).slot;
    names_only(&figures, "within their SLO", "stands out");
    // They hang alike: what the other gave was before.
    figures.recent = slot(TTFT, &[did("r1", 8, 0, relay)]).slot;
    figures.stuck_at.insert("r1".into(), Duration::from_secs(8));
    names_only(&figures, "", "stands out");
}

#[test]
fn a_replica_that_comes_back_from_an_ejection_is_named_until_it_stays() {
    let good = slot(TTFT, &[did("r1", 40, 0, (Stage::Prefill, 0.4, 0.4))]);
    let back = |state, since| {
        let entered = ReplicaState::ALL.map(|of| u64::from(of == state));
        let life = LifeStatus { entered, since: Duration::from_secs(since), ..LifeStatus::default() };
        figures(good.clone(), vec![ready("r1", 0.0), ReplicaStatus { life, ..ready("r2", 0.0) }])
    };
    let ejected = back(ReplicaState::Ejected, 12);
    names(&ejected, "replica r2 stands out: was ejected (1 so far), and is back for 12 s");
    names_only(&back(ReplicaState::Ejected, 180), "", "r2");
    names_only(&back(ReplicaState::Unreachable, 12), "", "r2");
}

#[test]
fn a_slow_canary_is_named_with_revision_and_replica() {
    let decode = |slow, fast| (Stage::Decode, slow, fast);
    let all = [did("r1", 40, 0, decode(2.0, 2.0)), did("c1", 2, 9, decode(9.0, 8.0))];
    let mut now = slot(ITL, &all);
    for (name, of) in [("v1", "r1"), ("v2", "c1")] {
        let part = now.slot.parts[&(Dimension::Replica, of.into())].clone();
        now.slot.parts.insert((Dimension::Revision, name.into()), part);
    }
    let figures = figures(now, vec![ready("r1", 0.0), ready("c1", 0.0)]);
    names(
        &figures,
        "were slower per token | 9 of 9 misses in decode | replica c1 stands out | revision v2 stands out",
    );
}

#[test]
fn a_revision_is_named_only_if_it_is_slow_without_its_slowest_replica_too() {
    let judged = |others: (u32, u32, (Stage, f64, f64))| {
        let (good, missed, stage) = others;
        let sick = did("a1", 0, 20, (Stage::Prefill, 1.6, 1.6));
        let fine = did("b1", 60, 0, (Stage::Prefill, 0.07, 0.07));
        let all = [sick, did("a2", good, missed, stage), did("a3", good, missed, stage), fine];
        let mut now = slot(TTFT, &all);
        for (replica, revision) in [("a1", "v1"), ("a2", "v1"), ("a3", "v1"), ("b1", "v2")] {
            let part = now.slot.parts[&(Dimension::Replica, replica.into())].clone();
            now.slot.parts.entry((Dimension::Revision, revision.into())).or_default().merge(&part);
        }
        let of = |replica, revision: &str| ReplicaStatus { revision: revision.into(), ..ready(replica, 0.0) };
        figures(now, vec![of("a1", "v1"), of("a2", "v1"), of("a3", "v1"), of("b1", "v2")])
    };
    let sick = "replica a1 stands out: has 1.6 s of prefill on average, the others 7";
    names_only(&judged((20, 0, (Stage::Prefill, 0.07, 0.07))), sick, "revision");
    names(&judged((5, 15, (Stage::Prefill, 1.6, 1.0))), "revision v1 stands out: has 1.5 s of prefill");
}

/// Replicas of revisions that have pools of their own, and what they did; the same of each revision as a whole.
fn of_revisions(all: &[(&'static str, Did)]) -> RouteFigures {
    let replicas = all.iter().map(|(revision, did)| ReplicaStatus {
        pool: (*revision).into(),
        revision: (*revision).into(),
        ..ready(did.replica, 0.0)
    });
    let replicas = replicas.collect();
    let names: Vec<_> = all.iter().map(|(revision, did)| (*revision, did.replica)).collect();
    let dids: Vec<Did> = all.iter().map(|(_, did)| Did { ..*did }).collect();
    let mut now = slot(TTFT, &dids);
    for (revision, replica) in names {
        let part = part(&mut now.slot, replica);
        let Mean { sum, count } = part.stages[Stage::Prefill];
        // Each pool has learned its own speed; a prompt has 400 tokens.
        (part.over_expected, part.per_token) = (Mean { sum, count: sum }, Mean { sum, count: 400.0 * count });
        let part = part.clone();
        now.slot.parts.entry((Dimension::Revision, revision.into())).or_default().merge(&part);
    }
    figures(now, replicas)
}

#[test]
fn a_revision_that_fails_is_named_and_no_replica_of_it() {
    let stage = (Stage::Connect, 0.1, 0.1);
    let judged = |failures: [u32; 4]| {
        let of = |revision, name, failed| (revision, did(name, 40 - failed, failed, stage));
        let [a1, a2, b1, b2] = failures;
        let all = [of("v1", "a1", a1), of("v1", "a2", a2), of("v2", "b1", b1), of("v2", "b2", b2)];
        let mut figures = of_revisions(&all);
        let slot = &mut figures.minute.slot;
        for ((_, name), failed) in all.iter().map(|(revision, did)| (revision, did.replica)).zip(failures) {
            let one = part(slot, name);
            (one.failures, one.answers) = (failed, 40 - failed);
        }
        for (revision, failed) in [("v1", a1 + a2), ("v2", b1 + b2)] {
            let one = slot.parts.get_mut(&(Dimension::Revision, revision.into())).unwrap();
            (one.failures, one.answers) = (failed, 80 - failed);
        }
        figures.five = figures.minute.clone();
        figures
    };
    names_only(
        &judged([0, 0, 12, 8]),
        "revision v2 stands out: 20 of 20 failed attempts",
        "replica | shared",
    );
    names_only(&judged([0, 0, 20, 0]), "replica b1 stands out: 20 of 20 failed attempts", "revision");
    names_only(&judged([10, 9, 12, 8]), "shared by all 4 replicas", "stands out");
}

#[test]
fn a_slow_revision_in_a_pool_of_its_own_is_named_and_no_replica_of_it() {
    let fine = |name| ("v1", did(name, 40, 0, (Stage::Prefill, 0.08, 0.08)));
    let slow = |name, seconds| ("v2", did(name, 10, 20, (Stage::Prefill, seconds, 0.3)));
    let mut figures = of_revisions(&[fine("a1"), fine("a2"), slow("b1", 0.6), slow("b2", 0.8)]);
    names_only(
        &figures,
        "40 of 40 misses in prefill | revision v2 stands out: has 567 ms of prefill on average, the others 80 ms",
        "replica | shared",
    );
    // What it had more of to compute explains it.
    for revision in ["v1", "v2"] {
        let part = figures.minute.slot.parts.get_mut(&(Dimension::Revision, revision.into())).unwrap();
        part.per_token.count = part.per_token.sum / 0.0002;
    }
    names_only(&figures, "40 of 40 misses in prefill | shared by all 4 replicas", "stands out");
    // One that is slower than its like is named, and its revision is not.
    let all =
        [fine("a1"), fine("a2"), slow("b1", 2.6), ("v2", did("b2", 30, 0, (Stage::Prefill, 0.08, 0.08)))];
    let mut figures = of_revisions(&all);
    part(&mut figures.minute.slot, "b1").over_expected.count /= 6.0;
    names_only(
        &figures,
        "replica b1 stands out: has 1.8 s of prefill on average, the others 80 ms",
        "revision",
    );
}

#[test]
fn a_slow_revision_is_named_after_those_that_it_replaced_are_gone() {
    let fine = |name| ("v1", did(name, 300, 0, (Stage::Prefill, 0.08, 0.08)));
    let slow = |name| ("v2", did(name, 10, 20, (Stage::Prefill, 0.6, 0.3)));
    let mut figures = of_revisions(&[slow("b1"), slow("b2")]);
    names_only(&figures, "40 of 40 misses in prefill | shared by all 2 replicas", "stands out");
    figures.before.0 = of_revisions(&[fine("a1"), fine("a2")]).minute.slot;
    let named = "revision v2 stands out: has 500 ms of prefill on average, v1 before it 80 ms";
    names_only(&figures, named, "replica | shared");
    // One that was well for a while, and is not any more, is compared with what is beside it.
    figures.before.0 =
        of_revisions(&[fine("a1"), ("v2", did("b1", 30, 0, (Stage::Prefill, 0.08, 0.08)))]).minute.slot;
    names_only(&figures, "shared by all 2 replicas", "stands out");
}

#[test]
fn who_holds_the_places_for_which_others_wait_in_the_gateway_is_named() {
    let fine = |revision, name| (revision, did(name, 300, 0, (Stage::Prefill, 0.08, 0.08)));
    let slow = |revision, name| (revision, did(name, 10, 20, (Stage::Prefill, 1.2, 0.3)));
    let judged = |all: &[(&'static str, Did)], before: &[(&'static str, Did)]| {
        let mut figures = of_revisions(all);
        let slot = &mut figures.minute.slot;
        (slot.missed[TTFT], slot.missed_in[Stage::Admit]) = (slot.missed[TTFT] + 60, 60);
        figures.before.0 = of_revisions(before).minute.slot;
        figures
    };
    let both = [slow("v2", "b1"), slow("v2", "b2")];
    names_only(
        &judged(&both, &[fine("v1", "a1"), fine("v1", "a2")]),
        "60 of 100 misses in admit | revision v2 stands out: has 900 ms of prefill on average, v1 before it 80 ms",
        "replica | shared",
    );
    let mut one = judged(&[slow("v2", "b1"), fine("v2", "b2")], &[]);
    part(&mut one.minute.slot, "b1").over_expected.count /= 6.0;
    names_only(&one, "60 of 80 misses in admit | replica b1 stands out: has 900 ms of prefill", "shared");
    // All of them, without a deploy.
    names_only(
        &judged(&both, &[fine("v2", "b1"), fine("v2", "b2")]),
        "60 of 100 misses in admit | prefill takes 900 ms, 80 ms before | shared by all 2 replicas",
        "stands out",
    );
    names_only(&judged(&both, &both), "60 of 100 misses in admit | shared by all 2", "takes");
}

#[test]
fn refusals_and_slow_connections_are_told_by_their_stage() {
    let figures_of = |slot| figures(slot, queues([0.0; 2]));
    let refused_in = |stage: Stage| {
        let stage = (stage, 0.00001, 0.00001);
        figures_of(slot(REFUSED, &[did("r1", 20, 15, stage), did("r2", 20, 15, stage)]))
    };
    names(&refused_in(Stage::Admit), "30 of 70 requests were refused | 30 of 30 misses in admit");
    // They are back: what was refused meanwhile is not shared by them.
    names_only(&refused_in(Stage::Route), "30 of 30 misses found no replica ready", "shared");
    let connect = |slow| (Stage::Connect, slow, 0.001);
    let far = slot(TTFT, &[did("r1", 40, 0, connect(3.0)), did("r2", 1, 20, connect(3.0))]);
    names(
        &figures_of(far),
        "20 of 20 misses in connect | replica r2 stands out: has 2.9 s of connect on average",
    );
}

#[test]
fn decoding_that_is_slow_on_one_replica_is_told_by_its_tokens() {
    let decode = (Stage::Decode, 4.0, 2.0);
    let of = |all: &[Did; 2], tokens: f64| {
        let mut now = slot(ITL, all);
        for (name, itl) in [("r1", 0.02), ("r2", 0.11)] {
            part(&mut now.slot, name).itl.add_times(itl, tokens);
        }
        let mut itl = Histogram::default();
        itl.add(Duration::from_millis(110), 500);
        now.itl = itl.take();
        figures(now, queues([0.0; 2]))
    };
    // Routing sends it little: four misses of five are its own, of forty tokens each.
    names(
        &of(&[did("r1", 240, 1, decode), did("r2", 12, 4, decode)], 160.0),
        "replica r2 stands out: takes 110 ms",
    );
    let figures = of(&[did("r1", 30, 1, decode), did("r2", 12, 14, decode)], 500.0);
    names(&figures, "ITL p99 1 | replica r2 stands out: takes 110 ms for a token, the others 20 ms");
    // It has just begun: most of its tokens in the minute came before.
    let mut figures = of(&[did("r1", 190, 0, decode), did("r2", 50, 5, decode)], 1_800.0);
    part(&mut figures.minute.slot, "r2").itl.sum = 0.036 * 1_800.0;
    figures.five = figures.minute.clone();
    names(
        &figures,
        "5 of 5 misses in decode | replica r2 stands out: takes 36 ms for a token, the others 20",
    );
    // It does not differ clearly, and yet none shares it.
    part(&mut figures.minute.slot, "r2").itl.sum = 0.025 * 1_800.0;
    figures.five = figures.minute.clone();
    names_only(&figures, "5 of 5 misses in decode | all at replica r2", "stands out | shared");
    figures.overdue = (1, Duration::from_secs(3));
    names_only(&figures, "5 of 5 misses in decode", "all at replica");
}

#[test]
fn a_route_without_a_ready_replica_is_bad_whatever_its_figures() {
    let figures = figures(WindowFigures::default(), vec![ejected("r1", "connect_refused")]);
    assert_eq!(judge(&figures).status, Status::Bad);
    names(&figures, "chat: no replica is ready | replica r1 is ejected: connect_refused");
}

#[test]
fn replicas_that_are_out_for_one_reason_do_not_stand_out() {
    let late = "probe not answered in time, and nothing moves";
    let out = |n: usize, why: fn(usize) -> String| {
        (0..n).map(move |nth| ejected(&format!("node-{nth:03}"), &why(nth))).collect::<Vec<_>>()
    };
    let dead = |n| out(n, |_| "probe not answered in time, and nothing moves".to_owned());
    let sentence = |replicas| judge(&figures(WindowFigures::default(), replicas)).sentence;
    let all = format!("chat: no replica is ready; replica node-000 is ejected: {late} (59 others are too)");
    assert_eq!(sentence(dead(60)), all);
    let own = sentence(out(60, |nth| format!("node-{nth} broke off")));
    assert!(own.ends_with("replica node-000 is ejected: node-0 broke off (59 others are too)"), "{own}");
    let two = out(5, |nth| ["refused", "reset"][usize::from(nth > 3)].to_owned());
    let reasons =
        "replica node-000 is ejected: refused (3 others are too); replica node-004 is ejected: reset";
    assert_eq!(sentence(two), format!("chat: no replica is ready; {reasons}"));

    let among = |n| dead(n).into_iter().chain(queues([0.0; 41])).collect();
    let part = figures(WindowFigures::default(), among(23));
    names_only(&part, &format!("replica node-000 is ejected: {late} (22 others are too)"), "stands out");
    assert!(judge(&part).outliers.iter().all(|outlier| !outlier.stands_out));
    let few = figures(WindowFigures::default(), among(2));
    names(&few, "replica node-000 stands out: is ejected | replica node-001 stands out: is ejected");
}

#[test]
fn a_route_that_knows_no_replica_is_bad_unless_it_may_have_none() {
    let mut figures = figures(WindowFigures::default(), Vec::new());
    assert_eq!(judge(&figures).status, Status::Unknown, "it is scaled to zero");
    for (why, sentence) in [
        ("", "chat: no replica is known"),
        ("dns: no such name", "chat: no replica is known: dns: no such name"),
    ] {
        figures.absent = Some(why.to_owned());
        let verdict = judge(&figures);
        assert_eq!((verdict.status, &*verdict.sentence), (Status::Bad, sentence));
    }
}

#[test]
fn misses_are_counted_where_the_sentence_places_them() {
    let prefill = (Stage::Prefill, 9.0, 1.0);
    let all = [did("r1", 10, 2, prefill), did("r2", 2, 10, prefill)];
    let mut queued = figures(slot(TTFT, &all), queues([1.0, 26.0]));
    let minute = &mut queued.minute.slot;
    (minute.missed[TTFT], minute.missed_in[Stage::EngineQueue], minute.missed_in[Stage::Admit]) = (20, 3, 5);
    names(&queued, "15 of 20 misses in engine_queue (by the engines' own count)");
    let slow = |seconds| (Stage::EngineQueue, seconds, 0.3);
    let one = [did("r1", 2, 20, slow(2.3)), did("r2", 30, 0, slow(0.3))];
    let far = figures(slot(TTFT, &one), vec![way("r1", 2.1, 0.02), way("r2", 0.3, 0.25)]);
    names(&far, "20 of 20 misses in engine_other (network");
    let shown = |figures: &RouteFigures| {
        missed_in(&figures.minute.slot, judge(figures).cause.as_ref()).into_iter().collect::<Vec<_>>()
    };
    assert_eq!(shown(&queued), [("admit".to_owned(), 5), ("engine_queue".to_owned(), 15)]);
    assert_eq!(shown(&far), [("engine_other".to_owned(), 20)]);
}

#[test]
fn the_sentence_is_about_the_route_that_is_listed_first() {
    let prefill = (Stage::Prefill, 6.0, 0.4);
    let of = |name: &str, good, missed, replica: ReplicaStatus| {
        let window = slot(TTFT, &[did("r1", good, missed, prefill)]);
        let figures = RouteFigures { route: name.into(), ..figures(window, vec![replica]) };
        let verdict = judge(&figures);
        (figures, verdict)
    };
    let up = || ready("r1", 0.0);
    let mut all = [
        of("idle", 0, 0, up()),
        of("good", 50, 0, up()),
        of("rare", 1, 0, up()),
        of("few", 270, 14, up()),
        of("many", 50, 50, up()),
        of("down", 0, 0, ejected("r1", "refused")),
    ];
    all.sort_by(|(one, own), (other, its)| worst_first((one, own), (other, its)));
    let verdicts: Vec<_> = all.into_iter().map(|(_, verdict)| verdict).collect();
    let names: Vec<_> = verdicts.iter().map(|verdict| &*verdict.route).collect();
    assert_eq!(names, ["down", "many", "few", "rare", "good", "idle"]);
    let (_, sentence) = overall(&verdicts, Lateness::default());
    assert!(sentence.starts_with("down: no replica is ready"), "{sentence}");
    assert!(sentence.ends_with("Also bad: many, few"), "{sentence}");
}

#[test]
fn too_little_is_unknown_and_what_is_over_is_over() {
    let quiet = figures(WindowFigures::default(), vec![ready("r1", 0.0)]);
    assert_eq!(judge(&quiet).status, Status::Unknown);
    names(&quiet, "no requests in the last five minutes");
    let prefill = (Stage::Prefill, 6.0, 0.4);
    let few = figures(slot(TTFT, &[did("r1", 1, 3, prefill)]), vec![ready("r1", 0.0)]);
    assert_eq!(judge(&few).status, Status::Unknown);
    let mut over = figures(slot(TTFT, &[did("r1", 50, 20, prefill)]), vec![ready("r1", 0.0)]);
    over.minute = slot(TTFT, &[did("r1", 50, 0, prefill)]);
    assert_eq!(judge(&over).status, Status::Ok);
    names(&over, "50 of 70 requests within their SLO, no miss in the last minute");
}

#[test]
fn an_ordinary_day_names_nobody() {
    let all = [
        did("r1", 400, 1, (Stage::Prefill, 2.1, 0.4)),
        did("r2", 390, 2, (Stage::Prefill, 2.2, 0.45)),
        did("r3", 410, 1, (Stage::Prefill, 2.1, 0.38)),
    ];
    let figures = figures(slot(TTFT, &all), queues([0.0, 1.0, 0.0]));
    let verdict = judge(&figures);
    assert_eq!((verdict.status, verdict.outliers.len()), (Status::Ok, 0), "{}", verdict.sentence);
    let (status, sentence) = overall(std::slice::from_ref(&verdict), Lateness::default());
    assert_eq!((status, &*sentence), (Status::Ok, "the route keeps its SLO"));
    let lateness = Lateness { worst: Duration::from_millis(270), late: 0.9 };
    let (status, sentence) = overall(&[verdict], lateness);
    assert_eq!(status, Status::Ok);
    let expected = "the route keeps its SLO. the gateway itself waits for CPU 90 % of the time, up to 270 ms";
    assert_eq!(sentence, expected);
}

#[test]
fn a_replica_that_a_restarted_gateway_does_not_find_is_named() {
    for (since, is_named) in [(5, false), (25, true)] {
        let life = LifeStatus { since: Duration::from_secs(since), ..LifeStatus::default() };
        let dead = ReplicaStatus {
            state: ReplicaState::Starting,
            reason: "connect refused".into(),
            life,
            ..ready("r2", 0.0)
        };
        let all = [did("r1", 60, 0, (Stage::Prefill, 0.4, 0.4))];
        let mut figures = figures(slot(TTFT, &all), vec![ready("r1", 0.0), dead]);
        figures.uptime = Duration::from_secs(since + 1);
        let sentence = judge(&figures).sentence;
        assert_eq!(sentence.contains("r2 stands out: is starting: connect refused"), is_named, "{sentence}");
    }
}

#[test]
fn while_the_slo_is_kept_a_difference_in_time_names_nobody() {
    let queue = |slow| (Stage::EngineQueue, slow, 0.1);
    let all = [did("r1", 400, 2, queue(12.0)), did("r2", 400, 1, queue(1.2))];
    let figures = figures(slot(TTFT, &all), queues([0.0; 2]));
    let verdict = judge(&figures);
    assert_eq!((verdict.status, verdict.outliers.len()), (Status::Ok, 0), "{}", verdict.sentence);
}

#[test]
fn a_newcomer_that_loads_is_not_named_and_one_that_never_gets_ready_is() {
    let warming = |since: u64, was_ready: u64| {
        let mut life = LifeStatus { since: Duration::from_secs(since), ..LifeStatus::default() };
        let place = ReplicaState::ALL.iter().position(|state| *state == ReplicaState::Ready);
        life.entered[place.unwrap()] = was_ready;
        ReplicaStatus { state: ReplicaState::Warming, life, ..ready("r2", 0.0) }
    };
    for (status, is_named) in [(warming(60, 0), false), (warming(3600, 0), true), (warming(60, 1), true)] {
        let all = [did("r1", 60, 0, (Stage::Prefill, 0.4, 0.4))];
        let figures = figures(slot(TTFT, &all), vec![ready("r1", 0.0), status]);
        let sentence = judge(&figures).sentence;
        assert_eq!(sentence.contains("r2"), is_named, "{sentence}");
    }
}

#[test]
fn most_requests_that_are_turned_away_for_their_own_reasons_are_seen_though_no_slo_counts_them() {
    let did = |n| [did("r1", n, 0, (Stage::Prefill, 0.2, 0.2))];
    let mut now = slot(TTFT, &did(10));
    (now.slot.requests, now.slot.rejected) = (290, 280);
    let mut figures = figures(now, queues([0.0; 1]));
    let seen = |figures: &RouteFigures| {
        let verdict = judge(figures);
        let (status, all) = overall(std::slice::from_ref(&verdict), Lateness::default());
        (
            status,
            verdict.sentence.contains("280 of 290") && all.contains("280 of 290 requests ended with a 4xx"),
        )
    };
    assert_eq!(seen(&figures), (Status::Ok, false), "nothing is known of before");
    figures.before.0 = slot(TTFT, &did(100)).slot;
    assert_eq!(seen(&figures), (Status::Ok, true));
    figures.before.0.rejected = 60;
    assert_eq!(seen(&figures), (Status::Ok, false), "as ever");
}

#[test]
fn half_of_a_few_requests_are_enough_and_four_of_many_are_not() {
    let status = |good, missed| {
        judge(&figures(slot(TTFT, &[did("r1", good, missed, (Stage::Prefill, 0.2, 0.2))]), queues([0.0; 1])))
            .status
    };
    assert_eq!((status(1, 4), status(3, 3), status(0, 5)), (Status::Bad, Status::Bad, Status::Bad));
    assert_eq!((status(0, 4), status(400, 4), status(4, 2)), (Status::Unknown, Status::Ok, Status::Ok));
}
