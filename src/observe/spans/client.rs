//! The client of the OTLP exporter, for HTTP and for gRPC.
//!
//! The SDK exports on a plain thread, where nothing of tokio works; the clients it brings panic there and lose
//! every span from then on. This one sends on the telemetry runtime and lets the thread wait for the result. A
//! connection lasts for one batch: there is at most one a second, and none can have died while idle. The exporter only
//! knows HTTP; as gRPC the same payload goes out as the one message of a call ([`super::grpc`]).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use opentelemetry_http::{HttpClient, HttpError};
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_rustls::TlsConnector;

use super::grpc::{self, MessageError};
use super::{Background, SpansError, Tracked};
use crate::config::{Otlp, OtlpProtocol};

/// Sends export requests on the telemetry runtime.
pub(crate) struct Client {
    background: Background,
    sender: Arc<Sender>,
    last_fault: LastFault,
}

/// Why the last request got no answer. The exporter passes on that there was none and keeps the cause to itself, which is
/// what whoever set up the collector has to know.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastFault(Arc<Mutex<Option<String>>>);

impl LastFault {
    /// In words, once.
    pub(crate) fn take(&self) -> Option<String> {
        self.0.lock().take()
    }
}

struct Sender {
    background: Background,
    protocol: OtlpProtocol,
    /// Path of the method where it is gRPC.
    method: &'static str,
    headers: Vec<(HeaderName, HeaderValue)>,
    timeout: Duration,
    tls: Option<TlsConnector>,
}

impl Client {
    /// For spans.
    pub(crate) fn new(otlp: &Otlp, background: &Background) -> Result<Self, SpansError> {
        Self::calling(grpc::EXPORT_PATH, otlp, background)
    }

    /// For what `method` takes where it is gRPC.
    pub(crate) fn calling(
        method: &'static str,
        otlp: &Otlp,
        background: &Background,
    ) -> Result<Self, SpansError> {
        let is_tls = otlp.traces_endpoint.starts_with("https:");
        let tls = if is_tls { Some(connector(otlp.protocol)?) } else { None };
        let sender = Sender {
            background: background.clone(),
            protocol: otlp.protocol,
            method,
            headers: otlp.headers.clone(),
            timeout: otlp.timeout,
            tls,
        };
        Ok(Self {
            background: background.clone(),
            sender: Arc::new(sender),
            last_fault: LastFault::default(),
        })
    }

    /// Where it is told why a request got no answer.
    pub(crate) fn last_fault(&self) -> LastFault {
        self.last_fault.clone()
    }
}

impl Client {
    /// Sends a request from the telemetry runtime itself, within the timeout.
    pub(crate) async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ClientError> {
        self.sender.send_in_time(request).await
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Headers may be credentials.
        f.write_str("Client")
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (answer, is_there) = oneshot::channel();
        let sender = Arc::clone(&self.sender);
        let send = async move {
            // The exporter gave up: nobody to tell.
            let _ = answer.send(sender.send_in_time(request).await);
        };
        self.background.tasks.spawn_on(send, &self.background.runtime);
        let sent = is_there.await.map_err(|_| ClientError::RuntimeGone)?;
        *self.last_fault.0.lock() = sent.as_ref().err().map(ToString::to_string);
        Ok(sent?)
    }
}

/// Why an export request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    #[error("no answer from the collector within {0:?}")]
    Timeout(Duration),
    #[error("the telemetry runtime has ended")]
    RuntimeGone,
    #[error("the endpoint names no host")]
    NoHost,
    #[error("connect to {address}: {source}")]
    Connect { address: String, source: std::io::Error },
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error("response: {0}")]
    Body(HttpError),
    #[error("endpoint: {0}")]
    Endpoint(#[from] http::Error),
    #[error("the collector answered {status} {message}")]
    Grpc { status: Box<str>, message: Box<str> },
    #[error("answer: {0}")]
    Message(#[from] MessageError),
}

impl Sender {
    async fn send_in_time(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ClientError> {
        match tokio::time::timeout(self.timeout, self.send(request)).await {
            Ok(result) => result,
            Err(_) => Err(ClientError::Timeout(self.timeout)),
        }
    }

    async fn send(&self, mut request: Request<Bytes>) -> Result<Response<Bytes>, ClientError> {
        let uri = request.uri().clone();
        let (host, port) = address(&uri)?;
        // Over those that the exporter took from the environment: the configuration has precedence.
        for (name, value) in &self.headers {
            request.headers_mut().insert(name, value.clone());
        }
        let failed = |source| ClientError::Connect { address: format!("{host}:{port}"), source };
        let stream = TcpStream::connect((host, port)).await.map_err(failed)?;
        match &self.tls {
            None => self.exchange(stream, request, &uri).await,
            Some(tls) => {
                let name = ServerName::try_from(host.to_owned()).map_err(|_| ClientError::NoHost)?;
                let stream = tls.connect(name, stream).await.map_err(failed)?;
                self.exchange(stream, request, &uri).await
            }
        }
    }

    async fn exchange<S>(
        &self,
        stream: S,
        request: Request<Bytes>,
        uri: &Uri,
    ) -> Result<Response<Bytes>, ClientError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        match self.protocol {
            OtlpProtocol::Http => self.over_http(stream, request, uri).await,
            OtlpProtocol::Grpc => self.over_grpc(stream, request, uri).await,
        }
    }

    async fn over_http<S>(
        &self,
        stream: S,
        mut request: Request<Bytes>,
        uri: &Uri,
    ) -> Result<Response<Bytes>, ClientError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let authority = uri.authority().ok_or(ClientError::NoHost)?.host_and_port();
        let authority = HeaderValue::try_from(authority).map_err(http::Error::from)?;
        request.headers_mut().insert(header::HOST, authority);
        *request.uri_mut() =
            uri.path_and_query().map_or("/", |path| path.as_str()).parse().map_err(http::Error::from)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // Ends with the exchange: errors of the connection show in it.
        let drive = self.background.tasks.spawn_on(connection, &self.background.runtime);
        let _drive = AbortOnDrop(drive.abort_handle());
        let (head, body) = sender.send_request(request.map(Full::new)).await?.into_parts();
        let body = Limited::new(body, MAX_RESPONSE).collect().await.map_err(ClientError::Body)?.to_bytes();
        Ok(Response::from_parts(head, body))
    }

    /// The payload as the one message of a call; its answer as if HTTP had given it.
    async fn over_grpc<S>(
        &self,
        stream: S,
        request: Request<Bytes>,
        uri: &Uri,
    ) -> Result<Response<Bytes>, ClientError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let executor = Tracked(self.background.clone());
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(executor, TokioIo::new(stream)).await?;
        let drive = self.background.tasks.spawn_on(connection, &self.background.runtime);
        let _drive = AbortOnDrop(drive.abort_handle());
        let response = sender.send_request(call(self.method, request, uri)?.map(Full::new)).await?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MAX_RESPONSE).collect().await.map_err(ClientError::Body)?;
        let trailers = body.trailers().cloned();
        let status = grpc::status(&head.headers, trailers.as_ref());
        match status.unwrap_or((head.status.as_str(), "without a grpc-status")) {
            (grpc::OK, _) => Ok(Response::new(grpc::unframe(&body.to_bytes())?)),
            (status, message) => Err(ClientError::Grpc { status: status.into(), message: message.into() }),
        }
    }
}

/// An export request as a gRPC call.
fn call(method: &str, request: Request<Bytes>, uri: &Uri) -> Result<Request<Bytes>, ClientError> {
    let (mut head, payload) = request.into_parts();
    let authority = uri.authority().ok_or(ClientError::NoHost)?.host_and_port();
    let scheme = uri.scheme_str().unwrap_or("http");
    head.uri = Uri::builder().scheme(scheme).authority(authority).path_and_query(method).build()?;
    head.version = http::Version::HTTP_2;
    head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(grpc::CONTENT_TYPE));
    head.headers.insert(header::TE, HeaderValue::from_static("trailers"));
    head.headers.remove(header::CONTENT_LENGTH);
    Ok(Request::from_parts(head, grpc::frame(&payload)))
}

/// Ends a task with the exchange that needs it.
struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Host (an IPv6 address without its brackets) and port.
fn address(uri: &Uri) -> Result<(&str, u16), ClientError> {
    let host = uri.host().ok_or(ClientError::NoHost)?;
    let default = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    Ok((host.trim_start_matches('[').trim_end_matches(']'), uri.port_u16().unwrap_or(default)))
}

trait HostAndPort {
    /// Without the user and password that an authority may carry.
    fn host_and_port(&self) -> String;
}

impl HostAndPort for http::uri::Authority {
    fn host_and_port(&self) -> String {
        self.port_u16().map_or_else(|| self.host().to_owned(), |port| format!("{}:{port}", self.host()))
    }
}

/// TLS with the certificate authorities of the system.
fn connector(protocol: OtlpProtocol) -> Result<TlsConnector, rustls::Error> {
    let mut roots = rustls::RootCertStore::empty();
    let native = rustls_native_certs::load_native_certs();
    for error in native.errors {
        tracing::warn!(%error, "system certificates");
    }
    roots.add_parsable_certificates(native.certs);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    if protocol == OtlpProtocol::Grpc {
        config.alpn_protocols = vec![b"h2".to_vec()];
    }
    Ok(TlsConnector::from(Arc::new(config)))
}

const MAX_RESPONSE: usize = 1024 * 1024;
