//! Own requests whose answer may take minutes: read piece by piece, on a connection that ends with them.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::call::{CallError, addressed, broken, connect, send};
use super::connect::{Connection, Connector};
use crate::config::Endpoint;

/// An answer that is being read; dropping it closes its connection.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    body: Incoming,
    _open: Connection,
}

/// Sends a request and waits for the head of the answer, at most `timeout`. Sets `Host`; of the URI only path and query are
/// used.
///
/// # Errors
/// [`CallError`]; a status is an answer, whatever it is.
pub(crate) async fn open(
    connector: &Connector,
    endpoint: &Endpoint,
    request: Request<Bytes>,
    timeout: Duration,
) -> Result<Answer, CallError> {
    let request = addressed(request, endpoint)?;
    let answer = async {
        let mut open = connect(connector, endpoint).await?;
        let (head, body) = send(&mut open, request).await?.into_parts();
        Ok(Answer { status: head.status, body, _open: open })
    };
    tokio::time::timeout(timeout, answer).await.unwrap_or(Err(CallError::Timeout))
}

impl Answer {
    /// The next piece of the body; `None` at its end.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, CallError> {
        while let Some(frame) = self.body.frame().await {
            if let Ok(data) = frame.map_err(broken)?.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }
}
