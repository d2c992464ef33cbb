//! From what came of a request to its response: heads, bodies, and the heartbeat.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};

use super::exchange::{Exchange, Exchanged, Winner};
use super::journal::Journal;
use super::prepare::Prepared;
use super::{Gateway, request_id};
use crate::error::Failure;
use crate::record::Outcome;
use crate::relay::body::{Aborted, LargeBody, StreamBody};
use crate::relay::failure;
use crate::relay::usage;
use crate::request::dialect::ErrorShape;
use crate::upstream::attempt::{Answer, WholeAnswer};
use crate::upstream::headers::{X_REQUEST_ID, strip_response};

/// The body of a response to a client.
#[derive(Debug)]
pub enum ReplyBody {
    /// In memory; the journal reports when hyper lets go of it.
    Whole(Option<Bytes>, Option<Box<Journal>>),
    /// A stream of an engine.
    Stream(Box<StreamBody>),
    /// A large unary answer.
    Large(Box<LargeBody>),
    /// Nothing decided yet: SSE comments until it is.
    Waiting(Box<Waiting>),
}

/// A response whose head had to go out before its answer was there (`server.heartbeat`).
pub struct Waiting {
    exchange: Pin<Box<dyn Future<Output = Exchanged> + Send>>,
    gateway: Arc<Gateway>,
    beat: Pin<Box<tokio::time::Sleep>>,
    every: Duration,
    queued: VecDeque<Bytes>,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").field("every", &self.every).finish_non_exhaustive()
    }
}

/// Runs an exchange and makes its response; with a heartbeat the head may go out before.
pub async fn respond(exchange: Exchange) -> Response<ReplyBody> {
    let gateway = Arc::clone(exchange.gateway());
    let heartbeat = exchange.prepared.table.config.server.heartbeat.filter(|_| exchange.prepared.is_stream);
    let Some(every) = heartbeat else {
        return of_exchanged(&gateway, exchange.run().await);
    };
    let id = Arc::clone(&{ exchange }.into_id(&gateway, every).await);
    drop(id);
    unreachable_response()
}

fn unreachable_response() -> Response<ReplyBody> {
    Response::new(ReplyBody::Whole(None, None))
}
