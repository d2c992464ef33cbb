//! The engine's times in its spans. Pure.
//!
//! vLLM ends one span `llm_request` for each request; its parent is the attempt whose id went upstream in `traceparent`.
//! Other spans, and attributes that are no plausible times, are passed over.

use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span;

use crate::record::EngineTimes;

/// The times of one request at its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) trace: u128,
    /// Span id of the attempt that caused it.
    pub(super) attempt: u64,
    pub(super) times: EngineTimes,
}

pub(super) fn count(export: &ExportTraceServiceRequest) -> u64 {
    export.resource_spans.iter().flat_map(|r| &r.scope_spans).map(|s| s.spans.len() as u64).sum()
}

pub(super) fn figures(export: &ExportTraceServiceRequest) -> impl Iterator<Item = Figures> {
    let scopes = export.resource_spans.iter().flat_map(|resource| &resource.scope_spans);
    scopes.flat_map(|scope| &scope.spans).filter_map(of_span)
}

fn of_span(span: &Span) -> Option<Figures> {
    let seconds = |key| span.attributes.iter().find(|pair| pair.key == key).and_then(seconds);
    let times = EngineTimes {
        queue: seconds("gen_ai.latency.time_in_queue"),
        prefill: seconds("gen_ai.latency.time_in_model_prefill"),
        first_token: seconds("gen_ai.latency.time_to_first_token"),
        generation: seconds("gen_ai.latency.time_in_model_decode"),
    };
    if times == EngineTimes::default() {
        return None;
    }
    let trace = u128::from_be_bytes(span.trace_id.as_slice().try_into().ok()?);
    let attempt = u64::from_be_bytes(span.parent_span_id.as_slice().try_into().ok()?);
    (trace != 0 && attempt != 0).then_some(Figures { trace, attempt, times })
}

fn seconds(pair: &KeyValue) -> Option<Duration> {
    let value = match pair.value.as_ref()?.value.as_ref()? {
        any_value::Value::DoubleValue(seconds) => *seconds,
        any_value::Value::IntValue(seconds) => *seconds as f64,
        _ => return None,
    };
    Duration::try_from_secs_f64(value).ok().filter(|time| *time < MAX_TIME)
}

/// No request takes a day.
const MAX_TIME: Duration = Duration::from_secs(86_400);

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::common::v1::AnyValue;
    use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans};

    use super::*;

    fn span(trace: &[u8], parent: &[u8], times: &[(&str, any_value::Value)]) -> Span {
        let attributes = times.iter().map(|(key, value)| KeyValue {
            key: (*key).to_owned(),
            value: Some(AnyValue { value: Some(value.clone()) }),
            ..KeyValue::default()
        });
        Span {
            trace_id: trace.to_vec(),
            parent_span_id: parent.to_vec(),
            attributes: attributes.collect(),
            ..Span::default()
        }
    }

    #[test]
    fn only_spans_with_times_and_a_parent_count() {
        use any_value::Value::{DoubleValue, IntValue, StringValue};
        const QUEUE: &str = "gen_ai.latency.time_in_queue";
        let (trace, parent) = ([7; 16], [9; 8]);
        let spans = vec![
            span(
                &trace,
                &parent,
                &[(QUEUE, DoubleValue(0.25)), ("gen_ai.request.id", StringValue("x".into()))],
            ),
            span(&trace, &parent, &[("gen_ai.latency.time_in_model_prefill", IntValue(2))]),
            span(&trace, &parent, &[(QUEUE, DoubleValue(-1.0))]),
            span(&trace, &parent, &[(QUEUE, DoubleValue(f64::NAN))]),
            span(&trace, &parent, &[(QUEUE, DoubleValue(1e9))]),
            span(&trace, &parent, &[(QUEUE, StringValue("0.25".into()))]),
            span(&trace, &[], &[(QUEUE, DoubleValue(0.25))]),
            span(&[0; 16], &parent, &[(QUEUE, DoubleValue(0.25))]),
            span(&trace, &parent, &[]),
        ];
        let scope = ScopeSpans { spans, ..ScopeSpans::default() };
        let resource = ResourceSpans { scope_spans: vec![scope], ..ResourceSpans::default() };
        let export = ExportTraceServiceRequest { resource_spans: vec![resource] };
        assert_eq!(count(&export), 9);
        let found: Vec<_> = figures(&export).collect();
        let (trace, attempt) = (u128::from_be_bytes(trace), u64::from_be_bytes(parent));
        let queue = EngineTimes { queue: Some(Duration::from_millis(250)), ..EngineTimes::default() };
        let prefill = EngineTimes { prefill: Some(Duration::from_secs(2)), ..EngineTimes::default() };
        assert_eq!(found, [queue, prefill].map(|times| Figures { trace, attempt, times }));
    }
}
