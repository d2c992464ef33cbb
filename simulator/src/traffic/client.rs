//! One chat request as a client sends it: stamps every content event and keeps the text.
//!
//! A connection per request, no retries: failures show as a client sees them.

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HOST};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::time::{Clock, Stamp};

/// A complete answer.
#[derive(Debug, Default)]
pub(super) struct Answer {
    /// When each content event arrived.
    pub(super) contents: Vec<Stamp>,
    pub(super) text: String,
}

/// Why there is no complete answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    #[error("`{0}` is no http://HOST:PORT")]
    Url(String),
    #[error("cannot connect: {0}")]
    Connect(#[from] std::io::Error),
    #[error("the exchange broke: {0}")]
    Http(#[from] hyper::Error),
    #[error("status {0}")]
    Status(StatusCode),
    #[error("an error event in the stream")]
    ErrorEvent,
    #[error("the stream ended without [DONE]")]
    Incomplete,
    #[error("no answer in time")]
    Timeout,
}

/// Sends a streaming chat request and reads it to the end.
pub(super) async fn chat(base_url: &str, body: String, clock: Clock) -> Result<Answer, ClientError> {
    let uri: Uri = base_url.parse().map_err(|_| ClientError::Url(base_url.to_owned()))?;
    let authority = uri.authority().ok_or_else(|| ClientError::Url(base_url.to_owned()))?;
    let stream = TcpStream::connect((host(authority.host()), authority.port_u16().unwrap_or(80))).await?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut request = Request::new(Full::new(Bytes::from(body)));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from_static("/v1/chat/completions");
    let headers = request.headers_mut();
    headers.insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    if let Ok(host) = http::HeaderValue::from_str(authority.as_str()) {
        headers.insert(HOST, host);
    }
    let exchange = async {
        let response = sender.send_request(request).await?;
        if response.status() != StatusCode::OK {
            return Err(ClientError::Status(response.status()));
        }
        read(response.into_body(), clock).await
    };
    // The connection must be polled for the exchange to move; it ends first only when it breaks, and then the
    // exchange knows.
    let connection = async {
        let _ = connection.await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        answer = exchange => answer,
        () = connection => Err(ClientError::Incomplete),
    }
}

fn host(bracketed: &str) -> &str {
    bracketed.trim_start_matches('[').trim_end_matches(']')
}

async fn read(mut body: Incoming, clock: Clock) -> Result<Answer, ClientError> {
    let mut answer = Answer::default();
    let mut rest = BytesMut::new();
    let mut is_done = false;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        let now = clock.now();
        rest.extend_from_slice(&data);
        while let Some(end) = memchr::memmem::find(&rest, b"\n\n") {
            let event = rest.split_to(end + 2);
            is_done |= take(&event, now, &mut answer)?;
        }
    }
    if is_done { Ok(answer) } else { Err(ClientError::Incomplete) }
}

/// Takes one event; `true` for the last one.
fn take(event: &[u8], now: Stamp, answer: &mut Answer) -> Result<bool, ClientError> {
    let Some(data) = event.strip_prefix(b"data: ") else { return Ok(false) };
    if data.starts_with(b"[DONE]") {
        return Ok(true);
    }
    let event: Value = serde_json::from_slice(data).map_err(|_| ClientError::ErrorEvent)?;
    if event.get("error").is_some() {
        return Err(ClientError::ErrorEvent);
    }
    let content = event.pointer("/choices/0/delta/content").and_then(Value::as_str).unwrap_or_default();
    if !content.is_empty() {
        answer.contents.push(now);
        answer.text.push_str(content);
    }
    Ok(false)
}
