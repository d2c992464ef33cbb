//! The event loop, with routers that do one thing.

use std::time::Duration;

use crate::engine::{CostModel, EngineConfig, Gauges};
use crate::kv_transfer::KvTransfer;
use crate::time::Stamp;

use super::*;

/// A token a millisecond, ten milliseconds a step.
fn engine() -> EngineConfig {
    EngineConfig {
        cost: CostModel {
            step: Duration::from_millis(10),
            step_per_seq: Duration::ZERO,
            prefill_tokens_per_second: 1_000.0,
            attention_seconds: 0.0,
            context_seconds: 0.0,
            jitter: 0.0,
        },
        ..qwen_32b_on_two_h100()
    }
}

fn scenario(replicas: usize) -> Scenario {
    Scenario {
        engine: engine(),
        // At this load a fleet of any size gets the trace at its own pace, once.
        demand: Demand { replicas, load: 4.0 / replicas as f64, seed: 1, is_whole: false },
        slow: Vec::new(),
        scrape_interval: Duration::from_millis(50),
        bounds: Bounds {
            ttft: Some(Duration::from_secs(2)),
            tpot: Some(Duration::from_millis(50)),
            ..Bounds::default()
        },
        network: KvNetwork::default(),
    }
}

/// Requests of `prompt` and `output` tokens, a minute apart; the last one is the trace's end.
fn trace(prompts: &[(u64, u64)]) -> Trace {
    let line = |(at, (prompt, output)): (usize, &(u64, u64))| {
        format!(
            "{{\"timestamp\": {}, \"input_length\": {prompt}, \"output_length\": {output}}}\n",
            at * 60_000
        )
    };
    Trace::read(&prompts.iter().enumerate().map(line).collect::<String>()).unwrap()
}

/// Sends every request to replica 0, after `hold`.
#[derive(Default)]
struct Script {
    hold: Duration,
    refuses: bool,
    held: Vec<Arrival>,
    next_tick: Stamp,
    asked: u32,
    first_tokens: u32,
    tokens: u32,
    reconsidered: u32,
    ended: Vec<Ended>,
    scrapes: Vec<(Stamp, Gauges)>,
}

impl Script {
    fn place(&mut self, request: Arrival, fleet: &mut dyn Fleet) {
        self.asked += 1;
        if self.refuses {
            return;
        }
        if fleet.now() < request.at.after(self.hold) {
            self.next_tick = fleet.now().after(Duration::from_millis(10)).min(request.at.after(self.hold));
            self.held.push(request);
        } else {
            fleet.send(request.id, 0, Some(Duration::from_millis(220)));
        }
    }
}

impl Router for Script {
    fn arrive(&mut self, request: Arrival, fleet: &mut dyn Fleet) {
        self.place(request, fleet);
    }

    fn reconsider(&mut self, _: &mut dyn Fleet) {
        self.reconsidered += 1;
    }

    fn next_tick(&self) -> Option<Stamp> {
        (!self.held.is_empty()).then_some(self.next_tick)
    }

    fn tick(&mut self, fleet: &mut dyn Fleet) {
        for request in std::mem::take(&mut self.held) {
            self.place(request, fleet);
        }
    }

    fn decisions(&self) -> Option<u64> {
        Some(u64::from(self.asked))
    }

    fn first_token(&mut self, _: RequestId, _: Stamp) {
        self.first_tokens += 1;
    }

    fn token(&mut self, _: RequestId, _: Stamp) {
        self.tokens += 1;
    }

    fn ended(&mut self, _: RequestId, end: &Ended) {
        self.ended.push(*end);
    }

    fn scraped(&mut self, _: usize, at: Stamp, gauges: &Gauges) {
        self.scrapes.push((at, *gauges));
    }
}

fn near(value: f64, expected: f64) -> bool {
    (value - expected).abs() < 1e-6
}

#[test]
fn an_idle_engine_answers_as_its_prices_say() {
    let mut script = Script::default();
    let figures = run(&trace(&[(101, 11), (101, 11)]), &scenario(1), &mut script);
    assert!(near(figures.ttft_p50_s, 0.110), "{figures:?}");
    assert!(near(figures.tpot_p99_s, 0.010));
    assert_eq!((figures.requests, figures.decisions), (2, 2));
    assert_eq!((figures.violations, figures.goodput), (0.0, 1.0));
    assert!(
        near(figures.load_spread, 1.0)
            && near(figures.requests_spread, 1.0)
            && near(figures.tokens_spread, 1.0)
    );
    assert!(near(figures.tpot_p90_s, 0.010));
    assert_eq!((script.first_tokens, script.tokens, script.ended.len()), (2, 20, 2));
    assert_eq!(script.reconsidered, 4, "after first tokens and ends");
    assert!(script.ended.iter().all(|end| end.output == 11));
    let prediction = figures.prediction.unwrap();
    assert!(near(prediction.error_p50, 1.0) && near(prediction.ratio_p50, 2.0), "{prediction:?}");
}

#[test]
fn bounds_are_judged_one_by_one() {
    // 2.5 s to the first token; a neighbour's prompt stalls nobody a minute later.
    let late = run(&trace(&[(2_500, 3), (50, 3)]), &scenario(1), &mut Script::default());
    assert!(near(late.violations, 0.5) && near(late.ttft_violations, 0.5), "{late:?}");
    assert_eq!(late.tpot_violations, 0.0);
    let slow = Scenario { slow: vec![(0, 6.0)], ..scenario(1) };
    let stalled = run(&trace(&[(50, 3), (50, 3)]), &slow, &mut Script::default());
    assert!(near(stalled.tpot_violations, 1.0) && near(stalled.tpot_p50_s, 0.060), "{stalled:?}");
}

#[test]
fn a_router_is_ticked_as_it_asks_and_a_wait_counts_for_its_own_request() {
    let hold = Duration::from_millis(35);
    let mut script = Script { hold, ..Script::default() };
    let figures = run(&trace(&[(101, 2), (101, 2)]), &scenario(1), &mut script);
    assert!(near(figures.ttft_p50_s, 0.145), "{figures:?}");
    assert!(near(figures.held_share, 1.0) && near(figures.held_p50_s, 0.035));
    assert!((4..=12).contains(&script.asked), "{}", script.asked);
    assert_eq!(figures.decisions, u64::from(script.asked));
}

#[test]
fn what_is_held_forever_or_refused_or_too_long_is_never_good() {
    let hold = Duration::from_secs(86_400);
    let lost = run(&trace(&[(101, 2)]), &scenario(1), &mut Script { hold, ..Script::default() });
    assert!(near(lost.refused, 1.0) && near(lost.violations, 1.0), "{lost:?}");
    let refused = run(&trace(&[(101, 2)]), &scenario(1), &mut Script { refuses: true, ..Script::default() });
    assert!(near(refused.refused, 1.0) && near(refused.violations, 1.0), "{refused:?}");
    let mut script = Script::default();
    let failed = run(&trace(&[(1_000_000, 2)]), &scenario(1), &mut script);
    assert!(near(failed.failed, 1.0) && near(failed.violations, 1.0), "{failed:?}");
    assert_eq!(script.ended.len(), 1, "the router hears of it");
}

/// Has every prompt computed by replica 0 and decoded by replica 1; what is lost, by replica 1 alone.
#[derive(Default)]
struct Apart {
    prefilled: Vec<Ended>,
    ended: Vec<Ended>,
    lost: u32,
}

impl Router for Apart {
    fn arrive(&mut self, request: Arrival, fleet: &mut dyn Fleet) {
        fleet.send_apart(request.id, Legs { prefill: 0, decode: 1 }, None);
    }

    fn prefilled(&mut self, _: RequestId, end: &Ended) {
        self.prefilled.push(*end);
    }

    fn transfer_failed(&mut self, request: RequestId, fleet: &mut dyn Fleet) {
        self.lost += 1;
        fleet.send(request, 1, None);
    }

    fn ended(&mut self, _: RequestId, end: &Ended) {
        self.ended.push(*end);
    }
}

#[test]
fn a_prompt_computed_apart_costs_its_prefill_a_transfer_and_a_step() {
    let ms = Duration::from_millis;
    let times = KvTransfer { handshake: ms(500), base: ms(20), per_token: ms(1), lost_after: ms(700) };
    let scenario = |lost| Scenario { network: KvNetwork { times, lost }, ..scenario(2) };
    let mut apart = Apart::default();
    let figures = run(&trace(&[(1_101, 11), (1_101, 11)]), &scenario(0.0), &mut apart);
    // 1.1 s of prefill and a step, 500 ms to meet, 20 ms and 1.101 s to move, a step; then no one has to meet.
    let (first, second) = (2.741, 2.241);
    let between = |share: f64| second + share * (first - second);
    assert!(near(figures.ttft_p99_s, between(0.99)) && near(figures.ttft_p50_s, between(0.5)), "{figures:?}");
    assert!(near(figures.tpot_p99_s, 0.010) && near(figures.apart, 1.0));
    assert_eq!((apart.prefilled.len(), apart.ended.len(), apart.lost), (2, 2, 0));
    assert!(apart.prefilled.iter().all(|end| (end.output, end.cached) == (1, 0)));
    let mut apart = Apart::default();
    let figures = run(&trace(&[(101, 3)]), &scenario(1.0), &mut apart);
    // 110 ms, 700 ms until it is known, 110 ms at the other one.
    assert!(near(figures.ttft_p50_s, 0.920) && near(figures.apart, 0.0), "{figures:?}");
    assert_eq!((apart.lost, figures.failed, figures.refused), (1, 0.0, 0.0));
}

#[test]
fn gaps_are_bound_by_the_hundredth_of_a_request() {
    let bounds = |itl_p99| Bounds { itl_p99: Some(itl_p99), ..Bounds::default() };
    // A prompt of a second comes among the tokens of a short answer and of a long one.
    let requests: String = [(0, 11, 90), (0, 11, 300), (500, 1_001, 2)]
        .map(|(at, prompt, output)| {
            format!("{{\"timestamp\": {at}, \"input_length\": {prompt}, \"output_length\": {output}}}\n")
        })
        .concat();
    let trace = Trace::read(&requests).unwrap();
    for (bound, missed) in [(Duration::from_millis(100), 1.0 / 3.0), (Duration::from_secs(2), 0.0)] {
        let scenario = Scenario { bounds: bounds(bound), ..scenario(1) };
        let figures = run(&trace, &scenario, &mut Script::default());
        assert!(near(figures.itl_violations, missed) && near(figures.violations, missed), "{figures:?}");
    }
}

#[test]
fn replicas_are_scraped_at_the_interval() {
    let mut script = Script::default();
    let slow_scrape = Scenario { scrape_interval: Duration::from_secs(2), ..scenario(2) };
    let _ = run(&trace(&[(5_000, 2), (1, 1)]), &slow_scrape, &mut script);
    let times: Vec<u64> = script.scrapes.iter().map(|(at, _)| at.as_nanos() / 1_000_000).collect();
    assert!(times.chunks(2).enumerate().all(|(n, pair)| pair == [n as u64 * 2_000; 2]), "{times:?}");
    assert!(script.scrapes.iter().any(|(_, gauges)| gauges.running > 0));
    assert!(script.scrapes.iter().all(|(_, gauges)| gauges.block_size == 512));
}
