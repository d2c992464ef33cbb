//! What the behaviour tests share: scripted replicas, raw clients, a gateway built in code.
//!
//! Tests look at the gateway from outside, over sockets, with deadlines short enough to wait for. They never
//! sleep and hope: [`until`] waits for a condition, with a limit.

#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

pub mod client;
pub mod config;
pub mod quiet;
pub mod redis;
pub mod replica;
pub mod wire;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokenway::app::App;
use tokenway::app::foundation::Foundation;
use tokenway::app::launch::Front;
use tokenway::background::Background;
use tokenway::clock::Clock;
use tokenway::config::Config;
use tokenway::fleet::status::FleetView;
use tokenway::fleet::status::{ReplicaState, ReplicaStatus};
use tokenway::observe::{Judgement, Observer, Surroundings, Tap};
use tokenway::record::Record;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use self::client::{Client, Reply};
use self::replica::Replica;

/// Where most requests go.
pub const PATH: &str = "/v1/chat/completions";

/// A small chat, streamed.
pub const CHAT: &str = r#"{"model":"tiny","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;

/// The same in one piece.
pub const UNARY: &str = r#"{"model":"tiny","messages":[{"role":"user","content":"hi"}]}"#;

/// The content type of forms whose parts are behind `--B`.
pub const FORM: &str = "multipart/form-data; boundary=B";

/// Longer than anything here takes on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(10);

/// Keeps the records.
#[derive(Default)]
pub struct Records(pub Mutex<Vec<Arc<Record>>>);

impl Tap for Records {
    fn record(&self, record: &Arc<Record>, _: &Judgement) {
        self.0.lock().push(Arc::clone(record));
    }
}

/// A running gateway.
pub struct Gateway {
    pub app: Arc<App>,
}

impl Gateway {
    /// Starts one and waits until all of its replicas are ready.
    pub async fn start(config: Config) -> Self {
        let gateway = Self::start_unready(config);
        gateway.ready().await;
        gateway
    }

    /// Starts so many replicas, and one before them, changed like this.
    pub async fn before<const N: usize>(change: impl FnOnce(&mut Config)) -> ([Replica; N], Self) {
        let (replicas, config) = config::before(change).await;
        (replicas, Self::start(config).await)
    }

    /// Starts one whose replicas may never become ready.
    pub fn start_unready(config: Config) -> Self {
        Self::start_observed(config, None)
    }

    /// The same, with another reader of its records.
    pub fn start_observed(config: Config, tap: Option<Arc<dyn Tap>>) -> Self {
        Self::start_as(Front::OpenAi, config, tap)
    }

    /// The same, as Envoy's endpoint picker.
    pub fn start_picker(config: Config, tap: Option<Arc<dyn Tap>>) -> Self {
        Self::start_as(Front::EndpointPicker, config, tap)
    }

    fn start_as(front: Front, config: Config, tap: Option<Arc<dyn Tap>>) -> Self {
        let clock = Clock::start();
        let observer = observer(&config, clock, tap);
        let mut foundation = Foundation::lay(Arc::new(config), clock, Handle::current()).unwrap();
        foundation.front = front;
        Self { app: Arc::new(App::on(foundation, observer)) }
    }

    pub async fn ready(&self) {
        let all_ready = || self.replicas().iter().all(|r| r.state == ReplicaState::Ready);
        until("every replica is ready", all_ready).await;
    }

    pub fn addr(&self) -> SocketAddr {
        self.app.data
    }

    pub fn replicas(&self) -> Vec<ReplicaStatus> {
        self.app.fleet.statuses()
    }

    pub fn state_of(&self, replica: &Replica) -> ReplicaState {
        let name = replica.name();
        self.replicas().iter().find(|r| *r.replica == *name).map(|r| r.state).unwrap()
    }

    /// Requests that the gateway believes to be at a replica.
    pub fn inflight(&self) -> u64 {
        self.replicas().iter().map(|r| r.inflight + r.inflight_prompt_tokens).sum()
    }

    /// Every count of running work is back to zero.
    pub async fn idle(&self) {
        until("in-flight counts return to zero", || {
            self.inflight() == 0
                && self.app.gateway.requests.load(Ordering::Relaxed) == 0
                && self.app.gateway.watchdog.streams() == 0
        })
        .await;
    }

    /// The page of `/metrics`.
    pub fn page(&self) -> String {
        self.app.gateway.observer.metrics.render(&[])
    }

    /// The sum of a family's series whose labels hold each of these.
    pub fn sum(&self, family: &str, labels: &[&str]) -> f64 {
        let page = self.page();
        let is_of = |line: &&str| line.strip_prefix(family).is_some_and(|rest| rest.starts_with(['{', ' ']));
        let lines = page.lines().filter(is_of).filter(|line| labels.iter().all(|label| line.contains(label)));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
    }

    /// Requests that ended like this.
    pub fn ended(&self, outcome: &str) -> f64 {
        self.sum("tokenway_requests_total", &[&format!("outcome=\"{outcome}\"")])
    }

    pub async fn client(&self) -> Client {
        Client::connect(self.addr()).await
    }

    /// A connection of its own on which this was posted.
    pub async fn sent(&self, path: &str, body: &str) -> Client {
        let mut client = self.client().await;
        client.post(path, &[], body.as_bytes()).await;
        client
    }

    /// The same with an API key.
    pub async fn sent_as(&self, key: &str, path: &str, body: &str) -> Client {
        let mut client = self.client().await;
        client.post(path, &[("authorization", &format!("Bearer {key}"))], body.as_bytes()).await;
        client
    }

    /// The same without a key, once the head of its answer has come.
    pub async fn begun(&self, path: &str, body: &str) -> Client {
        let mut client = self.sent(path, body).await;
        client.head().await;
        client
    }

    /// One POST on a connection of its own, with its whole answer.
    pub async fn post(&self, path: &str, body: &str) -> Reply {
        self.sent(path, body).await.reply().await
    }

    /// The same with an API key.
    pub async fn post_as(&self, key: &str, path: &str, body: &str) -> Reply {
        self.sent_as(key, path, body).await.reply().await
    }

    /// The same with these headers.
    pub async fn post_with(&self, path: &str, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Reply {
        self.ask("POST", path, headers, body).await
    }

    /// One request without a body.
    pub async fn call(&self, method: &str, path: &str) -> Reply {
        self.ask(method, path, &[], "").await
    }

    /// Any request.
    pub async fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl AsRef<[u8]>,
    ) -> Reply {
        let mut client = self.client().await;
        client.send(method, path, headers, body.as_ref()).await;
        client.reply().await
    }
}

pub fn observer(config: &Config, clock: Clock, tap: Option<Arc<dyn Tap>>) -> Arc<Observer> {
    let background = Background { runtime: Handle::current(), tasks: TaskTracker::new() };
    let around = Surroundings { clock, background, instance: "test".into(), fleet: FleetView::default() };
    let mut observer = Observer::start(config, around).unwrap();
    tap.into_iter().for_each(|tap| observer.add_tap(tap));
    Arc::new(observer)
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
