//! The scaler against Kubernetes' HorizontalPodAutoscaler, in front of the same gateway and the same engines.
//!
//! Both numbers go through the HPA's loop: every 15 s, a tolerance of a tenth, at most twice as many or four more in 15 s. The HPA on a queue
//! depth has its default stabilisation (the highest of five minutes on the way down), ours has none, as in the manifests.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use tokenway::autoscale::scaler::{Scaler, Target};
use tokenway::config::{PolicyName, Scale, Slo, TtftBound};
use tokenway::fleet::demand::PoolLoad;
use tokenway::routing::EngineLimits;
use tokenway::simulate::ReplayedRoute;
use tokenway::stats::normal;
use tokenway::units::Tokens;
use tokenway_sim::engine::EngineConfig;
use tokenway_sim::replay::{
    Bounds, Demand, KvNetwork, Scenario, Trace, TraceRequest, qwen_32b_on_two_h100, run,
};

use super::elastic::{Conductor, Elastic, ElasticFleet};
use super::traffic::{around, poisson, requests};

/// What the HPA scales by.
enum Metric {
    /// `tokenway_desired_replicas`
    Ours(Box<Scaler>, Target),
    /// Requests that wait at the engines, for each replica.
    Waiting,
    /// Requests that wait or run there.
    InFlight,
}

struct Hpa {
    metric: Metric,
    /// Of the metric, for each replica.
    target: f64,
    /// Seconds on the way down.
    stabilisation: f64,
    tolerance: f64,
    recommended: VecDeque<(f64, usize)>,
    ours: usize,
    next: f64,
}

impl Conductor for Hpa {
    fn wanted(&mut self, seconds: f64, load: &PoolLoad, replicas: usize) -> usize {
        if let Metric::Ours(scaler, target) = &mut self.metric {
            self.ours = scaler.look(seconds, SystemTime::UNIX_EPOCH, load, target).replicas();
        }
        if seconds < self.next {
            return replicas;
        }
        self.next = seconds + 15.0;
        let waiting: f64 = load.engines.iter().filter_map(|engine| engine.waiting).sum();
        let running: f64 = load.engines.iter().filter_map(|engine| engine.running).sum();
        let usage = match self.metric {
            Metric::Ours(..) => self.ours as f64,
            Metric::Waiting => waiting,
            Metric::InFlight => waiting + running,
        };
        let ratio = usage / (self.target * replicas.max(1) as f64);
        let by_metric = if (ratio - 1.0).abs() <= self.tolerance {
            replicas
        } else {
            (usage / self.target).ceil() as usize
        };
        self.recommended.push_back((seconds, by_metric));
        while self.recommended.front().is_some_and(|(at, _)| seconds - at > self.stabilisation) {
            self.recommended.pop_front();
        }
        let highest = self.recommended.iter().map(|(_, n)| *n).max().unwrap_or(by_metric);
        let most = (2 * replicas).max(replicas + 4);
        if by_metric > replicas { by_metric.min(most) } else { highest.min(replicas) }.max(1)
    }
}

/// A day, or an hour, and what it is held to.
struct Load {
    name: String,
    /// By seed: a day takes a minute to run.
    traces: Vec<Trace>,
    engine: EngineConfig,
    bounds: Bounds,
    /// What the HPA on requests in flight aims at, for each replica: the batch that holds the bound on TPOT, and fractions of it.
    targets: [f64; 3],
}

/// `args`: files of traces, and cold starts in seconds where not all are wanted.
pub fn print(args: &[String]) {
    let (mut cold_starts, mut files) = (Vec::new(), Vec::new());
    for arg in args {
        match arg.parse() {
            Ok(seconds) => cold_starts.push(seconds),
            Err(_) => files.push(arg.clone()),
        }
    }
    if cold_starts.is_empty() {
        cold_starts = vec![60, 180, 300];
    }
    println!("| load | cold start | scaled by | missed SLOs | replica-hours | most replicas |");
    println!("|---|---|---|---|---|---|");
    for load in loads(&files) {
        for &cold_start in &cold_starts {
            let mut rivals =
                vec![("Tokenway".to_owned(), None), ("HPA, 5 waiting".to_owned(), Some((true, 5.0)))];
            rivals.extend(
                load.targets.map(|target| (format!("HPA, {target} in flight"), Some((false, target)))),
            );
            for (name, rival) in rivals {
                let seeds = 0..load.traces.len() as u64;
                let cells: Vec<Cell> = seeds.map(|seed| once(&load, cold_start, rival, seed)).collect();
                let mean =
                    |figure: fn(&Cell) -> f64| cells.iter().map(figure).sum::<f64>() / cells.len() as f64;
                println!(
                    "| {} | {cold_start} s | {name} | {:.2} % | {:.1} | {:.0} |",
                    load.name,
                    100.0 * mean(|cell| cell.missed),
                    mean(|cell| cell.hours),
                    mean(|cell| cell.most as f64),
                );
            }
        }
    }
}

struct Cell {
    missed: f64,
    hours: f64,
    most: usize,
}

fn once(load: &Load, cold_start: u64, rival: Option<(bool, f64)>, seed: u64) -> Cell {
    let bound = TtftBound {
        base: load.bounds.ttft.unwrap_or_default(),
        per_prompt_token: load.bounds.ttft_per_prompt_token,
    };
    let cold_start = Duration::from_secs(cold_start);
    let scale = Scale { min_replicas: 1, max_replicas: MOST, cold_start, ..Scale::default() };
    let target = Target { scale, ttft: vec![bound], tpot: load.bounds.tpot };
    let hpa = |metric, target, stabilisation| Hpa {
        metric,
        target,
        stabilisation,
        tolerance: 0.1,
        recommended: VecDeque::new(),
        ours: FIRST,
        next: 0.0,
    };
    let conductor = match rival {
        None => hpa(Metric::Ours(Box::default(), target), 1.0, 0.0),
        Some((true, target)) => hpa(Metric::Waiting, target, 300.0),
        Some((false, target)) => hpa(Metric::InFlight, target, 300.0),
    };
    let fleet = ElasticFleet {
        ready: FIRST,
        most: MOST,
        cold_start,
        slow_answers: 0,
        slowness: 1.0,
        slow_start: Duration::from_secs(30),
        seed,
    };
    let limits = EngineLimits { scrape_interval: Duration::from_secs(1), batch_limit: None };
    let slo = Slo { ttft: Some(bound), tpot: load.bounds.tpot, ..Slo::default() };
    let route = ReplayedRoute { policy: PolicyName::Latency, slo, queue: None, medium: Tokens(8192), limits };
    let mut elastic = Elastic::new(&route, fleet, conductor);
    let scenario = Scenario {
        engine: load.engine.clone(),
        demand: Demand { replicas: MOST, load: 1.0, seed, is_whole: true },
        slow: Vec::new(),
        scrape_interval: limits.scrape_interval,
        bounds: load.bounds,
        network: KvNetwork::default(),
    };
    let figures = run(&load.traces[seed as usize], &scenario, &mut elastic);
    let most = elastic.ready().iter().max().copied().unwrap_or_default();
    Cell { missed: figures.violations, hours: elastic.replica_hours(), most }
}

/// The rising and the falling half of a day, and each file: as recorded, three times over.
fn loads(files: &[String]) -> Vec<Load> {
    let chat = Bounds {
        ttft: Some(Duration::from_secs(2)),
        tpot: Some(Duration::from_millis(40)),
        ..Bounds::default()
    };
    let read: Vec<(String, Trace)> = files
        .iter()
        .map(|file| {
            let text = std::fs::read_to_string(file).unwrap();
            let name = file.rsplit('/').next().unwrap_or(file).split('.').next().unwrap_or(file);
            (name.to_owned(), Trace::read(&text).unwrap())
        })
        .collect();
    let mut all = vec![Load {
        name: "twelve hours".to_owned(),
        traces: vec![day(read.first().map(|(_, trace)| trace), 0)],
        engine: EngineConfig::default(),
        bounds: chat,
        targets: [12.0, 16.0, 24.0],
    }];
    for (name, trace) in read {
        let is_long = trace.requests.iter().map(|request| request.prompt).sum::<u64>()
            > 4_000 * trace.requests.len() as u64;
        let long = Bounds {
            ttft: Some(Duration::from_secs(5)),
            ttft_per_prompt_token: Duration::from_micros(200),
            ..chat
        };
        all.push(Load {
            name,
            traces: (0..SEEDS).map(|seed| thrice(&trace, seed)).collect(),
            engine: if is_long { qwen_32b_on_two_h100() } else { EngineConfig::default() },
            bounds: if is_long { long } else { chat },
            targets: [12.0, 16.0, 24.0],
        });
    }
    all
}

/// From the trough of a day to its peak and back: 2 to 12 requests a second, with a walk from minute to minute, and bursts.
fn day(lengths: Option<&Trace>, seed: u64) -> Trace {
    let mut random = fastrand::Rng::with_seed(seed);
    let seconds = 12.0 * 3600.0;
    let mut walk = 0.0;
    let minutes: Vec<f64> = (0..720)
        .map(|minute| {
            walk = 0.9 * walk + 0.06 * normal(&mut random);
            let burst = if minute % 97 < 4 && minute > 60 { 1.5 } else { 1.0 };
            let curve = (std::f64::consts::PI * f64::from(minute) / 720.0).sin().powi(2);
            (2.0 + 10.0 * curve) * f64::exp(walk) * burst
        })
        .collect();
    let rate = |second: f64| minutes[(second / 60.0) as usize];
    let most = minutes.iter().copied().fold(0.0, f64::max);
    let arrivals = poisson(seconds, most, &mut random, rate);
    requests(arrivals, seconds, || match lengths {
        Some(trace) => {
            let one = &trace.requests[random.usize(..trace.requests.len())];
            (one.prompt.min(8_000), one.output)
        }
        None => (around(700.0, 1.0, &mut random), around(150.0, 0.8, &mut random)),
    })
}

/// Each request three times within a second, with prompts of its own.
fn thrice(trace: &Trace, seed: u64) -> Trace {
    let mut random = fastrand::Rng::with_seed(seed);
    let copies = trace.requests.iter().flat_map(|request| (0..3).map(move |copy| (copy, request)));
    let mut requests: Vec<TraceRequest> = copies
        .map(|(copy, request)| TraceRequest {
            at: request.at + trace.grain.mul_f64(random.f64()) + Duration::from_secs_f64(random.f64()),
            blocks: request.blocks.iter().map(|block| block * 3 + copy).collect(),
            ..request.clone()
        })
        .collect();
    requests.sort_by_key(|request| request.at);
    Trace { requests, duration: trace.duration + Duration::from_secs(2), grain: Duration::ZERO }
}

/// Replicas at the start, and at most.
const FIRST: usize = 2;
const MOST: usize = 16;
const SEEDS: u64 = 3;
