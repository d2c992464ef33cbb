//! The HTTP client of the OTLP exporter.
//!
//! The SDK exports on a plain thread, where nothing of tokio works; the clients it brings panic there and lose
//! every span from then on. This one sends on the telemetry runtime and lets the thread wait for the result. A
//! connection lasts for one batch: there is at most one a second, and none can have died while idle.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use opentelemetry_http::{HttpClient, HttpError};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_rustls::TlsConnector;

use super::{Background, SpansError};
use crate::config::Otlp;

/// Sends export requests on the telemetry runtime.
pub(super) struct Client {
    background: Background,
    sender: Arc<Sender>,
}

struct Sender {
    background: Background,
    headers: Vec<(HeaderName, HeaderValue)>,
    timeout: Duration,
    tls: Option<TlsConnector>,
}

impl Client {
    pub(super) fn new(otlp: &Otlp, background: &Background) -> Result<Self, SpansError> {
        let is_tls = otlp.traces_endpoint.starts_with("https:");
        let tls = if is_tls { Some(connector()?) } else { None };
        let (headers, timeout) = (otlp.headers.clone(), otlp.timeout);
        let sender = Sender { background: background.clone(), headers, timeout, tls };
        Ok(Self { background: background.clone(), sender: Arc::new(sender) })
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
            let result = match tokio::time::timeout(sender.timeout, sender.send(request)).await {
                Ok(result) => result,
                Err(_) => Err(ClientError::Timeout(sender.timeout)),
            };
            // The exporter gave up: nobody to tell.
            let _ = answer.send(result);
        };
        self.background.tasks.spawn_on(send, &self.background.runtime);
        Ok(is_there.await.map_err(|_| ClientError::RuntimeGone)??)
    }
}

/// Why an export request failed.
#[derive(Debug, thiserror::Error)]
enum ClientError {
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
}

impl Sender {
    async fn send(&self, mut request: Request<Bytes>) -> Result<Response<Bytes>, ClientError> {
        let uri = request.uri().clone();
        let (host, port) = address(&uri)?;
        // Over those that the exporter took from the environment: the configuration has precedence.
        for (name, value) in &self.headers {
            request.headers_mut().insert(name, value.clone());
        }
        let authority = uri.authority().ok_or(ClientError::NoHost)?.host_and_port();
        let authority = HeaderValue::try_from(authority).map_err(http::Error::from)?;
        request.headers_mut().insert(header::HOST, authority);
        *request.uri_mut() =
            uri.path_and_query().map_or("/", |path| path.as_str()).parse().map_err(http::Error::from)?;

        let failed = |source| ClientError::Connect { address: format!("{host}:{port}"), source };
        let stream = TcpStream::connect((host, port)).await.map_err(failed)?;
        match &self.tls {
            None => self.exchange(stream, request).await,
            Some(tls) => {
                let name = ServerName::try_from(host.to_owned()).map_err(|_| ClientError::NoHost)?;
                let stream = tls.connect(name, stream).await.map_err(failed)?;
                self.exchange(stream, request).await
            }
        }
    }

    async fn exchange<S>(&self, stream: S, request: Request<Bytes>) -> Result<Response<Bytes>, ClientError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // Ends with the exchange: errors of the connection show in it.
        let drive = self.background.tasks.spawn_on(connection, &self.background.runtime);
        let drive = AbortOnDrop(drive.abort_handle());
        let (head, body) = sender.send_request(request.map(Full::new)).await?.into_parts();
        let body = Limited::new(body, MAX_RESPONSE).collect().await.map_err(ClientError::Body)?.to_bytes();
        drop(drive);
        Ok(Response::from_parts(head, body))
    }
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
fn connector() -> Result<TlsConnector, rustls::Error> {
    let mut roots = rustls::RootCertStore::empty();
    let native = rustls_native_certs::load_native_certs();
    for error in native.errors {
        tracing::warn!(%error, "system certificates");
    }
    roots.add_parsable_certificates(native.certs);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

const MAX_RESPONSE: usize = 1024 * 1024;
