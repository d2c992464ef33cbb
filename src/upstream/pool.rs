//! A small connection pool of one replica.
//!
//! Own, because the ready-made pools have no limit per host, no drain per replica and race a new connection
//! against an idle one (see `docs/decisions`). LIFO, so that the warmest connection is used and the others age
//! out; bounded by a semaphore, because one replica's trouble must not eat all file descriptors; idle for less
//! than the engine's keep-alive, because a request must not meet a FIN.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::connect::{Connection, Connector};
use crate::clock::{Clock, Stamp};
use crate::config::Endpoint;

/// Connections to one replica.
#[derive(Debug)]
pub struct ConnectionPool {
    endpoint: Endpoint,
    connector: Connector,
    clock: Clock,
    idle: Mutex<Vec<Idle>>,
    limit: Arc<Semaphore>,
    open: AtomicU64,
}

/// Why there is no connection.
#[derive(Debug)]
pub enum CheckoutError {
    /// All were taken until the deadline.
    NoFree,
    /// Connecting took until the deadline.
    Timeout,
    /// Connecting failed.
    Io(io::Error),
}

impl ConnectionPool {
    /// An empty pool.
    #[must_use]
    pub fn new(endpoint: Endpoint, connector: Connector, clock: Clock, max_connections: usize) -> Arc<Self> {
        let limit = Arc::new(Semaphore::new(max_connections));
        Arc::new(Self {
            endpoint,
            connector,
            clock,
            idle: Mutex::new(Vec::new()),
            limit,
            open: AtomicU64::new(0),
        })
    }

    /// A ready connection: the most recently used idle one, else a new one.
    ///
    /// # Errors
    /// [`CheckoutError`] when none could be had before `deadline`.
    pub async fn checkout(self: &Arc<Self>, deadline: Instant) -> Result<Lease, CheckoutError> {
        let permit = match Arc::clone(&self.limit).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => Box::pin(timeout_at(deadline, Arc::clone(&self.limit).acquire_owned()))
                .await
                .ok()
                .and_then(Result::ok)
                .ok_or(CheckoutError::NoFree)?,
        };
        while let Some(mut connection) = self.take_idle() {
            if is_usable(&mut connection).await {
                return Ok(self.lease(connection, permit));
            }
            self.forget(&connection);
        }
        // Boxed: it is rare, and its state would be most of what every request's future carries around.
        match Box::pin(timeout_at(deadline, self.connector.connect(&self.endpoint))).await {
            Ok(Ok(connection)) => {
                self.open.fetch_add(1, Ordering::Relaxed);
                Ok(self.lease(connection, permit))
            }
            Ok(Err(error)) => Err(CheckoutError::Io(error)),
            Err(_) => Err(CheckoutError::Timeout),
        }
    }

    /// Closes what is idle: the replica is gone or going.
    pub fn drain(&self) {
        for idle in self.idle.lock().drain(..) {
            self.forget(&idle.connection);
        }
    }

    /// Closes what has been idle for too long; called now and then by the replica's scraper.
    pub fn reap(&self) {
        let now = self.clock.now();
        let mut old = Vec::new();
        self.idle.lock().retain_mut(|idle| {
            let keep = idle.is_fresh(now);
            if !keep {
                old.push(idle.connection.task.clone());
            }
            keep
        });
        for task in old {
            task.abort();
            self.open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Open connections, idle ones included.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    fn take_idle(&self) -> Option<Connection> {
        let now = self.clock.now();
        loop {
            let idle = self.idle.lock().pop()?;
            if idle.is_fresh(now) && !idle.connection.sender.is_closed() {
                return Some(idle.connection);
            }
            self.forget(&idle.connection);
        }
    }

    fn lease(self: &Arc<Self>, connection: Connection, permit: OwnedSemaphorePermit) -> Lease {
        Lease { connection: Some(connection), pool: Arc::clone(self), _permit: permit }
    }

    fn forget(&self, connection: &Connection) {
        connection.task.abort();
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection in use. Dropped without [`Lease::give_back`] it is closed at once, which is what makes the
/// engine stop working on a request that nobody waits for.
#[derive(Debug)]
pub struct Lease {
    connection: Option<Connection>,
    pool: Arc<ConnectionPool>,
    _permit: OwnedSemaphorePermit,
}

impl Lease {
    /// The connection.
    pub fn connection(&mut self) -> Option<&mut Connection> {
        self.connection.as_mut()
    }

    /// Returns the connection to the pool: only after the response was read to its end.
    pub fn give_back(mut self) {
        let Some(connection) = self.connection.take() else { return };
        if connection.sender.is_closed() {
            self.pool.forget(&connection);
            return;
        }
        let since = self.pool.clock.now();
        self.pool.idle.lock().push(Idle { connection, since });
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.pool.forget(&connection);
        }
    }
}

/// Whether hyper is done with the last exchange. The end of an answer reaches its reader a moment before the
/// connection is ready again; one that stays busy (an answer that came before its request was taken) is given up.
async fn is_usable(connection: &mut Connection) -> bool {
    connection.sender.is_ready()
        || matches!(Box::pin(tokio::time::timeout(SETTLE, connection.sender.ready())).await, Ok(Ok(())))
}

#[derive(Debug)]
struct Idle {
    connection: Connection,
    since: Stamp,
}

impl Idle {
    fn is_fresh(&self, now: Stamp) -> bool {
        now.since(self.since) < IDLE_BELOW_ENGINE_KEEP_ALIVE
    }
}

const SETTLE: Duration = Duration::from_millis(20);

// uvicorn closes idle connections after exactly 5 s; staying below it avoids the reuse race in which our
// request meets its FIN.
const IDLE_BELOW_ENGINE_KEEP_ALIVE: Duration = Duration::from_secs(4);
