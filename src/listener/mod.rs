//! The data listener: accepts connections and serves HTTP/1.1 and HTTP/2 on them.
//!
//! HTTP/2 comes by ALPN under TLS and by prior knowledge in clear text. Every wait is bounded: the handshake,
//! a head from its first byte, the time between requests. What becomes of a request is not decided here.

mod aside;
mod farewell;
pub mod phase;
pub mod refused;
pub mod tls;

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, header};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::aside::Aside;
use self::phase::{ConnectionPhase, PhaseIo};
use self::refused::HeadFault;
use self::tls::TlsSlot;
use crate::clock::Clock;
use crate::config::Server;

/// Ends one response from outside: its connection (HTTP/1.1) or its stream (HTTP/2).
pub type KillSwitch = Arc<CancellationToken>;

/// What answers requests. One call per request, on the connection's task (HTTP/1.1) or the stream's (HTTP/2).
pub trait Answer: Clone + Send + Sync + 'static {
    /// Body of the responses.
    type Body: http_body::Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + 'static;

    /// Answers one request, whose response `kill` ends from outside. Infallible: a failure is a response.
    fn answer(
        &self,
        request: Request<Incoming>,
        kill: KillSwitch,
    ) -> impl Future<Output = Response<Self::Body>> + Send;

    /// Answers what never became a request: its head could not be read.
    fn refuse(&self, fault: HeadFault) -> Response<Bytes>;

    /// A connection was opened; the value is kept until it closes.
    fn opened(&self) -> Box<dyn Send>;
}

/// Everything that an accept loop needs.
#[derive(Clone, Debug)]
pub struct Serving {
    /// Timeouts and limits.
    pub limits: Limits,
    /// TLS, reloadable; `None` is clear text.
    pub tls: Option<Arc<TlsSlot>>,
    /// Time.
    pub clock: Clock,
    /// Holds every connection's task.
    pub tracker: TaskTracker,
    /// Drain began: HTTP/2 connections get a GOAWAY.
    pub draining: CancellationToken,
    /// The delay is over: idle connections close.
    pub closing: CancellationToken,
}

/// Limits of `[server]` that the listener enforces.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    header_timeout: Duration,
    keep_alive: Duration,
    tls_handshake_timeout: Duration,
    max_connections: usize,
}

impl From<&Server> for Limits {
    fn from(server: &Server) -> Self {
        Self {
            header_timeout: server.header_timeout,
            keep_alive: server.keep_alive,
            tls_handshake_timeout: server.tls_handshake_timeout,
            max_connections: server.max_connections.get(),
        }
    }
}

tokio::task_local! {
    /// Those of the HTTP/2 stream whose task this is.
    static SIGNALS: Signals;
}

/// What the listener and a response tell each other.
#[derive(Clone, Debug)]
struct Signals {
    /// To the listener: end it.
    kill: KillSwitch,
    /// To the listener: hyper has all of it, only the client is waited for. HTTP/2 only.
    handed: Option<Arc<CancellationToken>>,
}

/// Binds the port. `SO_REUSEADDR` for quick restarts; with `is_shared` also `SO_REUSEPORT`, so that several
/// processes or accept loops can share it.
///
/// # Errors
/// What the operating system said, mostly that the port is in use.
pub fn bind(addr: SocketAddr, is_shared: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if is_shared {
        socket.set_reuse_port(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Accepts connections until `stop`.
pub async fn accept_loop<A: Answer>(
    listener: TcpListener,
    serving: Serving,
    answer: A,
    stop: CancellationToken,
) {
    let free = Arc::new(Semaphore::new(serving.limits.max_connections));
    loop {
        // Both arms are cancel-safe.
        let (socket, permit) = tokio::select! {
            () = stop.cancelled() => return,
            next = next_connection(&listener, &free) => next,
        };
        let accepted = Accepted::new(&serving, &answer, permit);
        // A first event must not wait for Nagle.
        let _ = socket.set_nodelay(true);
        match &serving.tls {
            None => serving.tracker.spawn(serve_stream(socket, accepted)),
            Some(tls) => serving.tracker.spawn(serve_tls(socket, Arc::clone(tls), accepted)),
        };
    }
}

/// What one connection is served with, and what it holds until it closes.
struct Accepted<A> {
    serving: Serving,
    answer: A,
    phase: Arc<ConnectionPhase>,
    _permit: Option<OwnedSemaphorePermit>,
    _open: Box<dyn Send>,
}

impl<A: Answer> Accepted<A> {
    fn new(serving: &Serving, answer: &A, permit: Option<OwnedSemaphorePermit>) -> Self {
        Self {
            serving: serving.clone(),
            answer: answer.clone(),
            phase: Arc::new(ConnectionPhase::new(serving.clock, serving.clock.now())),
            _permit: permit,
            _open: answer.opened(),
        }
    }
}

/// The next connection and its permit of `free`. Cancel-safe: either is returned or not taken.
pub async fn next_connection(
    listener: &TcpListener,
    free: &Arc<Semaphore>,
) -> (TcpStream, Option<OwnedSemaphorePermit>) {
    // Past the limit the backlog waits; the semaphore is never closed.
    let permit = Arc::clone(free).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((socket, _)) => return (socket, permit),
            Err(error) => {
                // EMFILE and its like stay for a while: do not spin.
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(ACCEPT_BACK_OFF).await;
            }
        }
    }
}

async fn serve_tls<A: Answer>(socket: TcpStream, tls: Arc<TlsSlot>, accepted: Accepted<A>) {
    let limits = &accepted.serving.limits;
    // The first head is due from accept, so a handshake cannot take longer than that.
    let bound = limits.tls_handshake_timeout.min(limits.header_timeout);
    match tokio::time::timeout(bound, tls.accept(socket)).await {
        Ok(Ok(stream)) => serve_stream(stream, accepted).await,
        Ok(Err(error)) => tracing::debug!(%error, "tls handshake failed"),
        Err(_) => tracing::debug!("tls handshake timed out"),
    }
}

/// The life of a connection. The whole task is this one future: each level of futures around it would cost every event
/// of its streams a cache line.
async fn serve_stream<A, S>(stream: S, accepted: Accepted<A>)
where
    A: Answer,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Accepted { serving, answer, phase, _permit, _open } = accepted;
    let refusing = answer.clone();
    let explain = Arc::new(move |fault| refusing.refuse(fault));
    let io = TokioIo::new(PhaseIo::new(stream, Arc::clone(&phase), explain));
    let kill = KillSwitch::default();
    let connection_kill = Arc::clone(&kill);
    let service_phase = Arc::clone(&phase);
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (busy, answer) = (ConnectionPhase::request(&service_phase), answer.clone());
        let kill = Arc::clone(&connection_kill);
        async move {
            // The stream's own over HTTP/2, the connection's over HTTP/1.1.
            let signals = SIGNALS.try_with(Signals::clone).unwrap_or(Signals { kill, handed: None });
            let response = answer.answer(request, signals.kill).await;
            if response.headers().contains_key(header::CONNECTION) {
                busy.last();
            }
            Ok::<_, Infallible>(response.map(|body| phase::BusyBody::new(body, busy, signals.handed)))
        }
    });
    let builder =
        builder(StreamExecutor { tracker: serving.tracker.clone(), linger: serving.limits.keep_alive });
    let connection = builder.serve_connection(io, service);
    tokio::pin!(connection);
    // A connection that comes after the delay is served its 503, and closed by that response.
    let mut left = Left { goaway: false, close: serving.closing.is_cancelled() };
    loop {
        let mut aside = Aside::new(interruption(&serving, &phase, &kill, left));
        let happened = poll_fn(|cx| match connection.as_mut().poll(cx) {
            Poll::Ready(_) => Poll::Ready(Interruption::End),
            Poll::Pending => aside.poll(cx),
        });
        match happened.await {
            Interruption::End => return,
            Interruption::GoAway => left.goaway = true,
            Interruption::Close => left.close = true,
        }
        connection.as_mut().graceful_shutdown();
    }
}

/// What a connection was told already.
#[derive(Clone, Copy)]
struct Left {
    goaway: bool,
    close: bool,
}

/// What happens to a connection from outside.
enum Interruption {
    /// It is killed, or a bound passed.
    End,
    /// The drain began: HTTP/2 is told now, HTTP/1.1 by `connection: close`.
    GoAway,
    /// The delay is over.
    Close,
}

async fn interruption(
    serving: &Serving,
    phase: &ConnectionPhase,
    kill: &KillSwitch,
    left: Left,
) -> Interruption {
    let bounds = serving.limits.into();
    let overdue = async {
        while let Some(at) = phase.next_check(&bounds) {
            tokio::time::sleep_until(serving.clock.instant(at)).await;
        }
    };
    let leave = async {
        serving.draining.cancelled().await;
        phase.http2().await;
    };
    // Every arm only waits; which of them was first is all that is told.
    tokio::select! {
        () = kill.cancelled() => Interruption::End,
        () = overdue => Interruption::End,
        () = leave, if !left.goaway => Interruption::GoAway,
        () = serving.closing.cancelled(), if !left.close => Interruption::Close,
    }
}

impl From<Limits> for phase::Bounds {
    fn from(limits: Limits) -> Self {
        Self { header: limits.header_timeout, idle: limits.keep_alive }
    }
}

fn builder(streams: StreamExecutor) -> auto::Builder<StreamExecutor> {
    let mut builder = auto::Builder::new(streams);
    builder
        .http1()
        .timer(TokioTimer::new())
        // Ours counts from the first byte of a head; hyper's would also close idle connections.
        .header_read_timeout(None)
        .max_headers(MAX_HEADERS)
        .max_buf_size(BUFFER);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_LIST)
        .max_send_buf_size(BUFFER)
        .max_pending_accept_reset_streams(Some(MAX_RESETS))
        .max_local_error_reset_streams(Some(MAX_RESETS))
        .keep_alive_interval(Some(Duration::from_secs(20)))
        .keep_alive_timeout(Duration::from_secs(20));
    builder
}

/// Spawns the tasks of HTTP/2 streams, each with signals of its own: dropping such a task resets its stream and
/// leaves the others alone.
#[derive(Clone, Debug)]
struct StreamExecutor {
    tracker: TaskTracker,
    /// For the client to take what is left of an answer that hyper has whole. (Over HTTP/1.1 `keep_alive` runs
    /// from there by itself; here it cannot, because other streams keep the connection busy.)
    linger: Duration,
}

impl<F> hyper::rt::Executor<F> for StreamExecutor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let (kill, handed) = (KillSwitch::default(), Arc::new(CancellationToken::new()));
        let signals = Signals { kill: Arc::clone(&kill), handed: Some(Arc::clone(&handed)) };
        let linger = self.linger;
        let lingered = async move {
            handed.cancelled().await;
            tokio::time::sleep(linger).await;
        };
        self.tracker.spawn(SIGNALS.scope(signals, async move {
            // Whichever comes first ends the task.
            tokio::select! {
                () = kill.cancelled() => {}
                () = lingered => {}
                _ = stream => {}
            }
        }));
    }
}

const BACKLOG: i32 = 4096;
const BUFFER: usize = 64 * 1024;
const MAX_HEADERS: usize = 100;
const MAX_HEADER_LIST: u32 = 32 * 1024;
const MAX_STREAMS: u32 = 250;
const MAX_RESETS: usize = 100;
const ACCEPT_BACK_OFF: Duration = Duration::from_millis(50);
