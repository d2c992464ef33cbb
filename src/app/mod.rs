//! Builds every part once and wires them; owns the order of start and shutdown.
//!
//! Start: TLS files, sockets, fleet (its probes run from here on), watchdog, accept loops. Shutdown: not ready,
//! then refusing, then streams run out, then telemetry is flushed. Tests, the demo and `serve` all go through
//! here, so what is tested is what runs.

pub mod logging;
pub mod observers;
pub mod process;
pub mod signals;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::HeaderValue;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::observers::ObserversError;
use crate::clock::Clock;
use crate::config::Config;
use crate::fleet::registry::Fleet;
use crate::gateway::table::Table;
use crate::gateway::{Gateway, Service};
use crate::listener::tls::{TlsError, TlsSlot};
use crate::listener::{self, Limits, Serving};
use crate::observe::Observer;
use crate::relay::watch::Watchdog;
use crate::request::body::BodyMemory;
use crate::upstream::budget::RetryBudget;
use crate::upstream::connect::Connector;

/// A running gateway.
#[derive(Debug)]
pub struct App {
    /// The line.
    pub gateway: Arc<Gateway>,
    /// The replicas.
    pub fleet: Arc<Fleet>,
    /// Where the data port listens.
    pub data: SocketAddr,
    tls: Option<Arc<TlsSlot>>,
    tracker: TaskTracker,
    draining: CancellationToken,
    closing: CancellationToken,
    stop: CancellationToken,
}

/// Why a gateway cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The data port.
    #[error("cannot listen on {addr} (server.listen): {source}{}", hint(source))]
    Listen {
        /// Where.
        addr: SocketAddr,
        /// What the operating system said.
        source: io::Error,
    },
    /// The admin port.
    #[error("cannot listen on {addr} (admin.listen): {source}{}", hint(source))]
    AdminListen {
        /// Where.
        addr: SocketAddr,
        /// What the operating system said.
        source: io::Error,
    },
    /// Certificates.
    #[error("server.tls: {0}")]
    Tls(#[from] TlsError),
    /// The TLS provider of upstream connections.
    #[error("upstream tls: {0}")]
    UpstreamTls(#[from] rustls::Error),
    /// An observer.
    #[error("telemetry: {0}")]
    Telemetry(#[from] ObserversError),
}

impl App {
    /// Starts a gateway on the current runtime; probes and scrapes run on `control`, so that they answer while the
    /// data path is saturated.
    ///
    /// # Errors
    /// [`StartError`] with what to mend; nothing keeps running then.
    pub fn start(
        config: Arc<Config>,
        observer: Arc<Observer>,
        clock: Clock,
        control: Handle,
    ) -> Result<Self, StartError> {
        let tls = config.server.tls.as_ref().map(TlsSlot::load).transpose()?;
        let addr = config.server.listen;
        let socket = listener::bind(addr, false).map_err(|source| StartError::Listen { addr, source })?;
        let data = socket.local_addr().map_err(|source| StartError::Listen { addr, source })?;
        let tracker = TaskTracker::new();
        let fleet = Arc::new(Fleet::new(Connector::new(tracker.clone())?, clock, tracker.clone(), control));
        let pools = fleet.apply(&config);
        let watchdog = Watchdog::new(clock);
        let gateway = Arc::new(Gateway {
            clock,
            memory: BodyMemory::new(config.server.body_memory),
            explained: crate::gateway::explained::Explained::default(),
            retries: RetryBudget::new(&config.retry, clock.now()),
            table: ArcSwap::from_pointee(Table::new(Arc::clone(&config), pools)),
            observer,
            watchdog: Arc::clone(&watchdog),
            pins: Arc::default(),
            via: pseudonym(),
            drain: crate::gateway::DrainFlag::default(),
            requests: Arc::default(),
            tasks: tracker.clone(),
        });
        let app = Self {
            gateway,
            fleet,
            data,
            tls,
            tracker,
            draining: CancellationToken::new(),
            closing: CancellationToken::new(),
            stop: CancellationToken::new(),
        };
        app.accept(socket, &config, watchdog);
        Ok(app)
    }

    fn accept(&self, socket: TcpListener, config: &Config, watchdog: Arc<Watchdog>) {
        let serving = Serving {
            limits: Limits::from(&config.server),
            tls: self.tls.clone(),
            clock: self.gateway.clock,
            tracker: self.tracker.clone(),
            draining: self.draining.clone(),
            closing: self.closing.clone(),
        };
        let service = Service(Arc::clone(&self.gateway));
        let stop = self.stop.clone();
        self.tracker.spawn(listener::accept_loop(socket, serving, service, stop.clone()));
        self.tracker.spawn(async move { stop.run_until_cancelled(watchdog.run()).await });
    }

    /// Puts another checked configuration in force. Streams go on; replicas that are named again keep all that
    /// was learned of them. The listen address and the limits of connections stay as they were at start.
    ///
    /// # Errors
    /// When its certificates cannot be read: then nothing changes.
    pub fn reload(&self, config: Arc<Config>) -> Result<(), TlsError> {
        if let (Some(slot), Some(tls)) = (&self.tls, &config.server.tls) {
            slot.reload(tls)?;
        }
        let pools = self.fleet.apply(&config);
        self.gateway.table.store(Arc::new(Table::new(config, pools)));
        Ok(())
    }

    /// Not ready from now on; still serving.
    pub fn begin_drain(&self) {
        self.gateway.drain.begin();
        self.draining.cancel();
    }

    /// Drains and stops: `delay` of serving while not ready, then refusing while streams run out until the
    /// configured timeout, then error events for those that are left.
    pub async fn drain(&self, delay: Duration) {
        self.begin_drain();
        tokio::time::sleep(delay).await;
        self.gateway.drain.refuse();
        self.closing.cancel();
        let timeout = self.gateway.table.load().config.server.drain_timeout;
        if tokio::time::timeout(timeout, self.requests_ended()).await.is_err() {
            let left = self.gateway.requests.load(Ordering::Relaxed);
            tracing::warn!(left, "drain_timeout passed: ending what still runs");
            self.gateway.watchdog.end_drain();
            let _ = tokio::time::timeout(LAST_WORDS, self.requests_ended()).await;
        }
        self.stop_now().await;
    }

    /// Stops accepting and closes everything; bounded.
    pub async fn stop_now(&self) {
        self.closing.cancel();
        self.stop.cancel();
        self.fleet.retire();
        self.tracker.close();
        let _ = tokio::time::timeout(LAST_WORDS, self.tracker.wait()).await;
    }

    async fn requests_ended(&self) {
        while self.gateway.requests.load(Ordering::Relaxed) > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// This process' name in `Via`: unlike any other's, so that only a real loop looks like one.
fn pseudonym() -> HeaderValue {
    let name = format!("1.1 tokenway-{:08x}", fastrand::u32(..));
    HeaderValue::from_str(&name).unwrap_or_else(|_| HeaderValue::from_static("1.1 tokenway"))
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "; another process has this port: stop it or choose another address",
        io::ErrorKind::PermissionDenied => "; ports below 1024 need a privilege: choose a higher one",
        io::ErrorKind::AddrNotAvailable => "; this machine has no such address",
        _ => "",
    }
}

const LAST_WORDS: Duration = Duration::from_secs(2);
