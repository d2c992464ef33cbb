//! The collector, over HTTP or gRPC: one exporter for spans, log records, metrics and what engines send.
//!
//! Every signal is encoded here and goes through [`Exporter`]. The SDK is not used: its batch processors drop without a
//! count, its exporters keep the cause of a failure to themselves, and its metrics reader would want every observation. Each
//! signal has a task on the telemetry runtime, behind a bounded queue of its own.

mod batch;
mod exporter;
mod logs;
pub(super) mod metrics;
mod proto;
mod tls;

use std::collections::BTreeMap;
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::resource::v1::Resource;
use tonic::transport::Channel;

pub(crate) use self::batch::{Batch, BatchQueue};
pub(super) use self::exporter::Exporter;
use self::exporter::{Headers, Health, Http, Transport};
pub(crate) use self::logs::LogBatch;
pub(crate) use self::proto::{attribute, event, nanos, scope, structured, text, texts};
use super::Surroundings;
use crate::background::Background;
use crate::clock::Clock;
use crate::config::{Endpoint, Otlp, OtlpProtocol, OtlpTarget, percent_decoded};
use crate::listener::tls::TlsError;
use crate::upstream::connect::Connector;

/// Why nothing can be exported.
#[expect(missing_docs, reason = "the messages are it")]
#[derive(Debug, thiserror::Error)]
pub enum CollectorError {
    #[error("otlp exporter: endpoint: {0}")]
    Endpoint(#[from] http::uri::InvalidUri),
    #[error("otlp exporter: endpoint: {0}")]
    Channel(#[from] tonic::transport::Error),
    #[error("otlp exporter: the address is one of traces alone, and telemetry.content needs one of logs")]
    TracesAlone,
    #[error("otlp exporter: tls: {0}")]
    Tls(#[from] TlsError),
}

/// The configured collector of spans and log records. Makes exporters, each with a connection of its own.
pub struct Collector {
    traces: Route,
    logs: Option<Route>,
    resource: Resource,
}

/// How the exports of one configuration travel.
struct Route {
    target: OtlpTarget,
    connector: Connector,
    background: Background,
    clock: Clock,
}

impl Collector {
    /// Connects to nothing yet: a collector that does not answer is no error.
    pub fn new(otlp: &Otlp, around: &Surroundings) -> Result<Self, CollectorError> {
        let tasks = &around.background.tasks;
        let traces = Route::new(&otlp.traces, tls::connector("TRACES_", tasks.clone())?, around);
        let logs = match &otlp.logs {
            Some(logs) => {
                // What `…_TRACES_…` names is for the collector of traces, which may be theirs too.
                let is_same = endpoint(&logs.endpoint)? == endpoint(&otlp.traces.endpoint)?;
                let of_logs = || tls::connector("LOGS_", tasks.clone());
                let connector = if is_same { traces.connector.clone() } else { of_logs()? };
                Some(Route::new(logs, connector, around))
            }
            None => None,
        };
        Ok(Self { traces, logs, resource: resource(&around.instance) })
    }

    pub(super) fn resource(&self) -> Resource {
        self.resource.clone()
    }

    pub(super) fn spans(&self) -> Result<Exporter, CollectorError> {
        self.traces.exporter("spans", is_gzip("TRACES_"))
    }

    /// An exporter of log records. `None` where the address is one of traces alone.
    fn logs(&self) -> Result<Option<Exporter>, CollectorError> {
        let logs = self.logs.as_ref();
        logs.map(|route| route.exporter("log records", is_gzip("LOGS_"))).transpose()
    }

    /// An exporter of spans that engines encoded, and have not compressed.
    pub(super) fn forwarder(&self) -> Result<Exporter, CollectorError> {
        self.traces.exporter("spans of engines", false)
    }
}

impl Route {
    fn new(target: &OtlpTarget, connector: Connector, around: &Surroundings) -> Self {
        let background = around.background.clone();
        Self { target: target.clone(), connector, background, clock: around.clock }
    }

    fn exporter(&self, what: &'static str, is_gzip: bool) -> Result<Exporter, CollectorError> {
        let OtlpTarget { endpoint: url, protocol, headers, timeout } = self.target.clone();
        let (connector, endpoint) = (self.connector.clone(), endpoint(&url)?);
        let headers = Headers(headers.into_iter().collect());
        let transport = match protocol {
            OtlpProtocol::Http => {
                Transport::Http(Http { connector, endpoint, url, headers, timeout, is_gzip })
            }
            OtlpProtocol::Grpc => Transport::Grpc { channel: self.channel(endpoint)?, headers, is_gzip },
        };
        Ok(Exporter::new(transport, Health::new(what, timeout, self.clock)))
    }

    /// A gRPC channel over our outbound connections; connects when it is first used.
    fn channel(&self, endpoint: Endpoint) -> Result<Channel, tonic::transport::Error> {
        // Pings find out that a collector has vanished: unanswered exports alone keep a connection for a quarter of an hour.
        let origin = tonic::transport::Endpoint::from_shared(endpoint.to_string())?
            .connect_timeout(self.target.timeout)
            .http2_keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PING_AFTER);
        let connector = self.connector.offering_http2();
        let open = tower::service_fn(move |_: Uri| {
            let (connector, endpoint) = (connector.clone(), endpoint.clone());
            async move { connector.open(&endpoint).await.map(TokioIo::new) }
        });
        // The channel's tasks belong to the telemetry runtime.
        let _on = self.background.runtime.enter();
        Ok(origin.connect_with_connector_lazy(open))
    }
}

/// Scheme, host and port of a URL. A user and a password in it are left out.
fn endpoint(url: &str) -> Result<Endpoint, http::uri::InvalidUri> {
    let url: Uri = url.parse()?;
    let is_tls = url.scheme_str() == Some("https");
    Ok(Endpoint {
        is_tls,
        host: url.host().unwrap_or_default().trim_matches(['[', ']']).into(),
        port: url.port_u16().unwrap_or(if is_tls { 443 } else { 80 }),
        base_path: "".into(),
    })
}

/// `service.name` and `service.instance.id` are ours unless `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` sets them.
fn resource(instance: &str) -> Resource {
    let own = [
        ("service.name", "tokenway"),
        ("service.instance.id", instance),
        ("telemetry.sdk.language", "rust"),
        ("telemetry.sdk.name", "tokenway"),
        ("telemetry.sdk.version", VERSION),
    ];
    let mut attributes = BTreeMap::from(own.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let listed = set("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    attributes.extend(listed_attributes(&listed));
    attributes.extend(set("OTEL_SERVICE_NAME").map(|name| ("service.name".to_owned(), name)));
    attributes.insert("service.version".to_owned(), VERSION.to_owned());
    let attributes = attributes.into_iter().map(|(key, value)| text(key, value)).collect();
    Resource { attributes, ..Resource::default() }
}

/// Of `OTEL_RESOURCE_ATTRIBUTES`: commas and equals signs in its keys and values are percent-encoded.
fn listed_attributes(list: &str) -> impl Iterator<Item = (String, String)> {
    let decoded = |text: &str| String::from_utf8_lossy(&percent_decoded(text.trim())).into_owned();
    let pairs = list.split(',').filter_map(|entry| entry.split_once('='));
    pairs.map(move |(key, value)| (decoded(key), decoded(value)))
}

/// `OTEL_EXPORTER_OTLP_…COMPRESSION`; metrics have theirs in the configuration.
fn is_gzip(signal: &str) -> bool {
    tls::variable(signal, "COMPRESSION").is_some_and(|name| name == "gzip")
}

/// Silence on a gRPC connection that waits for an answer, before a ping and then for its answer.
const PING_AFTER: Duration = Duration::from_secs(5);
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Content type of OTLP over HTTP.
pub(super) const PROTOBUF: &str = "application/x-protobuf";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_attributes_of_a_resource_are_decoded() {
        let listed = "deployment.environment.name=pre%20prod, team=a%2Cb,nonsense";
        let attributes: Vec<_> = listed_attributes(listed).collect();
        let expected = [("deployment.environment.name", "pre prod"), ("team", "a,b")];
        assert_eq!(attributes, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
    }

    #[test]
    fn a_password_in_the_address_is_not_repeated() {
        for (url, shown) in [
            ("https://u:p@c.example/v1/traces", "https://c.example:443"),
            ("http://[::1]:4317", "http://[::1]:4317"),
        ] {
            assert_eq!(endpoint(url).unwrap().to_string(), shown);
        }
    }
}
