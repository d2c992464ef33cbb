//! Own requests whose answer may take minutes: read piece by piece, on a connection that ends with them.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};

use super::call::{CallError, addressed, broken, connect};
use super::connect::Connector;
use super::http1::Connection;
use crate::config::Endpoint;

/// An answer that is being read; dropping it closes its connection.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    open: Connection,
}

/// Sends a request and waits for the head of the answer, at most `timeout`. Sets `Host` and the length; of the URI only path
/// and query are used.
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
        let head = open.ask(request.into()).await.map_err(broken)?;
        Ok(Answer { status: head.status, open })
    };
    tokio::time::timeout(timeout, answer).await.unwrap_or(Err(CallError::Timeout))
}

impl Answer {
    /// The next piece of the body; `None` at its end.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, CallError> {
        poll_fn(|cx| self.open.poll_body(cx)).await.transpose().map_err(broken)
    }
}
