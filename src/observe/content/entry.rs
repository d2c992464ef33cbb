//! What the audit trail keeps of a request: redacted and cut once, for the file and for the collector.

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::{LogRecord, SeverityNumber};
use serde_json::{Value as Json, json};

use super::capture::Capture;
use super::redact::Redact;
use super::{fields, messages};
use crate::clock::Clock;
use crate::observe::attributes;
use crate::observe::judgement::Judgement;
use crate::observe::otlp::{attribute, event, structured, text};
use crate::observe::rfc3339;
use crate::record::Record;

pub(super) struct Entry<'a> {
    record: &'a Record,
    request: Json,
    answer: Json,
    is_request_cut: bool,
    is_answer_cut: bool,
}

impl<'a> Entry<'a> {
    /// Of at most `limit` bytes of the prompt, and of the answer.
    pub(super) fn new(record: &'a Record, capture: &Capture, redact: &Redact, limit: usize) -> Self {
        let (answer, is_answer_cut) = capture.redacted_answer(redact, limit);
        let request = redact.body(&capture.request, limit);
        Self { record, request, answer, is_request_cut: record.bytes_in > limit as u64, is_answer_cut }
    }

    pub(super) fn line(&self, clock: &Clock) -> String {
        let record = self.record;
        let mut fields = fields::ended(record);
        for (name, value) in [
            ("time", json!(rfc3339::utc(clock.wall(record.at.head)))),
            ("trace_id", json!(format!("{:032x}", record.trace.trace_id))),
            ("request", self.request.clone()),
            ("answer", self.answer.clone()),
            ("is_request_cut", json!(self.is_request_cut)),
            ("is_answer_cut", json!(self.is_answer_cut)),
        ] {
            fields.insert(name.to_owned(), value);
        }
        Json::from(fields).to_string() + "\n"
    }

    /// An event of OpenTelemetry's conventions for GenAI: the attributes of the request's span, and its messages.
    pub(super) fn event(self, clock: &Clock) -> LogRecord {
        let record = self.record;
        let mut attributes = Vec::new();
        attributes::each(record, &Judgement::of(record), &mut attributes);
        attributes.push(text("tokenway.request_id", &*record.request_id));
        for (name, is_cut) in [
            ("tokenway.content.is_request_cut", self.is_request_cut),
            ("tokenway.content.is_answer_cut", self.is_answer_cut),
        ] {
            attributes.push(attribute(name, Value::BoolValue(is_cut)));
        }
        for (name, messages) in [
            ("gen_ai.system_instructions", messages::instructions(&self.request)),
            ("gen_ai.input.messages", messages::input(&self.request)),
            ("gen_ai.output.messages", messages::output(&self.answer, &record.finish_reasons)),
        ] {
            if !messages.is_empty() {
                let value = Some(structured(messages.into()));
                attributes.push(KeyValue { key: name.to_owned(), value, ..KeyValue::default() });
            }
        }
        LogRecord {
            trace_id: record.trace.trace_id.to_be_bytes().to_vec(),
            span_id: record.trace.root.to_be_bytes().to_vec(),
            ..event(EVENT, clock.wall(record.at.end), SeverityNumber::Info, self.summary(), attributes)
        }
    }

    /// For people who look at a list of events.
    fn summary(&self) -> String {
        let record = self.record;
        let model = record.requested_model.as_deref().unwrap_or(&record.model);
        format!("{} {model} by {}: {}", record.dialect.operation(), record.tenant, record.outcome.as_str())
    }
}

/// Name by the conventions (semantic conventions 1.38).
const EVENT: &str = "gen_ai.client.inference.operation.details";
