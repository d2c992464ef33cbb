//! Admission under ten times the load that a fleet can do, in simulated time.

use std::time::Duration;

use tokenway_sim::engine::{CostModel, EngineConfig};
use tokenway_sim::replay::{Arrival, Bounds, Demand, Figures, KvNetwork, Scenario, qwen_32b_on_two_h100};

use tokenway::admission::Share;
use tokenway::clock::Stamp;
use tokenway::config::{PolicyName, QueueLimits, Slo, TtftBound};
use tokenway::routing::EngineLimits;
use tokenway::simulate::{ProductRouter, ReplayedRoute};
use tokenway::units::Tokens;

use super::watched::{Fate, Gate, Open, merged, poisson, trace, watch, watch_four};

/// A fleet whose engines take 100 ms for a request of ten tokens, in so many slots.
#[derive(Clone, Copy)]
struct Case {
    slots: usize,
    is_told: bool,
    replicas: usize,
    max_requests: usize,
}

impl Case {
    /// Requests that the fleet can do in a second.
    fn capacity(self) -> f64 {
        10.0 * (self.slots * self.replicas) as f64
    }

    /// Runs requests of (milliseconds, prompt tokens).
    fn run(self, arrivals: &[(f64, u64)], share: fn(&Arrival) -> Share, batch: u64) -> Vec<Fate> {
        let cost = CostModel {
            step: Duration::from_millis(10),
            step_per_seq: Duration::ZERO,
            prefill_tokens_per_second: 1e6,
            attention_seconds: 0.0,
            context_seconds: 0.0,
            jitter: 0.3,
        };
        let engine = EngineConfig { cost, max_num_seqs: self.slots, ..qwen_32b_on_two_h100() };
        let base = Duration::from_millis(600);
        let ttft = Some(TtftBound { base, per_prompt_token: Duration::ZERO });
        let scenario = Scenario {
            engine,
            demand: Demand {
                replicas: self.replicas,
                load: 4.0 / self.replicas as f64,
                seed: 3,
                is_whole: false,
            },
            slow: Vec::new(),
            scrape_interval: Duration::from_secs(1),
            bounds: Bounds { ttft: Some(base), ..Bounds::default() },
            network: KvNetwork::default(),
        };
        let queue = QueueLimits {
            max_requests: self.max_requests,
            max_bytes: 1 << 28,
            max_wait: Duration::from_secs(5),
            isolate_long: true,
        };
        let batch_limit = self.is_told.then_some(self.slots as u64);
        let route = ReplayedRoute {
            policy: PolicyName::Latency,
            slo: Slo { ttft, ..Slo::default() },
            queue: Some(queue),
            medium: Tokens(8192),
            limits: EngineLimits { scrape_interval: Duration::from_secs(1), batch_limit },
        };
        let router = ProductRouter::new(&route, self.replicas).with_shares(share);
        watch(&trace(arrivals, 10), &scenario, router, Unbounded(batch)).0
    }
}

/// Requests with such a prompt have no bound.
struct Unbounded(u64);

impl Gate for Unbounded {
    fn admits(&mut self, request: &mut Arrival) -> bool {
        if request.prompt == self.0 {
            request.ttft_bound = None;
        }
        true
    }
}

fn everybody(_: &Arrival) -> Share {
    Share { tenant: "default".into(), weight: 1, priority: 0 }
}

fn share(part: usize, all: usize) -> f64 {
    part as f64 / all.max(1) as f64
}

const BOUND: Duration = Duration::from_millis(600);
const CHAT: u64 = 20;
const NO_BATCH: u64 = 0;

#[test]
fn what_is_admitted_at_ten_times_the_load_is_in_time_and_the_fleet_is_used() {
    for (slots, replicas, seconds) in [(2, 1, 20.0), (2, 3, 10.0), (64, 1, 1.5)] {
        for is_told in [true, false] {
            let case = Case { slots, is_told, replicas, max_requests: 1000 };
            let arrivals = poisson(10.0 * case.capacity(), 0.0, seconds, CHAT, 7);
            let fates = case.run(&arrivals, everybody, NO_BATCH);
            let answered: Vec<_> = fates.iter().filter_map(Fate::ttft).collect();
            let in_time = answered.iter().filter(|ttft| **ttft <= BOUND).count();
            let refused: Vec<_> = fates.iter().filter_map(|f| Some(f.refused?.0.since(f.arrived))).collect();
            let at_once = refused.iter().filter(|after| **after <= Duration::from_millis(10)).count();
            let goodput = in_time as f64 / seconds / case.capacity();
            let what = format!(
                "{slots} slots x {replicas}, told {is_told}: {in_time} of {} in time, goodput {goodput:.3}, {at_once} of \
                 {} refused at once",
                answered.len(),
                refused.len()
            );
            eprintln!("{what}");
            assert_eq!(answered.len() + refused.len(), fates.len(), "{what}");
            assert!(share(in_time, answered.len()) >= 0.95, "{what}");
            assert!(goodput >= 0.9, "{what}");
            assert!(share(at_once, refused.len()) >= 0.5, "{what}");
        }
    }
}

#[test]
fn who_comes_back_after_retry_after_is_mostly_admitted() {
    let case = Case { slots: 2, is_told: false, replicas: 2, max_requests: 1000 };
    // Five times the load for three seconds, after a calm minute that taught the pool.
    let calm = poisson(10.0, 0.0, 20.0, CHAT, 1);
    let burst = poisson(5.0 * case.capacity(), 20.0, 23.0, CHAT, 2);
    let arrivals = merged(vec![calm, burst]);
    let first = case.run(&arrivals, everybody, NO_BATCH);
    let refused: Vec<_> = first.iter().filter_map(|fate| fate.refused).collect();
    assert!(refused.len() > 200, "{}", refused.len());
    let back = |(at, after): &(Stamp, Duration)| (at.after(*after).as_nanos() as f64 / 1e6, CHAT + 1);
    let again = case.run(&merged(vec![arrivals, refused.iter().map(back).collect()]), everybody, NO_BATCH);
    let returned: Vec<_> = again.iter().filter(|fate| fate.prompt == CHAT + 1).collect();
    let in_time = returned.iter().filter(|fate| fate.ttft().is_some_and(|ttft| ttft <= BOUND)).count();
    eprintln!("{in_time} of {} came back and were answered in time", returned.len());
    assert!(share(in_time, returned.len()) > 0.7, "{in_time} of {}", returned.len());
}

/// Documents first, chats after.
fn documents_then_chats(documents: &[(f64, u64)], chats: &[(f64, u64)]) -> (Vec<Fate>, Figures) {
    let (fates, figures) = watch_four(&merged(vec![documents.to_vec(), chats.to_vec()]), 3, Open);
    assert!(fates.iter().all(|fate| fate.refused.is_none()));
    (fates, figures)
}

const DOCUMENT: u64 = 12_000;
const SHORT: u64 = 400;

#[test]
fn overload_without_a_queue_section_ends_with_its_cause_and_refuses_nobody() {
    let (mut chats_missed, mut documents_missed) = ((0, 0), (0, 0));
    // One seed says little: of eight, one in a hundred of the chats may be late, or one in six.
    for seed in (5..85).step_by(10) {
        // About 120 % of what four replicas can prefill.
        let documents = poisson(6.0, 0.0, 90.0, DOCUMENT, seed);
        let chats = poisson(40.0, 90.0, 130.0, SHORT, seed + 1);
        let (fates, _) = documents_then_chats(&documents, &chats);
        assert!(fates.iter().all(|fate| fate.first_token.is_some()), "all are answered");
        let bound = |prompt: u64| Duration::from_micros(2_000_000 + 150 * prompt);
        let is_late = |fate: &&Fate| fate.ttft().is_none_or(|ttft| ttft > bound(fate.prompt));
        let count = |total: &mut (usize, usize), from: u64, prompt| {
            let from = from * 1_000_000_000;
            let of = fates.iter().filter(|fate| fate.prompt == prompt && fate.arrived.as_nanos() >= from);
            *total = (total.0 + of.clone().filter(is_late).count(), total.1 + of.count());
        };
        count(&mut documents_missed, 0, DOCUMENT);
        count(&mut chats_missed, 100, SHORT);
    }
    let what = format!("late: {documents_missed:?} documents, {chats_missed:?} chats after ten seconds");
    eprintln!("{what}");
    assert!(share(chats_missed.0, chats_missed.1) < 0.1, "{what}");
    assert!(share(documents_missed.0, documents_missed.1) < 0.35, "{what}");
}

#[test]
fn nobody_waits_in_the_gateway_where_nothing_overflows() {
    let documents = poisson(1.5, 0.0, 30.0, DOCUMENT, 5);
    let (fates, figures) = documents_then_chats(&documents, &poisson(20.0, 0.0, 30.0, SHORT, 6));
    assert!(fates.iter().all(|fate| fate.first_token.is_some()), "all are answered");
    assert!(figures.held_share < 0.01, "{figures:?}");
}

const FLOOD: u64 = 4_000;

fn flood_and_chats(request: &Arrival) -> Share {
    let tenant = if request.prompt == FLOOD { "flood" } else { "chats" };
    Share { tenant: tenant.into(), weight: 1, priority: 0 }
}

#[test]
fn a_tenant_that_floods_long_prompts_does_not_starve_anothers_chats() {
    let case = Case { slots: 4, is_told: false, replicas: 2, max_requests: 20 };
    let chats = poisson(0.3 * case.capacity(), 0.0, 20.0, CHAT, 1);
    let flood = poisson(5.0 * case.capacity(), 2.0, 20.0, FLOOD, 2);
    let fates = case.run(&merged(vec![chats, flood]), flood_and_chats, NO_BATCH);
    let of = |prompt| fates.iter().filter(move |fate| fate.prompt == prompt);
    let in_time = |prompt| of(prompt).filter(|f| f.ttft().is_some_and(|ttft| ttft <= BOUND)).count();
    let (chats, floods) = (of(CHAT).count(), of(FLOOD).count());
    let what = format!("{} of {chats} chats and {} of {floods} long prompts", in_time(CHAT), in_time(FLOOD));
    eprintln!("{what}");
    assert!(share(in_time(CHAT), chats) >= 0.95, "{what}");
    assert!(in_time(FLOOD) as f64 > 0.4 * case.capacity() * 18.0, "the other half is not left idle: {what}");
}

#[test]
fn batch_waits_behind_what_has_a_bound_and_takes_what_is_left() {
    const BATCH: u64 = 50;
    let case = Case { slots: 4, is_told: false, replicas: 2, max_requests: 1000 };
    let interactive = poisson(0.6 * case.capacity(), 0.0, 20.0, CHAT, 1);
    let batch = poisson(2.0 * case.capacity(), 2.0, 20.0, BATCH, 2);
    let fates = case.run(&merged(vec![interactive, batch]), everybody, BATCH);
    let of = |prompt| fates.iter().filter(move |fate| fate.prompt == prompt);
    let in_time = of(CHAT).filter(|f| f.ttft().is_some_and(|ttft| ttft <= BOUND)).count();
    let done = of(BATCH).filter(|fate| fate.first_token.is_some()).count();
    let what = format!(
        "{in_time} of {} interactive in time, {done} of {} batch",
        of(CHAT).count(),
        of(BATCH).count()
    );
    eprintln!("{what}");
    assert!(share(in_time, of(CHAT).count()) >= 0.98, "{what}");
    assert!(done as f64 > 0.3 * case.capacity() * 18.0, "{what}");
}

const LIGHT: u64 = CHAT + 1;

fn three_to_one(request: &Arrival) -> Share {
    let (tenant, weight) = if request.prompt == LIGHT { ("light", 1) } else { ("heavy", 3) };
    Share { tenant: tenant.into(), weight, priority: 0 }
}

#[test]
fn weights_hold_where_the_queue_keeps_emptying() {
    // One request at a time and four fifths of the load: a handful wait, then none.
    let case = Case { slots: 1, is_told: true, replicas: 1, max_requests: 1000 };
    let (mut heavy, mut light) = (Duration::ZERO, Duration::ZERO);
    for seed in 1..=5 {
        let of = |prompt, seed| poisson(0.4 * case.capacity(), 0.0, 100.0, prompt, seed);
        let fates =
            case.run(&merged(vec![of(CHAT, 2 * seed), of(LIGHT, 2 * seed + 1)]), three_to_one, NO_BATCH);
        let mean = |prompt| {
            let of = fates.iter().filter(|fate| fate.prompt == prompt);
            let ttfts: Vec<_> = of.filter_map(Fate::ttft).collect();
            ttfts.iter().sum::<Duration>() / u32::try_from(ttfts.len()).unwrap()
        };
        (heavy, light) = (heavy + mean(CHAT), light + mean(LIGHT));
    }
    let ratio = light.as_secs_f64() / heavy.as_secs_f64();
    eprintln!("the light tenant waits {ratio:.2} times as long as one of three times its weight");
    assert!(ratio > 1.6, "{ratio}");
}

#[test]
fn short_prompts_below_capacity_keep_the_steps_of_slow_engines_filled() {
    // A 70B model on two H100: whatever waits when a step begins shares its 25 ms.
    let cost = CostModel {
        step: Duration::from_millis(25),
        prefill_tokens_per_second: 5_882.0,
        ..qwen_32b_on_two_h100().cost
    };
    let base = Duration::from_millis(500);
    let scenario = Scenario {
        engine: EngineConfig { cost, ..qwen_32b_on_two_h100() },
        demand: Demand { replicas: 2, load: 1.0, seed: 3, is_whole: true },
        slow: Vec::new(),
        scrape_interval: Duration::from_secs(1),
        bounds: Bounds { ttft: Some(base), ..Bounds::default() },
        network: KvNetwork::default(),
    };
    let route = ReplayedRoute {
        policy: PolicyName::Latency,
        slo: Slo { ttft: Some(TtftBound { base, per_prompt_token: Duration::ZERO }), ..Slo::default() },
        queue: None,
        medium: Tokens(8192),
        limits: EngineLimits { scrape_interval: Duration::from_secs(1), batch_limit: None },
    };
    let arrivals = poisson(165.0, 0.0, 20.0, 50, 7);
    let router = ProductRouter::new(&route, 2);
    let (fates, _) = watch(&trace(&arrivals, 1), &scenario, router, Open);
    let in_time = fates.iter().filter_map(Fate::ttft).filter(|ttft| *ttft <= base).count();
    assert!(share(in_time, fates.len()) >= 0.97, "{in_time} of {} in time", fates.len());
}
