//! Findings of drift detection as OTLP log records, which is what OpenTelemetry calls events.
//!
//! A bounded queue and one task around the SDK's exporter. A collector that hangs or refuses costs counted events and
//! nothing else: the admin API, the metrics and the webhook show what holds. Nothing is sent again.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::InstrumentationScope;
use opentelemetry::logs::{AnyValue, LogRecord as _, Logger as _, LoggerProvider as _, Severity};
use opentelemetry_otlp::LogExporter;
use opentelemetry_sdk::logs::{LogBatch, LogExporter as _, SdkLogRecord, SdkLogger, SdkLoggerProvider};
use tokio::sync::mpsc;

use crate::drift::detectors::{Fact, Finding};
use crate::observe::metrics::{DeliveryResult, Metrics};
use crate::observe::otlp::{Collector, CollectorError, Health};
use crate::observe::spans::Background;

/// Queues events for the collector.
pub struct FindingEvents {
    queue: mpsc::Sender<SdkLogRecord>,
    /// Makes empty records; it has no processor, so nothing goes out through it.
    logger: SdkLogger,
    metrics: Arc<Metrics>,
}

impl FindingEvents {
    /// Starts the task that exports. `None` where only the address for spans is known: events have one of their own.
    ///
    /// # Errors
    /// The SDK refuses the configuration.
    pub fn start(
        collector: &Collector,
        background: &Background,
        metrics: &Arc<Metrics>,
    ) -> Result<Option<Self>, CollectorError> {
        let Some((exporter, health)) = collector.logs()? else {
            tracing::warn!(
                "the OTLP address is one for traces alone: findings of drift are not exported as events"
            );
            return Ok(None);
        };
        let (queue, events) = mpsc::channel(MAX_QUEUED);
        let export = export(events, exporter, health, Arc::clone(metrics));
        background.tasks.spawn_on(export, &background.runtime);
        Ok(Some(Self { queue, logger: logger(), metrics: Arc::clone(metrics) }))
    }

    /// Something was found.
    pub fn found(&self, finding: &Finding) {
        let severity = if finding.kind.is_urgent() { Severity::Error } else { Severity::Warn };
        self.send(finding, severity, finding.at);
    }

    /// A finding holds no more, as of `at` (seconds since the epoch).
    pub fn ended(&self, finding: &Finding, at: f64) {
        self.send(finding, Severity::Info, at);
    }

    fn send(&self, finding: &Finding, severity: Severity, at: f64) {
        let mut event = self.logger.create_log_record();
        fill(&mut event, finding, severity, at);
        if self.queue.try_send(event).is_err() {
            self.metrics.families.control.drift_events.inc([DeliveryResult::Dropped.as_str()]);
        }
    }
}

async fn export(
    mut events: mpsc::Receiver<SdkLogRecord>,
    exporter: LogExporter,
    mut health: Health,
    metrics: Arc<Metrics>,
) {
    let scope = InstrumentationScope::builder("tokenway").with_version(env!("CARGO_PKG_VERSION")).build();
    let mut batch = Vec::new();
    while events.recv_many(&mut batch, MAX_QUEUED).await > 0 {
        let records: Vec<_> = batch.iter().map(|event| (event, &scope)).collect();
        let is_sent = health.watch(exporter.export(LogBatch::new(&records))).await;
        let result = if is_sent { DeliveryResult::Sent } else { DeliveryResult::Failed };
        metrics.families.control.drift_events.inc_by([result.as_str()], batch.len() as u64);
        batch.clear();
    }
}

fn logger() -> SdkLogger {
    SdkLoggerProvider::builder().build().logger("tokenway")
}

fn fill(event: &mut SdkLogRecord, finding: &Finding, severity: Severity, at: f64) {
    let series = &finding.series;
    let state = if severity == Severity::Info { "ended" } else { "found" };
    let (kind, diagnosis) = (finding.kind.as_str(), finding.diagnosis().as_str());
    event.set_event_name("tokenway.drift");
    event.set_timestamp(time(at));
    event.set_observed_timestamp(time(at));
    event.set_severity_number(severity);
    event.set_severity_text(severity.name());
    event.add_attribute("tokenway.drift.kind", kind);
    event.add_attribute("tokenway.drift.diagnosis", diagnosis);
    event.add_attribute("tokenway.drift.state", state);
    event.add_attribute("tokenway.route", series.route.to_string());
    event.add_attribute("tokenway.revision", series.revision.to_string());
    if let Some(replica) = &series.replica {
        event.add_attribute("tokenway.replica", replica.to_string());
    }
    for (name, fact) in finding.facts() {
        event.add_attribute(format!("tokenway.drift.evidence.{name}"), value(&fact));
    }
    let replica = series.replica.as_ref().map_or_else(String::new, |replica| format!(", replica {replica}"));
    let body = format!(
        "{kind} {state} on route {}, revision {}{replica}: {diagnosis}",
        series.route, series.revision
    );
    event.set_body(body.into());
}

fn value(fact: &Fact) -> AnyValue {
    match fact {
        Fact::Number(number) => (*number).into(),
        Fact::Word(word) => word.clone().into(),
        Fact::Names(names) => names.iter().map(|name| AnyValue::from(name.clone())).collect(),
    }
}

/// What is no time is the epoch.
fn time(seconds: f64) -> SystemTime {
    UNIX_EPOCH + Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// Events that wait, and events of one export.
const MAX_QUEUED: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::Causes;
    use crate::drift::detectors::{Kind, SeriesName};

    #[test]
    fn a_finding_becomes_an_event_with_its_evidence() {
        let finding = Finding {
            at: 1_700_000_000.5,
            kind: Kind::TtftDoubled,
            series: SeriesName { route: "chat".into(), revision: "r1".into(), replica: Some("a".into()) },
            causes: Causes::default(),
            evidence: vec![("ratio".into(), 2.5.into()), ("replicas".into(), Fact::Names(vec!["a".into()]))],
            is_acknowledged: false,
        };
        let mut event = logger().create_log_record();
        fill(&mut event, &finding, Severity::Error, finding.at);
        assert_eq!((event.event_name(), event.severity_text()), (Some("tokenway.drift"), Some("ERROR")));
        assert_eq!(event.timestamp(), Some(UNIX_EPOCH + Duration::from_millis(1_700_000_000_500)));
        let of = |name: &str| {
            event.attributes_iter().find(|(key, _)| key.as_str() == name).map(|(_, value)| value.clone())
        };
        assert_eq!(of("tokenway.drift.kind"), Some("ttft_doubled".into()));
        assert_eq!(of("tokenway.replica"), Some("a".into()));
        assert_eq!(of("tokenway.drift.evidence.ratio"), Some(2.5.into()));
        assert_eq!(of("tokenway.drift.evidence.replicas"), Some(["a"].into_iter().collect()));
    }
}
