//! Findings of drift detection as OTLP log records, which is what OpenTelemetry calls events.
//!
//! A bounded queue and one task, beside the spans and over the same client, HTTP or gRPC. A collector that hangs or
//! refuses costs counted events and nothing else: what holds is still told by the admin API, the metrics and the webhook.
//! Nothing is sent again. Does not know what is found, nor when.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use prost::Message as _;
use tokio::sync::mpsc;

use crate::config::{Otlp, OtlpProtocol};
use crate::drift::detectors::{Fact, Finding};
use crate::observe::metrics::{BuildInfo, Metrics, WebhookResult};
use crate::observe::spans::client::Client;
use crate::observe::spans::{Background, SpansError, grpc, resource};

/// Queues events for the collector.
pub struct FindingEvents {
    queue: mpsc::Sender<LogRecord>,
    metrics: Arc<Metrics>,
}

impl FindingEvents {
    /// Starts the task that exports. `None` where only the address for spans is known: events have one of their own.
    ///
    /// # Errors
    /// TLS could not be set up.
    pub fn start(
        otlp: &Otlp,
        build: BuildInfo,
        background: &Background,
        metrics: &Arc<Metrics>,
    ) -> Result<Option<Self>, SpansError> {
        let Some(endpoint) = logs_endpoint(otlp) else {
            tracing::warn!(
                "the OTLP address is one for traces alone: findings of drift are not exported as events"
            );
            return Ok(None);
        };
        let (queue, events) = mpsc::channel(QUEUED);
        let export = Export {
            client: Client::calling(grpc::EXPORT_LOGS_PATH, otlp, background)?,
            endpoint,
            resource: Resource {
                attributes: ResourceAttributesWithSchema::from(&resource(build)).attributes.0,
                ..Resource::default()
            },
            metrics: Arc::clone(metrics),
        };
        background.tasks.spawn_on(export.run(events), &background.runtime);
        Ok(Some(Self { queue, metrics: Arc::clone(metrics) }))
    }

    /// Something was found.
    pub fn found(&self, finding: &Finding) {
        let severity = if finding.kind.is_urgent() { SeverityNumber::Error } else { SeverityNumber::Warn };
        self.send(event(finding, severity, finding.at));
    }

    /// A finding holds no more, as of `at` (seconds since the epoch).
    pub fn ended(&self, finding: &Finding, at: f64) {
        self.send(event(finding, SeverityNumber::Info, at));
    }

    fn send(&self, event: LogRecord) {
        if self.queue.try_send(event).is_err() {
            self.metrics.drift_events(WebhookResult::Dropped, 1);
        }
    }
}

/// Where log records go: beside the spans; a gRPC method has its own path.
fn logs_endpoint(otlp: &Otlp) -> Option<String> {
    match otlp.protocol {
        OtlpProtocol::Grpc => Some(otlp.traces_endpoint.clone()),
        OtlpProtocol::Http => Some(format!("{}/v1/logs", otlp.traces_endpoint.strip_suffix("/v1/traces")?)),
    }
}

struct Export {
    client: Client,
    endpoint: String,
    resource: Resource,
    metrics: Arc<Metrics>,
}

impl Export {
    async fn run(self, mut events: mpsc::Receiver<LogRecord>) {
        let mut batch = Vec::with_capacity(QUEUED);
        let mut is_failing = false;
        while events.recv_many(&mut batch, QUEUED).await > 0 {
            let count = batch.len() as u64;
            let failure = self.send(std::mem::take(&mut batch)).await.err();
            if let Some(error) = failure.as_ref().filter(|_| !is_failing) {
                tracing::warn!(error, "findings cannot be exported as events; they are dropped and counted");
            }
            is_failing = failure.is_some();
            let result = if is_failing { WebhookResult::Failed } else { WebhookResult::Sent };
            self.metrics.drift_events(result, count);
        }
    }

    async fn send(&self, log_records: Vec<LogRecord>) -> Result<(), String> {
        let scope = InstrumentationScope {
            name: "tokenway".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let scope_logs = ScopeLogs { scope: Some(scope), log_records, ..ScopeLogs::default() };
        let resource_logs = ResourceLogs {
            resource: Some(self.resource.clone()),
            scope_logs: vec![scope_logs],
            ..ResourceLogs::default()
        };
        let export = ExportLogsServiceRequest { resource_logs: vec![resource_logs] };
        let mut request = Request::new(Bytes::from(export.encode_to_vec()));
        *request.method_mut() = Method::POST;
        // Checked with the configuration; a fault here shows as a failed export.
        *request.uri_mut() = self.endpoint.parse().unwrap_or_default();
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        match self.client.send(request).await {
            Ok(answer) if answer.status().is_success() => Ok(()),
            Ok(answer) => Err(format!("the collector answered {}", answer.status())),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn event(finding: &Finding, severity: SeverityNumber, at: f64) -> LogRecord {
    let series = &finding.series;
    let has_ended = severity == SeverityNumber::Info;
    let state = if has_ended { "ended" } else { "found" };
    let mut attributes = vec![
        text("tokenway.drift.kind", finding.kind.as_str()),
        text("tokenway.drift.diagnosis", finding.diagnosis.as_str()),
        text("tokenway.drift.state", state),
        text("tokenway.route", &series.route),
        text("tokenway.revision", &series.revision),
    ];
    attributes.extend(series.replica.as_ref().map(|replica| text("tokenway.replica", replica)));
    attributes.extend(
        finding
            .evidence
            .iter()
            .map(|(name, fact)| key_value(format!("tokenway.drift.evidence.{name}"), of_fact(fact))),
    );
    let place = series.replica.as_deref().map_or_else(String::new, |replica| format!(", replica {replica}"));
    let body = format!(
        "{} {state} on route {}, revision {}{place}: {}",
        finding.kind.as_str(),
        series.route,
        series.revision,
        finding.diagnosis.as_str()
    );
    LogRecord {
        time_unix_nano: nanos(at),
        observed_time_unix_nano: nanos(at),
        severity_number: severity.into(),
        severity_text: severity.as_str_name().trim_start_matches("SEVERITY_NUMBER_").to_owned(),
        body: Some(AnyValue { value: Some(Value::StringValue(body)) }),
        attributes,
        event_name: "tokenway.drift".to_owned(),
        ..LogRecord::default()
    }
}

fn of_fact(fact: &Fact) -> Value {
    match fact {
        Fact::Number(number) => Value::DoubleValue(*number),
        Fact::Word(word) => Value::StringValue(word.to_string()),
        Fact::Names(names) => {
            let value = |name: &Arc<str>| AnyValue { value: Some(Value::StringValue(name.to_string())) };
            Value::ArrayValue(ArrayValue { values: names.iter().map(value).collect() })
        }
    }
}

fn text(name: &str, value: &str) -> KeyValue {
    key_value(name.to_owned(), Value::StringValue(value.to_owned()))
}

fn key_value(key: String, value: Value) -> KeyValue {
    KeyValue { key, value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

/// Nanoseconds since the epoch; what is no time is the epoch.
fn nanos(seconds: f64) -> u64 {
    let at: SystemTime = UNIX_EPOCH + Duration::try_from_secs_f64(seconds).unwrap_or_default();
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Events that wait, and events of one export.
const QUEUED: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drift::detectors::{Diagnosis, Kind, SeriesName};

    #[test]
    fn a_finding_becomes_an_event_with_its_evidence() {
        let finding = Finding {
            at: 1_700_000_000.5,
            kind: Kind::TtftDoubled,
            series: SeriesName { route: "chat".into(), revision: "r1".into(), replica: Some("a".into()) },
            diagnosis: Diagnosis::Contention,
            evidence: vec![("ratio", 2.5.into()), ("replicas", Fact::Names(vec!["a".into()]))],
        };
        let event = event(&finding, SeverityNumber::Error, finding.at);
        assert_eq!((event.event_name.as_str(), event.severity_text.as_str()), ("tokenway.drift", "ERROR"));
        assert_eq!(event.time_unix_nano, 1_700_000_000_500_000_000);
        let of = |name: &str| {
            let found = event.attributes.iter().find(|attribute| attribute.key == name)?;
            found.value.clone()?.value
        };
        assert_eq!(of("tokenway.drift.kind"), Some(Value::StringValue("ttft_doubled".to_owned())));
        assert_eq!(of("tokenway.replica"), Some(Value::StringValue("a".to_owned())));
        assert_eq!(of("tokenway.drift.evidence.ratio"), Some(Value::DoubleValue(2.5)));
    }

    #[test]
    fn events_go_beside_the_spans() {
        let otlp = |endpoint: &str, protocol| Otlp {
            traces_endpoint: endpoint.to_owned(),
            protocol,
            headers: Vec::new(),
            timeout: Duration::from_secs(1),
        };
        for (endpoint, protocol, expected) in [
            ("http://c:4318/v1/traces", OtlpProtocol::Http, Some("http://c:4318/v1/logs")),
            ("http://c:4318/x/v1/traces", OtlpProtocol::Http, Some("http://c:4318/x/v1/logs")),
            ("http://c:4318/spans", OtlpProtocol::Http, None),
            ("http://c:4317", OtlpProtocol::Grpc, Some("http://c:4317")),
        ] {
            assert_eq!(logs_endpoint(&otlp(endpoint, protocol)).as_deref(), expected);
        }
    }
}
