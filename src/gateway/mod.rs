//! The path of a request, from its parsed head to its response.
//!
//! [`IncomingRequest::answer`] is the whole life of a request in one function: the paths that the gateway answers itself,
//! then [`prepare`] (read, identify, classify, admit), [`exchange`] (pick, send, retry) and [`reply`] (relay).
//! The record is filled on the way and published when the response body is dropped.

pub mod attempt;
mod blame;
mod degrade;
pub mod exchange;
pub mod explain_limiter;
pub mod local;
pub mod picker;
pub mod prepare;
pub mod reply;
#[cfg(test)]
mod scenarios;
pub mod table;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response};
use hyper::body::Incoming;
use tokio_util::task::TaskTracker;

use self::exchange::Exchange;
use self::explain_limiter::ExplainLimiter;
use self::table::RoutingTable;
use crate::clock::Clock;
use crate::digits;
use crate::error::{ErrorShape, Failure};
use crate::listener::{Handler, HeadFault, KillSwitch};
use crate::observe::Observer;
use crate::observe::record_guard::RecordGuard;
use crate::record::{Opening, Outcome};
use crate::relay::body::ReplyBody;
use crate::relay::pins::ResponsePins;
use crate::relay::watch::Watchdog;
use crate::request::body::BodyMemory;
use crate::request::dialect::Dialect;
use crate::upstream::headers::X_REQUEST_ID;

/// State shared by all requests.
#[derive(Debug)]
pub struct Gateway {
    /// The process' clock.
    pub clock: Clock,
    /// Routes, pools and tenants of the current configuration; loaded once per request.
    pub table: ArcSwap<RoutingTable>,
    /// Publishes records.
    pub observer: Arc<Observer>,
    /// Enforces deadlines.
    pub watchdog: Arc<Watchdog>,
    /// Budget in bytes for all request bodies in memory.
    pub memory: BodyMemory,
    /// Response id to replica, for `previous_response_id`.
    pub pins: Arc<ResponsePins>,
    /// This gateway's name in `Via`.
    pub via: HeaderValue,
    /// Phase of the shutdown drain.
    pub drain: DrainFlag,
    /// Requests whose record is still open.
    pub requests: Arc<AtomicU64>,
    /// Tracks tasks spawned on behalf of requests, so that shutdown waits for them.
    pub tasks: TaskTracker,
    /// Rate limit for explained decisions.
    pub explain_limiter: ExplainLimiter,
}

/// Phase of the shutdown drain: read by every request, written by the application.
#[derive(Debug, Default)]
pub struct DrainFlag(AtomicU8);

impl DrainFlag {
    /// Phase 1: not ready, still serving, `connection: close` on HTTP/1 responses.
    pub fn begin(&self) {
        self.0.fetch_max(1, Ordering::Release);
    }

    /// Phase 2: new requests get 503.
    pub fn refuse(&self) {
        self.0.fetch_max(2, Ordering::Release);
    }

    /// Whether the drain has begun (phase 1 or 2).
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }

    /// Whether new requests are refused (phase 2).
    #[must_use]
    pub fn refuses(&self) -> bool {
        self.0.load(Ordering::Acquire) > 1
    }
}

/// The listener's handler.
#[derive(Clone, Debug)]
pub struct Service(pub Arc<Gateway>);

impl Handler for Service {
    type Body = ReplyBody;

    fn handle(
        &self,
        request: Request<Incoming>,
        kill: KillSwitch,
    ) -> impl Future<Output = Response<ReplyBody>> + Send {
        let (parts, body) = request.into_parts();
        // A future is copied whole when it is first polled: box its state.
        Box::new(IncomingRequest { gateway: Arc::clone(&self.0), parts, body: Some(body), kill }).answer()
    }

    fn reject(&self, fault: HeadFault) -> Response<Bytes> {
        let failure = match fault {
            HeadFault::Malformed => Failure::MalformedHead,
            HeadFault::UriTooLong => Failure::UriTooLong,
            HeadFault::TooLarge => Failure::HeadTooLarge,
        };
        self.0.observer.metrics().http_rejected(failure.code());
        reply::unreadable(&failure)
    }

    fn opened(&self) -> Box<dyn Send> {
        Box::new(self.0.observer.metrics().open_connection())
    }
}

/// A request as received: parsed head, unread body.
#[derive(Debug)]
pub struct IncomingRequest {
    gateway: Arc<Gateway>,
    parts: Parts,
    /// `None` once it is read.
    body: Option<Incoming>,
    kill: KillSwitch,
}

impl IncomingRequest {
    /// Serves one request, from its head to its response.
    async fn answer(mut self: Box<Self>) -> Response<ReplyBody> {
        let gateway = Arc::clone(&self.gateway);
        let is_http1 = self.parts.version < http::Version::HTTP_2;
        let mut response = match gateway.begin(&self.parts) {
            Err(response) => *response,
            Ok((table, mut guard)) => {
                let prepared = prepare::prepare(&mut self, table, &mut guard).await;
                match prepared {
                    Ok(prepared) => reply::respond(Exchange::new(self, prepared, guard)).await,
                    Err(failure) => {
                        gateway.count_refusal(&failure);
                        reply::failure(guard, &failure)
                    }
                }
            }
        };
        if is_http1 && gateway.drain.is_on() {
            response.headers_mut().insert(http::header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

impl Gateway {
    /// The configuration snapshot and the open record of an inference request, or the response to any other path.
    fn begin(&self, parts: &Parts) -> Result<(Arc<RoutingTable>, RecordGuard), Box<Response<ReplyBody>>> {
        let head = self.clock.now();
        let table = self.table.load_full();
        if let Some(response) = self.answer_locally(&table, parts) {
            return Err(Box::new(reply::local(response, parts)));
        }
        let Some(dialect) = Dialect::of_path(parts.uri.path(), &table.config.server.extra_paths) else {
            self.observer.metrics().http_rejected(Failure::UnknownPath.code());
            return Err(Box::new(reply::bare_failure(&Failure::UnknownPath, ErrorShape::OpenAi, parts)));
        };
        Ok((table, self.open_record(parts, dialect, head)))
    }

    /// Counts refusals; client errors are no admission decision.
    fn count_refusal(&self, failure: &Failure) {
        if Outcome::of(failure) == Outcome::Refused {
            self.observer.metrics().admission("refuse", failure.code());
        }
    }

    fn answer_locally(&self, table: &RoutingTable, parts: &Parts) -> Option<Response<Bytes>> {
        let path = parts.uri.path();
        if !matches!(path, "/v1/models" | "/health" | "/version") {
            return None;
        }
        if !matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS) {
            let mut response = reply::failure_bytes(&Failure::MethodNotAllowed, ErrorShape::OpenAi);
            let allow = HeaderValue::from_static("GET, HEAD, OPTIONS");
            response.headers_mut().insert(http::header::ALLOW, allow);
            return Some(response);
        }
        Some(match path {
            "/health" => local::health(table, self.drain.is_on()),
            "/version" => local::version(),
            _ => match table.tenants.identify(&parts.headers) {
                Ok(tenant) => local::models(table, &tenant),
                Err(error) => reply::failure_bytes(
                    &Failure::InvalidKey { message: error.message() },
                    ErrorShape::OpenAi,
                ),
            },
        })
    }

    fn open_record(&self, parts: &Parts, dialect: Dialect, head: crate::clock::Stamp) -> RecordGuard {
        let opening = Opening {
            request_id: request_id(&parts.headers),
            trace: self.observer.trace_of(&parts.headers),
            dialect,
            path: parts.uri.path().into(),
            head,
        };
        RecordGuard::open(opening, &self.observer, self.clock, &self.requests)
    }
}

/// The client's `x-request-id` if it is 1 to 64 bytes of `[A-Za-z0-9._-]`, else a random one.
#[must_use]
pub fn request_id(headers: &http::HeaderMap) -> Arc<str> {
    let is_harmless = |id: &&str| {
        (1..=MAX_REQUEST_ID).contains(&id.len())
            && id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
    };
    match headers.get(X_REQUEST_ID).and_then(|v| v.to_str().ok()).filter(is_harmless) {
        Some(id) => id.into(),
        None => {
            let mut id = Vec::with_capacity(32);
            digits::hex(&mut id, fastrand::u128(1..), 32);
            String::from_utf8(id).unwrap_or_default().into()
        }
    }
}

const MAX_REQUEST_ID: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_harmful_request_id_is_replaced() {
        let id = |value: &'static str| {
            let mut headers = http::HeaderMap::new();
            headers.insert(X_REQUEST_ID, HeaderValue::from_static(value));
            request_id(&headers)
        };
        assert_eq!(&*id("a.B_9-z"), "a.B_9-z");
        for bad in ["", "a b", "a\"b", "0123456789012345678901234567890123456789012345678901234567890123x"] {
            assert_ne!(&*id(bad), bad);
        }
    }
}
