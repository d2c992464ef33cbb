//! Connection pool of one replica.
//!
//! Our own, because existing pools have no limit per host, no drain per replica, and race a new connection against an
//! idle one ([0001](../../docs/decisions/0001-own-connection-pool.md)). LIFO, so that surplus connections age out; bounded
//! by a semaphore, so that one replica cannot take all file descriptors (a reload changes the bound); idle connections are closed before the engine's
//! keep-alive ends.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::connect::Connector;
use super::http1::Connection;
use crate::clock::{AtomicStamp, Clock, Stamp};
use crate::config::Endpoint;

/// Idle and leased connections to one replica.
#[derive(Debug)]
pub struct ConnectionPool {
    endpoint: Endpoint,
    connector: Connector,
    clock: Clock,
    idle: Mutex<Vec<Idle>>,
    limit: Arc<Semaphore>,
    max: AtomicUsize,
    /// Permits in use that are not given back: the limit was lowered meanwhile.
    surplus: AtomicUsize,
    open: AtomicU64,
    /// What its name led to when that was looked at last.
    addresses: Mutex<Arc<[IpAddr]>>,
    /// Connections that were opened before take no further request.
    outdated: AtomicStamp,
}

/// Why no connection could be leased.
#[derive(Debug)]
pub enum CheckoutError {
    /// The pool's limit was reached until the deadline.
    NoFree,
    /// Connecting was not done by the deadline.
    Timeout,
    Io(io::Error),
}

impl ConnectionPool {
    /// An empty pool.
    pub fn new(endpoint: Endpoint, connector: Connector, clock: Clock, max_connections: usize) -> Arc<Self> {
        let limit = Arc::new(Semaphore::new(max_connections));
        Arc::new(Self {
            endpoint,
            connector,
            clock,
            idle: Mutex::new(Vec::new()),
            limit,
            max: AtomicUsize::new(max_connections),
            surplus: AtomicUsize::new(0),
            open: AtomicU64::new(0),
            addresses: Mutex::new(Arc::default()),
            outdated: AtomicStamp::new(Stamp::default()),
        })
    }

    /// Changes the limit. Connections in use beyond a lower one stay until their requests end.
    pub fn set_limit(&self, max_connections: usize) {
        let before = self.max.swap(max_connections, Ordering::AcqRel);
        if let Some(more) = max_connections.checked_sub(before) {
            let repaid = (0..more).take_while(|_| self.repay()).count();
            self.limit.add_permits(more - repaid);
        } else {
            let fewer = before - max_connections;
            let free = self.limit.forget_permits(fewer);
            self.surplus.fetch_add(fewer - free, Ordering::AcqRel);
        }
    }

    fn repay(&self) -> bool {
        let less = |surplus: usize| surplus.checked_sub(1);
        self.surplus.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok()
    }

    /// Leases the most recently used idle connection, else a new one.
    ///
    /// # Errors
    /// [`CheckoutError`] at `deadline` or when connecting fails.
    pub async fn checkout(self: &Arc<Self>, deadline: Instant) -> Result<Lease, CheckoutError> {
        let permit = self.permit(deadline).await?;
        if let Some(Idle { connection, opened, .. }) = self.take_idle() {
            return Ok(self.lease(connection, opened, permit));
        }
        // Boxed because it is rare and its state would be most of every request's future.
        Box::pin(self.connected(permit, deadline)).await
    }

    /// A new connection, whatever is idle: the engine may be about to close that.
    ///
    /// # Errors
    /// [`CheckoutError`] at `deadline` or when connecting fails.
    pub async fn fresh(self: &Arc<Self>, deadline: Instant) -> Result<Lease, CheckoutError> {
        let permit = self.permit(deadline).await?;
        self.connected(permit, deadline).await
    }

    async fn connected(
        self: &Arc<Self>,
        permit: OwnedSemaphorePermit,
        deadline: Instant,
    ) -> Result<Lease, CheckoutError> {
        let opened = self.clock.now();
        match timeout_at(deadline, self.connector.connect(&self.endpoint)).await {
            Ok(Ok(connection)) => {
                self.open.fetch_add(1, Ordering::Relaxed);
                Ok(self.lease(Box::new(connection), opened, permit))
            }
            Ok(Err(error)) => Err(CheckoutError::Io(error)),
            Err(_) => Err(CheckoutError::Timeout),
        }
    }

    async fn permit(&self, deadline: Instant) -> Result<OwnedSemaphorePermit, CheckoutError> {
        if let Ok(permit) = Arc::clone(&self.limit).try_acquire_owned() {
            return Ok(permit);
        }
        Box::pin(timeout_at(deadline, Arc::clone(&self.limit).acquire_owned()))
            .await
            .ok()
            .and_then(Result::ok)
            .ok_or(CheckoutError::NoFree)
    }

    /// Closes all idle connections, and those in use behind their requests.
    pub fn drain(&self) {
        self.outdated.store(self.clock.now());
        self.idle.lock().drain(..).for_each(|idle| self.close(idle.connection));
    }

    /// Closes connections idle for longer than [`IDLE_BELOW_ENGINE_KEEP_ALIVE`], and all where their name leads to an address no more.
    pub fn reap(&self) {
        if self.has_moved() {
            return self.drain();
        }
        let now = self.clock.now();
        let mut idle = self.idle.lock();
        idle.extract_if(.., |idle| !idle.is_fresh(now)).for_each(|idle| self.close(idle.connection));
    }

    fn has_moved(&self) -> bool {
        let Some(addresses) = self.connector.addresses(&self.endpoint.host) else { return false };
        let before = std::mem::replace(&mut *self.addresses.lock(), Arc::clone(&addresses));
        before.iter().any(|address| !addresses.contains(address))
    }

    /// Where its connections lead: of a name the address that was looked up last.
    pub fn address(&self) -> Option<SocketAddr> {
        let host = self.connector.known_address(&self.endpoint.host)?;
        Some(SocketAddr::new(host, self.endpoint.port))
    }

    /// Number of open connections, idle and leased.
    pub fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    fn take_idle(&self) -> Option<Idle> {
        let now = self.clock.now();
        loop {
            let mut idle = self.idle.lock().pop()?;
            if idle.is_fresh(now) && idle.connection.is_alive() {
                return Some(idle);
            }
            self.close(idle.connection);
        }
    }

    fn lease(
        self: &Arc<Self>,
        connection: Box<Connection>,
        opened: Stamp,
        permit: OwnedSemaphorePermit,
    ) -> Lease {
        let place = Place { pool: Arc::clone(self), permit: Some(permit), stays_open: false };
        Lease { connection, opened, place }
    }

    fn close(&self, connection: Box<Connection>) {
        drop(connection);
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection in use. Dropped without [`Lease::give_back`] it is closed at once, which makes the engine abort the
/// request.
#[derive(Debug)]
pub struct Lease {
    pub connection: Box<Connection>,
    opened: Stamp,
    // Behind it: the place is free once the connection is closed.
    place: Place,
}

/// A connection's place in the limit of its pool.
#[derive(Debug)]
struct Place {
    pool: Arc<ConnectionPool>,
    permit: Option<OwnedSemaphorePermit>,
    stays_open: bool,
}

impl Lease {
    /// Returns the connection to the pool, if its answer was read to the end and it can take another request. Idle ones count against the
    /// pool's limit, too: beyond it the oldest goes.
    pub fn give_back(self) {
        let Self { connection, opened, mut place } = self;
        if !connection.is_reusable() || opened < place.pool.outdated.load() {
            return drop(connection);
        }
        place.stays_open = true;
        let pool = &place.pool;
        let since = pool.clock.now();
        let is_too_many = pool.open() > pool.max.load(Ordering::Relaxed) as u64;
        let mut idle = pool.idle.lock();
        idle.push(Idle { connection, opened, since });
        if is_too_many {
            let oldest = idle.remove(0);
            pool.close(oldest.connection);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.stays_open {
            self.pool.open.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(permit) = self.permit.take()
            && self.pool.repay()
        {
            permit.forget();
        }
    }
}

#[derive(Debug)]
struct Idle {
    connection: Box<Connection>,
    opened: Stamp,
    since: Stamp,
}

impl Idle {
    fn is_fresh(&self, now: Stamp) -> bool {
        now.since(self.since) < IDLE_BELOW_ENGINE_KEEP_ALIVE
    }
}

// uvicorn closes idle connections after exactly 5 s; staying below it avoids the race of our request with its FIN.
const IDLE_BELOW_ENGINE_KEEP_ALIVE: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio_util::task::TaskTracker;

    use super::*;

    #[tokio::test]
    async fn connections_leave_an_address_that_their_name_has_left() {
        let old = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = old.local_addr().unwrap().port();
        let new = TcpListener::bind(("127.0.0.2", port)).await.unwrap();
        let connector = Connector::new(TaskTracker::new()).unwrap();
        let host: Arc<str> = "engine.test".into();
        let leads_to = |address: [u8; 4]| connector.set_addresses(&host, Arc::new([IpAddr::from(address)]));
        leads_to([127, 0, 0, 1]);
        let endpoint = Endpoint { is_tls: false, host: Arc::clone(&host), port, base_path: "".into() };
        let clock = Clock::start();
        let pool = ConnectionPool::new(endpoint, connector.clone(), clock, 8);
        let deadline = clock.instant(clock.now().after(Duration::from_secs(5)));
        let lease = async || pool.checkout(deadline).await.unwrap();
        let (first, second) = (lease().await, lease().await);
        let _ends = (old.accept().await.unwrap(), old.accept().await.unwrap());
        first.give_back();
        pool.reap();
        assert_eq!(pool.open(), 2, "nothing has changed");
        leads_to([127, 0, 0, 2]);
        pool.reap();
        assert_eq!(pool.open(), 1, "what is idle goes at once");
        second.give_back();
        assert_eq!(pool.open(), 0, "what is in use goes behind its request");
        let _third = lease().await;
        new.accept().await.unwrap();
    }
}
