//! Observers and the admin port from outside: what a scrape, a collector, a log reader and an operator see.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what is wrong by panicking")]

use std::collections::BTreeSet;
use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use tokenway::admin::{AdminState, serve};
use tokenway::app::observers::Observers;
use tokenway::config::{AccessLog, ModelMatch, Secret};
use tokenway::fleet::status::{ReplicaState, ReplicaStatus};
use tokenway::observe::Observer;
use tokenway::observe::metrics::{Exposition, StreamKey};
use tokenway::record::{Gap, Gaps, Outcome, Record};
use tokenway::request::class::Class;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::support::{
    Collector, Gateway, config, dropped_spans, first_token, get, json, observer, observers, record, request,
    request_bytes, status, until, value,
};

const TENANT: &str = r#"class="short",model="llama",revision="v1",route="chat",tenant="acme""#;
const ROUTE: &str = r#"class="short",model="llama",revision="v1",route="chat""#;
const REPLICA: &str = r#"pool="llama",replica="gpu-a:8000""#;

/// Series by name, the labels that come before and after their group's, and the value after one request.
const CONTRACT: &[(&str, &str, f64)] = &[
    ("tokenway_time_to_first_token_seconds_count", "{TENANT}", 1.0),
    ("tokenway_time_to_first_token_seconds_bucket", r#"{TENANT,le="0.333"}"#, 1.0),
    (
        "tokenway_requests_total",
        r#"{class="short",code="200",model="llama",outcome="ok",revision="v1",route="chat",tenant="acme"}"#,
        1.0,
    ),
    ("tokenway_goodput_requests_total", "{TENANT}", 1.0),
    ("tokenway_inter_chunk_latency_seconds_count", "{ROUTE}", 2.0),
    ("tokenway_inter_token_latency_seconds_count", "{ROUTE}", 5.0),
    ("tokenway_inter_token_latency_seconds_bucket", r#"{ROUTE,le="0.01"}"#, 3.0),
    ("tokenway_time_per_output_token_seconds_count", "{ROUTE}", 1.0),
    ("tokenway_request_duration_seconds_sum", "{ROUTE}", 1.3),
    ("tokenway_time_to_first_byte_seconds_count", "{ROUTE}", 1.0),
    ("tokenway_gateway_overhead_seconds_sum", "{ROUTE}", 0.001),
    (
        "tokenway_tokens_total",
        r#"{class="short",kind="input_cached",model="llama",revision="v1",route="chat"}"#,
        64.0,
    ),
    (
        "tokenway_tokens_total",
        r#"{class="short",kind="input_uncached",model="llama",revision="v1",route="chat"}"#,
        36.0,
    ),
    (
        "tokenway_tokens_total",
        r#"{class="short",kind="output",model="llama",revision="v1",route="chat"}"#,
        21.0,
    ),
    (
        "tokenway_finish_reasons_total",
        r#"{class="short",model="llama",reason="stop",revision="v1",route="chat"}"#,
        1.0,
    ),
    (
        "tokenway_stage_duration_seconds_count",
        r#"{model="llama",revision="v1",route="chat",source="estimated",stage="prefill",tenant="acme"}"#,
        1.0,
    ),
    ("tokenway_replica_time_to_first_token_seconds_count", "{REPLICA}", 1.0),
    ("tokenway_replica_inter_token_latency_seconds_count", "{REPLICA}", 5.0),
    ("tokenway_replica_inflight", "{REPLICA}", 3.0),
    ("tokenway_replica_traffic_share_ratio", "{REPLICA}", 1.0),
    ("tokenway_replica_queue_depth", "{REPLICA}", 5.0),
    ("tokenway_replica_running", "{REPLICA}", 7.0),
    ("tokenway_replica_kv_cache_usage_ratio", "{REPLICA}", 0.25),
    ("tokenway_replica_batch_limit", "{REPLICA}", 256.0),
    ("tokenway_replica_scrape_age_seconds", "{REPLICA}", 0.5),
    ("tokenway_replica_state", r#"{REPLICA,state="ready"}"#, 1.0),
    ("tokenway_replica_state", r#"{REPLICA,state="ejected"}"#, 0.0),
    ("tokenway_requests_inflight", "", 1.0),
    ("tokenway_open_connections", "", 0.0),
    ("tokenway_queue_requests", "", 0.0),
    ("tokenway_queue_bytes", "", 0.0),
    ("tokenway_migrations_total", "", 0.0),
    ("tokenway_hedges_total", r#"{result="won"}"#, 0.0),
    ("tokenway_prediction_ratio_count", "", 1.0),
    ("tokenway_prediction_error_seconds_sum", "", 0.05),
    ("tokenway_prefix_tokens_total", r#"{kind="looked_up"}"#, 100.0),
    ("tokenway_prefix_tokens_total", r#"{kind="predicted"}"#, 64.0),
    ("tokenway_prefix_tokens_total", r#"{kind="reported"}"#, 64.0),
    ("tokenway_decisions_total", r#"{policy="latency",reason="prefix"}"#, 1.0),
    ("tokenway_admissions_total", r#"{decision="admit",reason="ready"}"#, 1.0),
    ("tokenway_http_rejected_total", r#"{reason="header_timeout"}"#, 1.0),
    ("tokenway_retries_total", r#"{reason="connect_refused"}"#, 1.0),
    ("tokenway_spans_dropped_total", r#"{reason="queue_full"}"#, 0.0),
    ("tokenway_access_log_dropped_total", "", 0.0),
    ("tokenway_config_reloads_total", r#"{result="success"}"#, 0.0),
    ("tokenway_config_last_reload_successful", "", 1.0),
];

fn one_request(observer: &Observer) {
    let record = record();
    let first = first_token(&record);
    observer.first_token(&first);
    let gaps = [
        Gap { length: Duration::from_millis(40), tokens: Some(2) },
        Gap { length: Duration::from_millis(30), tokens: None },
    ];
    let late = [(Duration::from_millis(30), 3)];
    let key = StreamKey::new(&record, first.served);
    observer.stream_series(&key).gaps(&Gaps { gaps: &gaps, late_itl: &late, is_filling: false });
    observer.record(&Arc::new(record));
}

#[tokio::test]
async fn a_scrape_shows_every_name_of_the_contract() {
    let observer = observer(&config());
    one_request(&observer);
    observer.metrics.families.requests.admissions.inc(["admit", "ready"]);
    observer.metrics.families.requests.http_rejected.inc(["header_timeout"]);
    let _inflight = observer.metrics.request_inflight();

    let page = observer.metrics.render(&[status(ReplicaState::Ready, true)]);
    for (name, labels, expected) in CONTRACT {
        let labels = labels.replace("TENANT", TENANT).replace("ROUTE", ROUTE).replace("REPLICA", REPLICA);
        let actual = value(&page, &format!("{name}{labels}"));
        assert!(actual.is_some_and(|v| (v - expected).abs() < 1e-9), "{name}{labels}: {actual:?}\n{page}");
    }
    assert!(page.contains("tokenway_build_info{") && page.contains("process_open_fds"));
}

#[tokio::test]
async fn a_failed_request_counts_its_timer_once_and_misses_its_slo() {
    let observer = observer(&config());
    let mut failed = record();
    failed.outcome = Outcome::Failed;
    failed.error = Some("timeout_inter_token");
    failed.attempts.last_mut().unwrap().error = Some("timeout_inter_token");
    observer.record(&Arc::new(failed));
    let page = observer.metrics.render(&[]);
    assert_eq!(value(&page, r#"tokenway_timeouts_total{timer="inter_token"}"#), Some(1.0));
    let labels = TENANT.replace(r#"model="llama","#, r#"model="llama",reason="error","#);
    assert_eq!(value(&page, &format!("tokenway_slo_missed_requests_total{{{labels}}}")), Some(1.0));
}

#[tokio::test]
async fn a_signal_that_is_too_old_is_absent_and_comes_back() {
    let observer = observer(&config());
    let depth = format!("tokenway_replica_queue_depth{{{REPLICA}}}");
    for has_signals in [true, false, true] {
        let page = observer.metrics.render(&[status(ReplicaState::Ready, has_signals)]);
        assert_eq!(value(&page, &depth).is_some(), has_signals);
    }
    let page = observer.metrics.render(&[]);
    assert_eq!(value(&page, &depth), None);
    let inflight = format!("tokenway_replica_inflight{{{REPLICA}}}");
    assert_eq!(value(&page, &inflight), Some(0.0), "kept for a while after the replica left");
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_is_gone_for_five_minutes_leaves_and_may_come_back() {
    let observer = observer(&config());
    one_request(&observer);
    let count = format!("tokenway_replica_time_to_first_token_seconds_count{{{REPLICA}}}");
    let scrape = |fleet: &[_]| value(&observer.metrics.render(fleet), &count);
    assert_eq!(scrape(&[status(ReplicaState::Ready, true)]), Some(1.0));
    let families = &observer.metrics.families.requests;
    for [prefill, decode] in [["gpu-a:8000", "d"], ["p", "gpu-a:8000"], ["p", "d"]] {
        families.kv_transfers.inc([prefill, decode, "worked"]);
        families.kv_transfer_time.get([prefill, decode]).observe(0.1);
    }
    tokio::time::advance(Duration::from_secs(299)).await;
    assert_eq!(scrape(&[]), Some(1.0));
    tokio::time::advance(Duration::from_secs(2)).await;
    let page = observer.metrics.render(&[]);
    assert!(!page.contains("gpu-a:8000"), "{page}");
    assert!(
        page.contains(r#"tokenway_kv_transfers_total{decode="d",prefill="p",result="worked"} 1"#),
        "{page}"
    );
    one_request(&observer);
    assert_eq!(scrape(&[]), Some(1.0), "a new series, not a handle to the old one");
}

#[tokio::test(start_paused = true)]
async fn replicas_that_left_make_room_for_those_that_live() {
    let observer = observer(&config());
    let fleet = |from: usize| -> Vec<ReplicaStatus> {
        let named = |n: usize| ReplicaStatus {
            replica: format!("pod-{n}").into(),
            ..status(ReplicaState::Ready, true)
        };
        (from..from + 120).map(named).collect()
    };
    let ready = |page: &str| {
        let is_ready = |line: &&str| {
            line.starts_with("tokenway_replica_state{")
                && line.contains(r#"state="ready""#)
                && line.ends_with(" 1")
        };
        page.lines().filter(is_ready).count()
    };
    for rollout in 0..5 {
        tokio::time::advance(Duration::from_secs(20)).await;
        let page = observer.metrics.render(&fleet(120 * rollout));
        assert_eq!(ready(&page), 120, "after {rollout} rollouts");
        let gone = page.lines().filter(|line| line.contains(r#"state="gone""#) && line.ends_with(" 1"));
        assert_eq!(
            gone.filter(|line| line.starts_with("tokenway_replica_state{")).count(),
            if rollout > 0 { 79 } else { 0 }
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_pool_counts_its_replicas_where_not_all_have_series() {
    let observer = observer(&config());
    let named = |n: usize| ReplicaStatus {
        replica: format!("pod-{n}").into(),
        ..status(if n < 290 { ReplicaState::Ready } else { ReplicaState::Unreachable }, true)
    };
    let count = |page: &str, state: &str| {
        value(page, &format!(r#"tokenway_pool_replicas{{pool="llama",state="{state}"}}"#))
    };
    let states = ["ready", "unreachable", "gone", "ejected"];
    let page = observer.metrics.render(&(0..300).map(named).collect::<Vec<_>>());
    assert_eq!(states.map(|state| count(&page, state)), [290.0, 10.0, 0.0, 0.0].map(Some));
    tokio::time::advance(Duration::from_secs(1)).await;
    let page = observer.metrics.render(&(280..300).map(named).collect::<Vec<_>>());
    assert_eq!(states.map(|state| count(&page, state)), [10.0, 10.0, 179.0, 0.0].map(Some), "179 have room");
    tokio::time::advance(Duration::from_secs(301)).await;
    let page = observer.metrics.render(&[]);
    assert_eq!(states.map(|state| count(&page, state)), [Some(0.0); 4]);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_left_counts_as_drained_and_gone_once() {
    let observer = observer(&config());
    let scrape = async |fleet: &[_]| {
        tokio::time::advance(Duration::from_secs(1)).await;
        let page = observer.metrics.render(fleet);
        ["draining", "gone"].map(|state| {
            let labels = format!(r#"{REPLICA},state="{state}""#);
            let of = |family: &str| value(&page, &format!("{family}{{{labels}}}"));
            (of("tokenway_replica_state"), of("tokenway_replica_state_changes_total"))
        })
    };
    assert_eq!(scrape(&[status(ReplicaState::Ready, true)]).await, [(Some(0.0), Some(0.0)); 2]);
    let gone = [(Some(0.0), Some(1.0)), (Some(1.0), Some(1.0))];
    assert_eq!([scrape(&[]).await, scrape(&[]).await], [gone; 2]);
    assert_eq!(
        scrape(&[status(ReplicaState::Ready, true)]).await,
        [(Some(0.0), Some(0.0)); 2],
        "another one"
    );
    let drains = |entered| {
        let mut status = status(ReplicaState::Draining, true);
        let at = ReplicaState::ALL.iter().position(|state| *state == ReplicaState::Draining).unwrap();
        status.life.entered[at] = entered;
        status
    };
    assert_eq!(scrape(&[drains(1)]).await[0], (Some(1.0), Some(1.0)));
    assert_eq!(scrape(&[]).await, gone, "once, though it was seen to drain");
}

/// An observer that exports every span there.
fn exporting_to(collector: &Collector) -> Arc<Observer> {
    let mut config = config();
    config.telemetry.otlp = Some(collector.otlp());
    config.telemetry.sampling.routine = 1.0;
    observer(&config)
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_reach_a_collector_as_one_tree() {
    let collector = Collector::start(true).await;
    let mut config = config();
    let headers = vec![("x-team".parse().unwrap(), "infra".parse().unwrap())];
    config.telemetry.otlp.insert(collector.otlp()).traces.headers = headers;
    let observer = observer(&config);
    let mut kept = record();
    (kept.trace.parent, kept.trace.flags_upstream) = (Some(0xc3), 1);
    kept.longest_gap = Duration::from_secs(2);
    observer.record(&Arc::new(kept));
    observer.shutdown(Duration::from_secs(20)).await;

    let (headers, export) = collector.received.lock().pop().expect("one export");
    assert_eq!(headers["x-team"], "infra");
    assert_eq!(headers["content-type"], "application/x-protobuf");
    let resource = export.resource_spans[0].resource.as_ref().unwrap();
    let service = resource.attributes.iter().find(|kv| kv.key == "service.name").unwrap();
    assert!(format!("{:?}", service.value).contains("tokenway"));
    let spans = &export.resource_spans[0].scope_spans[0].spans;
    let names: Vec<_> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["chat llama", "admit", "route", "attempt", "attempt", "prefill", "decode"]);
    use SpanKind::{Client, Internal, Server};
    let kinds: Vec<_> = spans.iter().map(|span| span.kind()).collect();
    assert_eq!(kinds, [Server, Internal, Internal, Client, Client, Internal, Internal]);
    let events: Vec<_> = spans[0].events.iter().map(|event| event.name.as_str()).collect();
    assert_eq!(events, ["first_token", "stall", "last_token"]);
    assert_eq!((spans[0].flags, &spans[0].status), (0x301, &None), "sampled, of a parent elsewhere");
    assert_eq!(spans[0].parent_span_id, 0xc3u64.to_be_bytes());
    assert!(spans[1..5].iter().all(|span| span.parent_span_id == spans[0].span_id));
    assert!(
        spans[5..].iter().all(|span| span.parent_span_id == spans[4].span_id),
        "below the answered attempt"
    );
    assert_eq!(spans[4].end_time_unix_nano, spans[0].end_time_unix_nano, "it lasts to the last byte");
    assert_eq!(spans[5].end_time_unix_nano, spans[6].start_time_unix_nano);
    assert_eq!(spans[6].end_time_unix_nano, spans[0].end_time_unix_nano);
    assert_eq!(spans[4].span_id, 0xa1u64.to_be_bytes(), "the id that went upstream");
    let keys: Vec<_> = spans[0].attributes.iter().map(|kv| kv.key.as_str()).collect();
    for key in ATTRIBUTES {
        assert!(keys.contains(key), "{key} in {keys:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn openmetrics_links_a_bucket_to_a_trace_that_was_kept() {
    let collector = Collector::start(true).await;
    let mut config = config();
    config.telemetry.otlp = Some(collector.otlp());
    let (address, _gateway, observer) = admin_of(config, None).await;
    let exemplars = |page: &str| page.lines().filter(|line| line.contains(" # {trace_id=")).count();
    let wanting = |accept: &str| {
        format!("GET /metrics HTTP/1.1\r\nhost: {address}\r\naccept: {accept}\r\nconnection: close\r\n\r\n")
    };
    one_request(&observer);
    let (_, head, page) = request(address, &wanting("application/openmetrics-text")).await;
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(page.ends_with("# EOF\n") && exemplars(&page) == 0, "{page}");

    let mut kept = record();
    (kept.trace.parent, kept.trace.flags_upstream) = (Some(7), 1);
    observer.record(&Arc::new(kept));
    let (_, _, page) = request(address, &wanting("application/openmetrics-text")).await;
    let bucket = format!("tokenway_time_to_first_token_seconds_bucket{{{TENANT},le=\"0.2\"}} 1 # ");
    let exemplar = format!("{bucket}{{trace_id=\"{:032x}\"}} 0.2 ", 7);
    assert!(page.lines().any(|line| line.starts_with(&exemplar)), "{page}");
    assert_eq!(exemplars(&page), 2, "of TTFT and of the duration");
    let (_, head, page) = request(address, &wanting("text/plain")).await;
    assert!(head.contains("text/plain; version=0.0.4") && exemplars(&page) == 0, "{page}");
}

const ATTRIBUTES: &[&str] = &[
    "gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.request.stream",
    "http.request.method", "url.scheme", "http.route", "client.address", "user_agent.original",
    "gen_ai.response.model", "gen_ai.response.id", "gen_ai.response.finish_reasons",
    "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "server.address", "server.port",
    "http.response.status_code", "tokenway.route", "tokenway.pool", "tokenway.replica", "tokenway.revision",
    "tokenway.tenant", "tokenway.class", "tokenway.outcome", "tokenway.ttft", "tokenway.stage.decode",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_collector_costs_counted_spans_and_nothing_else() {
    let refused = {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}/v1/traces", closed.local_addr().unwrap())
    };
    let hanging = Collector::start(false).await;
    for (endpoint, timeout) in [(refused, 10_000), (hanging.otlp().traces.endpoint, 50)] {
        let mut config = config();
        let timeout = Duration::from_millis(timeout);
        let otlp = config.telemetry.otlp.insert(hanging.otlp());
        (otlp.traces.endpoint, otlp.traces.timeout) = (endpoint, timeout);
        config.telemetry.sampling.routine = 1.0;
        let observer = observer(&config);
        let record = Arc::new(record());
        for _ in 0..10 {
            observer.record(&record);
        }
        observer.shutdown(Duration::from_secs(20)).await;
        assert_eq!(dropped_spans(&observer, "export_failed"), Some(70.0));
        observer.record(&record);
        assert_eq!(dropped_spans(&observer, "shutdown"), Some(7.0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_reach_a_collector_that_was_away_for_a_moment() {
    let collector = Collector::start(true).await;
    collector.unavailable.store(2, Ordering::Relaxed);
    let observer = exporting_to(&collector);
    observer.record(&Arc::new(record()));
    until(|| !collector.received.lock().is_empty()).await;
    observer.shutdown(Duration::from_secs(20)).await;
    assert_eq!(dropped_spans(&observer, "export_failed"), Some(0.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_that_a_collector_rejects_are_counted() {
    let collector = Collector::start(true).await;
    collector.rejects.store(3, Ordering::Relaxed);
    let observer = exporting_to(&collector);
    observer.record(&Arc::new(record()));
    observer.shutdown(Duration::from_secs(20)).await;
    assert_eq!(dropped_spans(&observer, "export_failed"), Some(3.0), "of seven in one export");
}

#[tokio::test(flavor = "multi_thread")]
async fn more_spans_than_fit_are_dropped_and_counted() {
    let hanging = Collector::start(false).await;
    let observer = exporting_to(&hanging);
    let record = Arc::new(record());
    for _ in 0..20_000 {
        observer.record(&record);
    }
    until(|| dropped_spans(&observer, "queue_full") > Some(1000.0)).await;
}

fn dropped_lines(observer: &Observer) -> Option<f64> {
    value(&observer.metrics.render(&[]), "tokenway_access_log_dropped_total")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_access_log_is_one_line_a_request_and_can_be_rotated() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.log");
    let mut config = config();
    config.telemetry.access_log = AccessLog::File(path.clone());
    let observer = observer(&config);
    observer.record(&Arc::new(record()));
    observer.shutdown(Duration::from_secs(20)).await;
    let old = dir.path().join("access.log.1");
    std::fs::rename(&path, &old).unwrap();
    observer.reopen();
    observer.record(&Arc::new(record()));
    observer.record(&Arc::new(record()));
    observer.shutdown(Duration::from_secs(20)).await;

    let lines = |path| std::fs::read_to_string(path).unwrap().lines().count();
    assert_eq!((lines(&old), lines(&path)), (1, 2));
    let line: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&old).unwrap()).unwrap();
    assert_eq!(line["tokenway.replica"], "gpu-a:8000");
    assert_eq!(line["gen_ai.usage.input_tokens"], 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_drops_lines_and_counts_them() {
    let mut config = config();
    config.telemetry.access_log = AccessLog::File("/dev/full".into());
    let observer = observer(&config);
    for _ in 0..5 {
        observer.record(&Arc::new(record()));
    }
    observer.shutdown(Duration::from_secs(20)).await;
    assert_eq!(dropped_lines(&observer), Some(5.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipe_that_nobody_reads_drops_lines_and_blocks_no_request() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    // Opened for both, so that opening does not wait for the other side.
    let mut reader = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let mut config = config();
    config.telemetry.access_log = AccessLog::File(path);
    let observer = observer(&config);
    let record: Arc<Record> = Arc::new(record());
    for _ in 0..20_000 {
        observer.record(&record);
    }
    let dropped = dropped_lines(&observer).unwrap();
    assert!(dropped > 5_000.0, "{dropped}");
    reader.read_exact(&mut [0; 16]).unwrap();
}

async fn admin(token: Option<&str>) -> (SocketAddr, Arc<Gateway>, Arc<Observer>) {
    admin_of(config(), token).await
}

async fn admin_of(
    mut config: tokenway::config::Config,
    token: Option<&str>,
) -> (SocketAddr, Arc<Gateway>, Arc<Observer>) {
    config.pools[0].engine_api_key = Some(Secret::new("hunter2"));
    config.admin.token = token.map(Secret::new);
    let Observers { observer, drift, rollouts, scale } = observers(&config);
    let gateway = Arc::new(Gateway::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let keys = crate::support::no_keys();
    let state = AdminState {
        control: gateway.clone(),
        observer: Arc::clone(&observer),
        drift,
        rollouts,
        scale,
        keys,
    };
    let tracker = TaskTracker::new();
    let serving = serve(listener, Arc::new(state), tracker.clone(), CancellationToken::new());
    tracker.spawn(serving);
    (address, gateway, observer)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_port_answers_its_paths() {
    let (address, gateway, observer) = admin(None).await;
    one_request(&observer);

    let (status, head, body) = get(address, "/metrics").await;
    assert_eq!(status, 200);
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    assert!(body.contains("tokenway_requests_total"));
    for path in [
        "/healthz", "/health", "/liveness", "/readyz", "/readiness", "/readyz/any", "/", "/page.js",
        "/page.css",
    ] {
        assert_eq!(get(address, path).await.0, 200, "{path}");
    }
    gateway.is_ready.store(false, Ordering::Relaxed);
    let (status, _, body) = get(address, "/readyz").await;
    assert_eq!(status, 503);
    assert!(body.contains("route chat: no ready replica"), "{body}");
    assert_eq!(get(address, "/readyz/any").await.0, 200, "another route's are enough");
    assert_eq!(get(address, "/healthz").await.0, 200);
    for (path, expected) in
        [("/api/latency?window=2m", 400), ("/nothing", 404), ("/api/drain", 405), ("/metrics?x=1", 200)]
    {
        assert_eq!(get(address, path).await.0, expected, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_api_tells_what_happened() {
    let (address, _gateway, observer) = admin(None).await;
    one_request(&observer);
    let json = async |path: &str| json(address, path).await;
    assert_eq!(json("/api/fleet").await["replicas"][0]["signals"]["waiting"], 5.0);
    let fleet = json("/api/fleet").await;
    for reported in [&fleet["replicas"][0]["calibration"], &fleet["pools"][0]["calibration"]] {
        let expected =
            [("answers", 40.0), ("median_error", 0.1), ("p90_error", 0.3), ("bias", 1.05), ("coverage", 0.9)];
        for (figure, value) in expected {
            assert_eq!(reported[figure].as_f64(), Some(value), "{figure} of {reported}");
        }
    }
    // Gaps of 20 ms twice, of 10 ms three times.
    let itl = fleet["replicas"][0]["recent"]["itl"].as_f64().unwrap();
    assert!((itl / 0.014 - 1.0).abs() < 1e-9, "{fleet}");
    assert_eq!(json("/api/routes").await["routes"][0]["pools"][0]["ready"], 1);
    let latency = json("/api/latency?window=1m").await;
    assert_eq!(lacks("latency", &latency), [""; 0]);
    let p99 = latency["series"][0]["ttft"]["p99"].as_f64().unwrap();
    assert!((p99 / 0.2 - 1.0).abs() < 0.002, "{latency}");
    assert_eq!(latency["series"][0]["duration"]["count"], 1);
    assert_eq!(latency["series"][0]["icl"]["count"], 2);
    assert_eq!(json("/api/decisions").await["decisions"][0]["reason"], "prefix");
    assert_eq!(json("/api/v1/decisions?route=chat&limit=1").await["decisions"].as_array().unwrap().len(), 1);
    assert_eq!(json("/api/v1/decisions?route=other").await["decisions"], serde_json::json!([]));
    for (wrong, named) in [
        ("limit=0", "limit is 1 to 200"),
        ("limit=201", "limit is 1 to 200"),
        ("limit=many", "limit is 1 to 200"),
        ("colour=red", "unknown field `colour`, expected `route` or `limit`"),
    ] {
        let (status, _, body) = get(address, &format!("/api/v1/decisions?{wrong}")).await;
        let refused: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, &refused["error"]["code"]), (400, &"invalid_query".into()), "{wrong}: {body}");
        assert!(refused["error"]["message"].as_str().unwrap().contains(named), "{wrong}: {body}");
    }
    let latency = json("/api/v1/latency?window=1m&by=stage&route=chat").await;
    let of_stage = |name| latency["series"].as_array().unwrap().iter().find(|s| s["stage"] == name).cloned();
    assert!(
        (of_stage("decode").unwrap()["duration"]["p50"].as_f64().unwrap() / 1.09 - 1.0).abs() < 0.01,
        "{latency}"
    );
    assert_eq!(json("/api/v1/latency?tenant=acme").await["series"][0]["ttft"]["count"], 1);
    assert_eq!(json("/api/v1/latency?tenant=nobody").await["series"], serde_json::json!([]));
    for wrong in ["by=colour", "by=tenant&class=short", "colour=red", "step=1m"] {
        assert_eq!(get(address, &format!("/api/v1/latency?{wrong}")).await.0, 400, "{wrong}");
    }
    let config = json("/api/config").await;
    assert_eq!(config["pool"][0]["engine_api_key"], "***");
    assert!(!config.to_string().contains("hunter2"), "{config}");
}

/// Which members that the page knows an answer has not: no client in Rust reads it.
fn lacks(name: &str, answer: &serde_json::Value) -> Vec<String> {
    let known: serde_json::Value = serde_json::from_str(include_str!("../fixtures/admin-api.json")).unwrap();
    let is_fixed = |member: &&String| {
        !["budget.", "missed_in.", "prefill.", "stages."].iter().any(|by| member.contains(by))
    };
    members(&known[name]).difference(&members(answer)).filter(is_fixed).cloned().collect()
}

/// The names of all members of an answer, each behind those around it.
fn members(json: &serde_json::Value) -> BTreeSet<String> {
    let within =
        |name: &str, one| members(one).into_iter().map(move |inner| format!(".{name}{inner}")).collect();
    let all: Vec<BTreeSet<String>> = match json {
        serde_json::Value::Array(all) => all.iter().map(members).collect(),
        serde_json::Value::Object(all) => {
            let own = all.keys().map(|name| format!(".{name}")).collect();
            all.iter().map(|(name, one)| within(name, one)).chain([own]).collect()
        }
        _ => Vec::new(),
    };
    all.into_iter().flatten().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_path_of_the_api_has_a_version_and_is_in_the_index() {
    let (address, _gateway, observer) = admin(None).await;
    one_request(&observer);
    let json = async |path: &str| json(address, path).await;
    for path in ["/api/v1", "/api/v1/", "/api/"] {
        assert_eq!(json(path).await["api"], "v1", "{path}");
    }
    let index = json("/api/v1/").await;
    let document = json("/api/v1/openapi.json").await;
    assert_eq!(document["openapi"], "3.1.0");
    for endpoint in index["endpoints"].as_array().unwrap() {
        let (path, method) = (endpoint["path"].as_str().unwrap(), endpoint["method"].as_str().unwrap());
        assert!(document["paths"][path][method.to_lowercase()].is_object(), "{method} {path}");
        // What a pool should have is told where there is a fleet: tests/process/autoscale.rs.
        if method != "GET" || path.ends_with("/events") || path.contains("{pool}") {
            continue;
        }
        let path = path.replace("{id}", "req-1");
        let (status, _, versioned) = get(address, &path).await;
        assert_eq!(status, 200, "{path}");
        let unversioned = get(address, &path.replace("/v1", "")).await;
        assert_eq!(unversioned.0, 200, "{path}");
        if ["/routes", "/requests", "/requests/req-1", "/config"].iter().any(|end| path.ends_with(end)) {
            assert_eq!(unversioned.2, versioned, "{path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_request_is_kept_with_its_stages_attempts_and_decision() {
    let (address, _gateway, observer) = admin(None).await;
    let mut slow = record();
    slow.request_id = "slow-1".into();
    slow.slo.ttft = Some(Duration::from_millis(50));
    observer.record(&Arc::new(slow));
    for i in 0..30 {
        let mut failed = record();
        failed.request_id = format!("failed-{i}").into();
        failed.outcome = Outcome::Failed;
        failed.trace.root = i;
        observer.record(&Arc::new(failed));
    }
    let json = async |path: &str| json(address, path).await;
    let shown = json("/api/v1/requests/slow-1").await;
    assert_eq!(
        (&shown["kept"], &shown["slo_missed"], &shown["slo_missed_in"]),
        (&"slow".into(), &"ttft".into(), &"prefill".into())
    );
    assert_eq!(shown["slow"], 4.0, "four times its bound");
    let stages = shown["stages"].as_array().unwrap();
    let sum: f64 = stages.iter().map(|stage| stage["duration"].as_f64().unwrap()).sum();
    assert!((sum - 1.3).abs() < 1e-9, "{shown}");
    assert_eq!(shown["attempts_made"][0]["error"], "connect_refused");
    assert_eq!(
        shown["attempts_made"][1]["end"], shown["duration"],
        "the one that was answered lasts to the last byte"
    );
    assert_eq!(shown["decision"]["policy"], "latency");
    assert_eq!(json("/api/v1/requests?outcome=ok").await["requests"].as_array().unwrap().len(), 1);
    assert_eq!(json("/api/v1/requests?tenant=nobody").await["requests"].as_array().unwrap().len(), 0);
    for (query, known) in [("outcome=broken", "ok, client_error"), ("stage=prefil", "prefill, ")] {
        let (status, _, body) = get(address, &format!("/api/v1/requests?{query}")).await;
        assert!(status == 400 && body.contains(known), "{query}: {status} {body}");
    }
    // Ten of a kind are kept, and each page goes on where the one before ended.
    let (mut seen, mut next) = (Vec::new(), String::new());
    loop {
        let page = json(&format!("/api/v1/requests?outcome=failed&limit=4{next}")).await;
        seen.extend(page["requests"].as_array().unwrap().iter().map(|r| r["request_id"].to_string()));
        match page["next"].as_str() {
            Some(cursor) => next = format!("&after={cursor}"),
            None => break,
        }
    }
    let distinct: BTreeSet<_> = seen.iter().collect();
    assert_eq!((seen.len(), distinct.len()), (10, 10), "{seen:?}");
    for wrong in ["limit=0", "limit=501", "after=xyz", "missed=perhaps"] {
        assert_eq!(get(address, &format!("/api/v1/requests?{wrong}")).await.0, 400, "{wrong}");
    }
    assert_eq!(get(address, "/api/v1/requests/unheard-of").await.0, 404);
    let (status, _, body) = get(address, "/api/v1/requests/slo").await;
    assert!(
        status == 400 && body.contains("the first 4 characters"),
        "a beginning of several: {status} {body}"
    );
}

/// A client's retries share its `x-request-id`.
#[tokio::test(flavor = "multi_thread")]
async fn of_requests_with_one_id_the_failed_one_is_shown_and_the_others_are_listed() {
    let (address, _gateway, observer) = admin(None).await;
    for (span, outcome) in [(1, Outcome::Failed), (2, Outcome::ClientError), (3, Outcome::Ok)] {
        let mut tried = record();
        tried.request_id = "fan-1".into();
        (tried.trace.root, tried.outcome) = (span, outcome);
        tried.at.end = tried.at.end.after(Duration::from_secs(span));
        observer.record(&Arc::new(tried));
    }
    let shown = async |id: &str| {
        let (status, _, body) = get(address, &format!("/api/v1/requests/{id}")).await;
        assert_eq!(status, 200, "{id}: {body}");
        let shown: serde_json::Value = serde_json::from_str(&body).unwrap();
        let others = shown["others"].as_array().unwrap().iter();
        let others = others.map(|other| other["outcome"].as_str().unwrap().to_owned());
        (shown["outcome"].as_str().unwrap().to_owned(), others.collect::<Vec<_>>().join(" "))
    };
    let cases = [
        ("fan-1", "failed", "client_error ok"),
        ("fan-", "failed", "client_error ok"),
        ("0000000000000003", "ok", ""),
    ];
    for (id, first, others) in cases {
        assert_eq!(shown(id).await, (first.to_owned(), others.to_owned()), "{id}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_verdict_and_the_history_show_an_incident_and_the_stream_tells_it() {
    let (address, _gateway, observer) = admin(None).await;
    for i in 0..20 {
        observer.first_token(&first_token(&record()));
        let mut late = record();
        late.slo.ttft = Some(Duration::from_millis(if i < 12 { 50 } else { 500 }));
        observer.record(&Arc::new(late));
    }
    let json = async |path: &str| -> serde_json::Value {
        serde_json::from_str(&get(address, path).await.2).unwrap()
    };
    let slo = json("/api/v1/slo").await;
    assert_eq!(slo["status"], "bad", "{slo}");
    let sentence = slo["sentence"].as_str().unwrap();
    for word in ["chat: 12 of 20 requests had no first token in time", "12 of 12 misses in ", "gpu-a:8000"] {
        assert!(sentence.contains(word), "{word} in {sentence}");
    }
    assert_eq!(slo["routes"][0]["goodput"]["missed"], 12);
    assert_eq!(slo["routes"][0]["burn"]["5m"], 60.0);
    let history = json("/api/v1/history?step=10s&route=chat").await;
    let sum = |column: &serde_json::Value| {
        column.as_array().unwrap().iter().filter_map(|v| v.as_f64()).sum::<f64>()
    };
    assert_eq!(
        history["routes"][0]["judged"].as_array().unwrap().len(),
        history["times"].as_array().unwrap().len()
    );
    assert_eq!(sum(&history["routes"][0]["judged"]), 20.0);
    assert_eq!(sum(&history["routes"][0]["missed"]["ttft"]), 12.0);
    assert_eq!(get(address, "/api/v1/history?step=1d").await.0, 400);
    assert_eq!(lacks("history", &history), [""; 0]);
    assert_eq!(lacks("routes", &json("/api/v1/routes").await), [""; 0]);
    let decode = &history["routes"][0]["stages"]["decode"];
    assert_eq!(members(decode), BTreeSet::from(["mean", "p50", "p95", "p99"].map(|name| format!(".{name}"))));

    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET /api/v1/events HTTP/1.1\r\nhost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut heard = Vec::new();
    while String::from_utf8_lossy(&heard).matches("event: slo").count() < 2 {
        let read = stream.read_buf(&mut heard);
        let read = tokio::time::timeout(Duration::from_secs(30), read).await.expect("in time").unwrap();
        assert!(read > 0, "the stream goes on");
    }
    assert!(String::from_utf8_lossy(&heard).contains("content-type: text/event-stream"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_events_ends_with_the_token_that_it_was_opened_with() {
    let (address, gateway, _observer) = admin(Some("s3cret")).await;
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request =
        format!("GET /api/v1/events HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer s3cret\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut heard = Vec::new();
    let mut read = async |until: fn(&str) -> bool| {
        let reading = async {
            while !until(&String::from_utf8_lossy(&heard)) && stream.read_buf(&mut heard).await.unwrap() > 0 {
            }
        };
        tokio::time::timeout(Duration::from_secs(30), reading).await.expect("in time");
        String::from_utf8_lossy(&heard).matches("event: slo").count()
    };
    let two = |heard: &str| heard.matches("event: slo").count() == 2;
    assert_eq!(read(two).await, 2, "it goes on");
    gateway.rotate("another");
    let whole = |heard: &str| heard.ends_with("\r\n0\r\n\r\n");
    assert!(read(whole).await < 6, "it ends with the next event");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_whose_discovery_finds_nothing_is_bad_unless_it_is_scaled_to_zero() {
    for (least, verdict) in [
        (1, ("bad", "chat: no replica is known: dns: timed out")),
        (0, ("unknown", "too few requests to judge")),
    ] {
        let mut config = config();
        config.pools[0].name = "main".into();
        config.pools[0].scale.min_replicas = least;
        let (address, ..) = admin_of(config, None).await;
        let slo = json(address, "/api/v1/slo").await;
        assert_eq!((slo["status"].as_str().unwrap(), slo["sentence"].as_str().unwrap()), verdict);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_gets_the_page_without_the_token_and_nothing_else() {
    let (address, ..) = admin(Some("s3cret")).await;
    for path in ["/", "/page.js", "/page.css", "/page/chart.js", "/favicon.svg"] {
        let (status, head, body) = get(address, path).await;
        assert_eq!(status, 200, "{path}");
        assert!(head.contains("content-security-policy: default-src 'none'; script-src 'self'"), "{head}");
        assert!(!body.contains("{fingerprint}"), "{path}");
    }
    for path in ["/metrics", "/api/v1/", "/api/v1/slo", "/api/v1/events", "/api/fleet", "/api/v1/requests/x"]
    {
        assert_eq!(get(address, path).await.0, 401, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_port_acts_only_for_whom_it_may() {
    let (address, gateway, _observer) = admin(None).await;
    let csrf = "x-tokenway-admin: 1\r\n";
    let post = async |path: &str, headers: &str, body: &str| {
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}");
        let (status, _, body) =
            request(address, &format!("{head}content-length: {length}\r\n\r\n{body}")).await;
        (status, body)
    };
    assert_eq!(post("/api/drain", "", "").await.0, 403);
    assert!(!gateway.is_draining.load(Ordering::Relaxed));
    assert_eq!(post("/api/drain", csrf, r#"{"pool":"main","replica":"r"}"#).await.0, 400);
    assert_eq!(post("/api/drain", csrf, "").await.0, 202);
    assert!(gateway.is_draining.load(Ordering::Relaxed));
    let (status, body) = post("/api/reload", csrf, "").await;
    assert_eq!(status, 422);
    assert!(body.contains("gateway.toml:3:1: unknown key"), "{body}");
    let debug = (200, r#"{"level":"debug"}"#.to_owned());
    assert_eq!(post("/api/log-level", csrf, r#"{"level":"debug"}"#).await, debug);
    assert_eq!(post("/api/log-level", csrf, "trace").await.0, 200);
    for (body, status, told) in [
        ("{}", 400, "invalid_replica"),
        (r#"{"action":"stop","name":"a"}"#, 400, "unknown action"),
        (r#"{"action":"drain","name":"a"}"#, 404, "unknown_replica"),
    ] {
        let (got, text) = post("/api/replicas", csrf, body).await;
        assert!(got == status && text.contains(told), "{body}: {got} {text}");
    }
    for body in [
        r#"{"pool":"main","replicas":["b1"]}"#,
        r#"{"pool":"main","replica":7}"#,
        r#"{"pool":"main","replica":["b1"]}"#,
        r#"{"pool":"main","nmae":"b1"}"#,
        r#"{"replica":"b1"}"#,
        "",
    ] {
        let (status, text) = post("/api/warm-up", csrf, body).await;
        assert!(status == 400 && text.contains("invalid_body"), "{body}: {status} {text}");
    }
    assert!(gateway.warmed.lock().is_empty());
    assert_eq!(post("/api/warm-up", csrf, r#"{"pool":"main","replica":"b1"}"#).await.0, 202);
    assert_eq!(post("/api/warm-up", csrf, r#"{"pool":"main"}"#).await.0, 202);
    assert_eq!(*gateway.warmed.lock(), ["main b1", "main -"]);
    assert_eq!(post("/api/replicas", "", r#"{"action":"drain","name":"a"}"#).await.0, 403);
    assert_eq!(gateway.level.lock().as_str(), "trace");
    let rebound = "GET /api/fleet HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n";
    assert_eq!(request(address, rebound).await.0, 403);
    for path in ["/healthz", "/metrics", "/", "/api/fleet"] {
        let two = format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\nconnection: close\r\n\r\n"
        );
        assert_eq!(request(address, &two).await.0, 400, "{path}");
    }

    let (address, ..) = admin(Some("s3cret")).await;
    assert_eq!(get(address, "/metrics").await.0, 401);
    assert_eq!(get(address, "/healthz").await.0, 200);
    let token = "authorization: Bearer s3cret\r\nconnection: close\r\n\r\n";
    let with_token = format!("GET /metrics HTTP/1.1\r\nhost: gw.example\r\n{token}");
    assert_eq!(request(address, &with_token).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unauthorised_post_does_nothing() {
    let (address, gateway, _observer) = admin(Some("s3cret")).await;
    let csrf = "x-tokenway-admin: 1\r\n";
    let table = [
        ("/api/drain", csrf, "", 401),
        ("/api/drain", csrf, "authorization: Bearer wrong\r\n", 401),
        ("/api/drain", "", "authorization: Bearer s3cret\r\n", 403),
        ("/nothing", csrf, "", 401),
        ("/nothing", csrf, "authorization: Bearer s3cret\r\n", 404),
        ("/healthz", "", "", 405),
    ];
    for (path, csrf, token, expected) in table {
        let text =
            format!("POST {path} HTTP/1.1\r\nhost: gw.example\r\n{csrf}{token}connection: close\r\n\r\n");
        let (status, head, body) = request(address, &text).await;
        assert_eq!(status, expected, "{path}: {body}");
        assert_eq!(head.contains("www-authenticate: Bearer"), status == 401, "{head}");
        assert!(head.contains("cache-control: no-store"), "{head}");
        assert_eq!(head.contains("allow: "), status == 405, "{head}");
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert!(body["error"]["code"].is_string(), "{body}");
    }
    assert!(!gateway.is_draining.load(Ordering::Relaxed));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_method_is_answered_with_the_right_ones() {
    let (address, ..) = admin(None).await;
    let table = [
        ("DELETE", "/metrics", "GET, HEAD"),
        ("GET", "/api/reload", "POST"),
        ("PUT", "/api/log-level", "GET, HEAD, POST"),
    ];
    for (method, path, allowed) in table {
        let headers = "host: localhost\r\nx-tokenway-admin: 1\r\nconnection: close\r\n";
        let text = format!("{method} {path} HTTP/1.1\r\n{headers}\r\n");
        let (status, head, body) = request(address, &text).await;
        assert_eq!(status, 405, "{body}");
        assert!(head.lines().any(|line| line == format!("allow: {allowed}")), "{head}");
        assert!(body.contains(&format!(r#""message":"allowed here: {allowed}""#)), "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_compressed_for_those_who_accept_it() {
    let (address, _gateway, observer) = admin(None).await;
    one_request(&observer);
    let text = |method: &str, accepted: &str| {
        let headers = format!("host: {address}\r\naccept-encoding: {accepted}\r\nconnection: close\r\n");
        format!("{method} /metrics HTTP/1.1\r\n{headers}\r\n")
    };
    // An HTTP/1.0 client gets the body without chunks.
    let old = text("GET", "br, gzip").replace("HTTP/1.1", "HTTP/1.0");
    let (status, head, body) = request_bytes(address, &old).await;
    assert_eq!(status, 200);
    assert!(head.contains("content-encoding: gzip"), "{head}");
    assert!(head.contains("vary: accept-encoding"), "{head}");
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    let mut page = String::new();
    flate2::read::GzDecoder::new(&body[..]).read_to_string(&mut page).unwrap();
    assert!(page.contains("tokenway_requests_total"), "{page}");
    assert!(body.len() < page.len() / 4, "{} of {}", body.len(), page.len());

    let (status, head, body) = request_bytes(address, &text("HEAD", "gzip")).await;
    assert_eq!((status, body.len()), (200, 0));
    assert!(head.contains("content-encoding: gzip") && !head.contains("content-length"), "{head}");
    for accepted in ["identity", "gzip;q=0", "br"] {
        let (_, head, page) = request_bytes(address, &text("GET", accepted)).await;
        assert!(!head.contains("content-encoding"), "{accepted}: {head}");
        assert!(head.contains(&format!("content-length: {}", page.len())), "{head}");
    }
    let small = text("GET", "gzip").replace("/metrics", "/healthz");
    let (_, head, body) = request(address, &small).await;
    assert!(!head.contains("content-encoding") && body == r#"{"status":"alive"}"#, "{head}");
    let (status, head, body) = request_bytes(address, &text("HEAD", "identity")).await;
    assert_eq!((status, body.len()), (200, 0));
    assert!(head.contains("content-length: ") && !head.contains("content-length: 0"), "{head}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_is_a_500_on_its_request_alone() {
    let (address, gateway, _observer) = admin(None).await;
    gateway.is_broken.store(true, Ordering::Relaxed);
    let of = |path, rest| format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n{rest}\r\n");
    let on_one_connection = of("/readyz", "") + &of("/healthz", "connection: close\r\n");
    let (status, head, rest) = request(address, &on_one_connection).await;
    assert_eq!(status, 500);
    assert!(head.contains("cache-control: no-store"), "{head}");
    assert!(rest.starts_with(r#"{"error":{"code":"internal_error""#), "{rest}");
    assert!(rest.contains("HTTP/1.1 200 OK") && rest.ends_with(r#"{"status":"alive"}"#), "{rest}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_hang_hold_up_neither_reads_nor_health() {
    let (address, ..) = admin(None).await;
    let head = "host: localhost\r\nx-tokenway-admin: 1\r\ncontent-length: 5\r\nconnection: close\r\n\r\n";
    let mut hanging = Vec::new();
    let refused = async {
        loop {
            let text = format!("POST /api/log-level HTTP/1.1\r\n{head}");
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            stream.write_all(text.as_bytes()).await.unwrap();
            hanging.push(stream);
            let (status, _, body) = get(address, "/api/log-level").await;
            if status != 200 {
                return (status, body);
            }
        }
    };
    let (status, body) = tokio::time::timeout(Duration::from_secs(4), refused).await.expect("in time");
    assert_eq!(status, 503);
    assert!(body.contains(r#""code":"overloaded""#), "{body}");
    for path in ["/metrics", "/healthz"] {
        assert_eq!(get(address, path).await.0, 200, "{path}");
    }
    hanging.clear();
    let free = async { while get(address, "/api/log-level").await.0 != 200 {} };
    tokio::time::timeout(Duration::from_secs(4), free).await.expect("in time");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_without_a_request_make_room_for_health() {
    let (address, ..) = admin(None).await;
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(tokio::net::TcpStream::connect(address).await.unwrap());
    }
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert!(matches!(get(address, path).await.0, 200 | 503), "{path}");
    }
    // The one that was idle the longest was closed.
    let closed = async { silent[0].read(&mut [0]).await.unwrap() };
    assert_eq!(tokio::time::timeout(Duration::from_secs(4), closed).await.expect("in time"), 0);
}

#[tokio::test]
async fn the_first_failure_of_a_route_is_an_increase() {
    let observer = observer(&config());
    let counts = |page: &str| {
        let failed = r#"tokenway_requests_total{class="short",code="502",model="llama",outcome="failed",revision="v1",route="chat",tenant="default"}"#;
        let refused = r#"tokenway_requests_total{class="short",code="503",model="llama",outcome="refused",revision="none",route="chat",tenant="default"}"#;
        let missed = r#"tokenway_slo_missed_requests_total{class="short",model="llama",reason="ttft",revision="v1",route="chat",tenant="default"}"#;
        let good = r#"tokenway_goodput_requests_total{class="short",model="llama",revision="v1",route="chat",tenant="default"}"#;
        [failed, refused, missed, good].map(|series| value(page, series))
    };
    assert_eq!(counts(&observer.metrics.render(&[])), [Some(0.0); 4]);
    let mut failed = record();
    failed.tenant = "default".into();
    (failed.outcome, failed.status, failed.error) = (Outcome::Failed, 502, Some("replica_failed"));
    observer.record(&Arc::new(failed));
    assert_eq!(counts(&observer.metrics.render(&[])), [Some(1.0), Some(0.0), Some(0.0), Some(0.0)]);
}

#[tokio::test]
async fn what_no_configuration_names_starts_at_zero_with_its_first_request() {
    let mut config = config();
    config.routes[0].model = ModelMatch::Any;
    config.routes[0].upstream_model = None;
    let observer = observer(&config);
    let counts = |page: &str| {
        let failed = r#"tokenway_requests_total{class="short",code="502",model="llama",outcome="failed",revision="v1",route="chat",tenant="acme"}"#;
        let refused = r#"tokenway_slo_missed_by_stage_total{class="short",model="llama",reason="refused",revision="none",route="chat",stage="admit"}"#;
        [failed, refused].map(|series| value(page, series))
    };
    assert_eq!(counts(&observer.metrics.render(&[])), [None; 2]);
    observer.record(&Arc::new(record()));
    assert_eq!(counts(&observer.metrics.render(&[])), [Some(0.0); 2]);
}

/// Two revisions, two classes, and of every tenant all that can happen to it.
fn a_busy_day(observer: &Observer, tenants: usize) {
    let outcomes = [
        (Outcome::Ok, 200),
        (Outcome::Failed, 502),
        (Outcome::Failed, 504),
        (Outcome::Refused, 429),
        (Outcome::ClientError, 400),
        (Outcome::Canceled, 499),
    ];
    for tenant in 0..tenants {
        for (revision, class) in ["v1", "v2"].iter().flat_map(|r| [(*r, Class::Short), (*r, Class::Long)]) {
            let mut of_tenant = record();
            (of_tenant.tenant, of_tenant.class) = (format!("tenant-{tenant:03}").into(), class);
            for attempt in &mut of_tenant.attempts {
                Arc::make_mut(&mut attempt.served).revision = revision.into();
            }
            observer.first_token(&first_token(&of_tenant));
            for (outcome, status) in outcomes {
                let mut ended = Record { outcome, status, ..of_tenant.clone() };
                observer.record(&Arc::new(ended.clone()));
                if outcome == Outcome::Ok {
                    ended.slo.ttft = Some(Duration::from_millis(1));
                    observer.record(&Arc::new(ended));
                }
            }
        }
    }
}

#[tokio::test]
async fn a_page_with_150_tenants_is_at_most_1500_kb_and_150_kb_on_the_wire() {
    let mut config = config();
    config.telemetry.stages_by_tenant = false;
    config.telemetry.ttft_by_tenant = false;
    let observer = observer(&config);
    a_busy_day(&observer, 150);
    let page = observer.metrics.render_as(&[], Exposition::OpenMetrics);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, page.as_bytes()).unwrap();
    let wire = gzip.finish().unwrap().len();
    let samples = page.lines().filter(|line| !line.starts_with('#')).count();
    eprintln!("{samples} samples, {} bytes, {wire} bytes with gzip", page.len());
    assert!(page.contains(r#"tenant="tenant-149""#), "counters have their tenant");
    assert!(page.len() <= 1_500_000 && wire <= 150_000, "{samples} samples, {} and {wire}", page.len());
}

#[tokio::test]
async fn a_hundred_rollouts_leave_room_for_the_revision_that_serves() {
    let mut config = config();
    let observer = observer(&config);
    let mut record = record();
    let of_revision = |revision: &str, page: &str| {
        page.lines().any(|line| {
            line.contains(r#"tenant="acme""#) && line.contains(&format!(r#"revision="{revision}""#))
        })
    };
    for rollout in 0..100 {
        let revision: Arc<str> = format!("r{rollout}").into();
        config.pools[0].revision = Arc::clone(&revision);
        observer.reconfigure(&config);
        for attempt in &mut record.attempts {
            Arc::make_mut(&mut attempt.served).revision = Arc::clone(&revision);
        }
        observer.record(&Arc::new(record.clone()));
    }
    let page = observer.metrics.render(&[]);
    assert!(of_revision("r99", &page), "the revision that serves has no series of its own");
    assert!(of_revision("r98", &page), "what the last revision did at its end is not scraped");
    assert!(!of_revision("r97", &page));
    assert!(!page.contains(r#"tenant="other""#) && !page.contains(r#"revision="other""#));
    // Those of a stage as well.
    assert!(page.contains(r#"tokenway_stage_duration_seconds_count{model="llama",revision="r99""#));
    assert!(!page.contains(r#"revision="r97""#), "{:?}", page.lines().find(|l| l.contains("r97")));
}
