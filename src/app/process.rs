//! Runs a gateway for as long as the process lives: runtimes, ports, reload, signals, shutdown.
//!
//! Two runtimes: the data path has one worker per core, telemetry, probes and the admin port have a small one of
//! their own, so that they answer while the data path is saturated and can never stall it.

use std::io;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::logging::LogFilter;
use super::observers::Observers;
use super::signals::{self, Signal};
use super::{App, StartError};
use crate::admin::{self, AdminState, Control, Readiness};
use crate::clock::Clock;
use crate::config::load::{ConfigError, Source, load};
use crate::config::reload::{reload, watch_file};
use crate::config::{Config, Overrides};
use crate::fleet::status::{PoolCalibration, ReplicaStatus};
use crate::listener;
use crate::observe::metrics::BuildInfo;
use crate::observe::spans::Background;
use crate::observe::{Surroundings, Tap};

/// Why the gateway did not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Ports, certificates.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A runtime or the signal handlers.
    #[error("cannot start: {0}")]
    Io(#[from] io::Error),
}

/// What a gateway is started from.
pub struct Launch {
    /// Where the configuration is.
    pub source: Source,
    /// What wins over it.
    pub overrides: Overrides,
    /// The log's filter.
    pub log: LogFilter,
}

/// The two runtimes.
#[derive(Debug)]
pub struct Runtimes {
    /// The data path's.
    pub data: Runtime,
    /// Of everything else.
    pub control: Runtime,
}

impl Runtimes {
    /// Starts both.
    ///
    /// # Errors
    /// When threads cannot be started.
    pub fn start() -> io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        // On one core nothing can be stolen, and the queues of work stealing cost some 15 % of a request.
        let mut data = if cores == 1 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
        let data = data.thread_name("data").enable_all().build()?;
        let control =
            Builder::new_multi_thread().worker_threads(1).thread_name("control").enable_all().build()?;
        Ok(Self { data, control })
    }

    /// Ends both within a bound.
    pub fn end(self) {
        self.data.shutdown_timeout(LAST_WORDS);
        self.control.shutdown_timeout(LAST_WORDS);
    }
}

/// Runs `tokenway serve` to its end.
///
/// # Errors
/// [`RunError`] when it cannot start; what happens afterwards is logged.
pub fn serve(launch: Launch) -> Result<(), RunError> {
    let config = Arc::new(load(&launch.source, &launch.overrides, &from_env)?);
    // A stream holds two descriptors; the soft limit of most systems is 1,024.
    let files = rlimit::increase_nofile_limit(u64::MAX).unwrap_or(0);
    let runtimes = Runtimes::start()?;
    let result = runtimes.data.block_on(async {
        let running = Running::start(launch, config, &runtimes, None)?;
        running.announce(files);
        running.until_told().await?;
        Ok(())
    });
    runtimes.end();
    result
}

/// A running gateway with its admin port.
pub struct Running {
    /// The gateway.
    pub app: Arc<App>,
    /// Its observers.
    pub observers: Observers,
    /// Where the admin port listens.
    pub admin: std::net::SocketAddr,
    launch: Arc<Launch>,
    control: Arc<Controls>,
    stop_admin: CancellationToken,
    tracker: TaskTracker,
}

/// What the admin port may do to the gateway.
struct Controls {
    app: Arc<App>,
    observers: Observers,
    launch: Arc<Launch>,
    config: ArcSwap<Config>,
    one_at_a_time: Mutex<()>,
    drain: Notify,
}

impl Running {
    /// Starts observers, gateway and admin port.
    ///
    /// # Errors
    /// [`StartError`] with what to mend.
    pub fn start(
        launch: Launch,
        config: Arc<Config>,
        runtimes: &Runtimes,
        tap: Option<Arc<dyn Tap>>,
    ) -> Result<Self, StartError> {
        let (clock, tracker) = (Clock::start(), TaskTracker::new());
        let control_runtime = runtimes.control.handle().clone();
        let build = BuildInfo {
            version: env!("CARGO_PKG_VERSION"),
            revision: option_env!("TOKENWAY_BUILD_REVISION").unwrap_or("unknown"),
        };
        let background = Background { runtime: control_runtime.clone(), tasks: tracker.clone() };
        let observers = Observers::start(&config, Surroundings { clock, build, background }, tap)?;
        let addr = config.admin.listen;
        let failed = |source| StartError::AdminListen { addr, source };
        // The socket belongs to the runtime on which it is made.
        let socket = {
            let _on = runtimes.control.enter();
            listener::bind(addr, false).map_err(failed)?
        };
        let admin = socket.local_addr().map_err(failed)?;
        let app = Arc::new(App::start(
            Arc::clone(&config),
            Arc::clone(&observers.observer),
            clock,
            control_runtime,
        )?);
        let fleet = Arc::clone(&app.fleet);
        observers.drift.set_fleet(move || fleet.statuses());
        let launch = Arc::new(launch);
        let control = Arc::new(Controls {
            app: Arc::clone(&app),
            observers: observers.clone(),
            launch: Arc::clone(&launch),
            config: ArcSwap::new(Arc::clone(&config)),
            one_at_a_time: Mutex::new(()),
            drain: Notify::new(),
        });
        let state = AdminState {
            control: Arc::clone(&control) as Arc<dyn Control>,
            observer: Arc::clone(&observers.observer),
            drift: Arc::clone(&observers.drift),
            token: config.admin.token.clone(),
        };
        let stop_admin = CancellationToken::new();
        let serving = admin::serve(socket, Arc::new(state), tracker.clone(), stop_admin.clone());
        tracker.spawn_on(serving, runtimes.control.handle());
        Ok(Self { app, observers, admin, launch, control, stop_admin, tracker })
    }

    /// Says what runs where, and what an operator should know.
    fn announce(&self, files: u64) {
        let config = self.control.config.load();
        let scheme = if config.server.tls.is_some() { "https" } else { "http" };
        let replicas: usize = config.pools.iter().map(|p| p.replicas.len()).sum();
        let routes: Vec<&str> = config.routes.iter().map(|r| &*r.name).collect();
        let policies: Vec<&str> = config.routes.iter().map(|r| r.policy.as_str()).collect();
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            data = format!("{scheme}://{}", self.app.data),
            admin = format!("http://{}", self.admin),
            paths = PATHS,
            extra_paths = ?config.server.extra_paths,
            admin_paths = "/metrics /healthz /readyz / /api",
            pools = config.pools.len(), replicas, ?routes, ?policies,
            open_files = files,
            otlp = config.telemetry.otlp.as_ref().map_or("off", |o| &*o.traces_endpoint),
            "tokenway is listening"
        );
        if !config.server.listen.ip().is_loopback() && config.tenants.is_empty() {
            tracing::warn!(
                listen = %config.server.listen,
                "the data port is open to the network and no [[tenant]] asks for a key"
            );
        }
    }

    /// Serves until a signal or the admin port ends it.
    async fn until_told(&self) -> io::Result<()> {
        let mut signals = signals::listen()?;
        let watched = match &self.launch.source {
            Source::File(path) => watch(path.clone()),
            Source::Upstreams(_) => None,
        };
        let (_watcher, mut changes) = watched.unzip();
        let delay = loop {
            let changed = async {
                match &mut changes {
                    Some(changes) => changes.changed().await.is_ok(),
                    None => std::future::pending().await,
                }
            };
            // Every arm is cancel-safe: each returns what happened and loses nothing.
            let signal = tokio::select! {
                signal = signals.recv() => signal.unwrap_or(Signal::Terminate),
                is_open = changed => if is_open { Signal::Reload } else { changes = None; continue },
                () = self.control.drain.notified() => Signal::Terminate,
            };
            match signal {
                Signal::Reload => self.control.reload_logged(),
                Signal::Terminate => break self.control.config.load().server.drain_delay,
                Signal::Interrupt => break Duration::ZERO,
            }
        };
        tracing::info!(?delay, "draining; a second signal ends at once");
        tokio::select! {
            () = self.app.drain(delay) => {}
            () = second(&mut signals) => self.app.stop_now().await,
        }
        self.stop().await;
        tracing::info!("stopped");
        Ok(())
    }

    /// Ends the admin port and flushes telemetry, within a bound.
    pub async fn stop(&self) {
        self.observers.shutdown(LAST_WORDS).await;
        self.stop_admin.cancel();
        self.tracker.close();
        let _ = tokio::time::timeout(LAST_WORDS, self.tracker.wait()).await;
    }
}

impl Controls {
    fn reload_logged(&self) {
        self.observers.observer.reopen();
        match self.reload() {
            Ok(()) => tracing::info!("configuration reloaded"),
            Err(error) => tracing::error!(%error, "configuration refused; the old one stays"),
        }
    }
}

impl Control for Controls {
    fn replicas(&self) -> Vec<ReplicaStatus> {
        self.app.fleet.statuses()
    }

    fn calibrations(&self) -> Vec<PoolCalibration> {
        self.app.fleet.calibrations()
    }

    fn readiness(&self) -> Readiness {
        let mut reasons = Vec::new();
        if self.app.gateway.drain.is_on() {
            reasons.push("draining".to_owned());
        }
        let table = self.app.gateway.table.load();
        for route in table.routes.iter().filter(|r| r.config.required && !r.is_ready()) {
            reasons.push(format!("route {} has no ready replica: {}", route.config.name, route.states()));
        }
        Readiness { reasons }
    }

    fn config(&self) -> Arc<Config> {
        self.config.load_full()
    }

    fn reload(&self) -> Result<(), String> {
        let _one = self.one_at_a_time.lock();
        let old = self.config.load_full();
        let taken = reload(&self.launch.source, &self.launch.overrides, &from_env, &old)
            .map_err(|error| error.to_string())
            .and_then(|new| {
                for warning in &new.warnings {
                    tracing::warn!("{warning}");
                }
                let config = Arc::new(new.config);
                self.app.reload(Arc::clone(&config)).map_err(|error| format!("server.tls: {error}"))?;
                self.observers.observer.reconfigure(&config);
                self.config.store(config);
                Ok(())
            });
        self.observers.observer.metrics().config_reload(taken.is_ok());
        taken
    }

    fn drain(&self) {
        self.drain.notify_one();
    }

    fn log_level(&self) -> String {
        self.launch.log.text()
    }

    fn set_log_level(&self, filter: &str) -> Result<(), String> {
        self.launch.log.set(filter)
    }
}

fn from_env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

type Watched = (crate::config::reload::Watcher, tokio::sync::watch::Receiver<u64>);

fn watch(path: PathBuf) -> Option<Watched> {
    watch_file(&path)
        .inspect_err(
            |error| tracing::warn!(%error, "the configuration file cannot be watched; SIGHUP reloads"),
        )
        .ok()
}

async fn second(signals: &mut tokio::sync::mpsc::Receiver<Signal>) {
    while let Some(Signal::Reload) = signals.recv().await {}
}

const PATHS: &str = "/v1/chat/completions /v1/completions /v1/responses /v1/messages /v1/messages/count_tokens \
    /v1/embeddings /v1/rerank /rerank /v1/score /score /v1/classify /pooling /tokenize /detokenize /v1/models \
    /health /version";
const LAST_WORDS: Duration = Duration::from_secs(2);
