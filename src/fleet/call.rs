//! The gateway's own requests to a replica: probes, scrapes, model lists.
//!
//! Each uses a fresh connection outside the replica's pool, because they must get through when the pool is
//! exhausted, and because a refused connect is the earliest evidence that a process is gone. They carry
//! `x-tokenway-probe: 1` and enter no request metric.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use thiserror::Error;

use crate::config::{Endpoint, Secret};
use crate::upstream::connect::Connector;

/// An own request.
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
}

/// Why an own request got no answer.
#[derive(Debug, Error)]
pub enum CallError {
    /// The listener is gone.
    #[error("connect refused")]
    Refused,
    /// No answer in time.
    #[error("no answer in time")]
    Timeout,
    /// Another failure of socket, TLS or HTTP.
    #[error("{0}")]
    Broken(String),
}

impl Call<'_> {
    /// Sends it and reads the whole answer (at most 8 MiB).
    ///
    /// # Errors
    /// [`CallError`]; a status is an answer, whatever it is.
    pub async fn send(self, connector: &Connector) -> Result<(StatusCode, Bytes), CallError> {
        match tokio::time::timeout(self.timeout, self.exchange(connector)).await {
            Ok(answer) => answer,
            Err(_) => Err(CallError::Timeout),
        }
    }

    async fn exchange(self, connector: &Connector) -> Result<(StatusCode, Bytes), CallError> {
        let mut connection = connector.connect(self.endpoint).await.map_err(|e| match e.kind() {
            io::ErrorKind::ConnectionRefused => CallError::Refused,
            kind => CallError::Broken(kind.to_string()),
        })?;
        let _closes = AbortOnDrop(connection.task.clone());
        let request = self.request().map_err(|e| CallError::Broken(e.to_string()))?;
        let response = connection.sender.send_request(request).await.map_err(broken)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER)
            .collect()
            .await
            .map_err(|e| CallError::Broken(e.to_string()))?;
        Ok((status, body.to_bytes()))
    }

    fn request(&self) -> http::Result<Request<Full<Bytes>>> {
        let body = Bytes::copy_from_slice(self.body.unwrap_or_default().as_bytes());
        let mut request = Request::builder()
            .method(if self.body.is_some() { Method::POST } else { Method::GET })
            .uri(format!("{}{}", self.endpoint.base_path, self.path))
            .header(header::HOST, self.endpoint.authority())
            .header(PROBE, HeaderValue::from_static("1"));
        if self.body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(key) = self.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", key.reveal()));
        }
        request.body(Full::new(body))
    }
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn broken(error: hyper::Error) -> CallError {
    CallError::Broken(error.to_string())
}

const PROBE: HeaderName = HeaderName::from_static("x-tokenway-probe");
const MAX_ANSWER: usize = 8 << 20;
