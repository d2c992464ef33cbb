//! What is told of a request outside of metrics: the one list of names for spans and the access log.
//!
//! Names follow the OpenTelemetry semantic conventions where they have one, else `tokenway.*`; durations are
//! seconds. Never prompts, answers or keys: a record does not have them.

use smallvec::SmallVec;

use crate::record::Record;

use super::judgement::Judgement;
use super::stages::Stage;

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// Text.
    Str(&'a str),
    /// Whole number.
    Int(i64),
    /// Seconds, or another fraction.
    Float(f64),
    /// Yes or no.
    Bool(bool),
    /// List of texts.
    List(SmallVec<[&'a str; 4]>),
}

/// Tells every attribute of a request, in a stable order; what is not known is left out.
pub fn each<'a>(record: &'a Record, judgement: &'a Judgement, mut tell: impl FnMut(&'static str, Value<'a>)) {
    gen_ai(record, &mut tell);
    http(record, &mut tell);
    tokenway(record, &mut tell);
    judged(record, judgement, &mut tell);
    decision(record, &mut tell);
}

fn gen_ai<'a>(record: &'a Record, tell: &mut impl FnMut(&'static str, Value<'a>)) {
    tell("gen_ai.operation.name", Value::Str(record.dialect.operation()));
    if let Some(served) = record.served() {
        tell("gen_ai.provider.name", Value::Str(&served.engine));
    }
    if &*record.model != "none" {
        tell("gen_ai.request.model", Value::Str(&record.model));
    }
    if let Some(model) = &record.response_model {
        tell("gen_ai.response.model", Value::Str(model));
    }
    if let Some(id) = &record.response_id {
        tell("gen_ai.response.id", Value::Str(id));
    }
    if !record.finish_reasons.is_empty() {
        let reasons = record.finish_reasons.iter().map(|reason| &**reason).collect();
        tell("gen_ai.response.finish_reasons", Value::List(reasons));
    }
    if let Some(input) = record.tokens.input {
        tell("gen_ai.usage.input_tokens", int(input.0));
    }
    if let Some(cached) = record.tokens.cached {
        tell("gen_ai.usage.cache_read.input_tokens", int(cached.0));
    }
    if let Some(output) = record.tokens.output {
        tell("gen_ai.usage.output_tokens", int(output.0));
    }
}

fn http<'a>(record: &'a Record, tell: &mut impl FnMut(&'static str, Value<'a>)) {
    tell("url.path", Value::Str(&record.path));
    tell("http.response.status_code", Value::Int(i64::from(record.status)));
    tell("http.request.body.size", int(record.bytes_in));
    tell("http.response.body.size", int(record.bytes_out));
    if let Some(error) = record.error {
        tell("error.type", Value::Str(error));
    }
    if let Some(served) = record.served() {
        tell("server.address", Value::Str(&served.host));
        tell("server.port", Value::Int(i64::from(served.port)));
    }
}

fn tokenway<'a>(record: &'a Record, tell: &mut impl FnMut(&'static str, Value<'a>)) {
    tell("tokenway.route", Value::Str(&record.route));
    if let Some(asked) = &record.degraded_from {
        tell("tokenway.degraded_from", Value::Str(asked));
    }
    if let Some(served) = record.served() {
        tell("tokenway.pool", Value::Str(&served.pool));
        tell("tokenway.replica", Value::Str(&served.replica));
    }
    tell("tokenway.revision", Value::Str(record.revision()));
    tell("tokenway.tenant", Value::Str(&record.tenant));
    tell("tokenway.class", Value::Str(record.class.as_str()));
    tell("tokenway.slo_class", Value::Str(&record.slo_class));
    tell("tokenway.outcome", Value::Str(record.outcome.as_str()));
    tell("tokenway.stream", Value::Bool(record.is_stream));
    tell("tokenway.attempts", int(record.attempts.len() as u64));
    tell("tokenway.duration", Value::Float(record.duration().as_secs_f64()));
    if let Some(ttft) = record.ttft() {
        tell("tokenway.ttft", Value::Float(ttft.as_secs_f64()));
    }
    if let Some(tpot) = record.tpot() {
        tell("tokenway.tpot", Value::Float(tpot.as_secs_f64()));
    }
    if record.content_events > 1 {
        tell("tokenway.longest_gap", Value::Float(record.longest_gap.as_secs_f64()));
    }
}

fn decision<'a>(record: &'a Record, tell: &mut impl FnMut(&'static str, Value<'a>)) {
    let Some(decision) = &record.decision else { return };
    tell("tokenway.decision.policy", Value::Str(decision.policy));
    tell("tokenway.decision.reason", Value::Str(decision.reason));
    tell("tokenway.decision.candidates", Value::Int(i64::from(decision.candidates)));
    if let Some(predicted) = decision.predicted_ttft {
        tell("tokenway.decision.predicted_ttft", Value::Float(predicted.as_secs_f64()));
    }
}

/// Where the time went, and what of it was too much.
fn judged<'a>(record: &'a Record, judgement: &'a Judgement, tell: &mut impl FnMut(&'static str, Value<'a>)) {
    for time in &judgement.stages {
        tell(time.stage.attribute(), Value::Float(time.duration.as_secs_f64()));
    }
    // The engine's part alone can be an estimate.
    let engine = judgement.stages.iter().find(|time| time.stage == Stage::Prefill);
    if let Some(engine) = engine {
        tell("tokenway.stage.source", Value::Str(engine.source.as_str()));
    }
    if let Some(missed) = judgement.missed() {
        tell("tokenway.slo.missed", Value::Str(missed.as_str()));
    }
    if let Some(stage) = judgement.blamed {
        tell("tokenway.slo.missed_in", Value::Str(stage.as_str()));
    }
    if let Some(percent) = record.itl_missed {
        tell("tokenway.slo.itl_percentile", Value::Int(i64::from(percent)));
    }
    if !judgement.over_budget.is_empty() {
        let stages = judgement.over_budget.iter().map(|stage| stage.as_str()).collect();
        tell("tokenway.stage.over_budget", Value::List(stages));
    }
}

fn int<'a>(count: u64) -> Value<'a> {
    Value::Int(i64::try_from(count).unwrap_or(i64::MAX))
}
