//! Attributes of a request: the one list of names for spans and the access log.
//!
//! Names follow the OpenTelemetry semantic conventions where those have one, else `tokenway.*`; durations are seconds.
//! Never prompts, completions or keys: a record does not have them.

use std::net::IpAddr;
use std::time::Duration;

use smallvec::SmallVec;

use crate::record::{AttemptCause, Record, cut};

use super::judgement::Judgement;
use super::stages::Stage;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum AttributeValue<'a> {
    /// Text from outside, which may need escapes.
    Str(&'a str),
    /// The same, made for the purpose.
    Text(String),
    /// A constant of ours that needs no escapes.
    Name(&'static str),
    Int(i64),
    /// Written as seconds.
    Span(Duration),
    Number(f64),
    Bool(bool),
    Address(IpAddr),
    List(SmallVec<[&'a str; 4]>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttributeKey {
    pub name: &'static str,
    /// `,"name":` for the access log, concatenated at compile time.
    pub member: &'static str,
}

macro_rules! key {
    ($($part:literal)+) => {
        AttributeKey { name: concat!($($part),+), member: concat!(",\"", $($part,)+ "\":") }
    };
}

macro_rules! keys {
    ($space:literal $($name:literal),+) => {
        [$(key!($space $name)),+]
    };
}

/// Who is handed the attributes. Inlined, a constant key and the kind of its value cost nothing where it is taken.
pub(super) trait Sink<'a> {
    fn take(&mut self, key: AttributeKey, value: AttributeValue<'a>);

    /// Takes what there is.
    #[inline(always)]
    fn put(&mut self, key: AttributeKey, value: impl Into<Option<AttributeValue<'a>>>) {
        if let Some(value) = value.into() {
            self.take(key, value);
        }
    }
}

/// Hands on every known attribute of a request, in a stable order.
pub(super) fn each<'a>(record: &'a Record, judgement: &'a Judgement, to: &mut impl Sink<'a>) {
    gen_ai(record, to);
    http(record, to);
    tokenway(record, to);
    judged(record, judgement, to);
    decision(record, to);
}

fn gen_ai<'a>(record: &'a Record, to: &mut impl Sink<'a>) {
    to.put(key!("gen_ai.operation.name"), AttributeValue::Name(record.dialect.operation()));
    to.put(key!("gen_ai.provider.name"), record.served().map(|served| AttributeValue::Str(&served.engine)));
    let requested = record.requested_model.as_deref().or(Some(&record.model)).filter(|name| *name != "none");
    to.put(key!("gen_ai.request.model"), requested.map(AttributeValue::Str));
    to.put(key!("gen_ai.request.stream"), AttributeValue::Bool(record.is_stream));
    to.put(key!("gen_ai.response.model"), record.response_model.as_deref().map(AttributeValue::Str));
    to.put(key!("gen_ai.response.id"), record.response_id.as_deref().map(AttributeValue::Str));
    if !record.finish_reasons.is_empty() {
        let reasons = record.finish_reasons.iter().map(|reason| &**reason).collect();
        to.put(key!("gen_ai.response.finish_reasons"), AttributeValue::List(reasons));
    }
    to.put(key!("gen_ai.usage.input_tokens"), record.tokens.input.map(|tokens| int(tokens.0)));
    to.put(key!("gen_ai.usage.cache_read.input_tokens"), record.tokens.cached.map(|tokens| int(tokens.0)));
    to.put(key!("gen_ai.usage.output_tokens"), record.tokens.output.map(|tokens| int(tokens.0)));
}

fn http<'a>(record: &'a Record, to: &mut impl Sink<'a>) {
    let method = record.client.method.as_str();
    let is_known = KNOWN_METHODS.contains(&method);
    to.put(key!("http.request.method"), AttributeValue::Str(if is_known { method } else { "_OTHER" }));
    if !is_known {
        let original = cut(method, MAX_METHOD);
        to.put(key!("http.request.method_original"), AttributeValue::Str(original));
    }
    to.put(key!("url.scheme"), AttributeValue::Name(if record.client.is_tls { "https" } else { "http" }));
    to.put(key!("url.path"), AttributeValue::Str(&record.path));
    to.put(key!("http.route"), AttributeValue::Str(&record.path));
    to.put(key!("client.address"), record.client.address.map(AttributeValue::Address));
    to.put(key!("user_agent.original"), record.client.user_agent.as_deref().map(AttributeValue::Str));
    to.put(key!("http.response.status_code"), AttributeValue::Int(i64::from(record.status)));
    to.put(key!("http.request.body.size"), int(record.bytes_in));
    to.put(key!("http.response.body.size"), int(record.bytes_out));
    to.put(key!("error.type"), record.error.map(AttributeValue::Name));
    to.put(key!("tokenway.engine.error"), record.engine_error().map(AttributeValue::Str));
    if let Some(served) = record.served() {
        to.put(key!("server.address"), AttributeValue::Str(&served.host));
        to.put(key!("server.port"), AttributeValue::Int(i64::from(served.port)));
    }
}

fn tokenway<'a>(record: &'a Record, to: &mut impl Sink<'a>) {
    to.put(key!("tokenway.route"), AttributeValue::Str(&record.route));
    to.put(key!("tokenway.degraded_from"), record.degraded_from.as_deref().map(AttributeValue::Str));
    if let Some(served) = record.served() {
        to.put(key!("tokenway.pool"), AttributeValue::Str(&served.pool));
        to.put(key!("tokenway.replica"), AttributeValue::Str(&served.replica));
    }
    to.put(key!("tokenway.revision"), AttributeValue::Str(record.revision()));
    to.put(key!("tokenway.tenant"), AttributeValue::Str(&record.tenant));
    to.put(key!("tokenway.key"), Some(AttributeValue::Str(&record.key)).filter(|_| *record.key != *"none"));
    to.put(key!("tokenway.class"), AttributeValue::Name(record.class.as_str()));
    to.put(key!("tokenway.slo_class"), AttributeValue::Str(&record.slo_class));
    to.put(key!("tokenway.outcome"), AttributeValue::Name(record.outcome.as_str()));
    to.put(key!("tokenway.stream"), AttributeValue::Bool(record.is_stream));
    to.put(key!("tokenway.attempts"), int(record.attempts.len() as u64));
    let is_hedged = record.attempts.iter().any(|attempt| attempt.cause == AttemptCause::Hedge);
    to.put(key!("tokenway.migrations"), (record.migrations > 0).then(|| int(record.migrations.into())));
    if record.migrations > 0 || is_hedged {
        let mut attempts: Vec<_> = record.attempts.iter().collect();
        attempts.sort_by_key(|attempt| attempt.start);
        let replicas = attempts.into_iter().map(|attempt| &*attempt.served.replica).collect();
        to.put(key!("tokenway.replicas"), AttributeValue::List(replicas));
    }
    to.put(key!("tokenway.migration_refused"), record.migration_refused.map(AttributeValue::Name));
    to.put(key!("tokenway.hedged"), is_hedged.then_some(AttributeValue::Bool(true)));
    to.put(key!("tokenway.duration"), AttributeValue::Span(record.duration()));
    to.put(key!("tokenway.ttft"), record.ttft().map(AttributeValue::Span));
    to.put(key!("tokenway.tpot"), record.tpot().map(AttributeValue::Span));
    to.put(key!("tokenway.empty"), record.empty.map(|_| AttributeValue::Bool(true)));
    let longest_gap = (record.content_events > 1).then_some(AttributeValue::Span(record.longest_gap));
    to.put(key!("tokenway.longest_gap"), longest_gap);
}

fn decision<'a>(record: &'a Record, to: &mut impl Sink<'a>) {
    let Some(decision) = &record.decision else { return };
    to.put(key!("tokenway.decision.policy"), AttributeValue::Name(decision.policy));
    to.put(key!("tokenway.decision.reason"), AttributeValue::Name(decision.reason));
    to.put(key!("tokenway.decision.candidates"), AttributeValue::Int(i64::from(decision.candidates)));
    to.put(key!("tokenway.decision.cold"), decision.is_cold.then_some(AttributeValue::Bool(true)));
    to.put(key!("tokenway.decision.predicted_ttft"), decision.predicted_ttft.map(AttributeValue::Span));
    if let (Some(chosen), Some(why)) = (decision.chosen(), decision.why()) {
        to.put(key!("tokenway.decision.why"), AttributeValue::Text(why));
        to.put(key!("tokenway.decision.cost"), AttributeValue::Number(chosen.cost.total()));
        for (key, (_, seconds)) in COSTS.into_iter().zip(chosen.cost.named()) {
            to.put(key, Some(AttributeValue::Number(seconds)).filter(|_| seconds != 0.0));
        }
    }
}

/// Time by stage, and missed bounds.
fn judged<'a>(record: &'a Record, judgement: &'a Judgement, to: &mut impl Sink<'a>) {
    for time in &judgement.stages {
        to.put(STAGES[time.stage as usize], AttributeValue::Span(time.duration));
    }
    // Only the engine's stages can be estimates.
    let engine = judgement.stages.iter().find(|time| time.stage == Stage::Prefill);
    to.put(key!("tokenway.stage.source"), engine.map(|engine| AttributeValue::Name(engine.source.as_str())));
    to.put(
        key!("tokenway.slo.missed"),
        judgement.missed().map(|missed| AttributeValue::Name(missed.as_str())),
    );
    to.put(
        key!("tokenway.slo.missed_in"),
        judgement.blamed.map(|stage| AttributeValue::Name(stage.as_str())),
    );
    to.put(
        key!("tokenway.slo.itl_percentile"),
        record.itl_missed.map(|percent| AttributeValue::Int(percent.into())),
    );
    if !judgement.over_budget.is_empty() {
        let stages = judgement.over_budget.iter().map(|stage| stage.as_str()).collect();
        to.put(key!("tokenway.stage.over_budget"), AttributeValue::List(stages));
    }
}

fn int<'a>(count: u64) -> AttributeValue<'a> {
    AttributeValue::Int(i64::try_from(count).unwrap_or(i64::MAX))
}

/// Of RFC 9110, and PATCH: what the convention calls known; others are `_OTHER`.
const KNOWN_METHODS: [&str; 9] =
    ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
/// Longest unknown method that is shown, in bytes: registered ones have up to 17.
const MAX_METHOD: usize = 32;
/// In the order of [`Addends::named`](crate::record::Addends::named).
const COSTS: [AttributeKey; 10] = keys!("tokenway.decision.cost."
    "wait", "prefill", "base", "adapter", "transfer", "others", "decoding", "harm", "late", "failure");
/// In the order of [`Stage::ALL`].
const STAGES: [AttributeKey; Stage::ALL.len()] = keys!("tokenway.stage."
    "read", "admit", "route", "connect", "engine_queue", "prefill", "kv_transfer", "decode", "engine_other", "relay");
