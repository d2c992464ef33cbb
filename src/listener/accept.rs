//! Accepting connections: how many, and what happens at a limit.
//!
//! Past `server.max_connections` clients wait in the socket's backlog, and without file descriptors no connection is
//! accepted: both look like a hang from outside, so both are logged, once a minute. A port that must answer closes idle connections
//! instead.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::IntGauge;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::KillSwitch;
use super::phase::ConnectionPhase;
use crate::clock::{AtomicStamp, Clock};

/// Binds a port with `SO_REUSEADDR`, for quick restarts.
///
/// # Errors
/// Error of `bind` or `listen`, mostly that the port is in use.
pub fn bind(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// How many connections a port has at a time.
#[derive(Debug)]
pub struct ConnectionLimit {
    /// The number.
    pub connections: usize,
    /// Where it is set, for the log.
    pub name: &'static str,
    /// 1 while it is reached.
    pub waiting: Option<IntGauge>,
    /// Whether a connection without a request makes room for the next one, the longest idle first.
    pub closes_idle: bool,
}

/// Accepts connections up to a limit.
#[derive(Debug)]
pub struct Acceptor {
    listener: TcpListener,
    free: Arc<Semaphore>,
    limit: ConnectionLimit,
    /// Open connections with what closes them.
    open: Mutex<Vec<(Weak<ConnectionPhase>, KillSwitch)>>,
    clock: Clock,
    full_logged: AtomicStamp,
    failure_logged: AtomicStamp,
    failures: u32,
}

impl Acceptor {
    /// Accepts connections of a port; the clock is for its log lines.
    pub fn new(listener: TcpListener, limit: ConnectionLimit, clock: Clock) -> Self {
        let free = Arc::new(Semaphore::new(limit.connections));
        let [full_logged, failure_logged] = Default::default();
        Self {
            listener,
            free,
            limit,
            open: Mutex::default(),
            clock,
            full_logged,
            failure_logged,
            failures: 0,
        }
    }

    /// A connection was opened, which may have to make room.
    pub(super) fn opened(&self, phase: &Arc<ConnectionPhase>, kill: &KillSwitch) {
        if self.limit.closes_idle {
            let mut open = self.open.lock();
            open.retain(|(phase, _)| phase.strong_count() > 0);
            open.push((Arc::downgrade(phase), Arc::clone(kill)));
        }
    }

    /// The next connection and its permit. Cancel-safe: both are returned or neither is taken.
    pub async fn next(&mut self) -> (TcpStream, OwnedSemaphorePermit) {
        let permit = self.permit().await;
        loop {
            match self.listener.accept().await {
                Ok((socket, _)) => {
                    self.failures = 0;
                    return (socket, permit);
                }
                Err(error) => self.failed(&error).await,
            }
        }
    }

    async fn permit(&mut self) -> OwnedSemaphorePermit {
        if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
            return permit;
        }
        if self.limit.closes_idle {
            return self.permit_of_idlest().await;
        }
        if self.full_logged.is_due(LOG_EVERY, self.clock.now()) {
            tracing::warn!(
                limit = self.limit.connections,
                "all connections of {} are taken: further ones wait",
                self.limit.name
            );
        }
        let _waiting = self.limit.waiting.as_ref().map(Raised::new);
        Arc::clone(&self.free).acquire_owned().await.expect("invariant: the semaphore is never closed")
    }

    async fn permit_of_idlest(&self) -> OwnedSemaphorePermit {
        loop {
            self.close_idlest();
            // Where none is idle, one may be soon.
            let permit = tokio::time::timeout(CLOSE_EVERY, Arc::clone(&self.free).acquire_owned());
            if let Ok(Ok(permit)) = permit.await {
                return permit;
            }
        }
    }

    fn close_idlest(&self) {
        let open = self.open.lock();
        let idle = open.iter().filter_map(|(phase, kill)| Some((phase.upgrade()?.idle_since()?, kill)));
        if let Some((_, kill)) = idle.filter(|(_, kill)| !kill.is_cancelled()).min_by_key(|(since, _)| *since)
        {
            kill.cancel();
        }
    }

    /// EMFILE and the like persist for a while: do not spin, and do not fill the log.
    async fn failed(&mut self, error: &io::Error) {
        self.failures = self.failures.saturating_add(1);
        if self.failure_logged.is_due(LOG_EVERY, self.clock.now()) {
            tracing::warn!(%error, "cannot accept connections: they wait");
        }
        tokio::time::sleep((FIRST_BACK_OFF * self.failures).min(MAX_BACK_OFF)).await;
    }
}

/// Sets a gauge to 1 while it lives.
struct Raised(IntGauge);

impl Raised {
    fn new(gauge: &IntGauge) -> Self {
        gauge.set(1);
        Self(gauge.clone())
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        self.0.set(0);
    }
}

const BACKLOG: i32 = 4096;
const CLOSE_EVERY: Duration = Duration::from_millis(50);
const LOG_EVERY: Duration = Duration::from_secs(60);
const FIRST_BACK_OFF: Duration = Duration::from_millis(10);
const MAX_BACK_OFF: Duration = Duration::from_millis(500);
