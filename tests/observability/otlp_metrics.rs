//! Export of metrics by OTLP, against a scripted collector.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation fails the test")]

use std::collections::VecDeque;
use std::io::Read as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, ExponentialHistogramDataPoint, Metric, NumberDataPoint, number_data_point,
};
use parking_lot::Mutex;
use prost::Message;
use tokenway::config::{Config, OtlpMetrics, OtlpProtocol, OtlpTarget, Temporality};
use tokenway::fleet::discovery::SourceStatus;
use tokenway::fleet::status::{FleetView, ReplicaState};
use tokenway::observe::Observer;
use tokenway::observe::metrics::StreamKey;
use tokenway::record::{Gap, Gaps};
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use crate::support::{config, first_token, observer, observers_of, record, status, until, value};

/// How the collector meets an export; [`Meets::Takes`] when the script has ended.
enum Meets {
    Takes,
    Answers(u16),
    Hangs,
    Rejects,
}

/// A collector of metrics.
struct Receiver {
    received: Arc<Mutex<Vec<(http::HeaderMap, ExportMetricsServiceRequest)>>>,
    address: SocketAddr,
    _tasks: TaskTracker,
}

impl Receiver {
    async fn start(script: impl IntoIterator<Item = Meets>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::<Mutex<Vec<_>>>::default();
        let script = Arc::new(Mutex::new(script.into_iter().collect::<VecDeque<_>>()));
        let (tasks, sink) = (TaskTracker::new(), Arc::clone(&received));
        let connections = tasks.clone();
        tasks.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (sink, script) = (Arc::clone(&sink), Arc::clone(&script));
                let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
                    let (sink, script) = (Arc::clone(&sink), Arc::clone(&script));
                    async move {
                        let (head, body) = request.into_parts();
                        assert_eq!(head.uri.path(), "/v1/metrics");
                        let body = body.collect().await?.to_bytes();
                        let meets = script.lock().pop_front().unwrap_or(Meets::Takes);
                        let mut answer = ExportMetricsServiceResponse::default();
                        match meets {
                            Meets::Takes => {
                                sink.lock().push((head.headers.clone(), decoded(&head.headers, &body)));
                            }
                            Meets::Answers(code) => {
                                let response = http::Response::builder().status(code);
                                return Ok::<_, hyper::Error>(response.body(Full::default()).unwrap());
                            }
                            Meets::Hangs => std::future::pending::<()>().await,
                            Meets::Rejects => {
                                sink.lock().push((head.headers.clone(), decoded(&head.headers, &body)));
                                answer.partial_success = Some(ExportMetricsPartialSuccess {
                                    rejected_data_points: 3,
                                    error_message: "too many".into(),
                                });
                            }
                        }
                        Ok(http::Response::new(Full::new(bytes::Bytes::from(answer.encode_to_vec()))))
                    }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                connections.spawn(connection);
            }
        });
        Self { received, address, _tasks: tasks }
    }

    fn exporting(&self, interval: Duration) -> Config {
        let mut config = config();
        config.telemetry.otlp_metrics = Some(OtlpMetrics {
            target: OtlpTarget {
                endpoint: format!("http://{}/v1/metrics", self.address),
                protocol: OtlpProtocol::Http,
                headers: vec![("x-team".parse().unwrap(), "infra".parse().unwrap())],
                timeout: Duration::from_secs(10),
            },
            interval,
            is_gzip: false,
            temporality: Temporality::Cumulative,
        });
        config
    }

    /// The metrics of the last export.
    fn last(&self) -> Vec<Metric> {
        let received = self.received.lock();
        let (_, export) = received.last().expect("an export");
        export.resource_metrics[0].scope_metrics[0].metrics.clone()
    }
}

fn decoded(headers: &http::HeaderMap, body: &[u8]) -> ExportMetricsServiceRequest {
    if headers.get("content-encoding").is_some_and(|coding| coding == "gzip") {
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(body).read_to_end(&mut plain).unwrap();
        return ExportMetricsServiceRequest::decode(&plain[..]).unwrap();
    }
    ExportMetricsServiceRequest::decode(body).unwrap()
}

/// One stream: its first token, two gaps of 20 ms and one of 40 ms with two tokens, its end.
fn one_stream(observer: &Observer) {
    let record = record();
    let first = first_token(&record);
    observer.first_token(&first);
    let gap = |millis, tokens| Gap { length: Duration::from_millis(millis), tokens: Some(tokens) };
    let gaps = [gap(20, 1), gap(20, 1), gap(40, 2)];
    let key = StreamKey::new(&record, first.served);
    observer.stream_series(&key).gaps(&Gaps { gaps: &gaps, late_itl: &[], is_filling: false });
    observer.record(&Arc::new(record));
}

fn find<'a>(metrics: &'a [Metric], name: &str) -> &'a Metric {
    let names: Vec<_> = metrics.iter().map(|metric| &metric.name).collect();
    metrics.iter().find(|metric| metric.name == name).unwrap_or_else(|| panic!("{name} in {names:?}"))
}

fn exponential<'a>(metrics: &'a [Metric], name: &str) -> &'a [ExponentialHistogramDataPoint] {
    match find(metrics, name).data.as_ref() {
        Some(Data::ExponentialHistogram(histogram)) => &histogram.data_points,
        other => panic!("{name}: {other:?}"),
    }
}

fn sum<'a>(metrics: &'a [Metric], name: &str) -> (&'a [NumberDataPoint], i32) {
    match find(metrics, name).data.as_ref() {
        Some(Data::Sum(sum)) if sum.is_monotonic => (&sum.data_points, sum.aggregation_temporality),
        other => panic!("{name}: {other:?}"),
    }
}

fn number(point: &NumberDataPoint) -> f64 {
    match point.value {
        Some(number_data_point::Value::AsDouble(value)) => value,
        ref other => panic!("{other:?}"),
    }
}

fn attribute<'a>(attributes: &'a [KeyValue], name: &str) -> Option<&'a str> {
    let pair = attributes.iter().find(|pair| pair.key == name)?;
    match pair.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

fn exports(observer: &Observer, result: &str) -> Option<f64> {
    let series = format!("tokenway_otlp_metric_exports_total{{result=\"{result}\"}}");
    value(&observer.metrics.render(&[]), &series)
}

const NEVER: Duration = Duration::from_secs(3600);
const LIMIT: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn the_last_metrics_are_exported_at_the_end() {
    let receiver = Receiver::start([]).await;
    let source = || SourceStatus {
        pool: "main".into(),
        source: "dns",
        targets: 3,
        age: None,
        failing: None,
        failures: 0,
        kept: 0,
    };
    let fleet = FleetView::new(|| vec![status(ReplicaState::Ready, true)], move || vec![source()]);
    let observer = observers_of(&receiver.exporting(NEVER), fleet).observer;
    one_stream(&observer);
    observer.shutdown(LIMIT).await;

    let (headers, export) = receiver.received.lock().pop().expect("one export");
    assert_eq!(
        (&headers["x-team"], &headers["content-type"]),
        (&"infra".parse().unwrap(), &"application/x-protobuf".parse().unwrap())
    );
    let resource = export.resource_metrics[0].resource.as_ref().unwrap();
    assert_eq!(attribute(&resource.attributes, "service.name"), Some("tokenway"));
    assert_eq!(attribute(&resource.attributes, "service.instance.id"), Some("test"));

    let metrics = &export.resource_metrics[0].scope_metrics[0].metrics;
    assert!(metrics.iter().any(|one| one.name == "tokenway.discovery_targets"), "without a scrape");
    let [ttft] = exponential(metrics, "gen_ai.server.time_to_first_token") else { panic!("one series") };
    assert_eq!((ttft.count, ttft.sum), (1, Some(0.2)));
    for (name, expected) in [
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.provider.name", "vllm"),
        ("gen_ai.request.model", "llama"),
        ("tokenway.route", "chat"),
        ("tokenway.revision", "v1"),
        ("tokenway.class", "short"),
    ] {
        assert_eq!(attribute(&ttft.attributes, name), Some(expected), "{name}");
    }
    let [itl] = exponential(metrics, "tokenway.inter_token_latency") else { panic!("one series") };
    assert_eq!(itl.count, 4);
    let buckets = itl.positive.as_ref().unwrap();
    let base = 2f64.powf(2f64.powi(-itl.scale));
    let (lower, upper) = (base.powi(buckets.offset), base.powi(buckets.offset + 1));
    assert!(lower < 0.02 && 0.02 <= upper && upper / lower < 1.05, "{lower} {upper}");
    assert_eq!(buckets.bucket_counts, [4]);
    assert_eq!(exponential(metrics, "gen_ai.server.request.duration")[0].count, 1);
    assert_eq!(exponential(metrics, "gen_ai.server.time_per_output_token")[0].count, 1);

    let (goodput, temporality) = sum(metrics, "tokenway.goodput_requests");
    // Beside the series that begin at zero.
    let acme = goodput.iter().find(|point| attribute(&point.attributes, "tenant") == Some("acme")).unwrap();
    assert_eq!((number(acme), temporality), (1.0, AggregationTemporality::Cumulative.into()));
    sum(metrics, "tokenway.requests");
    sum(metrics, "tokenway.tokens");
    let Some(Data::Gauge(queue)) = &find(metrics, "tokenway.replica_queue_depth").data else {
        panic!("a gauge")
    };
    assert_eq!(number(&queue.data_points[0]), 5.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_distinct_and_everything_else_on_the_page_is_exported() {
    let receiver = Receiver::start([]).await;
    let observer = observer(&receiver.exporting(NEVER));
    one_stream(&observer);
    let page = observer.metrics.render(&[]);
    observer.shutdown(LIMIT).await;
    let metrics = receiver.last();
    let mut names: Vec<_> = metrics.iter().map(|metric| metric.name.clone()).collect();
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
    let families = page.lines().filter(|line| line.starts_with("# TYPE")).count();
    assert_eq!(count, families, "four families of the page are replaced by four exponential histograms");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_is_compressed_when_asked_for() {
    let receiver = Receiver::start([]).await;
    let mut config = receiver.exporting(NEVER);
    config.telemetry.otlp_metrics.as_mut().unwrap().is_gzip = true;
    let observer = observer(&config);
    one_stream(&observer);
    observer.shutdown(LIMIT).await;
    assert_eq!(receiver.received.lock()[0].0["content-encoding"], "gzip");
    assert_eq!(exponential(&receiver.last(), "gen_ai.server.time_to_first_token")[0].count, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_refuses_or_rejects_loses_nothing_in_the_end() {
    let receiver = Receiver::start([Meets::Answers(400), Meets::Answers(503), Meets::Rejects]).await;
    let observer = observer(&receiver.exporting(Duration::from_millis(10)));
    one_stream(&observer);
    until(|| exports(&observer, "failed") == Some(3.0)).await;
    until(|| exports(&observer, "sent") >= Some(1.0)).await;
    assert_eq!(exponential(&receiver.last(), "gen_ai.server.time_to_first_token")[0].count, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_hangs_delays_neither_requests_nor_the_end() {
    let receiver = Receiver::start((0..1000).map(|_| Meets::Hangs)).await;
    let mut config = receiver.exporting(Duration::from_millis(10));
    config.telemetry.otlp_metrics.as_mut().unwrap().target.timeout = Duration::from_millis(50);
    let observer = observer(&config);
    until(|| exports(&observer, "failed") >= Some(2.0)).await;
    one_stream(&observer);
    observer.shutdown(LIMIT).await;
    assert!(exports(&observer, "failed") >= Some(3.0), "the last export too was given up");
}

#[tokio::test(flavor = "multi_thread")]
async fn deltas_add_up_and_what_did_not_arrive_comes_with_the_next() {
    let receiver = Receiver::start([Meets::Takes, Meets::Answers(500)]).await;
    let mut config = receiver.exporting(Duration::from_millis(200));
    config.telemetry.otlp_metrics.as_mut().unwrap().temporality = Temporality::Delta;
    let observer = observer(&config);
    one_stream(&observer);
    until(|| exports(&observer, "sent") >= Some(1.0)).await;
    one_stream(&observer);
    until(|| exports(&observer, "failed") == Some(1.0)).await;
    one_stream(&observer);
    observer.shutdown(LIMIT).await;

    let received = receiver.received.lock();
    let points = |of: &dyn Fn(&[Metric]) -> Option<f64>| -> Vec<f64> {
        let all = received
            .iter()
            .filter_map(|(_, export)| of(&export.resource_metrics[0].scope_metrics[0].metrics));
        all.collect()
    };
    let requests = points(&|metrics| {
        let metric = metrics.iter().find(|metric| metric.name == "tokenway.goodput_requests")?;
        let Some(Data::Sum(sum)) = &metric.data else { panic!("a sum") };
        assert_eq!(sum.aggregation_temporality, i32::from(AggregationTemporality::Delta));
        sum.data_points.first().map(number)
    });
    let gaps = points(&|metrics| {
        let metric = metrics.iter().find(|metric| metric.name == "tokenway.inter_token_latency")?;
        let Some(Data::ExponentialHistogram(itl)) = &metric.data else { panic!("exponential") };
        let point = itl.data_points.first()?;
        assert_eq!(point.positive.as_ref().unwrap().bucket_counts.iter().sum::<u64>(), point.count);
        Some(point.count as f64)
    });
    assert_eq!((requests.iter().sum(), gaps.iter().sum()), (3.0, 12.0), "{requests:?} {gaps:?}");
    assert_eq!(requests.len(), gaps.len());
    assert!(requests.len() >= 2, "{requests:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_collector_takes_but_for_some_points_is_not_counted_again() {
    let receiver = Receiver::start([Meets::Rejects, Meets::Rejects]).await;
    let mut config = receiver.exporting(Duration::from_millis(50));
    config.telemetry.otlp_metrics.as_mut().unwrap().temporality = Temporality::Delta;
    let observer = observer(&config);
    one_stream(&observer);
    until(|| exports(&observer, "failed") == Some(2.0) && exports(&observer, "sent") >= Some(1.0)).await;
    observer.shutdown(LIMIT).await;
    let received = receiver.received.lock();
    let counted = received.iter().filter_map(|(_, export)| {
        let metrics = &export.resource_metrics[0].scope_metrics[0].metrics;
        let metric = metrics.iter().find(|metric| metric.name == "tokenway.goodput_requests")?;
        let Some(Data::Sum(sum)) = &metric.data else { panic!("a sum") };
        sum.data_points.first().map(number)
    });
    assert_eq!(counted.sum::<f64>(), 1.0);
}
