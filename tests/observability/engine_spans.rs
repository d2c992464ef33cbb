//! OTLP in and out: engines' spans over both protocols, joined and passed on; exports over gRPC; collectors that misbehave.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what is wrong by panicking")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;
use tokenway::config::{AccessLog, Config, EngineSpansConfig, Otlp, OtlpProtocol, OtlpTarget};
use tokenway::observe::Observer;
use tokenway::observe::history::Dimension;
use tokenway::observe::latency::Step;
use tokenway::record::{Record, SloBounds};
use tokenway::stage::Stage;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Collector, config, dropped_spans, observer, record, until, value};

const SERIES: &str = r#"model="llama",revision="v1",route="chat""#;

/// The value of the stage in the metrics: how often it was observed, from this source.
fn stage(observer: &Observer, stage: &str, source: &str) -> Option<f64> {
    let name = "tokenway_stage_duration_seconds_count";
    let labels = format!(r#"{{{SERIES},source="{source}",stage="{stage}",tenant="acme"}}"#);
    value(&observer.metrics.render(&[]), &format!("{name}{labels}"))
}

fn joins(observer: &Observer, result: &str) -> Option<f64> {
    let series = format!("tokenway_engine_spans_total{{result=\"{result}\"}}");
    value(&observer.metrics.render(&[]), &series)
}

/// Receives engines' spans on a free port; no collector.
fn receiving() -> Config {
    let mut config = config();
    config.telemetry.engine_spans = Some(EngineSpansConfig { listen: "127.0.0.1:0".parse().unwrap() });
    config
}

/// The engine's own view of the attempt that answered `record()`: 50 ms of queue, 120 ms of prefill.
fn engine_span(record: &Record) -> ExportTraceServiceRequest {
    engine_span_of(record, 0.05, 0.12)
}

fn engine_span_of(record: &Record, queue: f64, prefill: f64) -> ExportTraceServiceRequest {
    let seconds = |key: &str, seconds| KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(any_value::Value::DoubleValue(seconds)) }),
        ..KeyValue::default()
    };
    let span = Span {
        name: "llm_request".into(),
        trace_id: record.trace.trace_id.to_be_bytes().to_vec(),
        span_id: vec![1; 8],
        parent_span_id: record.attempts.last().unwrap().span.to_be_bytes().to_vec(),
        attributes: vec![
            seconds("gen_ai.latency.time_in_queue", queue),
            seconds("gen_ai.latency.time_in_model_prefill", prefill),
        ],
        ..Span::default()
    };
    let scope = ScopeSpans { spans: vec![span], ..ScopeSpans::default() };
    let resource = ResourceSpans { scope_spans: vec![scope], ..ResourceSpans::default() };
    ExportTraceServiceRequest { resource_spans: vec![resource] }
}

/// Posts a body to the port for engines' spans and gives the status.
async fn post(address: SocketAddr, path: &str, content_type: &str, body: &[u8]) -> u16 {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // A body that is too long is refused before its end.
    let _ = stream.write_all(body).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).split(' ').nth(1).unwrap().parse().unwrap()
}

fn sampled() -> Record {
    let mut record = record();
    record.trace.flags_upstream = 1;
    record
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stages_of_a_sampled_request_are_those_its_engine_measured() {
    let collector = Collector::start(true).await;
    let mut config = receiving();
    config.telemetry.otlp = Some(collector.otlp());
    config.telemetry.sampling.routine = 1.0;
    let observer = observer(&config);
    let address = observer.engine_spans_address().unwrap();
    let record = sampled();
    let export = engine_span(&record).encode_to_vec();

    observer.record(&Arc::new(record));
    assert_eq!(stage(&observer, "prefill", "estimated"), None, "waits for its engine");
    assert_eq!(post(address, "/v1/traces", "application/x-protobuf", &export).await, 200);
    until(|| joins(&observer, "joined") == Some(1.0)).await;
    for name in ["engine_queue", "prefill", "engine_other"] {
        assert_eq!(stage(&observer, name, "measured"), Some(1.0), "{name}");
    }
    observer.shutdown(Duration::from_secs(20)).await;

    until(|| collector.received.lock().len() == 2).await;
    let received = collector.received.lock();
    let passed_on = received.iter().find(|(_, export)| name_of(export) == "llm_request").unwrap();
    assert_eq!(passed_on.1.encode_to_vec(), export, "byte for byte");
    let ours = received.iter().find(|(_, export)| name_of(export) == "chat llama").unwrap();
    let root = &ours.1.resource_spans[0].scope_spans[0].spans[0];
    let attribute =
        |key: &str| root.attributes.iter().find(|kv| kv.key == key).map(|kv| format!("{:?}", kv.value));
    assert!(attribute("tokenway.stage.source").unwrap().contains("measured"));
    assert!(attribute("tokenway.stage.engine_queue").unwrap().contains("0.05"));
}

fn name_of(export: &ExportTraceServiceRequest) -> &str {
    &export.resource_spans[0].scope_spans[0].spans[0].name
}

#[tokio::test(flavor = "multi_thread")]
async fn a_miss_is_in_the_history_at_once_and_its_stage_moves_when_the_engine_measured_it() {
    let observer = observer(&receiving());
    let address = observer.engine_spans_address().unwrap();
    let mut record = sampled();
    record.slo = SloBounds { ttft: Some(Duration::from_millis(100)), ..SloBounds::default() };
    let end = record.at.end;
    let export = engine_span_of(&record, 0.15, 0.02).encode_to_vec();
    let root = record.trace.root;
    observer.record(&Arc::new(record));
    let history = observer.history().route(&"chat".into());
    let misses = |of: Stage| {
        let slots = history.slots(Step::TenSeconds, 6, end);
        let replica = slots[0].1.parts.iter().find(|((by, _), _)| *by == Dimension::Replica).unwrap().1;
        (slots[0].1.missed_in[of], replica.missed_in[of], replica.mean(of))
    };
    let at_once = misses(Stage::Prefill);
    assert_eq!((at_once.0, at_once.1, misses(Stage::EngineQueue).0), (1, 1, 0), "as estimated");
    assert!(at_once.2.unwrap() > 0.15, "{at_once:?}");

    assert_eq!(post(address, "/v1/traces", "application/x-protobuf", &export).await, 200);
    until(|| joins(&observer, "joined") == Some(1.0)).await;
    until(|| misses(Stage::EngineQueue).0 == 1).await;
    assert_eq!(misses(Stage::EngineQueue), (1, 1, Some(0.15)), "as measured");
    let prefill = misses(Stage::Prefill);
    assert_eq!((prefill.0, prefill.1), (0, 0), "moved, not counted twice");
    assert!((prefill.2.unwrap() - 0.02).abs() < 1e-9, "{prefill:?}");
    let slots = history.slots(Step::TenSeconds, 6, end);
    assert_eq!((slots[0].1.requests, slots[0].1.all_missed()), (1, 1));
    let kept = observer.history().kept(end);
    assert!(kept.iter().any(|kept| kept.record.trace.root == root && kept.record.engine.is_some()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_line_of_a_request_waits_for_its_engine_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("access.log");
    let mut config = receiving();
    config.telemetry.access_log = AccessLog::File(path.clone());
    let observer = observer(&config);
    let record = sampled();
    let export = engine_span(&record).encode_to_vec();
    observer.record(&Arc::new(record));
    let address = observer.engine_spans_address().unwrap();
    assert_eq!(post(address, "/v1/traces", "application/x-protobuf", &export).await, 200);
    until(|| joins(&observer, "joined") == Some(1.0)).await;
    // One that waits in vain, until the gateway ends.
    observer.record(&Arc::new(sampled()));
    observer.shutdown(Duration::from_secs(20)).await;
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let sources: Vec<_> = lines.iter().map(|line| line["tokenway.stage.source"].as_str()).collect();
    assert_eq!(sources, [Some("measured"), Some("estimated")], "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_engine_says_nothing_waits_ten_seconds() {
    let observer = observer(&receiving());
    observer.record(&Arc::new(sampled()));
    observer.record(&Arc::new(record()));
    assert_eq!(stage(&observer, "prefill", "estimated"), Some(1.0), "who is not sampled does not wait");
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert_eq!(stage(&observer, "prefill", "estimated"), Some(1.0));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(stage(&observer, "prefill", "estimated"), Some(2.0));
    assert_eq!(joins(&observer, "missing"), Some(1.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_port_takes_exports_of_spans_and_nothing_else() {
    let observer = observer(&receiving());
    let address = observer.engine_spans_address().unwrap();
    let good = engine_span(&sampled()).encode_to_vec();
    let cases: [(&str, &str, &[u8], u16); 6] = [
        ("/v1/traces", "application/x-protobuf", &good, 200),
        ("/v1/traces", "application/x-protobuf", b"\xff\xff", 400),
        ("/v1/traces", "application/json", b"{}", 415),
        ("/v1/metrics", "application/x-protobuf", b"", 404),
        ("/metrics", "text/plain", b"", 404),
        ("/v1/traces", "application/x-protobuf", &vec![0; 5 * 1024 * 1024], 413),
    ];
    for (path, content_type, body, status) in cases {
        assert_eq!(post(address, path, content_type, body).await, status, "{path} {content_type}");
    }
    let late = Arc::new(sampled());
    observer.record(&late);
    assert_eq!(joins(&observer, "joined"), Some(1.0), "the span was there before the record");
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_go_out_over_grpc_and_come_in_over_grpc() {
    // One gateway exports over gRPC to the port for engines of another, which passes it on over HTTP.
    let collector = Collector::start(true).await;
    let mut config_b = receiving();
    config_b.telemetry.otlp = Some(collector.otlp());
    let b = observer(&config_b);
    let mut config_a = config();
    let endpoint = format!("http://{}", b.engine_spans_address().unwrap());
    let otlp = collector.otlp();
    let traces = OtlpTarget { endpoint, protocol: OtlpProtocol::Grpc, ..otlp.traces };
    config_a.telemetry.otlp = Some(Otlp { traces, ..otlp });
    config_a.telemetry.sampling.routine = 1.0;
    let a = observer(&config_a);

    for _ in 0..300 {
        a.record(&Arc::new(record()));
    }
    a.shutdown(Duration::from_secs(20)).await;
    assert_eq!(dropped_spans(&a, "export_failed"), Some(0.0));
    assert_eq!(dropped_spans(&a, "shutdown"), Some(0.0));
    let spans = || -> usize {
        let received = collector.received.lock();
        received.iter().map(|(_, export)| export.resource_spans[0].scope_spans[0].spans.len()).sum()
    };
    until(|| spans() == 300 * 7).await;
    assert_eq!(collector.received.lock()[0].0["content-type"], "application/x-protobuf");
    b.shutdown(Duration::from_secs(20)).await;
}

/// A collector that answers every request with a status; for gRPC it speaks no HTTP/2 at all.
async fn refusing(status: &'static str) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio_util::task::TaskTracker::new().spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 16 * 1024];
            let _ = stream.read(&mut head).await;
            let _ =
                stream.write_all(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").as_bytes()).await;
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_refuses_costs_counted_spans_over_either_protocol() {
    for protocol in [OtlpProtocol::Http, OtlpProtocol::Grpc] {
        let address = refusing("500 Internal Server Error").await;
        let path = if protocol == OtlpProtocol::Http { "/v1/traces" } else { "" };
        let endpoint = format!("http://{address}{path}");
        let timeout = Duration::from_secs(5);
        let mut config = receiving();
        let traces = OtlpTarget { endpoint, protocol, headers: vec![], timeout };
        config.telemetry.otlp = Some(Otlp { traces, logs: None });
        config.telemetry.sampling.routine = 1.0;
        let observer = observer(&config);
        observer.record(&Arc::new(record()));
        let engines = engine_span(&sampled()).encode_to_vec();
        let at = observer.engine_spans_address().unwrap();
        assert_eq!(
            post(at, "/v1/traces", "application/x-protobuf", &engines).await,
            200,
            "the engine is not told"
        );
        // Seven of ours, one of the engine's.
        until(|| dropped_spans(&observer, "export_failed") == Some(8.0)).await;
        observer.shutdown(Duration::from_secs(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_hangs_costs_bounded_memory_and_counted_spans() {
    let hanging = Collector::start(false).await;
    let mut config = receiving();
    config.telemetry.otlp = Some(hanging.otlp());
    let observer = observer(&config);
    let address = observer.engine_spans_address().unwrap();
    // Three megabytes each: the queue holds sixteen.
    let mut export = engine_span(&sampled());
    export.resource_spans[0].scope_spans[0].spans[0].name = "x".repeat(3 * 1024 * 1024);
    let export = export.encode_to_vec();
    for _ in 0..8 {
        assert_eq!(post(address, "/v1/traces", "application/x-protobuf", &export).await, 200);
    }
    assert_eq!(dropped_spans(&observer, "queue_full"), Some(3.0));
}
