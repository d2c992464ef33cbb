//! The collector: the SDK's exporters of spans and log records over HTTP or gRPC, and what they share.
//!
//! The SDK encodes, compresses and reads those `OTEL_EXPORTER_OTLP_*` that our configuration leaves to it. Its batch
//! processors are not used: they drop without a count, keep the cause of a failure to themselves, and either need a
//! thread without a reactor or ignore the limit of a shutdown. Each signal has a task on the telemetry runtime instead,
//! behind a bounded queue of its own.

pub(super) mod metrics;
mod tls;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Request, Response, Uri};
use hyper_util::rt::TokioIo;
use opentelemetry::{Key, KeyValue};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{
    ExporterBuildError, LogExporter, Protocol, SpanExporter, WithExportConfig, WithHttpConfig,
    WithTonicConfig,
};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::logs::LogExporter as _;
use opentelemetry_sdk::trace::SpanExporter as _;
use parking_lot::Mutex;
use prost::Message as _;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

use super::Background;
use super::metrics::BuildInfo;
use crate::clock::{Clock, Stamp};
use crate::config::{Endpoint, Otlp, OtlpProtocol};
use crate::upstream::call::{CallError, exchange};
use crate::upstream::connect::Connector;

/// Why nothing can be exported.
#[derive(Debug, thiserror::Error)]
pub enum CollectorError {
    /// The SDK refused the configuration, or a variable of the environment.
    #[error("otlp exporter: {0}")]
    Exporter(#[from] ExporterBuildError),
    /// The collector's address.
    #[error("otlp exporter: endpoint: {0}")]
    Endpoint(#[from] http::uri::InvalidUri),
    /// The same, over gRPC.
    #[error("otlp exporter: endpoint: {0}")]
    Channel(#[from] tonic::transport::Error),
    /// TLS could not be set up.
    #[error("otlp exporter: tls: {0}")]
    Tls(#[from] tls::CollectorTlsError),
}

/// The configured collector. Makes exporters, each with a connection of its own.
pub struct Collector {
    otlp: Otlp,
    route: Route,
    resource: Resource,
}

/// How the exports of one configuration travel.
struct Route {
    protocol: OtlpProtocol,
    headers: Headers,
    timeout: Duration,
    connector: Connector,
    background: Background,
    clock: Clock,
}

enum Transport {
    Http(Http),
    Grpc(Channel, Headers),
}

impl Collector {
    /// Connects to nothing yet: a collector that does not answer is no error.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn new(
        otlp: &Otlp,
        build: BuildInfo,
        instance: &str,
        background: &Background,
        clock: Clock,
    ) -> Result<Self, CollectorError> {
        let route = Route {
            protocol: otlp.protocol,
            headers: Headers(otlp.headers.iter().cloned().collect()),
            timeout: otlp.timeout,
            connector: tls::connector("TRACES_", background.tasks.clone())?,
            background: background.clone(),
            clock,
        };
        Ok(Self { otlp: otlp.clone(), route, resource: resource(build, instance) })
    }

    /// An exporter of spans.
    ///
    /// # Errors
    /// The endpoint or a variable of the environment is unusable.
    pub fn spans(&self) -> Result<(SpanExporter, Health), CollectorError> {
        let url = &*self.otlp.traces_endpoint;
        let (transport, health) = self.route.transport(url, "spans")?;
        let mut exporter = match transport {
            Transport::Http(http) => SpanExporter::builder()
                .with_http()
                .with_http_client(http)
                .with_protocol(Protocol::HttpBinary)
                .with_endpoint(url)
                .with_timeout(self.otlp.timeout)
                .build()?,
            Transport::Grpc(channel, headers) => SpanExporter::builder()
                .with_tonic()
                .with_channel(channel)
                .with_interceptor(headers)
                .with_timeout(self.otlp.timeout)
                .build()?,
        };
        exporter.set_resource(&self.resource);
        Ok((exporter, health))
    }

    /// An exporter of log records. `None` where the address is one of traces alone.
    ///
    /// # Errors
    /// The endpoint or a variable of the environment is unusable.
    pub fn logs(&self) -> Result<Option<(LogExporter, Health)>, CollectorError> {
        let Some(url) = self.otlp.logs_endpoint.as_deref() else { return Ok(None) };
        let (transport, health) = self.route.transport(url, "log records")?;
        let mut exporter = match transport {
            Transport::Http(http) => LogExporter::builder()
                .with_http()
                .with_http_client(http)
                .with_protocol(Protocol::HttpBinary)
                .with_endpoint(url)
                .with_timeout(self.otlp.timeout)
                .build()?,
            Transport::Grpc(channel, headers) => LogExporter::builder()
                .with_tonic()
                .with_channel(channel)
                .with_interceptor(headers)
                .with_timeout(self.otlp.timeout)
                .build()?,
        };
        exporter.set_resource(&self.resource);
        Ok(Some((exporter, health)))
    }

    /// Forwards exports of spans that others encoded.
    ///
    /// # Errors
    /// The endpoint is unusable.
    pub(super) fn forwarder(&self) -> Result<(Forwarder, Health), CollectorError> {
        let url = &*self.otlp.traces_endpoint;
        let (transport, health) = self.route.transport(url, "spans of engines")?;
        let forwarder = match transport {
            Transport::Http(http) => Forwarder::Http(http, url.to_owned()),
            Transport::Grpc(channel, headers) => {
                Forwarder::Grpc(TraceServiceClient::with_interceptor(channel, headers))
            }
        };
        Ok((forwarder, health))
    }
}

impl Route {
    /// A transport to `url`, which leaves the cause of a failure where the `Health` finds it.
    fn transport(&self, url: &str, what: &'static str) -> Result<(Transport, Health), CollectorError> {
        let (connector, endpoint, timeout) = (self.connector.clone(), endpoint(url)?, self.timeout);
        let health = Health::new(what, timeout, self.clock);
        let headers = self.headers.clone();
        let transport = match self.protocol {
            OtlpProtocol::Http => {
                let cause = health.cause.clone();
                Transport::Http(Http { connector, endpoint, headers, timeout, cause })
            }
            OtlpProtocol::Grpc => Transport::Grpc(self.channel(endpoint)?, headers),
        };
        Ok((transport, health))
    }

    /// A gRPC channel over our outbound connections; connects when it is first used.
    fn channel(&self, endpoint: Endpoint) -> Result<Channel, tonic::transport::Error> {
        // Pings find out that a collector has vanished: unanswered exports alone keep a connection for a quarter of an hour.
        let origin = tonic::transport::Endpoint::from_shared(endpoint.to_string())?
            .connect_timeout(self.timeout)
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

/// Bounds exports in time and logs why they fail: at once, then once a minute, and when they work again.
pub struct Health {
    what: &'static str,
    timeout: Duration,
    cause: Cause,
    clock: Clock,
    /// Time of the last warning; `None` once exports work again and that is logged.
    warned: Option<Stamp>,
}

/// Why the last request over HTTP got no answer. The SDK only passes on that there was none.
type Cause = Arc<Mutex<Option<String>>>;

impl Health {
    fn new(what: &'static str, timeout: Duration, clock: Clock) -> Self {
        Self { what, timeout, cause: Cause::default(), clock, warned: None }
    }

    /// Awaits an export; returns whether it arrived.
    pub async fn watch<E: fmt::Display>(&mut self, export: impl Future<Output = Result<(), E>>) -> bool {
        let failure = match tokio::time::timeout(self.timeout, export).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(self.cause.lock().take().unwrap_or_else(|| error.to_string())),
            Err(_) => Some(format!("no answer within {:?}", self.timeout)),
        };
        let (what, now) = (self.what, self.clock.now());
        let is_silent = self.warned.is_none_or(|at| now.since(at) >= REPEAT_WARNING);
        match &failure {
            Some(error) if is_silent => {
                tracing::warn!(error, what, "OTLP export fails; what it loses is counted");
                self.warned = Some(now);
            }
            // A collector that fails now and then is not announced each time.
            None if self.warned.is_some() && is_silent => {
                tracing::info!(what, "OTLP export works again");
                self.warned = None;
            }
            _ => {}
        }
        failure.is_none()
    }
}

/// Sends spans on as they came; over gRPC they are encoded anew.
pub(super) enum Forwarder {
    Http(Http, String),
    Grpc(TraceServiceClient<InterceptedService<Channel, Headers>>),
}

impl Forwarder {
    pub(super) async fn send(&mut self, export: Bytes) -> Result<(), String> {
        match self {
            Self::Http(http, url) => {
                let mut request = Request::post(&*url).body(export).map_err(|error| error.to_string())?;
                request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(PROTOBUF));
                let status = http.send(request).await.map_err(|error| error.to_string())?.status();
                if status.is_success() { Ok(()) } else { Err(format!("the collector answered {status}")) }
            }
            Self::Grpc(client) => {
                let export = ExportTraceServiceRequest::decode(export).map_err(|error| error.to_string())?;
                client.export(export).await.map(drop).map_err(|status| status.to_string())
            }
        }
    }
}

/// The SDK's HTTP client, over our outbound connections. A connection lasts for one export: there is at most one a
/// second, and none can have died while idle.
#[derive(Clone)]
pub(super) struct Http {
    connector: Connector,
    endpoint: Endpoint,
    headers: Headers,
    timeout: Duration,
    cause: Cause,
}

impl Http {
    async fn send(&self, mut request: Request<Bytes>) -> Result<Response<Bytes>, CallError> {
        self.headers.set(request.headers_mut());
        exchange(&self.connector, &self.endpoint, request, self.timeout).await
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Headers may be credentials.
        f.write_str("Http")
    }
}

#[tonic::async_trait]
impl HttpClient for Http {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        self.send(request).await.map_err(|error| {
            *self.cause.lock() = Some(format!("{}: {error}", self.endpoint));
            error.into()
        })
    }
}

/// The configured headers. Set over those that the SDK took from the environment: the configuration has precedence.
#[derive(Clone)]
pub(super) struct Headers(HeaderMap);

impl Headers {
    fn set(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.0 {
            headers.insert(name, value.clone());
        }
    }
}

impl Interceptor for Headers {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> {
        self.set(request.metadata_mut().as_mut());
        Ok(request)
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
fn resource(build: BuildInfo, instance: &str) -> Resource {
    let version = KeyValue::new("service.version", build.version);
    let detected = Resource::builder().build();
    let is_named = detected
        .get(&Key::from_static_str("service.name"))
        .is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    let mut builder = Resource::builder().with_attribute(version);
    let id = Key::from_static_str("service.instance.id");
    if detected.get(&id).is_none() {
        builder = builder.with_attribute(KeyValue::new(id, instance.to_owned()));
    }
    if is_named { builder.build() } else { builder.with_service_name("tokenway").build() }
}

/// Between two warnings about the same exports.
const REPEAT_WARNING: Duration = Duration::from_secs(60);
/// Silence on a gRPC connection that waits for an answer, before a ping and then for its answer.
const PING_AFTER: Duration = Duration::from_secs(5);
/// Content type of OTLP over HTTP.
pub(super) const PROTOBUF: &str = "application/x-protobuf";

#[cfg(test)]
mod tests {
    use super::*;

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
