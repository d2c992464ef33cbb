//! The clockwork, with dispatchers that do one thing.

use std::time::Duration;

use crate::clock::Stamp;
use crate::config::{PolicyName, Queue, Slo, TtftBound};
use crate::routing::EngineSignals;
use crate::simulate::engine::{CostModel, EngineConfig};
use crate::units::Tokens;

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
    let ttft = TtftBound { base: Duration::from_secs(2), per_prompt_token: Duration::ZERO };
    Scenario {
        engine: engine(),
        // At this load a fleet of any size gets the trace at its own pace, once.
        demand: Demand { replicas, load: 4.0 / replicas as f64, seed: 1 },
        slow: Vec::new(),
        scrape_interval: Duration::from_millis(50),
        slo: Slo {
            ttft: Some(ttft),
            tpot: Some(Duration::from_millis(50)),
            e2e: None,
            itl: Default::default(),
        },
        admission: None,
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

/// Everything to one replica, held for so long first.
#[derive(Default)]
struct Script {
    replica: usize,
    hold: Duration,
    refuses: bool,
    asked: u32,
    first_tokens: u32,
    tokens: u32,
    ended: Vec<Ended>,
    scrapes: Vec<(Stamp, EngineSignals)>,
}

impl Dispatcher for Script {
    fn place(&mut self, request: &Incoming<'_>, now: Stamp, _: &Truth<'_>) -> Verdict {
        self.asked += 1;
        let until = request.arrived.after(self.hold);
        if self.refuses {
            Verdict::Refuse
        } else if now < until {
            Verdict::Hold { until }
        } else {
            let predicted_ttft = Some(Duration::from_millis(220));
            Verdict::Place(Placement { replica: self.replica, predicted_ttft })
        }
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

    fn scraped(&mut self, _: usize, at: Stamp, signals: &EngineSignals) {
        self.scrapes.push((at, *signals));
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
    assert!(near(figures.load_spread, 1.0));
    assert_eq!((script.first_tokens, script.tokens, script.ended.len()), (2, 20, 2));
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
fn a_held_request_is_asked_about_until_it_goes_and_its_wait_is_its_own() {
    let hold = Duration::from_millis(35);
    let mut script = Script { hold, ..Script::default() };
    let figures = run(&trace(&[(101, 2), (101, 2)]), &scenario(1), &mut script);
    assert!(near(figures.ttft_p50_s, 0.145), "{figures:?}");
    assert!(near(figures.held_share, 1.0) && near(figures.held_p50_s, 0.035));
    assert!((4..=12).contains(&script.asked), "{}", script.asked);
    assert_eq!(figures.decisions, u64::from(script.asked));
}

#[test]
fn what_is_held_for_ever_or_refused_or_too_long_is_never_good() {
    let hold = Duration::from_secs(86_400);
    let lost = run(&trace(&[(101, 2)]), &scenario(1), &mut Script { hold, ..Script::default() });
    assert!(near(lost.refused, 1.0) && near(lost.violations, 1.0), "{lost:?}");
    let refused = run(&trace(&[(101, 2)]), &scenario(1), &mut Script { refuses: true, ..Script::default() });
    assert!(near(refused.refused, 1.0) && near(refused.violations, 1.0), "{refused:?}");
    let mut script = Script::default();
    let failed = run(&trace(&[(1_000_000, 2)]), &scenario(1), &mut script);
    assert!(near(failed.failed, 1.0) && near(failed.violations, 1.0), "{failed:?}");
    assert_eq!(script.ended.len(), 1, "the dispatcher hears of it");
}

#[test]
fn replicas_are_scraped_at_the_interval() {
    let mut script = Script::default();
    let slow_scrape = Scenario { scrape_interval: Duration::from_secs(2), ..scenario(2) };
    let _ = run(&trace(&[(5_000, 2), (1, 1)]), &slow_scrape, &mut script);
    let times: Vec<u64> = script.scrapes.iter().map(|(at, _)| at.as_nanos() / 1_000_000).collect();
    assert!(times.chunks(2).enumerate().all(|(n, pair)| pair == [n as u64 * 2_000; 2]), "{times:?}");
    assert!(script.scrapes.iter().any(|(_, signals)| signals.running > 0.0));
    assert!(script.scrapes.iter().all(|(_, signals)| signals.block_tokens == Some(512)));
}

#[test]
fn the_products_policies_serve_a_trace_and_learn_from_it() {
    let prompts: Vec<(u64, u64)> = (0..60).map(|n| (300 + 40 * (n % 7), 5)).collect();
    for policy in PolicyName::ALL {
        let scenario = scenario(2);
        let mut gateway = Gateway::new(policy, 2, &scenario.engine);
        let figures = run(&trace(&prompts), &scenario, &mut gateway);
        assert_eq!((figures.requests, figures.refused), (60, 0.0), "{policy:?}");
        assert_eq!(figures.prediction.is_some(), policy == PolicyName::Latency, "{policy:?}");
    }
}

#[test]
fn a_queue_refuses_what_is_beyond_the_fleet_and_the_rest_is_in_time() {
    // Prompts of a second each, two in a second, on one replica: twice what it can do. The bound is two seconds.
    let prompts: Vec<String> = (0..120)
        .map(|n| format!("{{\"timestamp\": {}, \"input_length\": 1001, \"output_length\": 1}}\n", n * 500))
        .collect();
    let trace = Trace::read(&prompts.concat()).unwrap();
    let queue = |max_requests, max_wait| Queue {
        max_requests,
        max_bytes: 1 << 30,
        max_wait: Duration::from_secs(max_wait),
        isolate_long: true,
    };
    let ran = |queue: Option<Queue>| {
        let admission = queue.map(|queue| Admission { queue, medium: Tokens(8192) });
        let scenario = Scenario { admission, ..scenario(1) };
        let gateway = Gateway::new(PolicyName::Latency, 1, &scenario.engine);
        run(&trace, &scenario, &mut gateway.with_admission(admission))
    };
    let open = ran(None);
    assert_eq!(open.refused, 0.0, "without a queue nobody is refused");
    for queue in [queue(0, 5), queue(100, 1), queue(2, 60)] {
        let closed = ran(Some(queue));
        assert!(closed.refused > 0.2, "{queue:?}: {closed:?}");
        assert!(closed.goodput > open.goodput + 0.2, "{queue:?}: {} and {}", closed.goodput, open.goodput);
        assert_eq!(closed.failed, 0.0);
    }
}
