//! What one tenant's flood costs another, in simulated time.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use tokenway_sim::engine::Gauges;
use tokenway_sim::replay::{
    Arrival, Bounds, Demand as Load, Ended, Fleet, KvNetwork, RequestId, Router, Scenario, Trace,
    qwen_32b_on_two_h100, run,
};
use tokenway_sim::time::Stamp as SimStamp;

use tokenway::admission::{Demand, TenantLimiter, TenantPermit};
use tokenway::clock::Stamp;
use tokenway::config::{PolicyName, Slo, Tenant, TenantLimits, TtftBound};
use tokenway::routing::EngineLimits;
use tokenway::simulate::{ProductRouter, ReplayedRoute};
use tokenway::units::Tokens;

use super::overload::{live, merged, poisson};

const CHAT: u64 = 400;
const FLOOD: u64 = 2_000;
const REPLICAS: usize = 4;
const SECONDS: f64 = 120.0;

/// The product's router behind the tenants' limits, and how long the chats waited.
struct Limited {
    router: ProductRouter,
    limiter: TenantLimiter,
    flood: Tenant,
    permits: HashMap<RequestId, TenantPermit>,
    arrived: HashMap<RequestId, Stamp>,
    ttfts: Vec<Duration>,
}

impl Router for Limited {
    fn arrive(&mut self, request: Arrival, fleet: &mut dyn Fleet) {
        let now = live(request.at);
        if request.prompt == FLOOD {
            let demand = Demand {
                tokens: Tokens(request.prompt),
                is_counted: false,
                output: Tokens(60),
                model: "m",
                key: None,
                wall: SystemTime::UNIX_EPOCH + now.since(Stamp::default()),
            };
            let Ok(permit) = self.limiter.admit(&self.flood, &demand, now).permit else { return };
            self.permits.extend(permit.map(|permit| (request.id, permit)));
        } else {
            self.arrived.insert(request.id, now);
        }
        self.router.arrive(request, fleet);
    }

    fn first_token(&mut self, request: RequestId, at: SimStamp) {
        self.ttfts.extend(self.arrived.get(&request).map(|arrived| live(at).since(*arrived)));
        self.router.first_token(request, at);
    }

    fn token(&mut self, request: RequestId, at: SimStamp) {
        self.router.token(request, at);
    }

    fn ended(&mut self, request: RequestId, end: &Ended) {
        self.permits.remove(&request);
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

/// p99 of the chats' TTFT in seconds beside so many requests a second of the other tenant.
fn chats_beside(per_second: f64, limits: TenantLimits, seed: u64) -> f64 {
    let chats = poisson(20.0, 0.0, SECONDS, CHAT, 2 * seed);
    let flood = poisson(per_second, 10.0, SECONDS, FLOOD, 2 * seed + 1);
    let line = |(ms, prompt): &(f64, u64)| {
        format!("{{\"timestamp\": {ms:.0}, \"input_length\": {prompt}, \"output_length\": 60}}\n")
    };
    let trace = Trace::read(&merged(vec![chats, flood]).iter().map(line).collect::<String>()).unwrap();
    let (base, per_prompt_token) = (Duration::from_secs(2), Duration::from_micros(150));
    let scenario = Scenario {
        engine: qwen_32b_on_two_h100(),
        demand: Load { replicas: REPLICAS, load: 1.0, seed, is_whole: true },
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
    let mut limited = Limited {
        router: ProductRouter::new(&route, REPLICAS),
        limiter: TenantLimiter::default(),
        flood: Tenant { name: "flood".into(), limits, ..Tenant::default() },
        permits: HashMap::new(),
        arrived: HashMap::new(),
        ttfts: Vec::new(),
    };
    let _figures = run(&trace, &scenario, &mut limited);
    limited.ttfts.sort();
    limited.ttfts[limited.ttfts.len() * 99 / 100].as_secs_f64()
}

/// A hundred long prompts a second of a tenant that may have two at once, beside the two a second that it would send in order.
#[test]
fn a_flood_over_a_tenant_s_limit_costs_others_no_more_than_what_the_limit_allows() {
    let (none, two) =
        (TenantLimits::default(), TenantLimits { concurrency: Some(2), ..TenantLimits::default() });
    let mean =
        |per_second, limits| (1..=3).map(|seed| chats_beside(per_second, limits, seed)).sum::<f64>() / 3.0;
    let (orderly, flooded) = (mean(2.0, none), mean(100.0, two));
    eprintln!("p99 {:.1} ms beside 2/s, {:.1} ms beside 100/s", orderly * 1e3, flooded * 1e3);
    assert!(flooded <= 1.05 * orderly, "{flooded} s instead of {orderly} s");
    let unlimited = chats_beside(100.0, none, 1);
    assert!(unlimited > 3.0 * flooded, "a flood that nothing would notice: {unlimited} s");
}
