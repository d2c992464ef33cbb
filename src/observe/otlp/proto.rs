//! What every signal writes alike: attributes, times, the scope.

use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};

/// An attribute.
pub(crate) fn attribute(key: impl Into<String>, value: Value) -> KeyValue {
    let value = Some(AnyValue { value: Some(value) });
    KeyValue { key: key.into(), value, ..KeyValue::default() }
}

/// An attribute that is text.
pub(crate) fn text(key: impl Into<String>, value: impl Into<String>) -> KeyValue {
    attribute(key, Value::StringValue(value.into()))
}

/// Nanoseconds since the epoch.
pub(crate) fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// This gateway as an instrumentation scope.
pub(crate) fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "tokenway".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    }
}
