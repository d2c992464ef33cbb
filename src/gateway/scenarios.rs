//! The live gateway on a paused clock against `replay`: the same arrivals and engines must give the same decisions.
//!
//! The simulator drives both. The live side runs the request path up to sending: [`picker::pick`], the route's queue with
//! its task, the pool's tick on the fleet's runtime. The simulated engine's progress is reported to the pick.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokenway_sim::engine::{CostModel, EngineConfig, Gauges};
use tokenway_sim::replay::{
    Arrival, Bounds, Demand, Ended, Fleet as SimFleet, KvNetwork, RequestId, Router, Scenario, Trace,
    qwen_32b_on_two_h100, run,
};
use tokenway_sim::time::Stamp as SimStamp;
use tokio::runtime::{Builder, Runtime};
use tokio_util::task::TaskTracker;

use super::Gateway;
use super::asking::Tried;
use super::classify::{Client, classify};
use super::picker::{self, PickOutcome};
use super::prepare;
use super::prepared::Prepared;
use super::table::{CarriedOver, RoutingTable};
use super::waiting::Waits;
use crate::clock::{Clock, Stamp};
use crate::config::{Config, PolicyName};
use crate::fleet::life::Event;
use crate::fleet::pick::Pick;
use crate::fleet::registry::Fleet;
use crate::fleet::status::FleetView;

use crate::background::Background;
use crate::observe::record_guard::RecordGuard;
use crate::observe::{Observer, Surroundings};
use crate::record::{ClientInfo, Opening, TokenCounts};
use crate::request::chain::PrefixChain;
use crate::request::class::class_of;
use crate::request::dialect::Dialect;
use crate::request::tenant::TenantRef;
use crate::request::trace_context::trace_of;
use crate::routing::{EngineLimits, REFRESH_EVERY};
use crate::simulate::{ProductRouter, ReplayedRoute, page};
use crate::units::Tokens;
use crate::upstream::connect::Connector;

/// A request that was sent: which one, where, when.
type Sent = (RequestId, usize, Stamp);

/// Requests with their picks, not yet sent.
type Chosen = Vec<(RequestId, Box<Pick>)>;

/// The live gateway as a router of the simulator.
struct Live {
    runtime: Runtime,
    gateway: Arc<Gateway>,
    /// The runtime's time at the simulation's zero.
    zero: Duration,
    now: Stamp,
    chosen: Arc<Mutex<Chosen>>,
    /// Requests that are being placed.
    waiting: Arc<AtomicUsize>,
    streams: HashMap<RequestId, LiveStream>,
    sent: Vec<Sent>,
}

struct LiveStream {
    pick: Box<Pick>,
    has_begun: bool,
    tokens: u64,
}

impl Live {
    fn new(config: Config) -> Self {
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let config = Arc::new(config);
        let gateway = {
            let _in = runtime.enter();
            Arc::new(gateway(&config, runtime.handle().clone()))
        };
        let table = gateway.table.load_full();
        let replicas = table.pools[0].replicas();
        // Their addresses answer nothing: no probe and no scrape but the simulation's.
        replicas.iter().for_each(|replica| replica.removed().cancel());
        let zero = Duration::from_secs(10);
        runtime.block_on(async {
            tokio::time::sleep(zero).await;
            while gateway.clock.now() < Stamp::default().after(zero) {
                tokio::task::yield_now().await;
            }
            // What ticks does so from zero on, as in replay.
            for _ in 0..SETTLE {
                tokio::task::yield_now().await;
            }
        });
        replicas.iter().for_each(|replica| replica.apply(Event::Adopted, "simulated"));
        Self {
            runtime,
            gateway,
            zero,
            now: Stamp::default(),
            chosen: Arc::default(),
            waiting: Arc::default(),
            streams: HashMap::new(),
            sent: Vec::new(),
        }
    }

    /// Simulated time as the gateway's clock reads it.
    fn live(&self, at: SimStamp) -> Stamp {
        Stamp::from_nanos(at.as_nanos()).after(self.zero)
    }

    /// Advances the runtime to this time and runs everything due before it.
    fn advance(&mut self, to: SimStamp) {
        let to = Stamp::from_nanos(to.as_nanos());
        let step = to.since(self.now);
        self.now = to.max(self.now);
        self.runtime.block_on(async {
            if !step.is_zero() {
                tokio::time::advance(step).await;
            }
            for _ in 0..SETTLE {
                tokio::task::yield_now().await;
            }
        });
    }

    /// Sends what the gateway's tasks have chosen a replica for.
    fn send_chosen(&mut self, fleet: &mut dyn SimFleet) {
        for (request, pick) in std::mem::take(&mut *self.chosen.lock()) {
            self.sent.push((request, pick.replica.slot(), Stamp::from_nanos(fleet.now().as_nanos())));
            fleet.send(request, pick.replica.slot(), pick.assignment.decision.predicted_ttft);
            self.streams.insert(request, LiveStream { pick, has_begun: false, tokens: 0 });
        }
    }

    /// A request as prepared, before the first pick.
    fn prepared(&self, arrival: &Arrival, guard: &mut RecordGuard) -> Box<Prepared> {
        let table = self.gateway.table.load_full();
        let route = Arc::clone(&table.routes[0]);
        let body = bytes::Bytes::from_static(br#"{"model":"m","prompt":"p"}"#);
        let fields = prepare::read_fields(Dialect::Completions, None, &body).unwrap();
        let tenant = TenantRef::anonymous();
        let client = Client { tenant: &tenant, slo_class: None, has_priority: false, gets_answer_here: true };
        let mut prepared = classify(&table, &route, Dialect::Completions, &fields, None, &body, client);
        prepared.note(guard.record());
        prepared.prompt.chain =
            PrefixChain::of_hashes(arrival.chain.clone(), arrival.prompt * BYTES_PER_TOKEN);
        prepared.tokens = Tokens(arrival.prompt);
        prepared.is_stream = true;
        prepared.shows_first_token = true;
        prepared.class = class_of(&table.config.classes, prepared.tokens);
        prepared.read = self.live(arrival.at);
        prepared.apply_slo(&route.config.slo);
        prepared
    }
}

/// The loop of [`super::exchange`] up to a picked replica.
async fn choose(gateway: Arc<Gateway>, prepared: Box<Prepared>, mut guard: RecordGuard) -> Option<Box<Pick>> {
    let (mut waits, tried) = (Waits::default(), Tried::new());
    loop {
        match picker::pick(&gateway, &prepared, waits.pick_context(&tried))? {
            PickOutcome::Take(pick) => {
                waits.note_admitted(&gateway);
                return Some(pick);
            }
            PickOutcome::Wait(hold) => waits.wait(hold, &gateway, &prepared, &mut guard).await.ok()?,
            PickOutcome::Degrade => return None,
        }
    }
}

impl Router for Live {
    fn arrive(&mut self, request: Arrival, fleet: &mut dyn SimFleet) {
        self.advance(fleet.now());
        let gateway = Arc::clone(&self.gateway);
        let opening = Opening {
            client: ClientInfo::default(),
            request_id: "r".into(),
            trace: trace_of(&http::HeaderMap::new(), None),
            dialect: Dialect::Completions,
            path: "/v1/completions".into(),
            head: gateway.clock.now(),
        };
        let mut guard = RecordGuard::open(opening, &gateway.observer, &gateway.requests);
        let prepared = self.prepared(&request, &mut guard);
        let (chosen, id, waiting) = (Arc::clone(&self.chosen), request.id, Arc::clone(&self.waiting));
        waiting.fetch_add(1, Ordering::Relaxed);
        let _in = self.runtime.enter();
        self.gateway.tasks.spawn(async move {
            if let Some(pick) = choose(gateway, prepared, guard).await {
                chosen.lock().push((id, pick));
            }
            waiting.fetch_sub(1, Ordering::Relaxed);
        });
        self.advance(fleet.now());
        self.send_chosen(fleet);
    }

    fn first_token(&mut self, request: RequestId, at: SimStamp) {
        let at = self.live(at);
        let Some(stream) = self.streams.get_mut(&request) else { return };
        stream.pick.first_token(at);
        (stream.has_begun, stream.tokens) = (true, 1);
    }

    fn token(&mut self, request: RequestId, at: SimStamp) {
        let at = self.live(at);
        let Some(stream) = self.streams.get_mut(&request) else { return };
        stream.tokens += 1;
        stream.pick.assignment.progress(stream.tokens, at);
    }

    fn ended(&mut self, request: RequestId, end: &Ended) {
        let at = self.live(end.at);
        let Some(mut stream) = self.streams.remove(&request) else { return };
        stream.pick.answered(false, at);
        stream.pick.learn(TokenCounts { cached: Some(Tokens(end.cached)), ..TokenCounts::default() });
        if stream.has_begun {
            stream.pick.assignment.served(Tokens(end.output), stream.tokens);
        }
    }

    fn scraped(&mut self, replica: usize, at: SimStamp, gauges: &Gauges) {
        // Time stands still until every replica is read: what is due at this moment comes after them.
        let table = self.gateway.table.load_full();
        let pool = &table.pools[0];
        let replicas = pool.replicas();
        let target = &replicas[replica].target;
        target.scraped(page(gauges), self.live(at));
        pool.dispatcher.learn_cache(target, pool.ratio.bytes_per_token());
    }

    fn reconsider(&mut self, fleet: &mut dyn SimFleet) {
        self.advance(fleet.now());
        self.send_chosen(fleet);
    }

    fn next_tick(&self) -> Option<SimStamp> {
        let is_waiting = self.waiting.load(Ordering::Relaxed) > 0;
        let tick = if is_waiting { TIMER_NANOS } else { REFRESH_EVERY.as_nanos() as u64 };
        Some(SimStamp::from_nanos((self.now.as_nanos() / tick + 1) * tick))
    }

    fn tick(&mut self, fleet: &mut dyn SimFleet) {
        self.advance(fleet.now());
        self.send_chosen(fleet);
    }
}

fn gateway(config: &Arc<Config>, runtime: tokio::runtime::Handle) -> Gateway {
    let (clock, tracker) = (Clock::start(), TaskTracker::new());
    let background = Background { runtime, tasks: tracker.clone() };
    let fleet = FleetView::default();
    let around = Surroundings { clock, background: background.clone(), instance: "test".into(), fleet };
    let observer = Observer::start(config, around).unwrap();
    let carried_over = CarriedOver::default();
    let connector = Connector::new(tracker.clone()).unwrap();
    let fleet = Fleet::new(connector, clock, background, Arc::clone(&carried_over.canaries));
    let pools = fleet.apply(config);
    let table = RoutingTable::new(Arc::clone(config), pools, carried_over);
    Gateway::new(table, Arc::new(observer), config.server.body_memory, tracker)
}

/// Multi-turn conversations behind two system prompts, on four replicas near capacity.
fn trace() -> Trace {
    let line = |n: u64| {
        let (session, turn) = (n % 37, n / 37);
        let ids: Vec<u64> =
            (0..2).map(|b| n % 2 * 10 + b).chain((0..turn).map(|b| 1000 * (session + 1) + b)).collect();
        let tokens = ids.len() as u64 * 512 + 100 + 17 * (n % 23);
        let at = n * 83 + n * n % 61;
        let output = 20 + 13 * (n % 29);
        format!(
            "{{\"timestamp\": {at}, \"input_length\": {tokens}, \"output_length\": {output}, \"hash_ids\": {ids:?}}}\n"
        )
    };
    Trace::read(&(0..REQUESTS).map(line).collect::<String>()).unwrap()
}

fn scenario(bounds: Bounds, load: f64, seed: u64) -> Scenario {
    let cost = CostModel { jitter: 0.2, ..qwen_32b_on_two_h100().cost };
    Scenario {
        engine: EngineConfig { cost, ..qwen_32b_on_two_h100() },
        demand: Demand { replicas: 4, load, seed, is_whole: false },
        slow: vec![(2, 2.0)],
        scrape_interval: Duration::from_secs(1),
        bounds,
        network: KvNetwork::default(),
    }
}

/// Runs the same trace through both; returns what each sent.
fn both(policy: PolicyName, slo: &str, queue: &str, load: f64, seed: u64) -> [Vec<Sent>; 2] {
    let text = format!(
        "[slo.own]\n{slo}\n[[pool]]\nname = \"p\"\nscrape_interval = \"1s\"\n\
         replicas = [\"http://127.0.0.1:1\", \"http://127.0.0.1:2\", \"http://127.0.0.1:3\", \"http://127.0.0.1:4\"]\n\
         [[route]]\nname = \"r\"\nmodel = \"m\"\npolicy = \"{}\"\nslo = \"own\"\n{queue}\n\
         [telemetry]\naccess_log = \"off\"\n",
        policy.as_str()
    );
    let config = crate::config::check::check_str("test.toml", &text, &|_| None).unwrap();
    let route = &config.routes[0];
    let slo = config.slo["own"];
    let bounds = Bounds {
        ttft: slo.ttft.map(|bound| bound.base),
        ttft_per_prompt_token: slo.ttft.map_or(Duration::ZERO, |bound| bound.per_prompt_token),
        tpot: slo.tpot,
        ..Bounds::default()
    };
    let limits = EngineLimits { scrape_interval: Duration::from_secs(1), batch_limit: None };
    let medium = config.classes.medium;
    let replayed = ReplayedRoute { policy, slo, queue: route.queue, medium, limits };
    let mut replay = ProductRouter::new(&replayed, 4);
    let mut live = Live::new(config.clone());
    let (trace, scenario) = (trace(), scenario(bounds, load, seed));
    let _figures = [run(&trace, &scenario, &mut replay), run(&trace, &scenario, &mut live)];
    [replay.sent, live.sent]
}

fn assert_alike(case: &str, [replay, live]: [Vec<Sent>; 2]) {
    for (replayed, lived) in replay.iter().zip(&live) {
        assert_eq!(replayed, lived, "{case}");
    }
    assert_eq!(replay.len(), live.len(), "{case}");
}

#[test]
fn live_and_replay_choose_the_same_replicas() {
    for policy in PolicyName::ALL {
        let sent = both(policy, "ttft = \"2s\"", "", 1.0, 2);
        assert_eq!(sent[0].len(), REQUESTS as usize, "{policy:?}");
        assert_alike(policy.as_str(), sent);
    }
}

#[test]
fn live_and_replay_hold_queue_and_refuse_the_same_requests() {
    let queue = "[route.queue]\nmax_requests = 20\nmax_wait = \"2s\"";
    let mut overtakes = 0;
    for seed in 1..=SEEDS {
        let sent = both(PolicyName::Latency, "ttft = \"1s\"\ntpot = \"60ms\"", queue, 5.0, seed);
        overtakes += sent[0].windows(2).filter(|pair| pair[0].0 > pair[1].0).count();
        assert!(sent[0].len() < REQUESTS as usize, "some were refused");
        assert_alike(&format!("five times the load, seed {seed}"), sent);
    }
    assert!(overtakes > 100, "{overtakes} requests that waited were overtaken");
}

/// Polls after which every woken task has run.
const SETTLE: usize = 8;
const REQUESTS: u64 = 200;
const SEEDS: u64 = 5;
const BYTES_PER_TOKEN: u64 = 4;
/// The resolution of the runtime's timers.
const TIMER_NANOS: u64 = 1_000_000;
