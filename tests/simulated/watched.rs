//! The product's router in simulated time, watched from outside: what became of each request.

use std::collections::HashMap;
use std::time::Duration;

use tokenway_sim::engine::Gauges;
use tokenway_sim::replay::{
    Arrival, Bounds, Demand, Ended, Figures, Fleet, KvNetwork, RequestId, Router, Scenario, Trace,
    qwen_32b_on_two_h100, run,
};
use tokenway_sim::time::Stamp as SimStamp;

use tokenway::clock::Stamp;
use tokenway::config::{PolicyName, Slo, TtftBound};
use tokenway::routing::EngineLimits;
use tokenway::simulate::{ProductRouter, ReplayedRoute};
use tokenway::units::Tokens;

/// What became of one request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fate {
    pub(super) arrived: Stamp,
    pub(super) prompt: u64,
    pub(super) first_token: Option<Stamp>,
    pub(super) refused: Option<(Stamp, Duration)>,
}

impl Fate {
    pub(super) fn ttft(&self) -> Option<Duration> {
        Some(self.first_token?.since(self.arrived))
    }
}

/// What stands before the router.
pub(super) trait Gate {
    /// Whether the request goes on to the router.
    fn admits(&mut self, _request: &mut Arrival) -> bool {
        true
    }

    fn ended(&mut self, _request: RequestId) {}
}

/// Everything goes on.
pub(super) struct Open;

impl Gate for Open {}

/// A router and what became of each of its requests.
pub(super) struct Watched<R, G> {
    pub(super) router: R,
    gate: G,
    pub(super) fates: HashMap<RequestId, Fate>,
}

impl<R, G> Watched<R, G> {
    pub(super) fn new(router: R, gate: G) -> Self {
        Self { router, gate, fates: HashMap::new() }
    }
}

impl<R: Router, G: Gate> Router for Watched<R, G> {
    fn arrive(&mut self, mut request: Arrival, fleet: &mut dyn Fleet) {
        let fate = Fate { arrived: live(request.at), prompt: request.prompt, ..Fate::default() };
        self.fates.insert(request.id, fate);
        if self.gate.admits(&mut request) {
            self.router.arrive(request, fleet);
        }
    }

    fn first_token(&mut self, request: RequestId, at: SimStamp) {
        self.fates.entry(request).or_default().first_token = Some(live(at));
        self.router.first_token(request, at);
    }

    fn token(&mut self, request: RequestId, at: SimStamp) {
        self.router.token(request, at);
    }

    fn ended(&mut self, request: RequestId, end: &Ended) {
        self.gate.ended(request);
        self.router.ended(request, end);
    }

    fn scraped(&mut self, replica: usize, at: SimStamp, gauges: &Gauges) {
        self.router.scraped(replica, at, gauges);
    }

    fn reconsider(&mut self, fleet: &mut dyn Fleet) {
        self.router.reconsider(fleet);
    }

    fn next_tick(&self) -> Option<SimStamp> {
        self.router.next_tick()
    }

    fn tick(&mut self, fleet: &mut dyn Fleet) {
        self.router.tick(fleet);
    }
}

pub(super) fn live(at: SimStamp) -> Stamp {
    Stamp::from_nanos(at.as_nanos())
}

/// Poisson arrivals.
pub(super) fn poisson(per_second: f64, from_s: f64, to_s: f64, prompt: u64, seed: u64) -> Vec<(f64, u64)> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut at = from_s;
    let mut all = Vec::new();
    loop {
        at -= (1.0 - random.f64()).ln() / per_second;
        if at > to_s {
            return all;
        }
        all.push((at * 1000.0, prompt));
    }
}

pub(super) fn merged(mut streams: Vec<Vec<(f64, u64)>>) -> Vec<(f64, u64)> {
    let mut all: Vec<_> = streams.drain(..).flatten().collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all
}

/// Requests of (milliseconds, prompt tokens), each with so many tokens of output.
pub(super) fn trace(arrivals: &[(f64, u64)], output: u64) -> Trace {
    let line = |(ms, prompt): &(f64, u64)| {
        format!("{{\"timestamp\": {ms:.0}, \"input_length\": {prompt}, \"output_length\": {output}}}\n")
    };
    Trace::read(&arrivals.iter().map(line).collect::<String>()).unwrap()
}

/// Runs a trace behind the gate: what became of each request, in order of arrival.
pub(super) fn watch(
    trace: &Trace,
    scenario: &Scenario,
    router: ProductRouter,
    gate: impl Gate,
) -> (Vec<Fate>, Figures) {
    let mut watched = Watched::new(router, gate);
    let figures = run(trace, scenario, &mut watched);
    for (id, at, refusal) in watched.router.refusals() {
        watched.fates.entry(*id).or_default().refused = Some((*at, refusal.retry_after));
    }
    let mut fates: Vec<_> = watched.fates.into_values().collect();
    fates.sort_by_key(|fate| fate.arrived);
    (fates, figures)
}

/// The same on a route without `[route.queue]`, on four engines of the default kind; 60 tokens of output each.
pub(super) fn watch_four(arrivals: &[(f64, u64)], seed: u64, gate: impl Gate) -> (Vec<Fate>, Figures) {
    let (scenario, route) = four(seed);
    watch(&trace(arrivals, 60), &scenario, ProductRouter::new(&route, 4), gate)
}

/// Four engines of the default kind, and a route before them without `[route.queue]`.
pub(super) fn four(seed: u64) -> (Scenario, ReplayedRoute) {
    let (base, per_prompt_token) = (Duration::from_secs(2), Duration::from_micros(150));
    let scenario = Scenario {
        engine: qwen_32b_on_two_h100(),
        demand: Demand { replicas: 4, load: 1.0, seed, is_whole: true },
        slow: Vec::new(),
        scrape_interval: Duration::from_secs(1),
        bounds: Bounds { ttft: Some(base), ttft_per_prompt_token: per_prompt_token, ..Bounds::default() },
        network: KvNetwork::default(),
    };
    let route = ReplayedRoute {
        policy: PolicyName::Latency,
        slo: Slo { ttft: Some(TtftBound { base, per_prompt_token }), ..Slo::default() },
        queue: None,
        medium: Tokens(8192),
        limits: EngineLimits { scrape_interval: Duration::from_secs(1), batch_limit: None },
    };
    (scenario, route)
}
