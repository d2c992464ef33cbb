//! A gateway that restarts in front of engines that do not: it knows nothing, and their caches are warm.

use std::collections::HashMap;
use std::time::Duration;

use tokenway_sim::engine::{CostModel, Engine, EngineConfig, Gauges};
use tokenway_sim::replay::{
    Arrival, Bounds, Demand, Ended, Fleet, KvNetwork, RequestId, Router, Scenario, Trace,
    qwen_32b_on_two_h100, run,
};
use tokenway_sim::time::Stamp;

use tokenway::config::{PolicyName, Slo};
use tokenway::routing::EngineLimits;
use tokenway::simulate::{ProductRouter, ReplayedRoute};
use tokenway::units::Tokens;

/// Requests that arrive later go through the second router.
struct Restarting {
    routers: [ProductRouter; 2],
    at: Stamp,
    sent: HashMap<RequestId, Sent>,
    /// When they were sent, and actual over predicted TTFT, in the order of the first tokens.
    ratios: Vec<(Stamp, f64)>,
}

struct Sent {
    by: usize,
    at: Stamp,
    predicted: Option<Duration>,
}

/// Notes what a router sends.
struct Noting<'a> {
    fleet: &'a mut dyn Fleet,
    by: usize,
    sent: &'a mut HashMap<RequestId, Sent>,
}

impl Fleet for Noting<'_> {
    fn now(&self) -> Stamp {
        self.fleet.now()
    }

    fn send(&mut self, request: RequestId, replica: usize, predicted: Option<Duration>) {
        self.sent.insert(request, Sent { by: self.by, at: self.fleet.now(), predicted });
        self.fleet.send(request, replica, predicted);
    }

    fn engines(&self) -> &[Engine] {
        self.fleet.engines()
    }

    fn engine(&mut self, replica: usize) -> Option<&mut Engine> {
        self.fleet.engine(replica)
    }
}

impl Restarting {
    fn each(&mut self, fleet: &mut dyn Fleet, act: impl Fn(&mut ProductRouter, &mut dyn Fleet)) {
        for (by, router) in self.routers.iter_mut().enumerate() {
            act(router, &mut Noting { fleet, by, sent: &mut self.sent });
        }
    }
}

impl Router for Restarting {
    fn arrive(&mut self, request: Arrival, fleet: &mut dyn Fleet) {
        let by = usize::from(request.at >= self.at);
        self.routers[by].arrive(request, &mut Noting { fleet, by, sent: &mut self.sent });
    }

    fn first_token(&mut self, request: RequestId, at: Stamp) {
        let Some(sent) = self.sent.get(&request) else { return };
        self.routers[sent.by].first_token(request, at);
        if let Some(predicted) = sent.predicted {
            let actual = Duration::from_nanos(at.as_nanos() - sent.at.as_nanos());
            self.ratios.push((sent.at, actual.as_secs_f64() / predicted.as_secs_f64()));
        }
    }

    fn token(&mut self, request: RequestId, at: Stamp) {
        let Some(sent) = self.sent.get(&request) else { return };
        self.routers[sent.by].token(request, at);
    }

    fn ended(&mut self, request: RequestId, end: &Ended) {
        let Some(sent) = self.sent.remove(&request) else { return };
        self.routers[sent.by].ended(request, end);
    }

    fn scraped(&mut self, replica: usize, at: Stamp, gauges: &Gauges) {
        self.routers.iter_mut().for_each(|router| router.scraped(replica, at, gauges));
    }

    fn reconsider(&mut self, fleet: &mut dyn Fleet) {
        self.each(fleet, |router, fleet| router.reconsider(fleet));
    }

    fn next_tick(&self) -> Option<Stamp> {
        self.routers.iter().filter_map(Router::next_tick).min()
    }

    fn tick(&mut self, fleet: &mut dyn Fleet) {
        self.each(fleet, |router, fleet| {
            if router.next_tick().is_some_and(|at| at <= fleet.now()) {
                router.tick(fleet);
            }
        });
    }
}

#[test]
fn caches_that_a_restarted_gateway_does_not_know_of_teach_it_no_false_speed() {
    const CONVERSATIONS: u64 = 40;
    // A prompt of 8,192 tokens takes 0.8 s; the next turn finds it cached and takes a tenth of that.
    let cost = CostModel {
        step: Duration::from_millis(20),
        step_per_seq: Duration::ZERO,
        prefill_tokens_per_second: 10_000.0,
        attention_seconds: 0.0,
        context_seconds: 0.0,
        jitter: 0.0,
    };
    let line = |(n, conversation, blocks): (u64, u64, u64)| {
        let ids: Vec<u64> = (0..blocks).map(|block| 100 * conversation + block).collect();
        let tokens = 512 * blocks + 100;
        format!(
            "{{\"timestamp\": {}, \"input_length\": {tokens}, \"output_length\": 30, \"hash_ids\": {ids:?}}}\n",
            n * 2000
        )
    };
    let begin = (0..CONVERSATIONS).map(|n| (n, n, 16));
    let go_on = (0..CONVERSATIONS).map(|n| (CONVERSATIONS + n, n, 17));
    let others = (0..CONVERSATIONS).map(|n| (2 * CONVERSATIONS + n, 1000 + n, 16));
    let trace = Trace::read(&begin.chain(go_on).chain(others).map(line).collect::<String>()).unwrap();
    let scrape_interval = Duration::from_secs(1);
    let scenario = Scenario {
        engine: EngineConfig { cost, ..qwen_32b_on_two_h100() },
        demand: Demand { replicas: 1, load: 4.0, seed: 1, is_whole: false },
        slow: Vec::new(),
        scrape_interval,
        bounds: Bounds::default(),
        network: KvNetwork::default(),
    };
    let limits = EngineLimits { scrape_interval, batch_limit: None };
    let (policy, slo, medium) = (PolicyName::Latency, Slo::default(), Tokens(8192));
    let route = ReplayedRoute { policy, slo, queue: None, medium, limits };
    let mut router = Restarting {
        routers: [ProductRouter::new(&route, 1), ProductRouter::new(&route, 1)],
        at: Stamp::from_nanos(CONVERSATIONS * 2_000_000_000),
        sent: HashMap::new(),
        ratios: Vec::new(),
    };
    let _figures = run(&trace, &scenario, &mut router);
    let fresh_from = 2 * CONVERSATIONS * 2_000_000_000;
    let fresh: Vec<f64> =
        router.ratios.iter().filter(|(at, _)| at.as_nanos() >= fresh_from).map(|(_, ratio)| *ratio).collect();
    assert_eq!(fresh.len(), CONVERSATIONS as usize, "{:?}", router.ratios);
    assert!(fresh.iter().all(|ratio| (0.8..1.25).contains(ratio)), "actual over predicted: {fresh:?}");
}
