//! `[telemetry.otlp]` as the file writes it; flags and `OTEL_…` variables may say the rest.

use std::time::Duration;

use http::{HeaderName, HeaderValue};
use serde_json::Value as Json;

use super::OtlpProtocol;
use super::check::codec::{Own, SWITCH, Words};
use super::check::secret;
use super::check::section::Item;
use super::check::values::{HTTP_URL, POSITIVE_DURATION};
use super::declare::section;

section! {
    #[derive(Clone, Debug, PartialEq)]
    pub(super) struct OtlpKeys for "[telemetry.otlp]", optional {
        /// base URL: /v1/traces is appended unless it is there
        endpoint: Option<String> as HTTP_URL, example "http://127.0.0.1:4318";
        /// or "grpc", then mostly port 4317
        protocol: Option<OtlpProtocol> as PROTOCOL, example "http";
        /// { "x-mlflow-experiment-id" = "1", authorization = "env:OTLP_AUTHORIZATION" }
        headers: Option<Vec<(HeaderName, HeaderValue)>> as HEADERS, example {};
        /// of one export
        timeout: Option<Duration> as POSITIVE_DURATION, example "10s";
        /// true exports metrics too: /v1/metrics; histograms of TTFT, ITL, TPOT and duration are exponential
        metrics: Option<bool> as SWITCH, example false;
        /// between two exports of metrics
        metrics_interval: Option<Duration> as POSITIVE_DURATION, example "60s";
    }
}

fn headers(item: &Item<'_>) -> Option<Vec<(HeaderName, HeaderValue)>> {
    let entries = item.entries("a table", "write names and values: headers = { \"x-tenant\" = \"1\" }");
    Some(entries.filter_map(|entry| header(&entry)).collect())
}

fn header(entry: &Item<'_>) -> Option<(HeaderName, HeaderValue)> {
    let Ok(name) = entry.key.parse() else {
        entry.fault_at_key(
            format!("{:?} is not a header name", entry.key),
            "write it in quotes, without a colon",
        );
        return None;
    };
    let value = secret::read_or_plain(entry)?;
    match HeaderValue::from_str(value.reveal()) {
        Ok(mut value) => {
            value.set_sensitive(true);
            Some((name, value))
        }
        Err(_) => {
            entry.fault_masked("this cannot be the value of a header", "use visible ASCII characters");
            None
        }
    }
}

const PROTOCOL: Words<OtlpProtocol> = Words(
    "protocol",
    &[("http", OtlpProtocol::Http), ("http/protobuf", OtlpProtocol::Http), ("grpc", OtlpProtocol::Grpc)],
);
/// Values are mostly credentials; names help to see what is sent.
const HEADERS: Own<Vec<(HeaderName, HeaderValue)>> = Own { read: headers, show: |headers| masked(headers) };

/// Headers with their values masked.
pub(crate) fn masked(headers: &[(HeaderName, HeaderValue)]) -> Json {
    headers.iter().map(|(name, _)| (name.to_string(), Json::from("***"))).collect()
}
