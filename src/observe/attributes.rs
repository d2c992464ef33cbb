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
    List(Vec<&'a str>),
}

/// Every attribute of a request, in a stable order; what is not known is left out.
#[must_use]
pub fn attributes(record: &Record) -> List<'_> {
    let mut list = List::new();
    gen_ai(record, &mut list);
    http(record, &mut list);
    tokenway(record, &mut list);
    list
}

/// Names with their values; on the stack, because one is made for every request.
pub type List<'a> = SmallVec<[(&'static str, Value<'a>); 48]>;

fn gen_ai<'a>(record: &'a Record, list: &mut List<'a>) {
    list.push(("gen_ai.operation.name", Value::Str(record.dialect.operation())));
    if let Some(served) = record.served() {
        list.push(("gen_ai.provider.name", Value::Str(&served.engine)));
    }
    if &*record.model != "none" {
        list.push(("gen_ai.request.model", Value::Str(&record.model)));
    }
    if let Some(model) = &record.response_model {
        list.push(("gen_ai.response.model", Value::Str(model)));
    }
    if let Some(id) = &record.response_id {
        list.push(("gen_ai.response.id", Value::Str(id)));
    }
    if !record.finish_reasons.is_empty() {
        let reasons = record.finish_reasons.iter().map(|reason| &**reason).collect();
        list.push(("gen_ai.response.finish_reasons", Value::List(reasons)));
    }
    if let Some(input) = record.tokens.input {
        list.push(("gen_ai.usage.input_tokens", int(input.0)));
    }
    if let Some(cached) = record.tokens.cached {
        list.push(("gen_ai.usage.cache_read.input_tokens", int(cached.0)));
    }
    if let Some(output) = record.tokens.output {
        list.push(("gen_ai.usage.output_tokens", int(output.0)));
    }
}

fn http<'a>(record: &'a Record, list: &mut List<'a>) {
    list.push(("url.path", Value::Str(&record.path)));
    list.push(("http.response.status_code", Value::Int(i64::from(record.status))));
    list.push(("http.request.body.size", int(record.bytes_in)));
    list.push(("http.response.body.size", int(record.bytes_out)));
    if let Some(error) = record.error {
        list.push(("error.type", Value::Str(error)));
    }
    if let Some(served) = record.served() {
        list.push(("server.address", Value::Str(&served.host)));
        list.push(("server.port", Value::Int(i64::from(served.port))));
    }
}

fn tokenway<'a>(record: &'a Record, list: &mut List<'a>) {
    list.push(("tokenway.route", Value::Str(&record.route)));
    if let Some(asked) = &record.degraded_from {
        list.push(("tokenway.degraded_from", Value::Str(asked)));
    }
    if let Some(served) = record.served() {
        list.push(("tokenway.pool", Value::Str(&served.pool)));
        list.push(("tokenway.replica", Value::Str(&served.replica)));
    }
    list.push(("tokenway.revision", Value::Str(record.revision())));
    list.push(("tokenway.tenant", Value::Str(&record.tenant)));
    list.push(("tokenway.class", Value::Str(record.class.as_str())));
    list.push(("tokenway.slo_class", Value::Str(&record.slo_class)));
    list.push(("tokenway.outcome", Value::Str(record.outcome.as_str())));
    list.push(("tokenway.stream", Value::Bool(record.is_stream)));
    list.push(("tokenway.attempts", int(record.attempts.len() as u64)));
    list.push(("tokenway.duration", Value::Float(record.duration().as_secs_f64())));
    if let Some(ttft) = record.ttft() {
        list.push(("tokenway.ttft", Value::Float(ttft.as_secs_f64())));
    }
    if let Some(tpot) = record.tpot() {
        list.push(("tokenway.tpot", Value::Float(tpot.as_secs_f64())));
    }
    if record.content_events > 1 {
        list.push(("tokenway.longest_gap", Value::Float(record.longest_gap.as_secs_f64())));
    }
    judged(record, list);
    let Some(decision) = &record.decision else { return };
    list.push(("tokenway.decision.policy", Value::Str(decision.policy)));
    list.push(("tokenway.decision.reason", Value::Str(decision.reason)));
    list.push(("tokenway.decision.candidates", Value::Int(i64::from(decision.candidates))));
    if let Some(predicted) = decision.predicted_ttft {
        list.push(("tokenway.decision.predicted_ttft", Value::Float(predicted.as_secs_f64())));
    }
}

/// Where the time went, and what of it was too much.
fn judged<'a>(record: &'a Record, list: &mut List<'a>) {
    let judgement = Judgement::of(record);
    for time in &judgement.stages {
        list.push((time.stage.attribute(), Value::Float(time.duration.as_secs_f64())));
    }
    // The engine's part alone can be an estimate.
    let engine = judgement.stages.iter().find(|time| time.stage == Stage::Prefill);
    if let Some(engine) = engine {
        list.push(("tokenway.stage.source", Value::Str(engine.source.as_str())));
    }
    if let Some(missed) = judgement.missed() {
        list.push(("tokenway.slo.missed", Value::Str(missed.as_str())));
    }
    if let Some(stage) = judgement.blamed {
        list.push(("tokenway.slo.missed_in", Value::Str(stage.as_str())));
    }
    if let Some(percent) = record.itl_missed {
        list.push(("tokenway.slo.itl_percentile", Value::Int(i64::from(percent))));
    }
    if !judgement.over_budget.is_empty() {
        let stages = judgement.over_budget.iter().map(|stage| stage.as_str()).collect();
        list.push(("tokenway.stage.over_budget", Value::List(stages)));
    }
}

fn int(count: u64) -> Value<'static> {
    Value::Int(i64::try_from(count).unwrap_or(i64::MAX))
}
