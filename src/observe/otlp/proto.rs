//! What every signal writes alike: attributes, times, the scope.

use std::time::SystemTime;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, ArrayValue, InstrumentationScope, KeyValue, KeyValueList,
};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, SeverityNumber};
use serde_json::Value as Json;

use crate::clock::since_epoch;
use crate::observe::attributes::{AttributeKey, AttributeValue, Sink};

pub(crate) fn attribute(key: impl Into<String>, value: Value) -> KeyValue {
    let value = Some(AnyValue { value: Some(value) });
    KeyValue { key: key.into(), value, ..KeyValue::default() }
}

pub(crate) fn text(key: impl Into<String>, value: impl Into<String>) -> KeyValue {
    attribute(key, Value::StringValue(value.into()))
}

impl<'a> Sink<'a> for Vec<KeyValue> {
    fn take(&mut self, key: AttributeKey, value: AttributeValue<'a>) {
        self.push(key_value(key.name, value));
    }
}

fn key_value(name: &'static str, value: AttributeValue<'_>) -> KeyValue {
    let value = match value {
        AttributeValue::Str(text) => Value::StringValue(text.to_owned()),
        AttributeValue::Text(text) => Value::StringValue(text),
        AttributeValue::Number(number) => Value::DoubleValue(number),
        AttributeValue::Name(name) => Value::StringValue(name.to_owned()),
        AttributeValue::Int(number) => Value::IntValue(number),
        AttributeValue::Span(span) => Value::DoubleValue(span.as_secs_f64()),
        AttributeValue::Bool(fact) => Value::BoolValue(fact),
        AttributeValue::Address(address) => Value::StringValue(address.to_string()),
        AttributeValue::List(names) => texts(names),
    };
    attribute(name, value)
}

pub(crate) fn texts(texts: impl IntoIterator<Item = impl Into<String>>) -> Value {
    let text = |text: _| AnyValue { value: Some(Value::StringValue(Into::into(text))) };
    Value::ArrayValue(ArrayValue { values: texts.into_iter().map(text).collect() })
}

/// A value of JSON, in its structure.
pub(crate) fn structured(json: Json) -> AnyValue {
    let value = match json {
        Json::Null => None,
        Json::Bool(fact) => Some(Value::BoolValue(fact)),
        Json::Number(number) => Some(match number.as_i64() {
            Some(whole) => Value::IntValue(whole),
            None => Value::DoubleValue(number.as_f64().unwrap_or(f64::NAN)),
        }),
        Json::String(text) => Some(Value::StringValue(text)),
        Json::Array(list) => {
            Some(Value::ArrayValue(ArrayValue { values: list.into_iter().map(structured).collect() }))
        }
        Json::Object(members) => {
            let member =
                |(key, value)| KeyValue { key, value: Some(structured(value)), ..KeyValue::default() };
            Some(Value::KvlistValue(KeyValueList { values: members.into_iter().map(member).collect() }))
        }
    };
    AnyValue { value }
}

/// A log record with a name: an event.
pub(crate) fn event(
    name: &str,
    at: SystemTime,
    severity: SeverityNumber,
    body: String,
    attributes: Vec<KeyValue>,
) -> LogRecord {
    let time = nanos(at);
    LogRecord {
        event_name: name.to_owned(),
        time_unix_nano: time,
        observed_time_unix_nano: time,
        severity_number: severity.into(),
        severity_text: severity.as_str_name().trim_start_matches("SEVERITY_NUMBER_").to_owned(),
        body: Some(AnyValue { value: Some(Value::StringValue(body)) }),
        attributes,
        ..LogRecord::default()
    }
}

/// Nanoseconds since the epoch.
pub(crate) fn nanos(time: SystemTime) -> u64 {
    u64::try_from(since_epoch(time).as_nanos()).unwrap_or(u64::MAX)
}

/// This gateway as an instrumentation scope.
pub(crate) fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "tokenway".to_owned(),
        version: super::VERSION.to_owned(),
        ..InstrumentationScope::default()
    }
}
