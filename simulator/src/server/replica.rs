//! One simulated replica: listener, engine, faults, and the handle that callers hold.
//!
//! A replica may die and come back at the same address: what ends with the process hangs on a [`Life`], what outlives it
//! on the [`Replica`].

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::engine::{Engine, EngineStats};
use crate::time::{Clock, Stamp};

use super::config::SimConfig;
use super::driver::Driver;
use super::faults::{Applied, Fault, FaultBoard, FaultKind};
use super::request_log::{RequestLog, SimStats};
use super::wire;

/// Starts a replica at `addr` (port 0 takes a free one). It runs until `shutdown`.
///
/// # Errors
/// The address cannot be listened on.
pub async fn start(
    config: SimConfig,
    addr: SocketAddr,
    tracker: &TaskTracker,
    shutdown: CancellationToken,
) -> io::Result<SimReplica> {
    let listener = TcpListener::bind(addr).await?;
    let clock = Clock::start();
    let driver = Driver::new(Engine::new(config.engine.clone(), config.seed), clock);
    tracker.spawn(driver.clone().run(shutdown.clone()));
    let replica = Arc::new(Replica {
        addr: listener.local_addr()?,
        faults: Mutex::new(FaultBoard::new(config.seed)),
        config,
        driver,
        seen: Arc::default(),
        is_dead: AtomicBool::new(false),
        next_id: AtomicU64::new(0),
        met: Mutex::default(),
        started: Mutex::new(clock.now()),
        life: Mutex::new(Life::new(&shutdown)),
        clock,
        tracker: tracker.clone(),
        shutdown,
    });
    replica.listen(listener);
    Ok(SimReplica(replica))
}

/// Handle of a running replica.
#[derive(Clone)]
pub struct SimReplica(Arc<Replica>);

impl SimReplica {
    /// `http://ADDRESS:PORT`
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.0.addr)
    }

    /// Address of the listener.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.0.addr
    }

    /// Injects a fault. When this returns, a listener that has to close is closed.
    pub async fn set_fault(&self, fault: Fault) {
        self.0.set_fault(fault).await;
    }

    /// Clears all faults; a listener that was closed is opened again.
    ///
    /// # Errors
    /// The address cannot be listened on again.
    pub async fn clear_faults(&self) -> io::Result<()> {
        self.0.clear_faults().await
    }

    /// Requests that arrived.
    #[must_use]
    pub fn stats(&self) -> SimStats {
        self.0.seen.stats()
    }

    /// Counters and gauges of its engine.
    #[must_use]
    pub fn engine_stats(&self) -> EngineStats {
        self.0.driver.stats()
    }

    /// Ends the process and starts a new one at the same address: no faults, an empty cache.
    ///
    /// # Errors
    /// The address cannot be listened on again.
    pub async fn restart(&self) -> io::Result<()> {
        self.0.end_process().await;
        self.0.clear_faults().await
    }
}

/// What ends with the simulated process.
#[derive(Clone)]
pub(super) struct Life {
    /// Canceled: the listener closes.
    pub(super) accepting: CancellationToken,
    /// Canceled: every connection is dropped.
    pub(super) connections: CancellationToken,
    /// Canceled: connections close when they are idle.
    pub(super) closing: CancellationToken,
    /// Canceled by the accept loop when the listener is closed.
    pub(super) closed: CancellationToken,
}

impl Life {
    fn new(shutdown: &CancellationToken) -> Self {
        Self {
            accepting: shutdown.child_token(),
            connections: shutdown.child_token(),
            closing: CancellationToken::new(),
            closed: CancellationToken::new(),
        }
    }
}

/// The shared state behind the handle.
pub(super) struct Replica {
    pub(super) config: SimConfig,
    pub(super) driver: Arc<Driver>,
    pub(super) seen: Arc<RequestLog>,
    faults: Mutex<FaultBoard>,
    is_dead: AtomicBool,
    next_id: AtomicU64,
    /// Ports of the replicas from which KV has come.
    met: Mutex<HashSet<u16>>,
    started: Mutex<Stamp>,
    life: Mutex<Life>,
    addr: SocketAddr,
    clock: Clock,
    pub(super) tracker: TaskTracker,
    shutdown: CancellationToken,
}

impl Replica {
    pub(super) async fn set_fault(self: &Arc<Self>, fault: Fault) {
        match fault.kind {
            FaultKind::Crash => self.end_process().await,
            FaultKind::Refuse => self.close_listener().await,
            FaultKind::Sigterm => {
                self.driver.freeze();
                let closing = self.life.lock().closing.clone();
                closing.cancel();
                self.close_listener().await;
            }
            FaultKind::Freeze => self.driver.freeze(),
            FaultKind::Slow => self.driver.set_slowdown(fault.factor),
            _ => self.faults.lock().set(fault.clone()),
        }
        if let Some(duration) = fault.duration_ms {
            let replica = self.clone();
            self.tracker.spawn(async move {
                let lasts = tokio::time::sleep(Duration::from_millis(duration));
                // Both arms are cancel-safe and hold nothing.
                tokio::select! {
                    () = replica.shutdown.cancelled() => return,
                    () = lasts => {}
                }
                if let Err(error) = replica.clear_fault(fault.kind).await {
                    tracing::warn!(%error, addr = %replica.addr, "the simulated replica cannot listen again");
                }
            });
        }
    }

    /// Clears one kind of fault.
    pub(super) async fn clear_fault(self: &Arc<Self>, kind: FaultKind) -> io::Result<()> {
        self.faults.lock().clear(kind);
        match kind {
            FaultKind::Freeze => self.driver.thaw(),
            FaultKind::Slow => self.driver.set_slowdown(1.0),
            FaultKind::Refuse => return self.listen_again(false).await,
            FaultKind::Crash | FaultKind::Sigterm => return self.listen_again(true).await,
            FaultKind::EngineDeath => self.is_dead.store(false, Ordering::Release),
            _ => {}
        }
        Ok(())
    }

    /// Clears all faults.
    pub(super) async fn clear_faults(self: &Arc<Self>) -> io::Result<()> {
        self.faults.lock().clear_all();
        self.driver.set_slowdown(1.0);
        let is_new = {
            let life = self.life.lock();
            life.connections.is_cancelled() || life.closing.is_cancelled()
        };
        if !is_new {
            self.driver.thaw();
        }
        self.is_dead.store(false, Ordering::Release);
        self.listen_again(is_new).await
    }

    /// The faults that the next request meets.
    pub(super) fn draw_faults(&self, own: Option<Fault>) -> Applied {
        self.faults.lock().draw(own)
    }

    /// The engine core is gone: its streams get an error event, later requests a 500.
    pub(super) fn die(&self) {
        self.is_dead.store(true, Ordering::Release);
        self.driver.reset();
    }

    pub(super) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Acquire)
    }

    /// An id for a request that brings none: the same for the n-th request under the same seed.
    pub(super) fn fresh_id(&self) -> String {
        let nth = self.next_id.fetch_add(1, Ordering::Relaxed);
        let mixed = (self.config.seed ^ nth.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        format!("{:016x}", mixed ^ (mixed >> 31))
    }

    pub(super) fn port(&self) -> u16 {
        self.addr.port()
    }

    /// Notes a replica that KV comes from; whether it is the first time.
    pub(super) fn meets(&self, port: u16) -> bool {
        self.met.lock().insert(port)
    }

    pub(super) fn unix_time(&self) -> u64 {
        self.since_epoch(self.clock.now()).as_secs()
    }

    /// When the process started, in Unix seconds.
    pub(super) fn started(&self) -> f64 {
        let started = *self.started.lock();
        self.since_epoch(started).as_secs_f64()
    }

    fn since_epoch(&self, stamp: Stamp) -> Duration {
        let wall: SystemTime = self.clock.wall(stamp);
        wall.duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    fn listen(self: &Arc<Self>, listener: TcpListener) {
        let life = self.life.lock().clone();
        self.tracker.spawn(wire::accept(self.clone(), listener, life));
    }

    /// Opens the listener if it is closed; `is_new` where a new process replaces one that died.
    async fn listen_again(self: &Arc<Self>, is_new: bool) -> io::Result<()> {
        if !self.life.lock().accepting.is_cancelled() {
            return Ok(());
        }
        let listener = TcpListener::bind(self.addr).await?;
        {
            let mut life = self.life.lock();
            let before = std::mem::replace(&mut *life, Life::new(&self.shutdown));
            if is_new {
                before.connections.cancel();
                self.driver.reset();
                *self.started.lock() = self.clock.now();
            } else {
                life.connections = before.connections;
            }
        }
        self.listen(listener);
        Ok(())
    }

    async fn close_listener(&self) {
        let life = self.life.lock().clone();
        life.accepting.cancel();
        life.closed.cancelled().await;
    }

    async fn end_process(&self) {
        self.life.lock().connections.cancel();
        self.close_listener().await;
        self.driver.reset();
    }
}
