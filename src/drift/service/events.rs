//! Findings of drift detection as OTLP log records, which is what OpenTelemetry calls events.
//!
//! A collector that hangs or refuses costs counted events and nothing else: the admin API, the metrics and the webhook show
//! what holds.

use std::sync::Arc;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::{LogRecord, SeverityNumber};

use crate::clock;
use crate::drift::detectors::table::MAX_FINDINGS;
use crate::drift::detectors::{Fact, Finding};
use crate::observe::Surroundings;
use crate::observe::metrics::{DeliveryResult, Metrics};
use crate::observe::otlp::{self, BatchQueue, Collector, CollectorError, LogBatch, attribute, text, texts};

/// Queues events for the collector.
pub struct FindingEvents {
    queue: BatchQueue<LogBatch>,
    metrics: Arc<Metrics>,
}

impl FindingEvents {
    /// Starts the task that exports. `None` where only the address for spans is known: events have one of their own.
    pub fn start(
        collector: &Collector,
        around: &Surroundings,
        metrics: &Arc<Metrics>,
    ) -> Result<Option<Self>, CollectorError> {
        let queue = LogBatch::start(collector, around, metrics, MAX_FINDINGS, count)?;
        if queue.is_none() {
            tracing::warn!(
                "the OTLP address is one for traces alone: findings of drift are not exported as events"
            );
        }
        Ok(queue.map(|queue| Self { queue, metrics: Arc::clone(metrics) }))
    }

    /// Something was found.
    pub fn found(&self, finding: &Finding) {
        let severity = if finding.kind.is_urgent() { SeverityNumber::Error } else { SeverityNumber::Warn };
        self.send(finding, severity, finding.at);
    }

    /// A finding holds no more, as of `at` (seconds since the epoch).
    pub fn ended(&self, finding: &Finding, at: f64) {
        self.send(finding, SeverityNumber::Info, at);
    }

    fn send(&self, finding: &Finding, severity: SeverityNumber, at: f64) {
        if self.queue.sender.try_send(event(finding, severity, at)).is_err() {
            count(&self.metrics, DeliveryResult::Dropped, 1);
        }
    }
}

fn count(metrics: &Metrics, result: DeliveryResult, events: u64) {
    metrics.families.control.drift_events.inc_by([result.as_str()], events);
}

fn event(finding: &Finding, severity: SeverityNumber, at: f64) -> LogRecord {
    let series = &finding.series;
    let state = if severity == SeverityNumber::Info { "ended" } else { "found" };
    let (kind, diagnosis) = (finding.kind.as_str(), finding.diagnosis().as_str());
    let mut attributes = vec![
        text("tokenway.drift.kind", kind),
        text("tokenway.drift.diagnosis", diagnosis),
        text("tokenway.drift.state", state),
        text("tokenway.route", &*series.route),
        text("tokenway.revision", &*series.revision),
    ];
    attributes.extend(series.replica.as_deref().map(|replica| text("tokenway.replica", replica)));
    let facts = finding.facts();
    attributes
        .extend(facts.map(|(name, fact)| attribute(format!("tokenway.drift.evidence.{name}"), value(&fact))));
    let replica = series.replica.as_ref().map_or_else(String::new, |replica| format!(", replica {replica}"));
    let body = format!(
        "{kind} {state} on route {}, revision {}{replica}: {diagnosis}",
        series.route, series.revision
    );
    otlp::event("tokenway.drift", clock::wall(at), severity, body, attributes)
}

fn value(fact: &Fact) -> Value {
    match fact {
        Fact::Number(number) => Value::DoubleValue(*number),
        Fact::NotANumber => Value::DoubleValue(f64::NAN),
        Fact::Word(word) => Value::StringValue(word.clone()),
        Fact::Names(names) => texts(names),
    }
}

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
        let event = event(&finding, SeverityNumber::Error, finding.at);
        assert_eq!((&*event.event_name, &*event.severity_text), ("tokenway.drift", "ERROR"));
        assert_eq!(event.time_unix_nano, 1_700_000_000_500_000_000);
        let of =
            |name: &str| event.attributes.iter().find(|pair| pair.key == name)?.value.as_ref()?.value.clone();
        let string = |text: &str| Value::StringValue(text.to_owned());
        assert_eq!(of("tokenway.drift.kind"), Some(string("ttft_doubled")));
        assert_eq!(of("tokenway.replica"), Some(string("a")));
        assert_eq!(of("tokenway.drift.evidence.ratio"), Some(Value::DoubleValue(2.5)));
        assert_eq!(of("tokenway.drift.evidence.replicas"), Some(texts(["a"])));
    }
}
