//! A fifth replica joins four: p99 of TTFT in its first minute, by how traffic is dealt.

use std::time::Duration;

use tokenway::config::{PolicyName, Slo};
use tokenway::fleet::demand::PoolLoad;
use tokenway::routing::EngineLimits;
use tokenway::simulate::ReplayedRoute;
use tokenway::units::Tokens;
use tokenway_sim::engine::EngineConfig;
use tokenway_sim::replay::{Bounds, Demand, KvNetwork, Scenario, run};

use super::elastic::{Conductor, Elastic, ElasticFleet};
use super::traffic::{around, poisson, quantile, requests};

/// One more after a minute.
struct OneMore(bool);

impl Conductor for OneMore {
    fn wanted(&mut self, seconds: f64, _: &PoolLoad, replicas: usize) -> usize {
        if self.0 && seconds >= JOINS { READY + 1 } else { replicas }
    }
}

#[derive(Clone, Copy)]
struct Dealt {
    policy: PolicyName,
    slow_start: Duration,
}

/// What joins: `None` nothing, else so many slow answers and how slow they are.
type Joins = Option<(u32, f64)>;

pub fn print() {
    println!("| joins | dealt by | p99 of the minute | beside a warm one | beside none | requests it got |");
    println!("|---|---|---|---|---|---|");
    let span = Duration::from_secs(30);
    let dealt = [
        ("`latency` with slow start", Dealt { policy: PolicyName::Latency, slow_start: span }),
        ("`latency` without", Dealt { policy: PolicyName::Latency, slow_start: Duration::ZERO }),
        ("`least_loaded` without", Dealt { policy: PolicyName::LeastLoaded, slow_start: Duration::ZERO }),
        ("`round_robin` without", Dealt { policy: PolicyName::RoundRobin, slow_start: Duration::ZERO }),
    ];
    let none: Vec<f64> = dealt.iter().map(|(_, dealt)| minute(*dealt, None).0).collect();
    let warm: Vec<f64> = dealt.iter().map(|(_, dealt)| minute(*dealt, Some((0, 1.0))).0).collect();
    for (answers, factor) in [(5, 10.0), (20, 5.0), (100, 3.0), (2_000, 5.0)] {
        for (at, (name, dealt)) in dealt.iter().enumerate() {
            let (p99, got) = minute(*dealt, Some((answers, factor)));
            println!(
                "| {answers} answers {factor} times as slow | {name} | {p99:.3} s | {:+.1} % | {:+.1} % | {got:.0} |",
                (p99 / warm[at] - 1.0) * 100.0,
                (p99 / none[at] - 1.0) * 100.0,
            );
        }
    }
}

/// p99 of TTFT in seconds over the first minutes of all seeds together, and requests that the new replica got, on average.
fn minute(dealt: Dealt, joins: Joins) -> (f64, f64) {
    let (mut ttfts, mut got) = (Vec::new(), 0);
    for seed in 0..SEEDS {
        let mut random = fastrand::Rng::with_seed(seed);
        let arrivals = poisson(JOINS + 90.0, RATE, &mut random, |_| RATE);
        let trace = requests(arrivals, JOINS + 90.0, || {
            (around(300.0, 0.8, &mut random), around(50.0, 0.6, &mut random))
        });
        let (slow_answers, slowness) = joins.unwrap_or((0, 1.0));
        let fleet = ElasticFleet {
            ready: READY,
            most: READY + 1,
            cold_start: Duration::from_secs(2),
            slow_answers,
            slowness,
            slow_start: dealt.slow_start,
            seed,
        };
        let limits = EngineLimits { scrape_interval: Duration::from_secs(1), batch_limit: None };
        let route = ReplayedRoute {
            policy: dealt.policy,
            slo: Slo::default(),
            queue: None,
            medium: Tokens(8192),
            limits,
        };
        let mut elastic = Elastic::new(&route, fleet, OneMore(joins.is_some()));
        let scenario = Scenario {
            engine: EngineConfig::default(),
            demand: Demand { replicas: READY + 1, load: 1.0, seed, is_whole: true },
            slow: Vec::new(),
            scrape_interval: limits.scrape_interval,
            bounds: Bounds::default(),
            network: KvNetwork::default(),
        };
        let _figures = run(&trace, &scenario, &mut elastic);
        let joined =
            elastic.ready().iter().position(|ready| *ready > READY).map_or(JOINS + 2.0, |at| at as f64);
        for judged in elastic.requests() {
            let at = judged.arrived.as_secs_f64();
            if !(joined..joined + 60.0).contains(&at) {
                continue;
            }
            ttfts.push(judged.answered.map_or(f64::INFINITY, |(_, ttft)| ttft.as_secs_f64()));
            got += usize::from(judged.answered.is_some_and(|(slot, _)| slot == READY));
        }
    }
    (quantile(&mut ttfts, 0.99), got as f64 / SEEDS as f64)
}

const READY: usize = 4;
/// Seconds.
const JOINS: f64 = 60.0;
/// Requests a second: about six tenths of what four do.
const RATE: f64 = 32.0;
const SEEDS: u64 = 20;
