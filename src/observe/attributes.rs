//! What is told of a request outside of metrics: the one list of names for spans and the access log.
//!
//! Names follow the OpenTelemetry semantic conventions where they have one, else `tokenway.*`; durations are
//! seconds. Never prompts, answers or keys: a record does not have them.

use std::time::Duration;

use smallvec::SmallVec;

use crate::record::Record;

use super::judgement::Judgement;
use super::stages::Stage;

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// Text of others: it may hold anything.
    Str(&'a str),
    /// A name of ours: letters, digits, dots and underscores.
    Name(&'static str),
    /// Whole number.
    Int(i64),
    /// Seconds.
    Span(Duration),
    /// Yes or no.
    Bool(bool),
    /// List of texts.
    List(SmallVec<[&'a str; 4]>),
}

/// The name of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// As it is.
    pub name: &'static str,
    /// As it stands in a JSON object behind another member: put together here once, and not for every line.
    pub member: &'static str,
}

macro_rules! key {
    ($name:literal) => {
        Key { name: $name, member: concat!(",\"", $name, "\":") }
    };
}

/// Tells every attribute of a request, in a stable order; what is not known is left out.
pub fn each<'a>(record: &'a Record, judgement: &'a Judgement, mut tell: impl FnMut(Key, Value<'a>)) {
    gen_ai(record, &mut tell);
    http(record, &mut tell);
    tokenway(record, &mut tell);
    judged(record, judgement, &mut tell);
    decision(record, &mut tell);
}

fn gen_ai<'a>(record: &'a Record, tell: &mut impl FnMut(Key, Value<'a>)) {
    tell(key!("gen_ai.operation.name"), Value::Name(record.dialect.operation()));
    if let Some(served) = record.served() {
        tell(key!("gen_ai.provider.name"), Value::Str(&served.engine));
    }
    if &*record.model != "none" {
        tell(key!("gen_ai.request.model"), Value::Str(&record.model));
    }
    if let Some(model) = &record.response_model {
        tell(key!("gen_ai.response.model"), Value::Str(model));
    }
    if let Some(id) = &record.response_id {
        tell(key!("gen_ai.response.id"), Value::Str(id));
    }
    if !record.finish_reasons.is_empty() {
        let reasons = record.finish_reasons.iter().map(|reason| &**reason).collect();
        tell(key!("gen_ai.response.finish_reasons"), Value::List(reasons));
    }
    if let Some(input) = record.tokens.input {
        tell(key!("gen_ai.usage.input_tokens"), int(input.0));
    }
    if let Some(cached) = record.tokens.cached {
        tell(key!("gen_ai.usage.cache_read.input_tokens"), int(cached.0));
    }
    if let Some(output) = record.tokens.output {
        tell(key!("gen_ai.usage.output_tokens"), int(output.0));
    }
}

fn http<'a>(record: &'a Record, tell: &mut impl FnMut(Key, Value<'a>)) {
    tell(key!("url.path"), Value::Str(&record.path));
    tell(key!("http.response.status_code"), Value::Int(i64::from(record.status)));
    tell(key!("http.request.body.size"), int(record.bytes_in));
    tell(key!("http.response.body.size"), int(record.bytes_out));
    if let Some(error) = record.error {
        tell(key!("error.type"), Value::Name(error));
    }
    if let Some(served) = record.served() {
        tell(key!("server.address"), Value::Str(&served.host));
        tell(key!("server.port"), Value::Int(i64::from(served.port)));
    }
}

fn tokenway<'a>(record: &'a Record, tell: &mut impl FnMut(Key, Value<'a>)) {
    tell(key!("tokenway.route"), Value::Str(&record.route));
    if let Some(asked) = &record.degraded_from {
        tell(key!("tokenway.degraded_from"), Value::Str(asked));
    }
    if let Some(served) = record.served() {
        tell(key!("tokenway.pool"), Value::Str(&served.pool));
        tell(key!("tokenway.replica"), Value::Str(&served.replica));
    }
    tell(key!("tokenway.revision"), Value::Str(record.revision()));
    tell(key!("tokenway.tenant"), Value::Str(&record.tenant));
    tell(key!("tokenway.class"), Value::Name(record.class.as_str()));
    tell(key!("tokenway.slo_class"), Value::Str(&record.slo_class));
    tell(key!("tokenway.outcome"), Value::Name(record.outcome.as_str()));
    tell(key!("tokenway.stream"), Value::Bool(record.is_stream));
    tell(key!("tokenway.attempts"), int(record.attempts.len() as u64));
    tell(key!("tokenway.duration"), Value::Span(record.duration()));
    if let Some(ttft) = record.ttft() {
        tell(key!("tokenway.ttft"), Value::Span(ttft));
    }
    if let Some(tpot) = record.tpot() {
        tell(key!("tokenway.tpot"), Value::Span(tpot));
    }
    if record.content_events > 1 {
        tell(key!("tokenway.longest_gap"), Value::Span(record.longest_gap));
    }
}

fn decision<'a>(record: &'a Record, tell: &mut impl FnMut(Key, Value<'a>)) {
    let Some(decision) = &record.decision else { return };
    tell(key!("tokenway.decision.policy"), Value::Name(decision.policy));
    tell(key!("tokenway.decision.reason"), Value::Name(decision.reason));
    tell(key!("tokenway.decision.candidates"), Value::Int(i64::from(decision.candidates)));
    if let Some(predicted) = decision.predicted_ttft {
        tell(key!("tokenway.decision.predicted_ttft"), Value::Span(predicted));
    }
}

/// Where the time went, and what of it was too much.
fn judged<'a>(record: &'a Record, judgement: &'a Judgement, tell: &mut impl FnMut(Key, Value<'a>)) {
    for time in &judgement.stages {
        tell(stage_key(time.stage), Value::Span(time.duration));
    }
    // The engine's part alone can be an estimate.
    let engine = judgement.stages.iter().find(|time| time.stage == Stage::Prefill);
    if let Some(engine) = engine {
        tell(key!("tokenway.stage.source"), Value::Name(engine.source.as_str()));
    }
    if let Some(missed) = judgement.missed() {
        tell(key!("tokenway.slo.missed"), Value::Name(missed.as_str()));
    }
    if let Some(stage) = judgement.blamed {
        tell(key!("tokenway.slo.missed_in"), Value::Name(stage.as_str()));
    }
    if let Some(percent) = record.itl_missed {
        tell(key!("tokenway.slo.itl_percentile"), Value::Int(i64::from(percent)));
    }
    if !judgement.over_budget.is_empty() {
        let stages = judgement.over_budget.iter().map(|stage| stage.as_str()).collect();
        tell(key!("tokenway.stage.over_budget"), Value::List(stages));
    }
}

fn stage_key(stage: Stage) -> Key {
    match stage {
        Stage::Read => key!("tokenway.stage.read"),
        Stage::Admit => key!("tokenway.stage.admit"),
        Stage::Route => key!("tokenway.stage.route"),
        Stage::Connect => key!("tokenway.stage.connect"),
        Stage::EngineQueue => key!("tokenway.stage.engine_queue"),
        Stage::Prefill => key!("tokenway.stage.prefill"),
        Stage::Decode => key!("tokenway.stage.decode"),
        Stage::EngineOther => key!("tokenway.stage.engine_other"),
        Stage::Relay => key!("tokenway.stage.relay"),
    }
}

fn int<'a>(count: u64) -> Value<'a> {
    Value::Int(i64::try_from(count).unwrap_or(i64::MAX))
}
