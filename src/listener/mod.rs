//! The listener of a port: accepts connections and serves HTTP/1.1 and HTTP/2 on them.
//!
//! HTTP/2 by ALPN under TLS and by prior knowledge in clear text. Every wait is bounded: the handshake, a head from its
//! first byte, the time between requests. What a request is answered with is up to a [`Handler`].

mod accept;
mod bad_request_head;
mod clear_text;
mod client_names;
mod continues;
mod first_bytes;
pub mod framing;
mod independently_woken;
mod lingering_close;
mod mishaps;
mod panics;
mod phase;
mod polled_again;
mod port;
mod socket;
mod taking;
pub mod tls;

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, Version, header};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use prometheus::IntCounter;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::accept::{Acceptor, ConnectionLimit, bind};
pub use self::bad_request_head::HeadFault;
pub use self::client_names::ClientNames;
pub use self::continues::ContinueSignal;
use self::independently_woken::IndependentlyWoken;
use self::panics::catching;
use self::phase::{Busy, BusyBody, ConnectionPhase, EndGuard, PhaseIo};
use self::polled_again::PolledAgain;
pub use self::port::{Boxed, Port, PortBody, port_body};
pub use self::socket::{ClientStream, UserTimeout};
use self::taking::Taking;
use self::tls::{HandshakeFault, TlsSlot};
use crate::clock::Clock;
use crate::config::Config;

/// Cancelled to end one response: closes its connection (HTTP/1.1) or resets its stream (HTTP/2).
pub type KillSwitch = Arc<CancellationToken>;

/// Handles requests, one call each, on the connection's task (HTTP/1.1) or the stream's (HTTP/2).
pub trait Handler: Clone + Send + Sync + 'static {
    /// Body of its responses.
    type Body: hyper::body::Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + Unpin
        + 'static;

    /// What the requests of one connection share; dropped when it closes.
    type Connection: Clone + Send + Sync + 'static;

    /// How it holds a connection's bytes: as they are, or boxed, where speed is not worth 100 kB of code for each kind of them.
    type Stream<S: ClientStream>: ClientStream;

    /// Takes hold of a connection's bytes.
    fn hold<S: ClientStream>(stream: S) -> Self::Stream<S>;

    /// Responds to one request; cancelling `kill` ends the response. Infallible: a failure is a response.
    fn handle(
        &self,
        request: Request<Incoming>,
        kill: KillSwitch,
        connection: &Self::Connection,
    ) -> impl Future<Output = Response<Self::Body>> + Send;

    /// Responds to a head that could not be parsed.
    fn reject(&self, fault: HeadFault) -> Response<Bytes>;

    /// A client's TLS handshake failed.
    fn handshake_failed(&self, _: HandshakeFault) {}

    /// Responds to a request that is not served because of its head; its connection closes.
    fn refuse(&self, fault: HeadFault) -> Response<Self::Body>;

    /// Responds to a request whose handling panicked.
    fn panicked(&self) -> Response<Self::Body>;

    /// A connection was opened.
    fn opened(&self, peer: Peer) -> Self::Connection;
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Its address; `None` where the socket does not tell.
    pub address: Option<IpAddr>,
    /// Whether it speaks TLS.
    pub is_tls: bool,
}

/// Settings and shared state of an accept loop.
#[derive(Clone, Debug)]
pub struct Serving {
    /// Timeouts.
    pub limits: ConnectionLimits,
    /// Of what was sent to clients. A reload changes it.
    pub user_timeout: UserTimeout,
    /// Reloadable certificates; `None` is clear text.
    pub tls: Option<Arc<TlsSlot>>,
    /// Clock of the connection phases.
    pub clock: Clock,
    /// Owner of the connections' tasks.
    pub tracker: TaskTracker,
    /// The drain began: HTTP/2 connections get a GOAWAY.
    pub draining: CancellationToken,
    /// The drain delay is over: idle connections close.
    pub closing: CancellationToken,
    /// No connection is accepted any more.
    pub stopped: CancellationToken,
    /// Every connection closes now.
    pub cut_off: CancellationToken,
    /// A client that speaks TLS to a port in clear text was logged.
    pub has_met_tls: Arc<AtomicBool>,
    /// Requests whose handling or whose response body panicked.
    pub panics: IntCounter,
}

impl Serving {
    /// Of a port in clear text, before anything ends.
    pub fn new(
        limits: ConnectionLimits,
        user_timeout: UserTimeout,
        clock: Clock,
        tracker: TaskTracker,
        stopped: CancellationToken,
        panics: IntCounter,
    ) -> Self {
        let [draining, closing, cut_off] = Default::default();
        let has_met_tls = Arc::default();
        let tls = None;
        Self {
            limits,
            user_timeout,
            tls,
            clock,
            tracker,
            draining,
            closing,
            stopped,
            cut_off,
            has_met_tls,
            panics,
        }
    }
}

/// Timeouts of connections, as they were at start.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// A head from its first byte, the first one from accept.
    pub header_timeout: Duration,
    /// Between two requests.
    pub keep_alive: Duration,
    /// A TLS handshake.
    pub tls_handshake_timeout: Duration,
    /// Whether peers are proxies of ours alone. What HTTP/2 bounds for a connection would be reached by their clients together, and cut
    /// all of them.
    pub is_behind_proxy: bool,
}

impl ConnectionLimits {
    /// What the configuration says of the data port.
    pub fn new(config: &Config) -> Self {
        let server = &config.server;
        Self {
            header_timeout: server.header_timeout,
            keep_alive: server.keep_alive,
            tls_handshake_timeout: server.tls_handshake_timeout,
            is_behind_proxy: false,
        }
    }
}

/// What the configuration says of the data port's [`Serving::user_timeout`].
pub fn user_timeout(config: &Config) -> Duration {
    // A client that keeps its window closed is the watchdog's, which counts it: this one comes later.
    let stall = config.routes.iter().map(|route| route.timeouts.client_stall).max().unwrap_or_default();
    stall + USER_TIMEOUT_BEYOND_STALL
}

/// In the extensions of a 101 response: what was the connection ends when this is cancelled.
#[derive(Clone, Debug, Default)]
pub struct Tunnel(pub CancellationToken);

tokio::task_local! {
    /// Signals of the HTTP/2 stream that the current task serves.
    static SIGNALS: StreamSignals;
}

/// Signals of a response to the listener.
#[derive(Clone, Debug)]
struct StreamSignals {
    /// End the response.
    kill: KillSwitch,
    /// How far its body has been taken. HTTP/2 only.
    taking: Option<Arc<Taking>>,
}

/// Accepts connections until [`Serving::stopped`] is cancelled.
pub async fn accept_loop<H: Handler>(mut acceptor: Acceptor, serving: Serving, handler: H) {
    let serving = Arc::new(serving);
    loop {
        // Both arms are cancel-safe.
        let (socket, permit) = tokio::select! {
            () = serving.stopped.cancelled() => return,
            next = acceptor.next() => next,
        };
        socket::configure(&socket, serving.user_timeout.get());
        let address = socket.peer_addr().ok().map(|peer| peer.ip().to_canonical());
        let peer = Peer { address, is_tls: serving.tls.is_some() };
        let accepted = Accepted::new(&serving, &handler, peer, permit);
        acceptor.opened(&accepted.phase, &accepted.kill);
        match &serving.tls {
            None => serving.tracker.spawn(serve_stream(H::hold(socket), accepted)),
            Some(tls) => serving.tracker.spawn(serve_tls(socket, Arc::clone(tls), accepted)),
        };
    }
}

/// An accepted connection: what serves it, and the guards that it holds until it closes.
struct Accepted<H: Handler> {
    serving: Arc<Serving>,
    handler: H,
    phase: Arc<ConnectionPhase>,
    kill: KillSwitch,
    /// Of its certificate (mutual TLS).
    client: Option<ClientNames>,
    address: Option<IpAddr>,
    _permit: OwnedSemaphorePermit,
    connection: H::Connection,
}

impl<H: Handler> Accepted<H> {
    fn new(serving: &Arc<Serving>, handler: &H, peer: Peer, _permit: OwnedSemaphorePermit) -> Self {
        let panics = serving.panics.clone();
        Self {
            serving: Arc::clone(serving),
            handler: handler.clone(),
            phase: Arc::new(ConnectionPhase::new(serving.clock, serving.clock.now(), panics)),
            kill: KillSwitch::default(),
            client: None,
            address: peer.address,
            _permit,
            connection: handler.opened(peer),
        }
    }
}

async fn serve_tls<H: Handler>(socket: TcpStream, tls: Arc<TlsSlot>, mut accepted: Accepted<H>) {
    let limits = &accepted.serving.limits;
    // The first head is due from accept, so a handshake cannot take longer than that.
    let bound = limits.tls_handshake_timeout.min(limits.header_timeout);
    let client = socket.peer_addr().ok().map(|peer| peer.to_string());
    let handler = accepted.handler.clone();
    let failed = |fault: HandshakeFault, error: &dyn std::fmt::Display| {
        handler.handshake_failed(fault);
        match fault {
            // Health checks of load balancers connect and leave.
            HandshakeFault::Closed => tracing::debug!(client, %error, "tls handshake failed"),
            _ => tracing::warn!(client, reason = fault.as_str(), "tls handshake failed: {error}"),
        }
    };
    let handshake = tokio::time::timeout(bound, async {
        if clear_text::begins(&socket).await? { Ok(Err(socket)) } else { tls.accept(socket).await.map(Ok) }
    });
    let Some(shaken) = accepted.serving.cut_off.run_until_cancelled(handshake).await else { return };
    match shaken {
        Ok(Ok(Ok(stream))) => {
            accepted.client = ClientNames::of(&stream);
            if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                accepted.phase.agree_http2();
            }
            serve_stream(H::hold(stream), accepted).await;
        }
        Ok(Ok(Err(socket))) => {
            let refusal = accepted.handler.reject(HeadFault::ClearText);
            let _ = tokio::time::timeout(bound, clear_text::refuse(socket, &refusal)).await;
        }
        Ok(Err(error)) => failed(HandshakeFault::of(&error), &error),
        Err(_) => failed(HandshakeFault::Timeout, &format_args!("no handshake within {bound:?}")),
    }
}

/// Serves one connection to its end. Its task is this one future: each level of futures around it would cost every
/// event of its streams a cache line.
async fn serve_stream<H: Handler, S: ClientStream>(stream: S, accepted: Accepted<H>) {
    let Accepted { serving, handler, phase, kill, client, address, _permit, connection: shared } = accepted;
    let rejecting = handler.clone();
    let explain = Arc::new(move |fault| rejecting.reject(fault));
    let go_on = ContinueSignal::default();
    let timeout = serving.user_timeout.clone();
    let io = TokioIo::new(PhaseIo::new(stream, Arc::clone(&phase), explain, go_on.clone(), timeout.clone()));
    let connection_kill = Arc::clone(&kill);
    let (service_phase, continuing) = (Arc::clone(&phase), go_on.clone());
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        let (busy, handler) = (ConnectionPhase::request(&service_phase), handler.clone());
        let kill = Arc::clone(&connection_kill);
        if request.version() == Version::HTTP_2 && request.headers().contains_key(header::EXPECT) {
            request.extensions_mut().insert(continuing.clone());
        }
        if let Some(names) = &client {
            request.extensions_mut().insert(names.clone());
        }
        let shared = shared.clone();
        // Boxed: hyper keeps room for the future, not only while it runs but as long as the connection is open.
        Box::pin(async move {
            // Per stream over HTTP/2, per connection over HTTP/1.1. In here, because this runs in the stream's task.
            let signals =
                SIGNALS.try_with(StreamSignals::clone).unwrap_or(StreamSignals { kill, taking: None });
            let asked = Asked { version: request.version(), is_head: request.method() == Method::HEAD };
            let mut response = if busy.is_ambiguous() {
                handler.refuse(HeadFault::Ambiguous)
            } else {
                let answered = catching(pin!(handler.handle(request, signals.kill, &shared))).await;
                answered.unwrap_or_else(|_| {
                    busy.note_panic();
                    handler.panicked()
                })
            };
            if let Some(tunnel) = response.extensions_mut().remove::<Tunnel>() {
                busy.becomes(tunnel);
            }
            if response.headers().get(header::CONNECTION).is_some_and(|value| value == "close") {
                busy.last();
            }
            let end = asked.end_guard(&response, &busy);
            let is_left_out = asked.leaves_body_out();
            Ok::<_, Infallible>(
                response.map(|body| BusyBody::new(body, is_left_out, busy, signals.taking, end)),
            )
        })
    });
    let streams = StreamExecutor { tracker: serving.tracker.clone(), limits: serving.limits, timeout };
    // Owned: borrowed, the builder would stay as long as the connection does, which needs it for its first bytes only.
    let connection = builder(streams).serve_connection_with_upgrades(io, service).into_owned();
    let connection = pin!(connection);
    let mut connection = PolledAgain::new(connection);
    // A connection accepted after the drain delay gets a 503, which closes it.
    let mut announced = Announced { goaway: false, close: serving.closing.is_cancelled() };
    loop {
        let mut interruption =
            IndependentlyWoken::new(interruption(&serving, &phase, &kill, &go_on, announced));
        let happened = poll_fn(|cx| match connection.poll(cx, || phase.is_polled()) {
            Poll::Ready(ended) => {
                let _ = ended.inspect_err(|error| mishaps::note_flood(&**error, address));
                Poll::Ready(Interruption::End)
            }
            Poll::Pending => interruption.poll(cx),
        });
        match happened.await {
            Interruption::End => break,
            Interruption::GoAway => announced.goaway = true,
            Interruption::Close => announced.close = true,
            // Polled again, the connection flushes, which adds the frame or looks after the client.
            Interruption::Continue | Interruption::Look => continue,
        }
        connection.inner().graceful_shutdown();
    }
    mishaps::note_tls(&serving, &phase, address);
    if phase.is_cut() && !serving.cut_off.is_cancelled() {
        // A reset overtakes what is under way: let the error event arrive first.
        tokio::time::sleep(BEFORE_RESET).await;
    }
    if let Some(tunnel) = phase.tunnel() {
        // An open connection to its client all the while: it counts as one. Boxed: few connections become a tunnel.
        let _ = Box::pin(serving.cut_off.run_until_cancelled(tunnel.0.cancelled())).await;
    }
}

/// What the framing of a response depends on.
#[derive(Clone, Copy)]
struct Asked {
    version: Version,
    is_head: bool,
}

impl Asked {
    /// What hyper does itself over HTTP/1.1: an answer to HEAD has the length of its body, but no body (RFC 9110 §9.3.2).
    fn leaves_body_out(self) -> bool {
        self.is_head && self.version == Version::HTTP_2
    }

    /// HTTP/1.0 has no chunks: a body without a length ends with its connection, and a broken one must not.
    fn end_guard<B: hyper::body::Body>(self, response: &Response<B>, busy: &Busy) -> EndGuard {
        let has_length = response.headers().contains_key(header::CONTENT_LENGTH);
        let is_open_ended = !has_length && response.body().size_hint().exact().is_none();
        if self.version == Version::HTTP_10 && is_open_ended && !self.is_head {
            busy.ends_with_connection()
        } else {
            EndGuard::default()
        }
    }
}

/// Steps of the drain that were announced to a connection.
#[derive(Clone, Copy)]
struct Announced {
    goaway: bool,
    close: bool,
}

/// What ends or drains a connection from outside.
enum Interruption {
    /// It was killed, or a deadline of its phase passed.
    End,
    /// The drain began: a GOAWAY over HTTP/2; HTTP/1.1 responses carry `connection: close`.
    GoAway,
    /// The drain delay is over.
    Close,
    /// A client over HTTP/2 waits for `100 Continue`.
    Continue,
    /// It is time to see whether the client of a long request is still there.
    Look,
}

async fn interruption(
    serving: &Serving,
    phase: &ConnectionPhase,
    kill: &KillSwitch,
    go_on: &ContinueSignal,
    announced: Announced,
) -> Interruption {
    let overdue = async {
        while let Some(at) = phase.next_check(&serving.limits) {
            // Both arms only wait.
            let is_due = tokio::select! {
                () = tokio::time::sleep_until(serving.clock.instant(at)) => true,
                () = phase.pipelined() => false,
            };
            phase.catch_up(at);
            if is_due && phase.is_to_be_looked_at() {
                return Interruption::Look;
            }
        }
        Interruption::End
    };
    let goaway = async {
        serving.draining.cancelled().await;
        // A client that waits for the settings before it asks would take a connection with a GOAWAY for none.
        phase.asked_over_http2().await;
    };
    let close = async {
        serving.closing.cancelled().await;
        if phase.is_unread() {
            // Its first request may be on the way, which no client sends again: that gets its 503.
            tokio::time::sleep(FIRST_REQUEST).await;
        }
    };
    // Every arm only waits, so all are cancel-safe.
    tokio::select! {
        () = kill.cancelled() => Interruption::End,
        () = serving.cut_off.cancelled() => Interruption::End,
        next = overdue => next,
        () = go_on.wanted() => Interruption::Continue,
        () = goaway, if !announced.goaway => Interruption::GoAway,
        () = close, if !announced.close => Interruption::Close,
    }
}

/// A PING waits behind what the client has not read, and is answered by one that reads: as long as the socket waits for it.
fn builder(streams: StreamExecutor) -> auto::Builder<StreamExecutor> {
    let (is_behind_proxy, user_timeout) = (streams.limits.is_behind_proxy, streams.timeout.get());
    let mut builder = auto::Builder::new(streams);
    builder
        .http1()
        .timer(TokioTimer::new())
        // `ConnectionPhase` counts from the first byte of a head; hyper's timer would also close idle connections.
        .header_read_timeout(None)
        // At most 100 headers: hyper's own bound, which costs a table on the heap only where it is stated.
        .max_buf_size(BUFFER);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(if is_behind_proxy { u32::MAX } else { MAX_STREAMS })
        .max_header_list_size(MAX_HEADER_LIST)
        .initial_stream_window_size(if is_behind_proxy { PROXIED_STREAM_WINDOW } else { STREAM_WINDOW })
        .initial_connection_window_size(if is_behind_proxy { PROXY_WINDOW } else { CONNECTION_WINDOW })
        .max_send_buf_size(BUFFER)
        .max_pending_accept_reset_streams(Some(if is_behind_proxy { usize::MAX } else { MAX_RESETS }))
        .max_local_error_reset_streams((!is_behind_proxy).then_some(MAX_STREAM_ERRORS))
        .keep_alive_interval(Some(Duration::from_secs(20)))
        .keep_alive_timeout(user_timeout);
    builder
}

/// Spawns a task per HTTP/2 stream, each with its own signals: dropping the task resets that stream only.
#[derive(Clone, Debug)]
struct StreamExecutor {
    tracker: TaskTracker,
    /// `keep_alive` is for the client to take the rest of a response once hyper has all of it, `timeout` while there may be more.
    /// (Over HTTP/1.1 the socket has them; here other streams keep the connection busy.)
    limits: ConnectionLimits,
    timeout: UserTimeout,
}

impl<F> hyper::rt::Executor<F> for StreamExecutor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let (kill, taking) = (KillSwitch::default(), Arc::new(Taking::default()));
        let signals = StreamSignals { kill: Arc::clone(&kill), taking: Some(Arc::clone(&taking)) };
        let (timeout, keep_alive) = (self.timeout.clone(), self.limits.keep_alive);
        self.tracker.spawn(SIGNALS.scope(signals, async move {
            // The first to complete ends the task.
            tokio::select! {
                () = kill.cancelled() => {}
                () = taking.stalled(&timeout, keep_alive) => {}
                _ = stream => {}
            }
        }));
    }
}

const BUFFER: usize = 64 * 1024;
const MAX_HEADER_LIST: u32 = 32 * 1024;
/// Of one connection at a time, which may be that of a proxy with many clients. Costs memory only where streams are open.
const MAX_STREAMS: u32 = 4096;
/// Bytes of an upload that a client may send ahead, on a stream and on all of a connection: so much goes up in a round trip.
const STREAM_WINDOW: u32 = 256 * 1024;
/// A proxy is near, and all its clients' streams may be open at once.
const PROXIED_STREAM_WINDOW: u32 = 64 * 1024;
/// h2 ends a connection, with all that a proxy's clients have there, once the overhead of unread small frames is half of its window: here
/// 32,000 of a byte. It is also what a connection may make us keep unread: 64 uploads that wait for memory leave no other one a window.
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
/// The most that there is: what each stream may send ahead bounds it.
const PROXY_WINDOW: u32 = (1 << 31) - 1;
/// Streams that were reset before a read of the connection was over: more than a proxy's clients are that leave at once.
const MAX_RESETS: usize = MAX_STREAMS as usize;
/// Streams that h2 refuses or resets while a connection lives, half a kilobyte each if the peer reads none of the resets. Bytes that come
/// for a stream after its refusal count, and a proxy's connection lives for weeks.
const MAX_STREAM_ERRORS: usize = 65_536;
/// Within it a first request has come that was on the way.
const FIRST_REQUEST: Duration = Duration::from_secs(1);
const USER_TIMEOUT_BEYOND_STALL: Duration = Duration::from_secs(15);
const BEFORE_RESET: Duration = Duration::from_millis(100);
