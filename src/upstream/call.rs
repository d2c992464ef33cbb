//! The gateway's own requests: probes, scrapes, model lists, the webhook, OTLP over HTTP.
//!
//! Their connections are outside any pool, because probes must get through when a replica's pool is exhausted. A probe uses
//! a fresh one: a refused connect is the earliest evidence that a process is gone. Scrapes, which come every second, keep theirs.
//! None of them enters a request metric.

use std::io;
use std::iter;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use thiserror::Error;

use super::connect::{Connector, is_local};
use super::headers::DATA_PARALLEL_RANK;
use super::http1::Connection;
use crate::clock::CATCH_UP;
use crate::config::{Endpoint, Secret};

/// A request to an HTTP API below an endpoint's base path; carries `x-tokenway-probe: 1`.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Where.
    pub endpoint: &'a Endpoint,
    /// The engine's key, where the pool has one.
    pub key: Option<&'a Secret>,
    /// Path below the endpoint's base path.
    pub path: &'a str,
    /// A JSON body makes it a POST.
    pub body: Option<&'a str>,
    /// For connect and answer together.
    pub timeout: Duration,
    /// Data-parallel engine behind the endpoint that is to answer; `None` leaves the choice to it.
    pub rank: Option<u32>,
}

/// Why an own request got no answer.
#[derive(Debug, Error)]
pub enum CallError {
    /// The listener is gone.
    #[error("connection refused")]
    Refused,
    /// No answer in time.
    #[error("no answer in time")]
    Timeout,
    /// The host is away, as the network knows.
    #[error("no route to the host")]
    NoRoute,
    /// The gateway has no descriptor or local port left.
    #[error("no descriptor or local port left")]
    NoResources,
    /// Another failure of socket, TLS or HTTP.
    #[error("{0}")]
    Broken(String),
}

impl<'a> Call<'a> {
    /// A GET of the endpoint itself, without a key.
    pub fn to(endpoint: &'a Endpoint, timeout: Duration) -> Self {
        Self { endpoint, key: None, path: "", body: None, timeout, rank: None }
    }
}

impl Call<'_> {
    /// Sends it and reads the whole answer.
    ///
    /// # Errors
    /// [`CallError`]; a status is an answer, whatever it is.
    pub async fn send(self, connector: &Connector) -> Result<(StatusCode, Bytes), CallError> {
        self.send_on(connector, &mut KeptConnection::default()).await
    }

    /// The same on a connection that is kept for the next call. Where the kept one fails, as one does that was closed meanwhile,
    /// a fresh one is tried.
    ///
    /// # Errors
    /// [`CallError`]; a status is an answer, whatever it is.
    pub async fn send_on(
        self,
        connector: &Connector,
        kept: &mut KeptConnection,
    ) -> Result<(StatusCode, Bytes), CallError> {
        let request = || addressed(self.request().map_err(broken)?, self.endpoint);
        let answer = async {
            if let Some(mut open) = kept.open.take()
                && open.is_alive()
                && let Ok(answer) = ask(&mut open, request()?).await
            {
                kept.put(open);
                kept.is_fresh = false;
                return Ok(answer);
            }
            let mut open = connect(connector, self.endpoint).await?;
            kept.is_fresh = true;
            let answer = ask(&mut open, request()?).await?;
            kept.put(open);
            Ok(answer)
        };
        let (head, body) = in_time(self.timeout, answer).await?.into_parts();
        Ok((head.status, body))
    }

    fn request(&self) -> http::Result<Request<Bytes>> {
        // A webhook's URL may have no path at all.
        let uri = match format!("{}{}", self.endpoint.base_path, self.path) {
            none if none.is_empty() => "/".to_owned(),
            uri => uri,
        };
        let mut request = Request::builder()
            .method(if self.body.is_some() { Method::POST } else { Method::GET })
            .uri(uri)
            .header(PROBE, HeaderValue::from_static("1"));
        if self.body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(key) = self.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", key.reveal()));
        }
        if let Some(rank) = self.rank {
            request = request.header(DATA_PARALLEL_RANK, rank);
        }
        request.body(Bytes::copy_from_slice(self.body.unwrap_or_default().as_bytes()))
    }
}

/// Sends a request on a connection of its own and reads the whole answer, at most 8 MiB. Sets `Host` and the length; of
/// the URI only path and query are used.
///
/// # Errors
/// [`CallError`]; a status is an answer, whatever it is.
pub async fn exchange(
    connector: &Connector,
    endpoint: &Endpoint,
    request: Request<Bytes>,
    timeout: Duration,
) -> Result<Response<Bytes>, CallError> {
    let request = addressed(request, endpoint)?;
    let answer = async {
        let mut open = connect(connector, endpoint).await?;
        ask(&mut open, request).await
    };
    in_time(timeout, answer).await
}

/// Waits for an answer, by the time in which the gateway itself ran: where it stands still (SIGSTOP, a paused machine, no CPU) that costs
/// one of the turns at most. And a moment longer: the last one is over before anybody has looked at what the socket holds.
async fn in_time<T>(
    timeout: Duration,
    answer: impl Future<Output = Result<T, CallError>>,
) -> Result<T, CallError> {
    let mut answer = Box::pin(answer);
    for span in iter::repeat_n(timeout / TURNS, TURNS as usize).chain([CATCH_UP]) {
        if let Ok(answer) = tokio::time::timeout(span, answer.as_mut()).await {
            return answer;
        }
    }
    Err(CallError::Timeout)
}

/// A connection that the calls of one caller share, one after the other.
#[derive(Debug, Default)]
pub struct KeptConnection {
    open: Option<Connection>,
    is_fresh: bool,
}

impl KeptConnection {
    /// Whether the last call opened it.
    pub fn is_fresh(&self) -> bool {
        self.is_fresh
    }

    fn put(&mut self, open: Connection) {
        self.open = open.is_reusable().then_some(open);
    }
}

pub(super) async fn connect(connector: &Connector, endpoint: &Endpoint) -> Result<Connection, CallError> {
    connector.connect(endpoint).await.map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => CallError::Refused,
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => CallError::NoRoute,
        _ if is_local(&error) => CallError::NoResources,
        _ => broken(error),
    })
}

async fn ask(open: &mut Connection, request: Request<Bytes>) -> Result<Response<Bytes>, CallError> {
    let head = open.ask(request.into()).await.map_err(broken)?;
    let body = open.read_body(MAX_ANSWER).await.map_err(broken)?;
    Ok(Response::from_parts(head, body))
}

pub(super) fn addressed(
    mut request: Request<Bytes>,
    endpoint: &Endpoint,
) -> Result<Request<Bytes>, CallError> {
    let host = HeaderValue::try_from(endpoint.authority()).map_err(broken)?;
    request.headers_mut().insert(header::HOST, host);
    let length = request.body().len();
    if length > 0 || request.method() == Method::POST {
        request.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = path.map_or_else(Default::default, Into::into);
    Ok(request)
}

pub(super) fn broken(error: impl std::fmt::Display) -> CallError {
    CallError::Broken(error.to_string())
}

const PROBE: HeaderName = HeaderName::from_static("x-tokenway-probe");
const MAX_ANSWER: usize = 8 << 20;
/// Parts of a timeout, each over at its own end.
const TURNS: u32 = 20;

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn a_url_without_a_path_is_asked_for_its_root() {
        for (base_path, path, asked) in [("", "", "/"), ("/hook", "", "/hook"), ("/v", "/x?y", "/v/x?y")] {
            let endpoint =
                Endpoint { is_tls: false, host: "a".into(), port: 80, base_path: base_path.into() };
            let call = Call { path, body: Some("{}"), ..Call::to(&endpoint, Duration::from_secs(1)) };
            assert_eq!(call.request().unwrap().uri(), asked);
        }
    }

    #[tokio::test]
    async fn what_came_on_a_kept_connection_unasked_is_no_answer() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let endpoint = Endpoint {
            is_tls: false,
            host: at.ip().to_string().into(),
            port: at.port(),
            base_path: "".into(),
        };
        let engine = async || {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                assert!(socket.read_buf(&mut head).await.unwrap() > 0);
            }
            socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
            socket
        };
        let connector = Connector::new(tokio_util::task::TaskTracker::new()).unwrap();
        let mut kept = KeptConnection::default();
        let mut asked = async || {
            let call = Call::to(&endpoint, Duration::from_secs(5));
            let (answer, mut socket) = tokio::join!(call.send_on(&connector, &mut kept), engine());
            let (status, body) = answer.unwrap();
            assert_eq!((status, &*body), (StatusCode::OK, &b"ok"[..]));
            let unasked = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n";
            socket.write_all(unasked).await.unwrap();
            while kept.open.as_mut().unwrap().is_alive() {
                tokio::task::yield_now().await;
            }
            socket
        };
        let (_first, _second) = (asked().await, asked().await);
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_the_gateway_stood_still_is_not_waited() {
        let asked = |answers_after: Duration| {
            let answer = async move {
                tokio::time::sleep(answers_after).await;
                Ok::<_, CallError>(())
            };
            in_time(Duration::from_secs(5), answer)
        };
        let (waits, ()) =
            tokio::join!(asked(Duration::from_secs(20)), tokio::time::advance(Duration::from_secs(17)));
        assert!(waits.is_ok(), "three seconds of the five are over");
        assert!(matches!(asked(Duration::from_secs(20)).await, Err(CallError::Timeout)));
    }
}
