//! What the tests of the data port share: a gateway built in code, a scripted replica, raw clients.
//!
//! The gateway is looked at from outside, byte by byte, because what is tested is what a client library would
//! never send. Nothing sleeps and hopes: [`soon`] and [`until`] wait for something, with a limit.

#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

pub mod frames;
pub mod raw;
pub mod replica;

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::atomic::Ordering;

use tokenway::config::Config;

use self::replica::Replica;
use crate::support;
use crate::support::quiet::{NO_WARMUP, checked};
pub use crate::support::{soon, until};

/// A gateway in front of one scripted replica.
pub struct Gateway {
    gateway: support::Gateway,
    pub replica: Replica,
    pub config: Config,
}

impl Deref for Gateway {
    type Target = support::Gateway;

    fn deref(&self) -> &Self::Target {
        &self.gateway
    }
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
        Self { gateway: support::Gateway::start(config.clone()).await, replica, config }
    }

    /// Requests whose record is still open.
    pub fn open_requests(&self) -> u64 {
        self.app.gateway.requests.load(Ordering::Relaxed)
    }

    /// A series of `/metrics`, by the start of its line; 0 if it does not exist.
    pub fn counted(&self, series: &str) -> f64 {
        let page = self.app.gateway.observer.metrics.render(&[]);
        let value = page.lines().find_map(|line| line.strip_prefix(series)?.rsplit(' ').next()?.parse().ok());
        value.unwrap_or(0.0)
    }

    /// Ended requests of one outcome.
    pub fn outcomes(&self, outcome: &str, code: &str) -> f64 {
        let page = self.app.gateway.observer.metrics.render(&[]);
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

/// A small chat request.
pub const CHAT: &str = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;

/// The same as a stream.
pub const STREAM: &str = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;

/// One replica, one route `*`.
fn config(replica: SocketAddr) -> Config {
    checked(&format!(
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
        NO_WARMUP
    ))
}
