//! A replica that joins a simulated fleet cold.

use std::time::Duration;

use tokenway::config::{PolicyName, Slo};
use tokenway::fleet::demand::PoolLoad;
use tokenway::routing::EngineLimits;
use tokenway::simulate::ReplayedRoute;
use tokenway::units::Tokens;
use tokenway_sim::engine::EngineConfig;
use tokenway_sim::replay::{Bounds, Demand, KvNetwork, Scenario, Trace, TraceRequest, run};

use super::elastic::{Conductor, Elastic, ElasticFleet};

struct OneMore(usize);

impl Conductor for OneMore {
    fn wanted(&mut self, seconds: f64, _: &PoolLoad, replicas: usize) -> usize {
        if seconds >= 40.0 { self.0 } else { replicas }
    }
}

/// Four replicas become `replicas`, and the new one's first answers are slow. TTFTs in seconds of the minute after that, and how
/// many requests it got.
fn first_minute(replicas: usize, slow_answers: u32, slow_start: Duration, seed: u64) -> (Vec<f64>, usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut at = 0.0;
    let next = |_| {
        at -= (1.0 - random.f64()).ln() / 30.0;
        let (prompt, output) = (100 + random.u64(..600), 10 + random.u64(..60));
        TraceRequest { at: Duration::from_secs_f64(at), prompt, output, blocks: Vec::new() }
    };
    let requests: Vec<_> = (0..3_300).map(next).collect();
    let trace = Trace { requests, duration: Duration::from_secs_f64(at + 1.0), grain: Duration::ZERO };
    let limits = EngineLimits { scrape_interval: Duration::from_secs(1), batch_limit: None };
    let (policy, slo) = (PolicyName::Latency, Slo::default());
    let route = ReplayedRoute { policy, slo, queue: None, medium: Tokens(8192), limits };
    let cold_start = Duration::from_secs(2);
    let fleet = ElasticFleet { ready: 4, most: 5, cold_start, slow_answers, slowness: 5.0, slow_start, seed };
    let mut elastic = Elastic::new(&route, fleet, OneMore(replicas));
    let scenario = Scenario {
        engine: EngineConfig::default(),
        demand: Demand { replicas: 5, load: 1.0, seed, is_whole: true },
        slow: Vec::new(),
        scrape_interval: limits.scrape_interval,
        bounds: Bounds::default(),
        network: KvNetwork::default(),
    };
    let _figures = run(&trace, &scenario, &mut elastic);
    let joined = elastic.ready().iter().position(|ready| *ready == 5).unwrap_or(43) as f64;
    let minute = joined..joined + 60.0;
    let there = elastic.requests().filter(|one| minute.contains(&one.arrived.as_secs_f64()));
    let answered: Vec<_> = there.map(|one| one.answered.unwrap()).collect();
    let got = answered.iter().filter(|(slot, _)| *slot == 4).count();
    (answered.into_iter().map(|(_, ttft)| ttft.as_secs_f64()).collect(), got)
}

/// p99 of three seeds together.
fn p99(replicas: usize, slow_answers: u32, slow_start: Duration) -> (f64, usize) {
    let (mut ttfts, mut got) = (Vec::new(), 0);
    for seed in 0..3 {
        let (minute, there) = first_minute(replicas, slow_answers, slow_start, seed);
        ttfts.extend(minute);
        got += there;
    }
    ttfts.sort_by(f64::total_cmp);
    (ttfts[ttfts.len() * 99 / 100], got)
}

#[test]
fn a_cold_replica_hardly_moves_its_pools_p99_and_gets_its_share_when_its_slow_answers_are_over() {
    let span = Duration::from_secs(30);
    let ((without, _), (_, full)) = (p99(4, 0, span), p99(5, 0, span));
    for slow_answers in [5, 20] {
        let (cold, got) = p99(5, slow_answers, span);
        // p99 of three runs alone varies by a twentieth.
        assert!(cold <= without * 1.1, "{without:.3} s without it, {cold:.3} s with it");
        assert!(slow_answers > 5 || got > full / 4, "{got} of {full}");
    }
}
