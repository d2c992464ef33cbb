//! Support for the observer tests: a configuration, a record, a collector, a gateway to administer.

#[allow(dead_code, reason = "some of it is for the unit tests alone")]
#[path = "../../src/observe/fixture.rs"]
pub(crate) mod fixture;
#[path = "../support/quiet.rs"]
mod quiet;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use parking_lot::Mutex;
use prost::Message;
use tokenway::admin::Control;
use tokenway::app::observers::{DataPath, Observers};
use tokenway::background::Background;
use tokenway::clock::Clock;
use tokenway::config::*;
use tokenway::fleet::discovery::{ChangeError, ReplicaChange, SourceStatus};
use tokenway::fleet::status::FleetView;
use tokenway::fleet::status::{LifeStatus, OwnFailures, PoolCalibration, ReplicaState, ReplicaStatus};
use tokenway::observe::{Observer, Surroundings};
use tokenway::record::{AttemptCause, FirstToken, Record, SloBounds};
use tokenway::routing::Calibration;
use tokenway::routing::{EnginePage, EngineSignals};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

/// One pool, one replica, one route; no access log, no OTLP.
pub(crate) fn config() -> Config {
    quiet::checked(&format!(
        r#"
[server]
listen = "127.0.0.1:0"
body_limit = "1B"
body_memory = "1B"
header_timeout = "1s"
keep_alive = "1s"
tls_handshake_timeout = "1s"
max_connections = 1
drain_delay = "1s"
drain_timeout = "1s"
[admin]
listen = "127.0.0.1:0"
[retry]
budget = 0.2
[routing]
seed = "hunter2"
[timeouts]
connect = "1s"
first_token = "1s"
inter_token = "1s"
total = "1s"
client_stall = "1s"
[slo.interactive]
ttft = "333ms"
[[pool]]
name = "llama"
revision = "v1"
replicas = ["http://gpu-a:8000"]
max_connections = 1
[pool.probe]
interval = "1s"
timeout = "1s"
prompt = "hi"
{}
[[route]]
name = "chat"
model = "llama"
pools = [{{ name = "llama", weight = 1 }}]
slo = "interactive"
client_may = []
ask_usage = false
"#,
        quiet::NO_WARMUP
    ))
}

/// An observer on the test's own runtime, with drift detection beside it.
pub(crate) fn observer(config: &Config) -> Arc<Observer> {
    observers(config).observer
}

pub(crate) fn observers(config: &Config) -> Observers {
    observers_of(config, FleetView::default())
}

/// The same beside these replicas.
pub(crate) fn observers_of(config: &Config, fleet: FleetView) -> Observers {
    let around = Surroundings {
        instance: "test".into(),
        fleet,
        clock: Clock::start(),
        background: Background { runtime: tokio::runtime::Handle::current(), tasks: TaskTracker::new() },
    };
    let (_, configs) = watch::channel(Arc::new(config.clone()));
    Observers::start(&configs, around, DataPath::default(), None).unwrap()
}

/// A good stream, retried once: TTFT 200 ms, 1 s of decode, 1.3 s in all.
pub(crate) fn record() -> Record {
    let good = fixture::stream();
    let mut refused = good.attempts[0].clone();
    (refused.span, refused.status, refused.error) = (0xa0, None, Some("connect_refused"));
    let mut record = Record { attempts: vec![refused, good.attempts[0].clone()], ..good };
    record.attempts.iter_mut().for_each(|attempt| attempt.cause = AttemptCause::Retry);
    record.trace.trace_id = 7;
    record.route = "chat".into();
    record.slo = SloBounds { ttft: Some(Duration::from_millis(333)), ..SloBounds::default() };
    record.held = Duration::from_millis(1);
    record.client.address = Some("192.0.2.7".parse().unwrap());
    record.client.user_agent = Some("a-client/1.0".into());
    record
}

/// The first token of such a record.
pub(crate) fn first_token(record: &Record) -> FirstToken<'_> {
    FirstToken {
        record,
        served: record.served().unwrap(),
        ttft: record.ttft().unwrap(),
        predicted: Some(Duration::from_millis(150)),
        is_cold: false,
    }
}

/// The replica, seen from outside.
pub(crate) fn status(state: ReplicaState, has_signals: bool) -> ReplicaStatus {
    let signals = EngineSignals {
        age: Duration::from_millis(500),
        page: EnginePage {
            running: Some(7.0),
            waiting: Some(5.0),
            kv_cache_usage: Some(0.25),
            batch_limit: Some(256),
            block_tokens: Some(16),
            total_blocks: Some(1000),
            ..EnginePage::default()
        },
        ..EngineSignals::default()
    };
    ReplicaStatus {
        pool: "llama".into(),
        revision: "v1".into(),
        replica: "gpu-a:8000".into(),
        url: "http://gpu-a:8000".into(),
        instance: None,
        state,
        reason: "proved".into(),
        life: LifeStatus::default(),
        failure_ratio: 0.0,
        traffic_share: 1.0,
        is_on_trial: false,
        inflight: 3,
        sent: 9,
        quiet: Duration::ZERO,
        inflight_prompt_tokens: 300,
        signals: has_signals.then_some(signals),
        counters: None,
        absent: Arc::from([]),
        gpu: None,
        failures: OwnFailures::default(),
        connections: 4,
        models: vec!["llama".into()],
        adapters: Vec::new(),
    }
}

/// A source of replicas that fails.
pub(crate) fn source() -> SourceStatus {
    SourceStatus {
        pool: "main".into(),
        source: "dns",
        targets: 3,
        age: Some(Duration::from_secs(7)),
        failing: Some((Duration::from_secs(5), "timed out".into())),
        failures: 2,
        kept: 0,
    }
}

/// The value of a series on a page of metrics.
pub(crate) fn value(page: &str, series: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

/// How many spans were dropped for this reason.
pub(crate) fn dropped_spans(observer: &Observer, reason: &str) -> Option<f64> {
    let series = format!("tokenway_spans_dropped_total{{reason=\"{reason}\"}}");
    value(&observer.metrics.render(&[]), &series)
}

/// Waits for a condition, with a limit.
pub(crate) async fn until(mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting).await.expect("in time");
}

type Received = Arc<Mutex<Vec<(http::HeaderMap, ExportTraceServiceRequest)>>>;

/// An OTLP collector that keeps what it gets, or never answers.
pub(crate) struct Collector {
    pub(crate) received: Received,
    /// Log records, by export.
    pub(crate) logs: Arc<Mutex<Vec<ExportLogsServiceRequest>>>,
    /// Spans of each export that it does not take.
    pub(crate) rejects: Arc<AtomicI64>,
    /// Exports that it answers 503 before it takes one.
    pub(crate) unavailable: Arc<AtomicUsize>,
    address: SocketAddr,
    _tasks: TaskTracker,
}

impl Collector {
    pub(crate) async fn start(answers: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (received, logs) = (Received::default(), Arc::new(Mutex::new(Vec::new())));
        let tasks = TaskTracker::new();
        let rejects = Arc::<AtomicI64>::default();
        let unavailable = Arc::<AtomicUsize>::default();
        let sinks =
            (Arc::clone(&received), Arc::clone(&logs), Arc::clone(&rejects), Arc::clone(&unavailable));
        let of_connections = tasks.clone();
        tasks.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let sinks = sinks.clone();
                let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
                    let (spans, logs, rejects, unavailable) = sinks.clone();
                    async move {
                        let (head, body) = request.into_parts();
                        let body = body.collect().await?.to_bytes();
                        if !answers {
                            std::future::pending::<()>().await;
                        }
                        let next = unavailable.load(Ordering::Relaxed).checked_sub(1);
                        if let Some(left) = next {
                            unavailable.store(left, Ordering::Relaxed);
                            let mut answer = http::Response::new(Full::default());
                            *answer.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
                            return Ok::<_, hyper::Error>(answer);
                        }
                        match head.uri.path() {
                            "/v1/logs" => logs.lock().push(ExportLogsServiceRequest::decode(body).unwrap()),
                            _ => {
                                let export = ExportTraceServiceRequest::decode(body).unwrap();
                                spans.lock().push((head.headers, export));
                            }
                        }
                        let rejected_spans = rejects.load(Ordering::Relaxed);
                        let error_message = "too many".to_owned();
                        let partial = ExportTracePartialSuccess { rejected_spans, error_message };
                        let partial_success = (rejected_spans > 0).then_some(partial);
                        let answer = ExportTraceServiceResponse { partial_success }.encode_to_vec();
                        Ok::<_, hyper::Error>(http::Response::new(Full::<bytes::Bytes>::from(answer)))
                    }
                });
                let server = hyper::server::conn::http1::Builder::new();
                let connection = server.serve_connection(TokioIo::new(stream), service);
                of_connections.spawn(connection);
            }
        });
        Self { received, logs, rejects, unavailable, address, _tasks: tasks }
    }

    pub(crate) fn otlp(&self) -> Otlp {
        let target = |signal: &str| OtlpTarget {
            endpoint: format!("http://{}/v1/{signal}", self.address),
            protocol: OtlpProtocol::Http,
            headers: vec![],
            timeout: Duration::from_secs(10),
        };
        Otlp { traces: target("traces"), logs: Some(target("logs")) }
    }
}

/// A gateway as the admin port sees it.
pub(crate) struct Gateway {
    config: Mutex<Arc<Config>>,
    pub(crate) is_ready: AtomicBool,
    pub(crate) is_draining: AtomicBool,
    /// Its readiness cannot be computed without a panic.
    pub(crate) is_broken: AtomicBool,
    pub(crate) level: Mutex<String>,
    /// Pools and replicas that were to be warmed up again.
    pub(crate) warmed: Mutex<Vec<String>>,
}

impl Gateway {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            config: Mutex::new(Arc::new(config)),
            is_ready: AtomicBool::new(true),
            is_draining: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
            level: Mutex::new("info".into()),
            warmed: Mutex::default(),
        }
    }

    /// A reload gave it another token.
    pub(crate) fn rotate(&self, token: &str) {
        let mut config = self.config.lock();
        Arc::make_mut(&mut config).admin.token = Some(Secret::new(token));
    }
}

/// Keys of a gateway that keeps no state.
pub(crate) fn no_keys() -> Arc<tokenway::identity::KeyStore> {
    Arc::new(tokenway::identity::KeyStore::open(Arc::default(), None))
}

impl Control for Gateway {
    fn replicas(&self) -> Vec<ReplicaStatus> {
        vec![status(ReplicaState::Ready, true)]
    }

    fn sources(&self) -> Vec<SourceStatus> {
        vec![source()]
    }

    fn change_replica(&self, change: &ReplicaChange) -> Result<(Arc<str>, ReplicaSpec), ChangeError> {
        let replica = change.name.clone().unwrap_or_default();
        Err(ChangeError::UnknownReplica { pool: "main".into(), replica })
    }

    fn calibrations(&self) -> Vec<PoolCalibration> {
        let seen = status(ReplicaState::Ready, true);
        let known = Calibration { answers: 40, median_error: 0.1, p90_error: 0.3, bias: 1.05, coverage: 0.9 };
        vec![PoolCalibration {
            pool: seen.pool,
            whole: Some(known),
            replicas: vec![(seen.replica, Some(known))],
        }]
    }

    fn health(&self) -> http::Response<bytes::Bytes> {
        http::Response::new(r#"{"status":"ok"}"#.into())
    }

    fn unready(&self) -> Vec<String> {
        assert!(!self.is_broken.load(Ordering::Relaxed), "this panic is part of a test");
        match self.is_ready.load(Ordering::Relaxed) {
            true => vec![],
            false => vec!["route chat: no ready replica".into()],
        }
    }

    fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.lock())
    }

    fn reload(&self) -> Result<Vec<String>, String> {
        Err("gateway.toml:3:1: unknown key".into())
    }

    fn warm_up(&self, pool: &str, replica: Option<&str>) -> Vec<Arc<str>> {
        let replica = replica.unwrap_or("-");
        self.warmed.lock().push(format!("{pool} {replica}"));
        vec![replica.into()]
    }

    fn drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }

    fn log_level(&self) -> String {
        self.level.lock().clone()
    }

    fn set_log_level(&self, filter: &str) -> Result<(), String> {
        filter.clone_into(&mut self.level.lock());
        Ok(())
    }
}

/// Status, head and body of a GET.
pub(crate) async fn get(address: SocketAddr, path: &str) -> (u16, String, String) {
    request(address, &format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")).await
}

/// The JSON of a GET that succeeds.
pub(crate) async fn json(address: SocketAddr, path: &str) -> serde_json::Value {
    let (status, _, body) = get(address, path).await;
    assert_eq!(status, 200, "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}

/// Status, head and body of a request written out.
pub(crate) async fn request(address: SocketAddr, text: &str) -> (u16, String, String) {
    let (status, head, body) = request_bytes(address, text).await;
    (status, head, String::from_utf8(body).unwrap())
}

/// The same where the body may be binary.
pub(crate) async fn request_bytes(address: SocketAddr, text: &str) -> (u16, String, Vec<u8>) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let end = memchr::memmem::find(&answer, b"\r\n\r\n").unwrap();
    let head = std::str::from_utf8(&answer[..end]).unwrap().to_owned();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head, answer[end + 4..].to_vec())
}
