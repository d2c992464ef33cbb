use tokenway_sim::engine::{CostModel, EngineConfig};
use tokenway_sim::replay::{Bounds, Demand, Figures, KvNetwork, Scenario, Trace, qwen_32b_on_two_h100, run};

use super::*;
use crate::config::{ItlBounds, PrefillWhen, TtftBound};

/// 10 ms per step.
fn engine(prefill_tokens_per_second: f64) -> EngineConfig {
    let cost = CostModel {
        step: Duration::from_millis(10),
        step_per_seq: Duration::ZERO,
        prefill_tokens_per_second,
        attention_seconds: 0.0,
        context_seconds: 0.0,
        jitter: 0.0,
    };
    EngineConfig { cost, ..qwen_32b_on_two_h100() }
}

/// Runs a trace at 1 ms per prompt token and 10 ms per step, with bounds TTFT 2 s and TPOT 50 ms.
fn ran(trace: &Trace, policy: PolicyName, queue: Option<QueueLimits>, replicas: usize) -> Figures {
    let engine = engine(1_000.0);
    let (ttft, tpot) = (Duration::from_secs(2), Some(Duration::from_millis(50)));
    let scenario = Scenario {
        engine,
        // At this load a fleet of any size gets the trace at its own pace, once.
        demand: Demand { replicas, load: 4.0 / replicas as f64, seed: 1, is_whole: false },
        slow: Vec::new(),
        scrape_interval: Duration::from_millis(50),
        bounds: Bounds { ttft: Some(ttft), tpot, ..Bounds::default() },
        network: KvNetwork::default(),
    };
    let bound = TtftBound { base: ttft, per_prompt_token: Duration::ZERO };
    let slo = Slo { ttft: Some(bound), tpot, ..Slo::default() };
    let limits = EngineLimits { scrape_interval: scenario.scrape_interval, batch_limit: None };
    let route = ReplayedRoute { policy, slo, queue, medium: Tokens(8192), limits };
    run(trace, &scenario, &mut ProductRouter::new(&route, replicas))
}

/// Requests of `prompt` and `output` tokens at `ms`.
fn trace(requests: impl Iterator<Item = (u64, u64, u64)>) -> Trace {
    let line = |(ms, prompt, output)| {
        format!("{{\"timestamp\": {ms}, \"input_length\": {prompt}, \"output_length\": {output}}}\n")
    };
    Trace::read(&requests.map(line).collect::<String>()).unwrap()
}

#[test]
fn the_products_policies_serve_a_trace_and_learn_from_it() {
    let trace = trace((0..60).map(|n| (n * 60_000, 300 + 40 * (n % 7), 5)));
    for policy in PolicyName::ALL {
        let figures = ran(&trace, policy, None, 2);
        assert_eq!((figures.requests, figures.refused), (60, 0.0), "{policy:?}");
        assert_eq!(figures.prediction.is_some(), policy == PolicyName::Latency, "{policy:?}");
    }
}

/// A document every two seconds beside twenty chats a second, with three decoding replicas and one that computes prompts.
fn apart(when: PrefillWhen, lost: f64) -> Figures {
    let requests = (0..2_400).map(|n| (n * 50, if n % 40 == 7 { 2_500 } else { 60 }, 40));
    let engine = engine(2_000.0);
    let bound = Duration::from_millis(200);
    let network = KvNetwork { lost, ..KvNetwork::default() };
    let scenario = Scenario {
        engine,
        demand: Demand { replicas: 4, load: 1.0, seed: 1, is_whole: false },
        slow: Vec::new(),
        scrape_interval: Duration::from_millis(50),
        bounds: Bounds { itl_p99: Some(bound), ..Bounds::default() },
        network,
    };
    let limits = EngineLimits { scrape_interval: scenario.scrape_interval, batch_limit: None };
    let slo = Slo { itl: ItlBounds::new([None, None, None, Some(bound)]), ..Slo::default() };
    let (policy, medium) = (PolicyName::Latency, Tokens(8192));
    let route = ReplayedRoute { policy, slo, queue: None, medium, limits };
    let prefill = ReplayedPrefill { when, min_uncached_tokens: 0 };
    let mut router = ProductRouter::new(&route, 3).with_prefill(prefill, 1);
    run(&trace(requests), &scenario, &mut router)
}

#[test]
fn documents_are_computed_apart_and_stall_no_chats() {
    let [never, always, auto] =
        [PrefillWhen::Never, PrefillWhen::Always, PrefillWhen::Auto].map(|when| apart(when, 0.0));
    assert_eq!((never.apart, always.apart), (0.0, 1.0));
    // One in forty is a document.
    assert!((0.005..0.1).contains(&auto.apart), "{auto:?}");
    assert!(auto.itl_violations < 0.5 * never.itl_violations, "{auto:?} {never:?}");
    assert!(auto.ttft_p50_s < always.ttft_p50_s, "chats stay where they are: {auto:?} {always:?}");
}

#[test]
fn requests_whose_kv_is_lost_are_answered_all_the_same() {
    let figures = apart(PrefillWhen::Always, 0.2);
    assert_eq!((figures.failed, figures.refused, figures.requests), (0.0, 0.0, 2_400), "{figures:?}");
    assert!(figures.apart < 1.0);
}

#[test]
fn a_queue_refuses_what_is_beyond_the_fleet_and_the_rest_is_in_time() {
    // 1 s prompts at 2/s on one replica: an offered load of twice its capacity. TTFT bound 2 s.
    let trace = trace((0..120).map(|n| (n * 500, 1_001, 1)));
    let queue = |max_requests, max_wait| QueueLimits {
        max_requests,
        max_bytes: 1 << 30,
        max_wait: Duration::from_secs(max_wait),
        isolate_long: true,
    };
    let with = |queue: Option<QueueLimits>| ran(&trace, PolicyName::Latency, queue, 1);
    // At most half of them can be in time.
    let open = with(None);
    assert_eq!(open.refused, 0.0, "without a queue no request is refused");
    assert!(open.goodput > 0.4, "those that can be in time go first: {open:?}");
    for queue in [queue(0, 5), queue(100, 1), queue(2, 60)] {
        let closed = with(Some(queue));
        assert!(closed.refused > 0.2 && closed.goodput > 0.3, "{queue:?}: {closed:?}");
        assert_eq!(closed.failed, 0.0);
    }
}
