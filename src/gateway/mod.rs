//! The path of a request, from its parsed head to its response.
//!
//! [`IncomingRequest::answer`] is the whole life of a request in one function: the paths that the gateway answers itself,
//! then [`prepare`] (read, identify, classify, admit), [`exchange`] (pick, send, retry) and [`reply`] (relay).
//! The record is filled on the way and published when the response body is dropped.

mod answer_buffer;
mod apart;
mod asking;
pub mod attempt;
mod blame;
pub mod body_work;
pub mod carrier;
mod classify;
mod cold;
mod cors;
pub mod degrade;
mod engine_error;
pub mod exchange;
mod hedge;
pub mod hook;
pub mod hysteresis;
mod interim;
pub mod local;
pub mod migration;
mod models;
mod objectives;
pub mod outbound;
mod outside;
pub mod picker;
mod prefill_beside;
mod prefill_leg;
pub mod prefill_side;
mod preflights;
pub mod prepare;
pub mod prepared;
pub mod reply;
#[cfg(test)]
mod scenarios;
mod second_opinion;
mod service;
pub mod shadow;
pub mod standby;
mod stored;
pub mod table;
mod tunnel;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use hyper::body::Body as _;
use hyper::upgrade::OnUpgrade;
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

use self::body_work::BodyWork;
use self::carrier::Carrier;
use self::cors::CorsGrant;
use self::exchange::Exchange;
pub use self::preflights::Preflights;
use self::preflights::{Asked, Preflight};
pub use self::service::Service;
use self::shadow::Shadows;
use self::table::RoutingTable;
use crate::admission::TenantLimiter;
use crate::background::boxed;
use crate::clock::Clock;
use crate::digits;
use crate::error::{ErrorShape, Failure};
use crate::listener::{KillSwitch, Peer};
use crate::observe::Observer;
use crate::observe::metrics::GaugeGuard;
use crate::observe::record_guard::RecordGuard;
use crate::record::{ClientInfo, Opening, Outcome};
use crate::relay::body::ReplyBody;
use crate::relay::pins::ResponsePins;
use crate::relay::watch::Watchdog;
use crate::request::arriving::ArrivingBody;
use crate::request::body;
use crate::request::body_memory::{BodyBudget, BodyMemory};
use crate::request::dialect::Dialect;
use crate::request::rare::Rare;
use crate::stats::PerSecond;
use crate::upstream::headers::{self, X_REQUEST_ID};

/// State shared by all requests.
#[derive(Debug)]
pub struct Gateway {
    /// The process' clock.
    pub clock: Clock,
    /// Routes, pools and tenants of the current configuration; loaded once per request.
    pub table: ArcSwap<RoutingTable>,
    /// Another table was stored: for the one task that waits for it.
    pub table_changed: Notify,
    /// Publishes records.
    pub observer: Arc<Observer>,
    /// Enforces deadlines.
    pub watchdog: Arc<Watchdog>,
    /// Budget in bytes for all request bodies in memory.
    pub memory: BodyMemory,
    /// Parses and hashes large bodies off the async workers.
    pub body_work: BodyWork,
    /// Limits of tenants, over all reloads.
    pub tenants: TenantLimiter,
    /// Response id to replica, for `previous_response_id`.
    pub pins: Arc<ResponsePins>,
    /// Asked about requests, where one is configured.
    pub hook: Option<hook::Hook>,
    /// What engines said to preflights.
    pub preflights: Preflights,
    /// This gateway's name in `Via`.
    pub via: HeaderValue,
    /// Phase of the shutdown drain.
    pub drain: DrainFlag,
    /// Copies of requests for canaries at their shadow step.
    pub shadows: Arc<Shadows>,
    /// Requests whose record is still open.
    pub requests: Arc<AtomicU64>,
    /// Tracks tasks spawned on behalf of requests, so that shutdown waits for them.
    pub tasks: TaskTracker,
    /// Explained decisions of the current second: those that record the cost terms of every candidate.
    pub explained: PerSecond,
}

impl Gateway {
    /// One that holds nothing yet and asks no hook, for a configuration's first table.
    pub fn new(table: RoutingTable, observer: Arc<Observer>, body_memory: usize, tasks: TaskTracker) -> Self {
        let clock = observer.clock;
        Self {
            clock,
            memory: BodyMemory::new(body_memory, table.config.server.body_limit, clock),
            shadows: Arc::clone(&table.carried_over.shadows),
            table: ArcSwap::from_pointee(table),
            table_changed: Notify::new(),
            observer,
            watchdog: Watchdog::new(clock),
            body_work: BodyWork::default(),
            tenants: TenantLimiter::default(),
            pins: Arc::default(),
            hook: None,
            preflights: Preflights::default(),
            via: pseudonym(),
            drain: DrainFlag::default(),
            requests: Arc::default(),
            tasks,
            explained: PerSecond::default(),
        }
    }
}

/// Random name of this process in `Via`, so that only a real loop looks like one.
fn pseudonym() -> HeaderValue {
    let name = format!("1.1 tokenway-{:08x}", fastrand::u32(..));
    HeaderValue::from_str(&name).unwrap_or_else(|_| HeaderValue::from_static("1.1 tokenway"))
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
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }

    /// Whether new requests are refused (phase 2).
    pub fn refuses(&self) -> bool {
        self.0.load(Ordering::Acquire) > 1
    }
}

/// What the requests of one client connection share.
#[derive(Debug)]
pub struct ClientConnection {
    peer: Peer,
    /// Memory of their bodies.
    bodies: Arc<BodyBudget>,
    /// `None` where there is no connection: requests of our own.
    _open: Option<GaugeGuard>,
}

/// A request as received: parsed head, unread body.
#[derive(Debug)]
pub struct IncomingRequest {
    gateway: Arc<Gateway>,
    parts: Parts,
    rare: Rare,
    /// `None` once it is read.
    body: Option<ArrivingBody>,
    kill: KillSwitch,
    connection: Arc<ClientConnection>,
    /// Takes it to its replica; `None` for the gateway's own connections.
    carrier: Option<Arc<dyn Carrier>>,
}

impl ClientConnection {
    fn of(gateway: &Gateway, peer: Peer, open: Option<GaugeGuard>) -> Arc<Self> {
        Arc::new(Self { peer, bodies: gateway.memory.of_connection(), _open: open })
    }
}

impl IncomingRequest {
    /// Its head again, for a request of our own that neither holds the client's connection nor ends with it.
    fn copied(&self) -> Box<Self> {
        let (mut parts, ()) = Request::new(()).into_parts();
        (parts.method, parts.uri, parts.version) =
            (self.parts.method.clone(), self.parts.uri.clone(), self.parts.version);
        parts.headers.clone_from(&self.parts.headers);
        let connection = ClientConnection::of(&self.gateway, self.connection.peer, None);
        let (gateway, rare, kill) = (Arc::clone(&self.gateway), self.rare, KillSwitch::default());
        Box::new(Self { gateway, parts, rare, body: None, kill, connection, carrier: None })
    }

    /// Serves one request, from its head to its response.
    pub async fn answer(mut self: Box<Self>) -> Response<ReplyBody> {
        let gateway = Arc::clone(&self.gateway);
        let is_http1 = self.parts.version < http::Version::HTTP_2;
        let is_http10 = self.parts.version == http::Version::HTTP_10;
        let is_expecting = self.rare.has(Rare::EXPECT);
        let head = gateway.clock.now();
        let table = gateway.table.load_full();
        strip_root(&mut self.parts.uri, &table.config.server.root_path);
        let cors = CorsGrant::of(&table.config.server, &self.parts.headers);
        let mut unread = None;
        let (asked, begun) = if cors.is_none() && cors::is_preflight(&self.parts) {
            // Boxed: few requests are preflights.
            Box::pin(gateway.begin_preflight(&table, &mut self.parts, self.rare, head)).await
        } else {
            if models::is_path(self.parts.uri.path()) {
                let tenant = prepare::tenant_of(&table, &self.parts, gateway.wall_now());
                prepare::renew_keys(&table, &tenant).await;
            }
            (None, gateway.begin(&table, &self.parts, self.rare, cors.as_ref(), head))
        };
        let mut response = match begun {
            Err(response) => {
                unread = self.body.take();
                *response
            }
            Ok(mut guard) => {
                let Peer { address, is_tls } = self.connection.peer;
                let client = &mut guard.record().client;
                (client.address, client.is_tls) = (address, is_tls);
                let prepared = prepare::prepare(&mut self, table, &mut guard).await;
                match prepared {
                    Ok(prepared) => {
                        let is_tunnel = self.parts.extensions.get::<OnUpgrade>().is_some()
                            && headers::is_websocket(&self.parts.headers);
                        let exchange = Exchange::new(self, prepared, guard);
                        if is_tunnel {
                            tunnel::respond(exchange).await
                        } else {
                            reply::respond(exchange).await
                        }
                    }
                    Err(failure) => {
                        gateway.count_refusal(&failure);
                        unread = self.body.take();
                        reply::failure(guard, &failure)
                    }
                }
            }
        };
        if let Some(asked) = asked {
            asked.learn(&mut response);
        }
        if let Some(cors) = cors {
            cors.mark(response.headers_mut());
        }
        let is_closing = response.headers().contains_key(http::header::CONNECTION);
        let is_last = match unread {
            Some(ArrivingBody::Fed(_)) => false,
            Some(body) if is_http1 && !is_closing && !body.is_end_stream() => {
                // A body that waits for a 100 is not asked for.
                is_expecting || !Box::pin(body::is_discarded(body)).await
            }
            // Over HTTP/2 a body that is dropped resets its stream, for which curl and httpx lose the response, also while they wait for a 100.
            Some(body) if !is_http1 && !body.is_end_stream() => {
                gateway.tasks.spawn(boxed(body::discard(body)));
                false
            }
            _ => false,
        };
        // The one that switches protocols names the upgrade there.
        let is_switch = response.status() == http::StatusCode::SWITCHING_PROTOCOLS;
        // RFC 9112, section 6.3: where there is no length, the end of the connection is the body's.
        let is_unframed = is_http10 && response.body().size_hint().exact().is_none();
        if is_http1 && !is_switch && (is_last || is_unframed || gateway.drain.is_on()) {
            response.headers_mut().insert(http::header::CONNECTION, HeaderValue::from_static("close"));
            if is_http10 {
                // Beside an answer of a later version hyper would promise to keep what an old client asks it to.
                *response.version_mut() = http::Version::HTTP_10;
            }
        } else if !is_http1 {
            response.headers_mut().remove(http::header::CONNECTION);
        }
        response
    }
}

impl Gateway {
    /// The open record of an inference request, or the response to any other.
    fn begin(
        &self,
        table: &RoutingTable,
        parts: &Parts,
        rare: Rare,
        cors: Option<&CorsGrant>,
        head: crate::clock::Stamp,
    ) -> Result<RecordGuard, Box<Response<ReplyBody>>> {
        let path = parts.uri.path();
        let is_own = matches!(path, "/health" | "/version") || models::is_path(path);
        let found = Dialect::of_path(path, &table.config.server.extra_paths);
        if !is_own && found.is_none() {
            self.observer.metrics.families.requests.http_rejected.inc([Failure::UnknownPath.code()]);
            let shape = Dialect::shape_near(path);
            return Err(Box::new(reply::local(reply::failure_bytes(&Failure::UnknownPath, shape), parts)));
        }
        match (cors::is_preflight(parts), cors) {
            (true, Some(cors)) => {
                let answer = cors.preflight(parts);
                let answer =
                    answer.unwrap_or_else(|failure| reply::failure_bytes(&failure, ErrorShape::OpenAi));
                return Err(Box::new(reply::local(answer, parts)));
            }
            // The engines decide, also for paths that we answer.
            (true, None) if is_own => return Ok(self.open_record(parts, rare, path, Dialect::Extra, head)),
            _ if models::is_relayed(table, parts) => {
                return Ok(self.open_record(parts, rare, models::LIST, Dialect::Extra, head));
            }
            _ => {}
        }
        match found {
            Some((pattern, dialect)) if !is_own => Ok(self.open_record(parts, rare, pattern, dialect, head)),
            _ => Err(Box::new(reply::local(self.answer_locally(table, parts), parts))),
        }
    }

    /// The same for a preflight that the engines decide on, with what learns from its answer.
    async fn begin_preflight(
        &self,
        table: &RoutingTable,
        parts: &mut Parts,
        rare: Rare,
        head: crate::clock::Stamp,
    ) -> (Option<Asked<'_>>, Result<RecordGuard, Box<Response<ReplyBody>>>) {
        let answer = match self.preflights.ask(table, parts, self.clock).await {
            Ok(asked) => return (asked, self.begin(table, parts, rare, None, head)),
            Err(Preflight::Known(answer)) => answer,
            Err(Preflight::Refused) => {
                let failure = Preflight::too_many();
                self.observer.metrics.families.requests.http_rejected.inc([failure.code()]);
                reply::failure_bytes(&failure, ErrorShape::OpenAi)
            }
        };
        (None, Err(Box::new(reply::local(answer, parts))))
    }

    fn wall_now(&self) -> SystemTime {
        self.clock.wall(self.clock.now())
    }

    /// Counts refusals; client errors are no admission decision.
    fn count_refusal(&self, failure: &Failure) {
        if Outcome::of(failure) == Outcome::Refused {
            self.observer.metrics.families.requests.admissions.inc(["refuse", failure.code()]);
        }
    }

    fn answer_locally(&self, table: &RoutingTable, parts: &Parts) -> Response<Bytes> {
        let failed = |failure: &Failure| reply::failure_bytes(failure, ErrorShape::OpenAi);
        if !matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS) {
            return failed(&Failure::MethodNotAllowed { allow: "GET, HEAD, OPTIONS" });
        }
        match parts.uri.path() {
            "/health" => local::health(table, self.drain.is_on()),
            "/version" => local::version(),
            // Load balancers may ask for the two above without a host.
            path => body::check_head(parts.version, &parts.uri, &parts.headers)
                .and_then(|()| {
                    prepare::tenant_of(table, parts, self.wall_now()).map_err(|fault| fault.failure())
                })
                .and_then(|tenant| models::respond(table, &tenant, path))
                .unwrap_or_else(|failure| failed(&failure)),
        }
    }

    fn open_record(
        &self,
        parts: &Parts,
        rare: Rare,
        pattern: &str,
        dialect: Dialect,
        head: crate::clock::Stamp,
    ) -> RecordGuard {
        let (none, headers) = (HeaderMap::new(), &parts.headers);
        let opening = Opening {
            request_id: request_id(if rare.has(Rare::REQUEST_ID) { headers } else { &none }),
            trace: self.observer.trace_of(if rare.has(Rare::TRACEPARENT) { headers } else { &none }),
            dialect,
            path: pattern.into(),
            client: ClientInfo::of(parts),
            head,
        };
        RecordGuard::open(opening, &self.observer, &self.requests)
    }
}

/// Takes the prefix `server.root_path` off a path; one that does not begin with it stays, as with `vllm --root-path`.
fn strip_root(uri: &mut http::Uri, root: &str) {
    if root.is_empty() {
        return;
    }
    let Some(below) = uri.path_and_query().and_then(|target| target.as_str().strip_prefix(root)) else {
        return;
    };
    if !below.starts_with('/') {
        return;
    }
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = below.parse().ok();
    if let Ok(stripped) = http::Uri::from_parts(parts) {
        *uri = stripped;
    }
}

/// The client's `x-request-id` if it is harmless, else a random one.
pub fn request_id(headers: &HeaderMap) -> Arc<str> {
    match given_request_id(headers) {
        Some(id) => id.into(),
        None => str::from_utf8(&digits::hex_digits(fastrand::u128(1..))).unwrap_or_default().into(),
    }
}

/// The client's `x-request-id`, if it is harmless.
fn given_request_id(headers: &HeaderMap) -> Option<&str> {
    headers.get(X_REQUEST_ID).and_then(|v| v.to_str().ok()).filter(|id| is_harmless_id(id))
}

/// Whether a request id is 1 to 64 bytes of `[A-Za-z0-9._-]`.
fn is_harmless_id(id: &str) -> bool {
    (1..=MAX_REQUEST_ID).contains(&id.len())
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

const MAX_REQUEST_ID: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_path_is_taken_off_once_and_whole() {
        for (target, expected) in [
            ("/llm/v1/models?x=%2F", "/v1/models?x=%2F"),
            ("/llm/llm/x", "/llm/x"),
            ("/v1/models", "/v1/models"),
            ("/llmx/v1/models", "/llmx/v1/models"),
            ("/llm", "/llm"),
            ("http://host/llm/health", "http://host/health"),
        ] {
            let mut uri = http::Uri::from_static(target);
            strip_root(&mut uri, "/llm");
            assert_eq!(uri.to_string(), expected);
        }
    }

    #[test]
    fn a_harmful_request_id_is_replaced() {
        let id = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(X_REQUEST_ID, HeaderValue::from_static(value));
            request_id(&headers)
        };
        assert_eq!(&*id("a.B_9-z"), "a.B_9-z");
        for bad in ["", "a b", "a\"b", "0123456789012345678901234567890123456789012345678901234567890123x"] {
            assert_ne!(&*id(bad), bad);
        }
    }
}
