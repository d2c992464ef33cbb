//! What the tests of the data port share: a gateway built in code, a scripted replica, raw clients.
//!
//! The gateway is looked at from outside, byte by byte, because what is tested is what a client library would
//! never send. Nothing sleeps and hopes: [`soon`] and [`until`] wait for something, with a limit.

#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

pub mod frames;
pub mod raw;
pub mod replica;

use std::num::NonZeroUsize;
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokenway::config::{Config, Retry};

use self::replica::Replica;
use crate::support;
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
        let mut config = config(&replica);
        change(&mut config);
        Self { gateway: support::Gateway::start(config.clone()).await, replica, config }
    }

    /// Requests whose record is still open.
    pub fn open_requests(&self) -> u64 {
        self.app.gateway.requests.load(Ordering::Relaxed)
    }

    /// Ended requests of one outcome.
    pub fn outcomes(&self, outcome: &str, code: &str) -> f64 {
        let labels = [format!("outcome=\"{outcome}\""), format!("code=\"{code}\"")];
        self.sum("tokenway_requests_total", &[&labels[0], &labels[1]])
    }

    /// A request of an unsuspicious client is served.
    pub async fn is_well(&self) {
        let reply = raw::ask(self.addr(), "/v1/chat/completions", CHAT).await;
        assert_eq!(reply.status(), 200, "{reply:?}");
    }
}

/// A small chat request.
pub const CHAT: &str = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;

/// The same as a stream.
pub const STREAM: &str = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;

/// One replica, one route `*`, no second attempts.
fn config(replica: &Replica) -> Config {
    let mut config = support::config::of(&[replica]);
    let ten_seconds = Duration::from_secs(10);
    config.server.keep_alive = ten_seconds;
    config.server.tls_handshake_timeout = ten_seconds;
    config.server.drain_timeout = ten_seconds;
    config.server.route_info_headers = false;
    config.retry = Retry { attempts: 0, budget: 0.0, min_per_second: 0 };
    config.routes[0].timeouts.connect = Duration::from_secs(5);
    config.pools[0].max_connections = NonZeroUsize::new(256).unwrap();
    config.pools[0].replicas[0].name = "replica".into();
    config
}
