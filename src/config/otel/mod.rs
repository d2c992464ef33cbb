//! The standard `OTEL_…` variables, as far as they concern exports; [`metrics`] has those of metrics alone.
//!
//! They are the weakest source: whatever a flag or the file says wins. Values that make no sense are left out with a
//! warning, as the OpenTelemetry specification requires, because the environment is often set by another party.

pub(super) mod metrics;

use std::time::Duration;

use http::{HeaderName, HeaderValue};

use self::metrics::MetricsExporter;
use super::{OtlpProtocol, percent_decoded};

/// The OTLP exports as the environment has them.
#[derive(Debug)]
pub(super) struct Exporter {
    /// Whether spans may be exported, and log records with them.
    has_traces: bool,
    /// Where the paths of all signals begin, and how a signal goes that has no variables of its own.
    pub(super) all: Signal,
    pub(super) traces: Signal,
    /// By their own variables alone.
    pub(super) logs: Signal,
    pub(super) metrics: MetricsExporter,
}

/// Where exports go, and how, by variables.
#[derive(Clone, Debug, Default)]
pub(super) struct Signal {
    /// As it is said of one signal.
    pub(super) endpoint: Option<String>,
    pub(super) protocol: Option<OtlpProtocol>,
    pub(super) headers: Option<Vec<(HeaderName, HeaderValue)>>,
    /// For one export.
    pub(super) timeout: Option<Duration>,
}

impl Signal {
    /// This, and how `other` goes where this says nothing.
    pub(super) fn or(self, other: &Self) -> Self {
        Self {
            endpoint: self.endpoint,
            protocol: self.protocol.or(other.protocol),
            headers: self.headers.or_else(|| other.headers.clone()),
            timeout: self.timeout.or(other.timeout),
        }
    }
}

impl Exporter {
    /// Reads the variables; one that is empty counts as unset.
    pub(super) fn from_env(env: &dyn Fn(&str) -> Option<String>) -> Self {
        let set =
            |name: &str| env(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        let is_off = set("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let has_traces = !is_off && set("OTEL_TRACES_EXPORTER").is_none_or(|value| value != "none");
        let signal = |of: &str, is_on: bool| {
            let variable = |key: &str| set(&format!("OTEL_EXPORTER_OTLP_{of}{key}"));
            Signal {
                endpoint: variable("ENDPOINT").filter(|url| is_on && is_http(url)),
                protocol: variable("PROTOCOL").and_then(|name| protocol(&name)),
                headers: variable("HEADERS").map(|list| headers(&list)),
                timeout: variable("TIMEOUT").and_then(|millis| timeout(&millis)),
            }
        };
        let all = signal("", !is_off);
        Self {
            has_traces,
            traces: signal("TRACES_", has_traces).or(&all),
            logs: signal("LOGS_", has_traces),
            metrics: MetricsExporter::read(&set, is_off, signal("METRICS_", !is_off).or(&all)),
            all,
        }
    }

    fn base_of_traces(&self) -> Option<&str> {
        self.all.endpoint.as_deref().filter(|_| self.has_traces)
    }

    /// The URL of the traces endpoint, if spans are to be exported.
    pub(super) fn endpoint(&self, protocol: OtlpProtocol) -> Option<String> {
        let of_base = || Some(endpoint_at(TRACES_PATH, self.base_of_traces()?, protocol));
        self.traces.endpoint.clone().or_else(of_base)
    }

    /// The URL of the logs endpoint, where it is known without that of the traces.
    pub(super) fn logs_endpoint(&self, protocol: OtlpProtocol) -> Option<String> {
        let of_base = || logs_endpoint(&endpoint_at(TRACES_PATH, self.base_of_traces()?, protocol), protocol);
        self.logs.endpoint.clone().or_else(of_base)
    }
}

/// The URL that takes what goes to `path`, of a base URL or of the URL of traces. A gRPC method has its own path.
pub(super) fn endpoint_at(path: &str, base: &str, protocol: OtlpProtocol) -> String {
    let (base, query) = at_query(base);
    let base = base.trim_end_matches('/').trim_end_matches(TRACES_PATH).trim_end_matches(path);
    match protocol {
        OtlpProtocol::Grpc => format!("{base}{query}"),
        OtlpProtocol::Http => format!("{base}{path}{query}"),
    }
}

/// A URL's part before its query, and the rest.
fn at_query(url: &str) -> (&str, &str) {
    url.split_at(url.find('?').unwrap_or(url.len()))
}

/// The URL that takes log records, beside that of the traces.
pub(super) fn logs_endpoint(traces_endpoint: &str, protocol: OtlpProtocol) -> Option<String> {
    match protocol {
        OtlpProtocol::Grpc => Some(traces_endpoint.to_owned()),
        OtlpProtocol::Http => {
            let (base, query) = at_query(traces_endpoint);
            Some(format!("{}/v1/logs{query}", base.strip_suffix(TRACES_PATH)?))
        }
    }
}

fn protocol(name: &str) -> Option<OtlpProtocol> {
    match name {
        "grpc" => Some(OtlpProtocol::Grpc),
        "http/protobuf" => Some(OtlpProtocol::Http),
        _ => {
            tracing::warn!("OTEL_EXPORTER_OTLP_PROTOCOL is neither grpc nor http/protobuf: left out");
            None
        }
    }
}

fn is_http(url: &str) -> bool {
    let fits = url.parse::<http::Uri>().is_ok_and(|uri| matches!(uri.scheme_str(), Some("http" | "https")));
    if !fits {
        tracing::warn!("an OTEL_EXPORTER_OTLP_… endpoint is not an http or https URL: left out");
    }
    fits
}

fn timeout(millis: &str) -> Option<Duration> {
    let parsed =
        millis.parse().ok().filter(|millis| (1..=3_600_000).contains(millis)).map(Duration::from_millis);
    if parsed.is_none() {
        tracing::warn!("OTEL_EXPORTER_OTLP_TIMEOUT is no number of milliseconds up to an hour: left out");
    }
    parsed
}

fn headers(list: &str) -> Vec<(HeaderName, HeaderValue)> {
    let header = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        // Values are percent-encoded, as in W3C baggage.
        let mut value = HeaderValue::from_bytes(&percent_decoded(value.trim())).ok()?;
        value.set_sensitive(true);
        Some((name.trim().parse().ok()?, value))
    };
    let mut headers = Vec::new();
    for pair in list.split(',').filter(|pair| !pair.trim().is_empty()) {
        match header(pair) {
            Some(header) => headers.push(header),
            // The pair may be a credential: it is not repeated.
            None => tracing::warn!("OTEL_EXPORTER_OTLP_HEADERS has an entry that is no header: left out"),
        }
    }
    headers
}

pub(super) const TRACES_PATH: &str = "/v1/traces";

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn exporter(variables: &[(&str, &str)]) -> Exporter {
        Exporter::from_env(&|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_endpoint_comes_from_the_most_specific_variable() {
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318");
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t:1/exact");
        let cases: [(&[_], _); 12] = [
            (&[], None),
            (&[base], Some("http://c:4318/v1/traces")),
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c/x?key=a/")], Some("http://c/x/v1/traces?key=a/")),
            (
                &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c/v1/traces?key=a")],
                Some("http://c/v1/traces?key=a"),
            ),
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/v1/traces")], Some("http://c:4318/v1/traces")),
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")], None),
            (&[base, traces], Some("http://t:1/exact")),
            (&[base, ("OTEL_SDK_DISABLED", "true")], None),
            (&[base, ("OTEL_TRACES_EXPORTER", "none")], None),
            (&[base, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")], Some("http://c:4318")),
            (&[base, ("OTEL_EXPORTER_OTLP_PROTOCOL", "morse")], Some("http://c:4318/v1/traces")),
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318")], None),
        ];
        for (variables, endpoint) in cases {
            let read = exporter(variables);
            let actual = read.endpoint(read.traces.protocol.unwrap_or_default());
            assert_eq!(actual.as_deref(), endpoint, "{variables:?}");
        }
    }

    #[test]
    fn log_records_go_beside_the_spans() {
        for (endpoint, protocol, expected) in [
            ("http://c:4318/v1/traces", OtlpProtocol::Http, Some("http://c:4318/v1/logs")),
            ("http://c:4318/x/v1/traces", OtlpProtocol::Http, Some("http://c:4318/x/v1/logs")),
            ("http://c:4318/v1/traces?key=a", OtlpProtocol::Http, Some("http://c:4318/v1/logs?key=a")),
            ("http://c:4318/spans", OtlpProtocol::Http, None),
            ("http://c:4317", OtlpProtocol::Grpc, Some("http://c:4317")),
        ] {
            assert_eq!(logs_endpoint(endpoint, protocol).as_deref(), expected);
        }
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318");
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t:1/exact");
        let logs = ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://l:1/exact");
        let cases: [(&[_], _); 4] = [
            (&[traces], None),
            (&[base, traces], Some("http://c:4318/v1/logs")),
            (&[base, logs], Some("http://l:1/exact")),
            (&[traces, logs], Some("http://l:1/exact")),
        ];
        for (variables, expected) in cases {
            let endpoint = exporter(variables).logs_endpoint(OtlpProtocol::Http);
            assert_eq!(endpoint.as_deref(), expected, "{variables:?}");
        }
    }

    #[test]
    fn headers_are_decoded_and_bad_ones_left_out() {
        let read =
            exporter(&[("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20eA==, x-a=1,nonsense,b ad=2")]);
        let headers = read.traces.headers.unwrap();
        let shown: Vec<_> = headers.iter().map(|(k, v)| (k.as_str(), v.to_str().unwrap())).collect();
        assert_eq!(shown, [("authorization", "Basic eA=="), ("x-a", "1")]);
        let both = exporter(&[
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-a=1"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-b=2"),
        ]);
        assert_eq!(both.traces.headers.unwrap().len(), 1);
    }

    #[test]
    fn the_timeout_is_in_milliseconds() {
        for (text, expected) in [("2500", Some(2500)), ("0", None), ("soon", None)] {
            let read = exporter(&[("OTEL_EXPORTER_OTLP_TIMEOUT", text)]);
            assert_eq!(read.traces.timeout, expected.map(Duration::from_millis), "{text}");
        }
    }
}
