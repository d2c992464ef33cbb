//! Attributes of a request: the one list of names for spans and the access log.
//!
//! Names follow the OpenTelemetry semantic conventions where those have one, else `tokenway.*`; durations are seconds.
//! Never prompts, completions or keys: a record does not have them.

use std::net::IpAddr;
use std::time::Duration;

use smallvec::SmallVec;

use crate::record::{AttemptCause, Record};

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
    ($name:literal) => {
        AttributeKey { name: $name, member: concat!(",\"", $name, "\":") }
    };
}

/// Emits every known attribute of a request, in a stable order.
pub(super) fn each<'a>(
    record: &'a Record,
    judgement: &'a Judgement,
    mut emit: impl FnMut(AttributeKey, AttributeValue<'a>),
) {
    gen_ai(record, &mut emit);
    http(record, &mut emit);
    tokenway(record, &mut emit);
    judged(record, judgement, &mut emit);
    decision(record, &mut emit);
}

fn gen_ai<'a>(record: &'a Record, emit: &mut impl FnMut(AttributeKey, AttributeValue<'a>)) {
    emit(key!("gen_ai.operation.name"), AttributeValue::Name(record.dialect.operation()));
    if let Some(served) = record.served() {
        emit(key!("gen_ai.provider.name"), AttributeValue::Str(&served.engine));
    }
    let requested = record.requested_model.as_deref().or(Some(&record.model)).filter(|name| *name != "none");
    if let Some(model) = requested {
        emit(key!("gen_ai.request.model"), AttributeValue::Str(model));
    }
    emit(key!("gen_ai.request.stream"), AttributeValue::Bool(record.is_stream));
    if let Some(model) = &record.response_model {
        emit(key!("gen_ai.response.model"), AttributeValue::Str(model));
    }
    if let Some(id) = &record.response_id {
        emit(key!("gen_ai.response.id"), AttributeValue::Str(id));
    }
    if !record.finish_reasons.is_empty() {
        let reasons = record.finish_reasons.iter().map(|reason| &**reason).collect();
        emit(key!("gen_ai.response.finish_reasons"), AttributeValue::List(reasons));
    }
    if let Some(input) = record.tokens.input {
        emit(key!("gen_ai.usage.input_tokens"), int(input.0));
    }
    if let Some(cached) = record.tokens.cached {
        emit(key!("gen_ai.usage.cache_read.input_tokens"), int(cached.0));
    }
    if let Some(output) = record.tokens.output {
        emit(key!("gen_ai.usage.output_tokens"), int(output.0));
    }
}

fn http<'a>(record: &'a Record, emit: &mut impl FnMut(AttributeKey, AttributeValue<'a>)) {
    emit(key!("http.request.method"), AttributeValue::Str(record.client.method.as_str()));
    emit(key!("url.scheme"), AttributeValue::Name(if record.client.is_tls { "https" } else { "http" }));
    emit(key!("url.path"), AttributeValue::Str(&record.path));
    emit(key!("http.route"), AttributeValue::Str(&record.path));
    if let Some(address) = record.client.address {
        emit(key!("client.address"), AttributeValue::Address(address));
    }
    if let Some(user_agent) = &record.client.user_agent {
        emit(key!("user_agent.original"), AttributeValue::Str(user_agent));
    }
    emit(key!("http.response.status_code"), AttributeValue::Int(i64::from(record.status)));
    emit(key!("http.request.body.size"), int(record.bytes_in));
    emit(key!("http.response.body.size"), int(record.bytes_out));
    if let Some(error) = record.error {
        emit(key!("error.type"), AttributeValue::Name(error));
    }
    if let Some(words) = record.engine_error() {
        emit(key!("tokenway.engine.error"), AttributeValue::Str(words));
    }
    if let Some(served) = record.served() {
        emit(key!("server.address"), AttributeValue::Str(&served.host));
        emit(key!("server.port"), AttributeValue::Int(i64::from(served.port)));
    }
}

fn tokenway<'a>(record: &'a Record, emit: &mut impl FnMut(AttributeKey, AttributeValue<'a>)) {
    emit(key!("tokenway.route"), AttributeValue::Str(&record.route));
    if let Some(asked) = &record.degraded_from {
        emit(key!("tokenway.degraded_from"), AttributeValue::Str(asked));
    }
    if let Some(served) = record.served() {
        emit(key!("tokenway.pool"), AttributeValue::Str(&served.pool));
        emit(key!("tokenway.replica"), AttributeValue::Str(&served.replica));
    }
    emit(key!("tokenway.revision"), AttributeValue::Str(record.revision()));
    emit(key!("tokenway.tenant"), AttributeValue::Str(&record.tenant));
    if *record.key != *"none" {
        emit(key!("tokenway.key"), AttributeValue::Str(&record.key));
    }
    emit(key!("tokenway.class"), AttributeValue::Name(record.class.as_str()));
    emit(key!("tokenway.slo_class"), AttributeValue::Str(&record.slo_class));
    emit(key!("tokenway.outcome"), AttributeValue::Name(record.outcome.as_str()));
    emit(key!("tokenway.stream"), AttributeValue::Bool(record.is_stream));
    emit(key!("tokenway.attempts"), int(record.attempts.len() as u64));
    let is_hedged = record.attempts.iter().any(|attempt| attempt.cause == AttemptCause::Hedge);
    if record.migrations > 0 {
        emit(key!("tokenway.migrations"), int(u64::from(record.migrations)));
    }
    if record.migrations > 0 || is_hedged {
        let replicas = record.attempts.iter().map(|attempt| &*attempt.served.replica).collect();
        emit(key!("tokenway.replicas"), AttributeValue::List(replicas));
    }
    if let Some(reason) = record.migration_refused {
        emit(key!("tokenway.migration_refused"), AttributeValue::Name(reason));
    }
    if is_hedged {
        emit(key!("tokenway.hedged"), AttributeValue::Bool(true));
    }
    emit(key!("tokenway.duration"), AttributeValue::Span(record.duration()));
    if let Some(ttft) = record.ttft() {
        emit(key!("tokenway.ttft"), AttributeValue::Span(ttft));
    }
    if let Some(tpot) = record.tpot() {
        emit(key!("tokenway.tpot"), AttributeValue::Span(tpot));
    }
    if record.empty.is_some() {
        emit(key!("tokenway.empty"), AttributeValue::Bool(true));
    }
    if record.content_events > 1 {
        emit(key!("tokenway.longest_gap"), AttributeValue::Span(record.longest_gap));
    }
}

fn decision<'a>(record: &'a Record, emit: &mut impl FnMut(AttributeKey, AttributeValue<'a>)) {
    let Some(decision) = &record.decision else { return };
    emit(key!("tokenway.decision.policy"), AttributeValue::Name(decision.policy));
    emit(key!("tokenway.decision.reason"), AttributeValue::Name(decision.reason));
    emit(key!("tokenway.decision.candidates"), AttributeValue::Int(i64::from(decision.candidates)));
    if decision.is_cold {
        emit(key!("tokenway.decision.cold"), AttributeValue::Bool(true));
    }
    if let Some(predicted) = decision.predicted_ttft {
        emit(key!("tokenway.decision.predicted_ttft"), AttributeValue::Span(predicted));
    }
    if let (Some(chosen), Some(why)) = (decision.chosen(), decision.why()) {
        emit(key!("tokenway.decision.why"), AttributeValue::Text(why));
        emit(key!("tokenway.decision.cost"), AttributeValue::Number(chosen.cost.total()));
        for (name, seconds) in chosen.cost.named().into_iter().filter(|(_, seconds)| *seconds != 0.0) {
            emit(addend_key(name), AttributeValue::Number(seconds));
        }
    }
}

/// Time by stage, and missed bounds.
fn judged<'a>(
    record: &'a Record,
    judgement: &'a Judgement,
    emit: &mut impl FnMut(AttributeKey, AttributeValue<'a>),
) {
    for time in &judgement.stages {
        emit(stage_key(time.stage), AttributeValue::Span(time.duration));
    }
    // Only the engine's stages can be estimates.
    let engine = judgement.stages.iter().find(|time| time.stage == Stage::Prefill);
    if let Some(engine) = engine {
        emit(key!("tokenway.stage.source"), AttributeValue::Name(engine.source.as_str()));
    }
    if let Some(missed) = judgement.missed() {
        emit(key!("tokenway.slo.missed"), AttributeValue::Name(missed.as_str()));
    }
    if let Some(stage) = judgement.blamed {
        emit(key!("tokenway.slo.missed_in"), AttributeValue::Name(stage.as_str()));
    }
    if let Some(percent) = record.itl_missed {
        emit(key!("tokenway.slo.itl_percentile"), AttributeValue::Int(i64::from(percent)));
    }
    if !judgement.over_budget.is_empty() {
        let stages = judgement.over_budget.iter().map(|stage| stage.as_str()).collect();
        emit(key!("tokenway.stage.over_budget"), AttributeValue::List(stages));
    }
}

fn addend_key(name: &str) -> AttributeKey {
    match name {
        "wait" => key!("tokenway.decision.cost.wait"),
        "prefill" => key!("tokenway.decision.cost.prefill"),
        "base" => key!("tokenway.decision.cost.base"),
        "adapter" => key!("tokenway.decision.cost.adapter"),
        "others" => key!("tokenway.decision.cost.others"),
        "decoding" => key!("tokenway.decision.cost.decoding"),
        "harm" => key!("tokenway.decision.cost.harm"),
        "late" => key!("tokenway.decision.cost.late"),
        _ => key!("tokenway.decision.cost.failure"),
    }
}

fn stage_key(stage: Stage) -> AttributeKey {
    match stage {
        Stage::Read => key!("tokenway.stage.read"),
        Stage::Admit => key!("tokenway.stage.admit"),
        Stage::Route => key!("tokenway.stage.route"),
        Stage::Connect => key!("tokenway.stage.connect"),
        Stage::EngineQueue => key!("tokenway.stage.engine_queue"),
        Stage::Prefill => key!("tokenway.stage.prefill"),
        Stage::KvTransfer => key!("tokenway.stage.kv_transfer"),
        Stage::Decode => key!("tokenway.stage.decode"),
        Stage::EngineOther => key!("tokenway.stage.engine_other"),
        Stage::Relay => key!("tokenway.stage.relay"),
    }
}

fn int<'a>(count: u64) -> AttributeValue<'a> {
    AttributeValue::Int(i64::try_from(count).unwrap_or(i64::MAX))
}
