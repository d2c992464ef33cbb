//! Spans of one request, from its record.
//!
//! A SERVER root, INTERNAL `admit` and `route`, and a CLIENT `attempt` for each try; the attempt's id went upstream,
//! so the engine's own spans hang below it. Below the attempts that were answered are INTERNAL spans of the stages there.
//! Built without a tracer: ids and stamps are the record's.

use std::time::Duration;

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, SpanFlags, Status};
use smallvec::SmallVec;

use crate::clock::{Clock, Stamp};
use crate::observe::attributes;
use crate::observe::judgement::Judgement;
use crate::observe::otlp::{attribute, nanos, text};
use crate::observe::stages::{Stage, StageTime, by_leg};
use crate::record::{Attempt, AttemptCause, Original, Outcome, Record};
use crate::request::trace_context::new_span_id;

/// How many spans [`spans`] makes at most.
pub(super) fn span_count(record: &Record) -> u64 {
    let ours = [record.at.admitted, record.at.routed].iter().flatten().count();
    1 + (ours + record.attempts.len() + stages_at_replicas(record).len()) as u64
}

/// A stage that has a span below its attempt.
struct StageAt<'a> {
    time: StageTime,
    attempt: &'a Attempt,
    during: (Stamp, Stamp),
}

/// The stages at replicas of a request that was answered: cut where the stream was continued elsewhere.
fn stages_at_replicas(record: &Record) -> SmallVec<[StageAt<'_>; 8]> {
    let mut stages = SmallVec::new();
    if record.answered().is_none() {
        return stages;
    }
    let mut start = record.at.head;
    for time in by_leg(record) {
        let end = start.after(time.duration);
        while time.stage > Stage::Connect && start < end {
            let cut = continuations(record).map(|next| next.start).find(|next| start < *next && *next < end);
            let until = cut.unwrap_or(end);
            let Some(attempt) = at_work(record, start) else { break };
            stages.push(StageAt { time, attempt, during: (start, until) });
            start = until;
        }
        start = end;
    }
    stages
}

/// The attempts that continued its stream.
fn continuations(record: &Record) -> impl DoubleEndedIterator<Item = &Attempt> {
    record.attempts.iter().filter(|attempt| attempt.cause == AttemptCause::Migration)
}

/// The attempt that worked at an answered request at `at`.
fn at_work(record: &Record, at: Stamp) -> Option<&Attempt> {
    let continuation = continuations(record).rfind(|attempt| attempt.start <= at);
    let leg = || record.legs().map(|(_, leg)| leg).find(|leg| at < leg.end);
    let answered = || record.attempts.iter().rfind(|attempt| attempt.cause != AttemptCause::Migration);
    let silent = || record.outrun().filter(|(_, hedge)| at < hedge.start).map(|(silent, _)| silent);
    continuation.or_else(leg).or_else(silent).or_else(answered)
}

/// All spans of a request, the root first.
pub(super) fn spans(record: &Record, clock: &Clock) -> Vec<Span> {
    let build = Build { record, clock };
    let mut spans = vec![build.root()];
    let at = &record.at;
    if let (Some(read), Some(admitted)) = (at.read, at.admitted) {
        spans.push(build.stage("admit", read, admitted));
    }
    if let (Some(admitted), Some(routed)) = (at.admitted, at.routed) {
        spans.push(build.stage("route", admitted, routed));
    }
    spans.extend(record.attempts.iter().map(|attempt| build.attempt(attempt)));
    spans.extend(stages_at_replicas(record).iter().map(|stage| build.replica_stage(stage)));
    spans
}

/// To the request that a copy was made of.
fn link_to(original: &Original) -> Link {
    Link {
        trace_id: original.trace_id.to_be_bytes().to_vec(),
        span_id: original.span.to_be_bytes().to_vec(),
        flags: SpanFlags::ContextHasIsRemoteMask as u32,
        ..Link::default()
    }
}

struct Build<'a> {
    record: &'a Record,
    clock: &'a Clock,
}

impl Build<'_> {
    fn root(&self) -> Span {
        let record = self.record;
        let requested = record.requested_model.as_deref().unwrap_or(&record.model);
        let name = match requested {
            "none" => record.dialect.operation().to_owned(),
            model => format!("{} {model}", record.dialect.operation()),
        };
        let mut span =
            self.span(name, record.trace.root, record.trace.parent, (record.at.head, record.at.end));
        span.set_kind(SpanKind::Server);
        if record.trace.parent.is_some() {
            span.flags |= SpanFlags::ContextIsRemoteMask as u32;
        }
        attributes::each(record, &Judgement::of(record), &mut span.attributes);
        span.attributes.push(text("tokenway.request_id", &*record.request_id));
        if let Some(original) = &record.shadow_of {
            span.set_kind(SpanKind::Internal);
            span.links.push(link_to(original));
            span.attributes.push(text("tokenway.shadow_of", &*original.request_id));
        }
        span.events = self.events();
        if record.outcome == Outcome::Failed || record.status >= 500 {
            span.status = Some(failed(record.error.unwrap_or("failed")));
        }
        span
    }

    fn stage(&self, name: &'static str, start: Stamp, end: Stamp) -> Span {
        let mut span = self.span(name.to_owned(), new_span_id(), Some(self.record.trace.root), (start, end));
        if let (Some(decision), "route") = (&self.record.decision, name) {
            span.attributes = vec![
                text("tokenway.decision.policy", decision.policy),
                text("tokenway.decision.reason", decision.reason),
                int("tokenway.decision.candidates", decision.candidates),
            ];
        }
        span
    }

    /// A stage at the replica, below its attempt.
    fn replica_stage(&self, stage: &StageAt<'_>) -> Span {
        let name = stage.time.stage.as_str().to_owned();
        let mut span = self.span(name, new_span_id(), Some(stage.attempt.span), stage.during);
        span.attributes = vec![text("tokenway.stage.source", stage.time.source.as_str())];
        span
    }

    /// One try; the one that was answered lasts to the last byte of the response.
    fn attempt(&self, attempt: &Attempt) -> Span {
        let served = &attempt.served;
        let is_answered = self.record.answered().is_some_and(|answered| answered.span == attempt.span);
        let during = (attempt.start, self.record.end_of(attempt));
        let mut span = self.span("attempt".to_owned(), attempt.span, Some(self.record.trace.root), during);
        span.set_kind(SpanKind::Client);
        span.attributes = vec![
            text("gen_ai.operation.name", self.record.dialect.operation()),
            text("gen_ai.provider.name", &*served.engine),
            text("server.address", &*served.host),
            int("server.port", served.port),
            text("tokenway.pool", &*served.pool),
            text("tokenway.replica", &*served.replica),
            text("tokenway.revision", &*served.revision),
        ];
        if let Some(status) = attempt.status {
            span.attributes.push(int("http.response.status_code", status));
        }
        let broken = self.record.error.filter(|_| is_answered && self.record.outcome == Outcome::Failed);
        if let Some(error) = attempt.error.or(broken) {
            span.attributes.push(text("error.type", error));
            span.status = Some(failed(error));
        }
        span
    }

    fn events(&self) -> Vec<Event> {
        let at = &self.record.at;
        let stalled = self.record.longest_gap_at.filter(|_| self.record.longest_gap >= STALL);
        let gap = attribute("tokenway.gap", Value::DoubleValue(self.record.longest_gap.as_secs_f64()));
        let mut events: Vec<(Stamp, Event)> = [
            (at.first_token, "first_token", vec![]),
            (stalled, "stall", vec![gap]),
            (at.last_token, "last_token", vec![]),
        ]
        .into_iter()
        .filter_map(|(stamp, name, attributes)| {
            let stamp = stamp?;
            let time_unix_nano = self.wall(stamp);
            let event =
                Event { time_unix_nano, name: name.to_owned(), attributes, dropped_attributes_count: 0 };
            Some((stamp, event))
        })
        .collect();
        events.sort_by_key(|(stamp, _)| *stamp);
        events.into_iter().map(|(_, event)| event).collect()
    }

    fn span(&self, name: String, id: u64, parent: Option<u64>, (start, end): (Stamp, Stamp)) -> Span {
        let trace = &self.record.trace;
        Span {
            trace_id: trace.trace_id.to_be_bytes().to_vec(),
            span_id: id.to_be_bytes().to_vec(),
            trace_state: trace.state.as_deref().unwrap_or_default().to_owned(),
            parent_span_id: parent.map(|id| id.to_be_bytes().to_vec()).unwrap_or_default(),
            // Sampled, whatever went upstream: only spans that are kept are built, and receivers skip others.
            flags: SpanFlags::ContextHasIsRemoteMask as u32 | SAMPLED,
            kind: SpanKind::Internal.into(),
            name,
            start_time_unix_nano: self.wall(start),
            end_time_unix_nano: self.wall(end.max(start)),
            ..Span::default()
        }
    }

    fn wall(&self, stamp: Stamp) -> u64 {
        nanos(self.clock.wall(stamp))
    }
}

fn failed(error: &str) -> Status {
    Status { code: StatusCode::Error.into(), message: error.to_owned() }
}

fn int(key: &str, value: impl Into<i64>) -> KeyValue {
    attribute(key, Value::IntValue(value.into()))
}

/// Of the W3C's trace flags.
const SAMPLED: u32 = 1;
/// A gap that a reader notices as a stop.
const STALL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::fixture;
    use crate::record::Ways;

    /// Names of the spans of stages, from when to when in milliseconds from the head, and the attempts' ids.
    fn stage_spans(record: &Record) -> Vec<(String, u64, u64, u64)> {
        let spans = spans(record, &Clock::start());
        assert_eq!(spans.len() as u64, span_count(record));
        let began = spans[0].start_time_unix_nano;
        let after = |nanos: u64| (nanos - began) / 1_000_000;
        let is_stage = |span: &&Span| span.attributes.iter().any(|it| it.key == "tokenway.stage.source");
        let stage = |span: &Span| {
            let (start, end) = (after(span.start_time_unix_nano), after(span.end_time_unix_nano));
            let parent = span.parent_span_id.clone().try_into().map(u64::from_be_bytes);
            (span.name.clone(), start, end, parent.unwrap())
        };
        spans[1..].iter().filter(is_stage).map(stage).collect()
    }

    #[test]
    fn a_method_that_http_does_not_know_is_other() {
        let mut record = fixture::stream();
        let mut methods = |method: &[u8]| {
            record.client.method = http::Method::from_bytes(method).unwrap();
            let root = spans(&record, &Clock::start()).swap_remove(0);
            let of = |name: &str| root.attributes.iter().find(|it| it.key == name).cloned();
            ["http.request.method", "http.request.method_original"].map(of)
        };
        let has = |name: &str, value: &str| Some(text(name, value));
        assert_eq!(methods(b"PATCH"), [has("http.request.method", "PATCH"), None]);
        let other = has("http.request.method", "_OTHER");
        assert_eq!(methods(b"FOO"), [other.clone(), has("http.request.method_original", "FOO")]);
        assert_eq!(methods(b"get")[0], other, "methods are case-sensitive");
        let long = "X".repeat(32);
        let cut = has("http.request.method_original", &long);
        assert_eq!(methods("X".repeat(4000).as_bytes())[1], cut);
    }

    #[test]
    fn the_stages_of_two_legs_are_below_the_attempts_that_they_were_spent_at() {
        let mut record = fixture::stream();
        let at = |ms| record.at.head.after(Duration::from_millis(ms));
        let leg = Attempt {
            cause: AttemptCause::Prefill,
            span: 0xa0,
            connected: Some(at(14)),
            end: at(70),
            ..record.attempts[0].clone()
        };
        (record.attempts[0].start, record.at.connected) = (at(71), Some(at(73)));
        record.attempts.insert(0, leg);
        record.ways =
            Some(Ways { is_apart: true, transfer: Some(Duration::from_millis(100)), ..Ways::default() });
        let expected = [
            ("prefill", 14, 70, 0xa0),
            ("engine_queue", 73, 110, 0xa1),
            ("kv_transfer", 110, 210, 0xa1),
            ("decode", 210, 1300, 0xa1),
        ];
        assert_eq!(stage_spans(&record), expected.map(|(name, a, b, at)| (name.to_owned(), a, b, at)));
    }

    #[test]
    fn a_stream_that_was_continued_elsewhere_decodes_below_both_attempts() {
        let mut record = fixture::stream();
        let at = |ms| record.at.head.after(Duration::from_millis(ms));
        let next = Attempt {
            cause: AttemptCause::Migration,
            span: 0xa2,
            start: at(900),
            connected: Some(at(902)),
            head: Some(at(905)),
            ..record.attempts[0].clone()
        };
        (record.attempts[0].error, record.attempts[0].end) = (Some("replica_closed"), at(900));
        record.attempts.push(next);
        let expected = [("prefill", 15, 210, 0xa1), ("decode", 210, 900, 0xa1), ("decode", 900, 1300, 0xa2)];
        assert_eq!(stage_spans(&record), expected.map(|(name, a, b, at)| (name.to_owned(), a, b, at)));
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
        assert_eq!(spans[0].status, Some(failed("no_ready_replica")));
    }

    #[test]
    fn the_wait_before_a_hedge_is_below_the_attempt_that_was_late() {
        let expected = [("prefill", 14, 112, 0xa0), ("prefill", 115, 210, 0xa1), ("decode", 210, 1300, 0xa1)];
        assert_eq!(
            stage_spans(&fixture::hedged()),
            expected.map(|(name, a, b, at)| (name.to_owned(), a, b, at))
        );
    }
}
