//! Spans of one request, from its record.
//!
//! A SERVER root, INTERNAL `admit` and `route`, and a CLIENT `attempt` for each try; the attempt's id went upstream,
//! so the engine's own spans hang below it. Below the attempt that was answered are INTERNAL spans of the stages there.
//! Built without a tracer: ids and stamps are the record's.

use std::time::{Duration, SystemTime};

use opentelemetry::trace::{
    Event, Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{Array, InstrumentationScope, KeyValue, StringValue, Value as OtelValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use crate::clock::{Clock, Stamp};
use crate::observe::attributes::{self, AttributeValue};
use crate::observe::judgement::Judgement;
use crate::observe::stages::{Stage, StageTime, stages};
use crate::record::{Attempt, Original, Outcome, Record};
use crate::request::trace_context::new_span_id;

/// How many spans [`spans`] makes at most.
pub(super) fn span_count(record: &Record) -> u64 {
    let ours = [record.at.admitted, record.at.routed].iter().flatten().count();
    let at_the_replica = record.answered().map_or(0, |_| stages_at_the_replica(record).count());
    1 + (ours + record.attempts.len() + at_the_replica) as u64
}

/// The stages that have a span below the attempt.
fn stages_at_the_replica(record: &Record) -> impl Iterator<Item = StageTime> {
    let is_shown = |time: &StageTime| {
        let at_the_replica = matches!(
            time.stage,
            Stage::EngineQueue
                | Stage::Prefill
                | Stage::KvTransfer
                | Stage::Decode
                | Stage::EngineOther
                | Stage::Relay
        );
        at_the_replica && !time.duration.is_zero()
    };
    stages(record).into_iter().filter(is_shown)
}

/// All spans of a request, the root first.
pub(super) fn spans(record: &Record, clock: &Clock) -> Vec<SpanData> {
    let build = Build::new(record, clock);
    let mut spans = vec![build.root()];
    let at = &record.at;
    if let (Some(read), Some(admitted)) = (at.read, at.admitted) {
        spans.push(build.stage("admit", read, admitted));
    }
    if let (Some(admitted), Some(routed)) = (at.admitted, at.routed) {
        spans.push(build.stage("route", admitted, routed));
    }
    spans.extend(record.attempts.iter().map(|attempt| build.attempt(attempt)));
    if let Some(answered) = record.answered() {
        // Stages follow each other without a hole, to the end of the request.
        let times = stages_at_the_replica(record);
        let mut start = answered.connected.unwrap_or(answered.start);
        for time in times {
            let end = start.after(time.duration);
            spans.push(build.replica_stage(answered, &time, (start, end)));
            start = end;
        }
    }
    spans
}

/// Of the request that a copy was made of.
fn original_span(original: &Original) -> SpanContext {
    let (trace, span) = (TraceId::from(original.trace_id), SpanId::from(original.span));
    SpanContext::new(trace, span, TraceFlags::default(), false, TraceState::default())
}

struct Build<'a> {
    record: &'a Record,
    clock: &'a Clock,
    state: TraceState,
    scope: InstrumentationScope,
}

impl<'a> Build<'a> {
    fn new(record: &'a Record, clock: &'a Clock) -> Self {
        // A state that does not parse was forwarded as it came; only our spans go without it.
        let state = record.trace.state.as_deref().and_then(|text| text.parse().ok()).unwrap_or_default();
        let scope = InstrumentationScope::builder("tokenway").with_version(env!("CARGO_PKG_VERSION")).build();
        Self { record, clock, state, scope }
    }

    fn root(&self) -> SpanData {
        let record = self.record;
        let requested = record.requested_model.as_deref().unwrap_or(&record.model);
        let name = match requested {
            "none" => record.dialect.operation().to_owned(),
            model => format!("{} {model}", record.dialect.operation()),
        };
        let parent = record.trace.parent.map_or(SpanId::INVALID, SpanId::from);
        let mut span = self.span(record.trace.root, parent, record.at.head, record.at.end);
        span.name = name.into();
        span.span_kind = SpanKind::Server;
        span.parent_span_is_remote = record.trace.parent.is_some();
        attributes::each(record, &Judgement::of(record), |key, value| {
            span.attributes.push(key_value(key.name, value));
        });
        span.attributes.push(KeyValue::new("tokenway.request_id", record.request_id.to_string()));
        if let Some(original) = &record.shadow_of {
            span.span_kind = SpanKind::Internal;
            span.links.links.push(Link::new(original_span(original), Vec::new(), 0));
            span.attributes.push(KeyValue::new("tokenway.shadow_of", original.request_id.to_string()));
        }
        span.events.events = self.events();
        if record.outcome == Outcome::Failed || record.status >= 500 {
            span.status = Status::error(record.error.unwrap_or("failed"));
        }
        span
    }

    fn stage(&self, name: &'static str, start: Stamp, end: Stamp) -> SpanData {
        let mut span = self.span(new_span_id(), self.root_id(), start, end);
        span.name = name.into();
        if let (Some(decision), "route") = (&self.record.decision, name) {
            span.attributes = vec![
                KeyValue::new("tokenway.decision.policy", decision.policy),
                KeyValue::new("tokenway.decision.reason", decision.reason),
                KeyValue::new("tokenway.decision.candidates", i64::from(decision.candidates)),
            ];
        }
        span
    }

    /// A stage at the replica, below its attempt.
    fn replica_stage(&self, attempt: &Attempt, time: &StageTime, (start, end): (Stamp, Stamp)) -> SpanData {
        let mut span = self.span(new_span_id(), SpanId::from(attempt.span), start, end);
        span.name = time.stage.as_str().into();
        span.attributes = vec![KeyValue::new("tokenway.stage.source", time.source.as_str())];
        span
    }

    /// One try; the one that was answered lasts to the last byte of the response.
    fn attempt(&self, attempt: &Attempt) -> SpanData {
        let served = &attempt.served;
        let is_answered = self.record.answered().is_some_and(|answered| answered.span == attempt.span);
        let mut span = self.span(attempt.span, self.root_id(), attempt.start, self.record.end_of(attempt));
        span.name = "attempt".into();
        span.span_kind = SpanKind::Client;
        span.attributes = vec![
            KeyValue::new("gen_ai.operation.name", self.record.dialect.operation()),
            KeyValue::new("gen_ai.provider.name", served.engine.to_string()),
            KeyValue::new("server.address", served.host.to_string()),
            KeyValue::new("server.port", i64::from(served.port)),
            KeyValue::new("tokenway.pool", served.pool.to_string()),
            KeyValue::new("tokenway.replica", served.replica.to_string()),
            KeyValue::new("tokenway.revision", served.revision.to_string()),
        ];
        if let Some(status) = attempt.status {
            span.attributes.push(KeyValue::new("http.response.status_code", i64::from(status)));
        }
        let broken = self.record.error.filter(|_| is_answered && self.record.outcome == Outcome::Failed);
        if let Some(error) = attempt.error.or(broken) {
            span.attributes.push(KeyValue::new("error.type", error));
            span.status = Status::error(error);
        }
        span
    }

    fn events(&self) -> Vec<Event> {
        let at = &self.record.at;
        let stalled = self.record.longest_gap_at.filter(|_| self.record.longest_gap >= STALL);
        let gap = KeyValue::new("tokenway.gap", self.record.longest_gap.as_secs_f64());
        let mut events: Vec<(Stamp, Event)> = [
            (at.first_token, "first_token", vec![]),
            (stalled, "stall", vec![gap]),
            (at.last_token, "last_token", vec![]),
        ]
        .into_iter()
        .filter_map(|(stamp, name, attributes)| {
            let stamp = stamp?;
            Some((stamp, Event::new(name, self.wall(stamp), attributes, 0)))
        })
        .collect();
        events.sort_by_key(|(stamp, _)| *stamp);
        events.into_iter().map(|(_, event)| event).collect()
    }

    fn span(&self, id: u64, parent: SpanId, start: Stamp, end: Stamp) -> SpanData {
        let trace = TraceId::from(self.record.trace.trace_id);
        // Sampled, whatever went upstream: only spans that are kept are built, and the processor skips others.
        let context =
            SpanContext::new(trace, SpanId::from(id), TraceFlags::SAMPLED, false, self.state.clone());
        SpanData {
            span_context: context,
            parent_span_id: parent,
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name: "".into(),
            start_time: self.wall(start),
            end_time: self.wall(end.max(start)),
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: self.scope.clone(),
        }
    }

    fn root_id(&self) -> SpanId {
        SpanId::from(self.record.trace.root)
    }

    fn wall(&self, stamp: Stamp) -> SystemTime {
        self.clock.wall(stamp)
    }
}

fn key_value(name: &'static str, value: AttributeValue<'_>) -> KeyValue {
    let value = match value {
        AttributeValue::Str(text) => OtelValue::from(text.to_owned()),
        AttributeValue::Text(text) => OtelValue::from(text),
        AttributeValue::Number(number) => OtelValue::from(number),
        AttributeValue::Name(name) => OtelValue::from(name),
        AttributeValue::Int(number) => OtelValue::from(number),
        AttributeValue::Span(span) => OtelValue::from(span.as_secs_f64()),
        AttributeValue::Bool(fact) => OtelValue::from(fact),
        AttributeValue::Address(address) => OtelValue::from(address.to_string()),
        AttributeValue::List(texts) => OtelValue::Array(Array::String(
            texts.into_iter().map(|t| StringValue::from(t.to_owned())).collect(),
        )),
    };
    KeyValue::new(name, value)
}

/// A gap that a reader notices as a stop.
const STALL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::fixture;

    #[test]
    fn a_request_becomes_a_tree_whose_attempt_has_the_id_that_went_upstream() {
        let mut record = fixture::stream();
        record.trace.parent = Some(0xc3);
        record.longest_gap = Duration::from_secs(2);
        let clock = Clock::start();
        let spans = spans(&record, &clock);
        let names: Vec<_> = spans.iter().map(|span| (&*span.name, span.span_kind.clone())).collect();
        assert_eq!(
            names,
            [
                ("chat llama", SpanKind::Server),
                ("admit", SpanKind::Internal),
                ("route", SpanKind::Internal),
                ("attempt", SpanKind::Client),
                ("prefill", SpanKind::Internal),
                ("decode", SpanKind::Internal),
            ]
        );
        let below = SpanId::from(record.attempts[0].span);
        assert!(spans[4..].iter().all(|span| span.parent_span_id == below));
        assert_eq!(spans[3].end_time, spans[0].end_time, "the attempt lasts to the last byte");
        assert_eq!(spans[4].end_time, spans[5].start_time);
        assert_eq!(spans[5].end_time, spans[0].end_time);
        assert_eq!(spans.len() as u64, span_count(&record));
        assert_eq!(spans[0].parent_span_id, SpanId::from(0xc3));
        assert!(spans[0].parent_span_is_remote);
        assert!(spans[1..4].iter().all(|span| span.parent_span_id == SpanId::from(0xb2)));
        assert_eq!(spans[3].span_context.span_id(), SpanId::from(0xa1));
        let events: Vec<_> = spans[0].events.iter().map(|event| &*event.name).collect();
        assert_eq!(events, ["first_token", "stall", "last_token"]);
        assert_eq!(spans[0].start_time, clock.wall(record.at.head));
        assert_eq!(spans[0].status, Status::Unset);
    }

    #[test]
    fn a_request_that_was_refused_early_is_one_span_with_an_error() {
        let mut record = fixture::stream();
        record.outcome = Outcome::Refused;
        record.status = 503;
        record.error = Some("no_ready_replica");
        record.attempts.clear();
        record.at.admitted = None;
        record.at.routed = None;
        let spans = spans(&record, &Clock::start());
        assert_eq!(spans.len(), 1);
        assert_eq!(spans[0].status, Status::error("no_ready_replica"));
    }
}
