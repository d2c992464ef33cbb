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

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokenway::app::App;
use tokenway::clock::Clock;
use tokenway::config::Config;
use tokenway::fleet::status::FleetView;
use tokenway::fleet::status::ReplicaState;
use tokenway::observe::metrics::BuildInfo;
use tokenway::observe::spans::Background;
use tokenway::observe::{Observer, Surroundings};
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
    let build = BuildInfo { version: "test", revision: "test", date: "test" };
    let around =
        Surroundings { clock, build, background, instance: "test".into(), fleet: FleetView::default() };
    Arc::new(Observer::start(config, around).unwrap())
}

/// A small chat request.
pub const CHAT: &str = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;

/// The same as a stream.
pub const STREAM: &str = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;

/// One replica, one route `*`.
fn config(replica: SocketAddr) -> Config {
    quiet::checked(&format!(
        r#"
[server]
listen = "127.0.0.1:0"
body_limit = "1MiB"
body_memory = "64MiB"
header_timeout = "10s"
keep_alive = "10s"
tls_handshake_timeout = "10s"
max_connections = 1000
drain_delay = "0s"
drain_timeout = "10s"
route_info_headers = false
[admin]
listen = "127.0.0.1:0"
[retry]
attempts = 0
budget = 0.0
min_per_second = 0
[routing]
seed = "test"
[timeouts]
connect = "5s"
first_token = "30s"
inter_token = "30s"
total = "60s"
client_stall = "30s"
[slo.standard]
[[pool]]
name = "default"
replicas = [{{ name = "replica", url = "http://127.0.0.1:{}" }}]
scrape_interval = "60s"
max_connections = 256
[pool.probe]
interval = "60s"
kind = "completion"
prompt = "hi"
{}
[[route]]
model = "*"
policy = "round_robin"
client_may = []
ask_usage = false
"#,
        replica.port(),
        quiet::NO_WARMUP
    ))
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
