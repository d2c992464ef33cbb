//! What the tests of the data port share: a gateway built in code, a scripted replica, raw clients.
//!
//! The gateway is looked at from outside, byte by byte, because what is tested is what a client library would
//! never send. Nothing sleeps and hopes: [`soon`] and [`until`] wait for something, with a limit.

#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

pub mod frames;
#[path = "../support/quiet.rs"]
mod quiet;
pub mod raw;
pub mod replica;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokenway::app::App;
use tokenway::clock::Clock;
use tokenway::config::{
    Admin, Classes, ClientMay, Config, Endpoint, EngineKind, ModelMatch, PolicyName, Pool, Probe, ProbeKind,
    ReplicaSpec, Retry, Route, Secret, Server, Slo, Timeouts, WeightedPool,
};
use tokenway::fleet::status::ReplicaState;
use tokenway::observe::metrics::BuildInfo;
use tokenway::observe::spans::Background;
use tokenway::observe::{Observer, Surroundings};
use tokenway::units::Tokens;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use self::replica::Replica;

/// Longer than anything here takes on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(10);

/// A gateway in front of one scripted replica.
pub struct Gateway {
    pub app: Arc<App>,
    pub replica: Replica,
    pub config: Config,
}

impl Gateway {
    /// With the defaults of these tests.
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    /// With a configuration of its own.
    pub async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let replica = Replica::start().await;
        let mut config = config(replica.addr);
        change(&mut config);
        let shared = Arc::new(config.clone());
        let clock = Clock::start();
        let observer = observer(&config, clock);
        let app = Arc::new(App::start(shared, observer, clock, Handle::current()).unwrap());
        let gateway = Self { app, replica, config };
        until("the replica is ready", || {
            gateway.app.fleet.statuses().iter().all(|r| r.state == ReplicaState::Ready)
        })
        .await;
        gateway
    }

    pub fn addr(&self) -> SocketAddr {
        self.app.data
    }

    /// Requests whose record is still open.
    pub fn open_requests(&self) -> u64 {
        self.app.gateway.requests.load(Ordering::Relaxed)
    }

    /// A series of `/metrics`, by the start of its line; 0 if it does not exist.
    pub fn counted(&self, series: &str) -> f64 {
        let page = self.app.gateway.observer.metrics().render(&[]);
        let value = page.lines().find_map(|line| line.strip_prefix(series)?.rsplit(' ').next()?.parse().ok());
        value.unwrap_or(0.0)
    }

    /// Ended requests of one outcome.
    pub fn outcomes(&self, outcome: &str, code: &str) -> f64 {
        let page = self.app.gateway.observer.metrics().render(&[]);
        let is_it = |line: &&str| {
            line.starts_with("tokenway_requests_total{")
                && line.contains(&format!("outcome=\"{outcome}\""))
                && line.contains(&format!("code=\"{code}\""))
        };
        let values =
            page.lines().filter(is_it).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.sum()
    }

    /// A request of an unsuspicious client is served.
    pub async fn is_well(&self) {
        let reply = raw::ask(self.addr(), "/v1/chat/completions", CHAT).await;
        assert_eq!(reply.status, 200, "{reply:?}");
    }
}

fn observer(config: &Config, clock: Clock) -> Arc<Observer> {
    let background = Background { runtime: Handle::current(), tasks: TaskTracker::new() };
    let build = BuildInfo { version: "test", revision: "test" };
    let around = Surroundings { clock, build, background, instance: "test".into() };
    Arc::new(Observer::start(config, around).unwrap())
}

/// A small chat request.
pub const CHAT: &str = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;

/// The same as a stream.
pub const STREAM: &str = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;

/// One replica, one route `*`.
fn config(replica: SocketAddr) -> Config {
    Config {
        server: server(),
        admin: Admin { listen: ([127, 0, 0, 1], 0).into(), token: None },
        retry: Retry { attempts: 0, budget: 0.0, min_per_second: 0 },
        slo: BTreeMap::from([("standard".into(), Slo::default())]),
        seed: Secret::new("test"),
        classes: Classes { short: Tokens(512), medium: Tokens(4096) },
        pools: vec![pool(replica)],
        routes: vec![route()],
        tenants: Vec::new(),
        jwt: None,
        drift: Default::default(),
        telemetry: quiet::telemetry(),
    }
}

fn server() -> Server {
    Server {
        listen: ([127, 0, 0, 1], 0).into(),
        tls: None,
        body_limit: 1 << 20,
        body_memory: 64 << 20,
        body_timeout: Duration::from_secs(60),
        body_min_rate: 16 << 10,
        header_timeout: LIMIT,
        keep_alive: LIMIT,
        tls_handshake_timeout: LIMIT,
        max_connections: NonZeroUsize::new(1000).unwrap(),
        drain_delay: Duration::ZERO,
        drain_timeout: LIMIT,
        heartbeat: None,
        route_info_headers: false,
        extra_paths: Vec::new(),
        root_path: String::new(),
        cors_origins: None,
        trust_headers: Vec::new(),
    }
}

fn pool(replica: SocketAddr) -> Pool {
    Pool {
        name: "default".into(),
        revision: "default".into(),
        discovery: Default::default(),
        data_parallel: Default::default(),
        revision_info: BTreeMap::new(),
        engine: EngineKind::Vllm,
        engine_profile: Arc::new(EngineKind::Vllm.profile()),
        replicas: vec![ReplicaSpec {
            name: "replica".into(),
            endpoint: Endpoint {
                is_tls: false,
                host: "127.0.0.1".into(),
                port: replica.port(),
                base_path: "".into(),
            },
            zone: None,
        }],
        tls: None,
        engine_api_key: None,
        dcgm: Default::default(),
        scrape_interval: Duration::from_secs(60),
        max_connections: NonZeroUsize::new(256).unwrap(),
        max_num_seqs: None,
        queue_target: None,
        probe: Probe {
            interval: Duration::from_secs(60),
            timeout: Duration::from_secs(5),
            kind: ProbeKind::Completion,
            prompt: "hi".into(),
        },
        warmup: Default::default(),
        keep_alive: None,
        lora: Default::default(),
        max_ejected_share: 0.5,
        scale: Default::default(),
    }
}

fn route() -> Route {
    Route {
        name: "*".into(),
        model: ModelMatch::Any,
        upstream_model: None,
        required: true,
        pools: vec![WeightedPool { pool: 0, weight: 1 }],
        policy: PolicyName::RoundRobin,
        slo: "standard".into(),
        client_may: ClientMay::default(),
        stage_budget: None,
        ask_usage: false,
        migrate: false,
        hedge: None,
        timeouts: Timeouts {
            connect: Duration::from_secs(5),
            first_token: Duration::from_secs(30),
            inter_token: Duration::from_secs(30),
            total: Duration::from_secs(60),
            client_stall: Duration::from_secs(30),
        },
        queue: None,
        degrade: None,
        canary: None,
    }
}

/// Waits for a condition.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let poll = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, poll).await.is_ok(), "still not so after {LIMIT:?}: {what}");
}

/// Awaits with the limit.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LIMIT, future).await {
        Ok(value) => value,
        Err(_) => panic!("still waiting after {LIMIT:?}: {what}"),
    }
}
