//! Builds every part once and wires them; owns the order of start and shutdown.
//!
//! [`App`] is the data path with its fleet, [`process::Running`] that and what stands around it: observers, admin
//! port, reload, signals. Tests, the demo and `serve` all start here, so what is tested is what runs.

mod budgets;
mod control;
pub mod foundation;
mod keeping;
pub mod launch;
pub mod logging;
mod memory_limit;
pub mod observers;
pub mod open_files;
pub mod process;
mod salt_key;
pub mod signals;
mod usage;

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use thiserror::Error;

use self::foundation::Foundation;
use self::launch::Front;
use self::observers::ObserversError;
use self::salt_key::settle_salts;
use crate::background::{boxed, boxed_until, until};
use crate::clock::{Clock, since_epoch};
use crate::cluster;
use crate::config::Config;
use crate::epp::EndpointPicker;
use crate::fleet::registry::Fleet;
use crate::gateway::hook::Hook;
use crate::gateway::table::{CarriedOver, RoutingTable};
use crate::gateway::{Gateway, Service};
use crate::identity;
use crate::kv_events;
use crate::listener::tls::{TlsError, TlsSlot, expiry};
use crate::listener::{self, Acceptor, Boxed, ConnectionLimit, ConnectionLimits, Serving, UserTimeout};
use crate::observe::Observer;

/// The running data path: listener, gateway, fleet.
#[derive(Debug)]
pub struct App {
    /// Turns requests into responses.
    pub gateway: Arc<Gateway>,
    /// Pools and replicas; probes and scrapes run.
    pub fleet: Arc<Fleet>,
    /// Bound address of the data port.
    pub data: SocketAddr,
    /// How connections are served, and what ends them.
    pub serving: Serving,
    /// What is cached where, for the next start; `None` where nothing is kept, or a broker keeps it.
    snapshot: Option<Arc<cluster::Snapshot>>,
    /// The state files are ours until the end.
    _claim: Option<File>,
}

/// Why a gateway cannot start.
#[expect(missing_docs, reason = "the messages are it")]
#[derive(Debug, Error)]
pub enum StartError {
    #[error("cannot listen on {addr} ({key}): {source}{}", hint(source))]
    Listen { key: &'static str, addr: SocketAddr, source: io::Error },
    #[error("certificates: {0}")]
    Tls(#[from] TlsError),
    #[error("upstream tls: {0}")]
    UpstreamTls(#[from] rustls::Error),
    #[error("telemetry: {0}")]
    Telemetry(#[from] ObserversError),
}

impl App {
    /// Starts gateway, watchdog and accept loop.
    pub fn on(foundation: Foundation, observer: Arc<Observer>) -> Self {
        let Foundation { fleet, carried_over, config, clock, background, pools, keys, front, .. } =
            foundation;
        let Foundation { tls, socket, data, connector, broker, topics, stopped, claim, .. } = foundation;
        note_expiry(&observer, &config, clock);
        let hook = config
            .hook
            .as_ref()
            .map(|hook| Hook::start(hook, connector.separate(), &observer.metrics, &background, &stopped));
        let plain = connector.separate();
        let refreshing = identity::refresh_keys(Arc::clone(&carried_over.tokens), connector);
        background.spawn_until(&stopped, refreshing);
        let tracker = background.tasks.clone();
        let memory = memory_limit::fitting_body_memory(&config);
        let table = RoutingTable::new(Arc::clone(&config), pools, carried_over);
        let gateway = Gateway { hook, ..Gateway::new(table, observer, memory, tracker.clone()) };
        let gateway = Arc::new(gateway);
        let instance = budgets::restore(&gateway, claim.is_some());
        let deps = cluster::Deps {
            fleet: Arc::clone(&fleet),
            gateway: Arc::clone(&gateway),
            topics,
            keys,
            instance,
            connector: broker,
            background: background.clone(),
            stopped: stopped.clone(),
        };
        // ZeroMQ has no TLS.
        kv_events::start(cluster::Deps { connector: plain, ..deps.clone() });
        let snapshot = keeping::share(&config, deps);
        usage::restore(&gateway);
        keeping::start(&gateway, &background, &stopped);
        let panics = gateway.observer.metrics.families.process.panics.clone();
        let limits = ConnectionLimits::new(&config);
        let timeout = UserTimeout::new(listener::user_timeout(&config));
        let serving = Serving::new(limits, timeout, clock, tracker.clone(), stopped.clone(), panics);
        let serving = Serving { tls, ..serving };
        let limit = ConnectionLimit {
            connections: open_files::fitting_connections(&config),
            name: "server.max_connections",
            waiting: Some(gateway.observer.metrics.families.process.connections_waiting.clone()),
            closes_idle: false,
        };
        let acceptor = Acceptor::new(socket, limit, clock);
        let degrading = crate::gateway::degrade::watch(Arc::clone(&gateway));
        tracker.spawn(boxed_until(&stopped, degrading));
        tracker.spawn(boxed_until(&stopped, Arc::clone(&gateway.watchdog).run()));
        accept(front, &gateway, acceptor, serving.clone());
        Self { gateway, fleet, data, serving, snapshot, _claim: claim }
    }

    /// Puts another checked configuration in force. Streams go on; replicas that stay configured keep what was
    /// learned about them. The listen address and most limits of connections stay as they were at start.
    ///
    /// # Errors
    /// When its certificates cannot be read: then nothing changes.
    pub fn reload(&self, config: Arc<Config>) -> Result<(), TlsError> {
        let tls = config.server.tls.as_ref().filter(|tls| !tls.is_removed);
        tls.map(TlsSlot::load).transpose()?;
        self.fleet.secure(&config)?;
        if let (Some(slot), Some(tls)) = (&self.serving.tls, tls) {
            slot.reload(tls)?;
        }
        note_expiry(&self.gateway.observer, &config, self.gateway.clock);
        self.serving.user_timeout.set(listener::user_timeout(&config));
        let CarriedOver { tokens, salt_key, .. } = self.gateway.table.load().carried_over.clone();
        tokens.configure(config.jwt.as_ref());
        settle_salts(&salt_key, &config);
        let pools = self.fleet.apply(&config);
        let table = Arc::new(self.gateway.table.load().next(config, pools));
        let before = Arc::downgrade(&self.gateway.table.swap(Arc::clone(&table)));
        self.gateway.table_changed.notify_one();
        if table.is_interim() {
            let table = Arc::downgrade(&table);
            let end = move || table.upgrade().iter().for_each(|table| table.end_interim());
            self.fleet.after_hand_over(self.serving.closing.clone(), end);
        }
        let (gateway, closing) = (Arc::downgrade(&self.gateway), self.serving.closing.clone());
        let is_interim = move || {
            let gateway = gateway.upgrade().filter(|_| !closing.is_cancelled());
            gateway.is_some_and(|gateway| gateway.table.load().is_interim())
        };
        self.fleet.retire_dropped(move || before.strong_count() > 0 || is_interim());
        Ok(())
    }

    /// Reports not ready from now on; still serves.
    pub fn begin_drain(&self) {
        self.gateway.drain.begin();
        self.serving.draining.cancel();
    }

    /// [`App::drain_within`], with time for slow clients to take the rest of their answers.
    pub async fn drain(&self, delay: Duration) {
        self.drain_within(delay, Duration::from_secs(2)).await;
    }

    /// Drains and stops: serves for `delay` while not ready, then refuses new requests while streams run to their
    /// end, for at most `server.drain_timeout`; then ends those left with error events. What then is still being written
    /// has `grace`.
    pub async fn drain_within(&self, delay: Duration, grace: Duration) {
        self.begin_drain();
        tokio::time::sleep(delay).await;
        self.gateway.drain.refuse();
        self.serving.closing.cancel();
        let timeout = self.gateway.table.load().config.server.drain_timeout;
        if !self.requests_end_within(timeout).await {
            let left = self.gateway.requests.load(Ordering::Relaxed);
            tracing::warn!(left, "drain_timeout passed: ending what still runs");
            self.gateway.watchdog.end_drain();
            self.requests_end_within(ERROR_EVENT_GRACE).await;
        }
        self.stop(grace).await;
    }

    /// [`App::stop_within`], with time for a slow disk.
    pub async fn stop(&self, grace: Duration) {
        self.stop_within(grace, STATES_GRACE).await;
    }

    /// Stops accepting and closes every connection: idle ones at once, others when what they write is written, at the
    /// latest after `grace`. Then states are written, which takes `states` at most.
    pub async fn stop_within(&self, grace: Duration, states: Duration) {
        let Serving { tracker, closing, stopped, cut_off, .. } = &self.serving;
        closing.cancel();
        stopped.cancel();
        self.fleet.retire();
        tracker.close();
        if tokio::time::timeout(grace, tracker.wait()).await.is_err() {
            let left = self.gateway.requests.load(Ordering::Relaxed);
            if left > 0 {
                tracing::warn!(left, "closing every connection: ending what still runs");
            }
            self.gateway.observer.cut_off();
            cut_off.cancel();
            // Dropping takes no time, but the records of what was cut are to be counted.
            let _ = tokio::time::timeout(DROP_GRACE, tracker.wait()).await;
        }
        self.gateway.observer.settle();
        let (gateway, snapshot) = (Arc::clone(&self.gateway), self.snapshot.clone());
        let keeping = tokio::task::spawn_blocking(move || {
            budgets::keep(&gateway);
            usage::keep(&gateway);
            if let Some(snapshot) = snapshot {
                snapshot.keep();
            }
        });
        if tokio::time::timeout(states, keeping).await.is_err() {
            tracing::warn!(
                "the disk of the state files does not answer: what changed in the last half minute is lost"
            );
        }
    }

    async fn requests_end_within(&self, limit: Duration) -> bool {
        let are_over = || self.gateway.requests.load(Ordering::Relaxed) == 0;
        until(limit, Duration::from_millis(20), are_over).await
    }
}

/// Accepts connections of clients, or of Envoy, once replicas have been probed: until then each request would be refused. Who connects
/// meanwhile waits in the socket's backlog.
fn accept(front: Front, gateway: &Arc<Gateway>, acceptor: Acceptor, mut serving: Serving) {
    let (tracker, gateway) = (gateway.tasks.clone(), Arc::clone(gateway));
    let (stop, probed) = (serving.draining.clone(), first_probes(Arc::clone(&gateway)));
    let probed = async move {
        let _ = stop.run_until_cancelled(probed).await;
    };
    tracker.spawn(match front {
        Front::OpenAi => boxed(async {
            probed.await;
            listener::accept_loop(acceptor, serving, Service(gateway)).await;
        }),
        Front::EndpointPicker => {
            // Envoy keeps its connections, and closing one that it is about to use fails a request.
            serving.limits.keep_alive = PROXY_KEEP_ALIVE;
            serving.limits.is_behind_proxy = true;
            boxed(async {
                probed.await;
                listener::accept_loop(acceptor, serving, Boxed::new(EndpointPicker::new(gateway))).await;
            })
        }
    });
}

/// Until every route takes requests, at most [`FIRST_PROBES`].
async fn first_probes(gateway: Arc<Gateway>) {
    let is_probed = || gateway.table.load().routes.iter().all(|route| route.takes_requests());
    until(FIRST_PROBES, LOOK_EVERY, is_probed).await;
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "; another process has this port: stop it or choose another address",
        io::ErrorKind::PermissionDenied => "; ports below 1024 need a privilege: choose a higher one",
        io::ErrorKind::AddrNotAvailable => "; this machine has no such address",
        _ => "",
    }
}

/// Exports when the data port's certificate expires, and says which of ours has.
fn note_expiry(observer: &Observer, config: &Config, clock: Clock) {
    let now = clock.wall(clock.now());
    let served = config.server.tls.as_ref().and_then(|tls| {
        let at = since_epoch(expiry(&tls.cert)?);
        Some((tls.cert.to_string_lossy(), at))
    });
    observer.metrics.set_certificate(served.as_ref().map(|(file, at)| (&**file, *at)));
    let of_pools = config.pools.iter().filter_map(|pool| Some(&pool.tls.as_ref()?.identity.as_ref()?.cert));
    for cert in config.server.tls.iter().map(|tls| &tls.cert).chain(of_pools) {
        if expiry(cert).is_some_and(|at| at <= now) {
            tracing::warn!(file = %cert.display(), "this certificate has expired: renew its file");
        }
    }
}

/// For the error events of streams that the end of the drain cut.
const ERROR_EVENT_GRACE: Duration = Duration::from_secs(2);
/// Some hours are worth more than an exit within half a second, where the disk is slow.
const STATES_GRACE: Duration = Duration::from_secs(5);
const DROP_GRACE: Duration = Duration::from_millis(50);
/// A probe of an idle engine takes milliseconds, of a busy one some hundred; one that loads its model longer than anybody would wait.
const FIRST_PROBES: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(5);
const PROXY_KEEP_ALIVE: Duration = Duration::from_secs(24 * 3600);
