//! Runs a gateway for the lifetime of the process: runtimes, ports, reload, signals, shutdown.
//!
//! Two runtimes: the data path has one worker per core; telemetry, probes and the admin port share a small one, so
//! that they answer while the data path is saturated and can never stall it.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::control::Controls;
use super::foundation::Foundation;
use super::launch::watched;
pub use super::launch::{Front, Launch};
use super::observers::Observers;
use super::signals::{self, Signal};
use super::{App, STATES_GRACE, StartError};
use crate::admin::{self, AdminState, Control};
use crate::background::{Background, boxed};
use crate::clock::Clock;
use crate::config::load::ConfigError;
use crate::config::view::without_userinfo;
use crate::config::watch::Watched;
use crate::config::{Config, OtlpTarget};
use crate::listener;
use crate::observe::{Surroundings, Tap, instance};
use crate::request::dialect::SERVED;

/// Why the gateway did not run.
#[expect(missing_docs, reason = "the messages are it")]
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("cannot start: {0}")]
    Io(#[from] io::Error),
}

/// The two runtimes.
#[derive(Debug)]
pub struct Runtimes {
    /// Client connections and their requests.
    pub data: Runtime,
    /// Admin port, probes, scrapes, exports.
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

    /// Ends both. Whatever had to be waited for was waited for: threads that still block (a name look-up, a file on a
    /// dead disk) end with the process.
    pub fn end(self) {
        self.data.shutdown_timeout(THREADS_GRACE);
        self.control.shutdown_timeout(THREADS_GRACE);
    }
}

/// Runs `tokenway serve` to its end.
///
/// # Errors
/// [`RunError`] when it cannot start; later failures are logged.
pub fn serve(launch: Launch) -> Result<(), RunError> {
    // A stream holds two descriptors; the soft limit of most systems is 1,024.
    let open_files = super::open_files::raise_limit();
    // Thousands of small buffers spread over huge pages keep half as much again resident. Where it cannot be set, more memory
    // is used, nothing else.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    let runtimes = Runtimes::start()?;
    let result = runtimes.data.block_on(async {
        // Before what takes time: by default a SIGHUP ends a process, and those who renew certificates send one at any moment.
        let signals = signals::listen()?;
        // Before it is read: what changes in between is read again.
        let own_file = launch.watch();
        let config = Arc::new(launch.load()?);
        // Before the listeners read their certificates, likewise.
        let named_files = watched(&config.files);
        let running = Running::start(launch, config, &runtimes, None)?;
        running.announce(open_files);
        running.serve_until_signal(signals, own_file, named_files).await?;
        Ok(())
    });
    runtimes.end();
    result
}

/// How a gateway ends.
#[derive(Clone, Copy, Debug)]
pub struct Shutdown {
    /// Not ready, but still serving.
    pub delay: Duration,
    /// For each step after the last request: writing the rest of answers, exporting spans.
    pub grace: Duration,
}

impl Shutdown {
    /// For a service manager, which has time: load balancers notice, a slow collector gets its spans.
    pub fn terminate(delay: Duration) -> Self {
        Self { delay, grace: Duration::from_secs(2) }
    }

    /// For somebody at a terminal: with nothing in flight the process ends within half a second.
    pub fn interrupt() -> Self {
        Self { delay: Duration::ZERO, grace: Duration::from_millis(100) }
    }
}

/// A running gateway with its observers and its admin port.
pub struct Running {
    /// Data path and fleet.
    pub app: Arc<App>,
    /// Readers of records.
    pub observers: Observers,
    /// Bound address of the admin port.
    pub admin: SocketAddr,
    /// Bound address of `admin.metrics_listen`.
    pub metrics: Option<SocketAddr>,
    launch: Arc<Launch>,
    control: Arc<Controls>,
    stop_admin: CancellationToken,
    /// Background work of observers and admin port.
    tracker: TaskTracker,
}

impl Running {
    /// Starts, in this order: fleet, observers, admin socket, data path, admin port. The first failure ends the start.
    ///
    /// # Errors
    /// [`StartError`], naming the section to mend.
    pub fn start(
        launch: Launch,
        config: Arc<Config>,
        runtimes: &Runtimes,
        tap: Option<Arc<dyn Tap>>,
    ) -> Result<Self, StartError> {
        let mut foundation = Foundation::lay(config, Clock::start(), runtimes.control.handle().clone())?;
        foundation.front = launch.front;
        let fleet = Arc::clone(&foundation.fleet);
        Self::start_on(foundation, launch, runtimes, tap).inspect_err(|_| fleet.retire())
    }

    fn start_on(
        foundation: Foundation,
        launch: Launch,
        runtimes: &Runtimes,
        tap: Option<Arc<dyn Tap>>,
    ) -> Result<Self, StartError> {
        let clock = foundation.clock;
        let (configs, config) = watch::channel(Arc::clone(&foundation.config));
        let addr = config.borrow().admin.listen;
        let background = Background { runtime: runtimes.control.handle().clone(), tasks: TaskTracker::new() };
        let (instance, fleet) = (instance::name(addr), foundation.view());
        let around = Surroundings { clock, background: background.clone(), instance, fleet };
        let observers = Observers::start(&config, around, foundation.data_path(), tap)?;
        observers.observer.metrics.count_log_drops(launch.log.drops());
        observers.observer.write_as(launch.log.format());

        // A socket belongs to the runtime that is entered when it is made.
        let bind = |key, addr| {
            let _entered = runtimes.control.enter();
            let failed = |source| StartError::Listen { key, addr, source };
            let socket = listener::bind(addr).map_err(failed)?;
            Ok::<_, StartError>((socket.local_addr().map_err(failed)?, socket))
        };
        let (admin, socket) = bind("admin.listen", addr)?;
        let metrics = config.borrow().admin.metrics_listen;
        let metrics = metrics.map(|addr| bind("admin.metrics_listen", addr)).transpose()?;

        let keys = Arc::clone(&foundation.keys);
        let app = Arc::new(App::on(foundation, Arc::clone(&observers.observer)));
        let launch = Arc::new(launch);
        let control = Controls::new(Arc::clone(&app), observers.clone(), Arc::clone(&launch), configs);
        let state = AdminState {
            control: Arc::clone(&control) as Arc<dyn Control>,
            observer: Arc::clone(&observers.observer),
            drift: Arc::clone(&observers.drift),
            rollouts: Arc::clone(&observers.rollouts),
            scale: Arc::clone(&observers.scale),
            keys,
        };
        let stop_admin = CancellationToken::new();
        let state = Arc::new(state);
        let metrics = metrics.map(|(metrics, socket)| {
            let serving = admin::serve_metrics(socket, Arc::clone(&state), stop_admin.clone());
            background.spawn(serving);
            metrics
        });
        background.spawn(admin::serve(socket, state, background.tasks.clone(), stop_admin.clone()));
        // On the threads of the data path, whose waits it measures.
        background.tasks.spawn_on(
            boxed(Arc::clone(&observers.observer.metrics.lag).measure(clock, stop_admin.clone())),
            runtimes.data.handle(),
        );
        background.spawn(follow_wall(clock, stop_admin.clone()));
        let tracker = background.tasks;
        Ok(Self { app, observers, admin, metrics, launch, control, stop_admin, tracker })
    }

    /// Shuts down, in this order: data path (drained, or stopped at once when `cut` comes first), observers, so that
    /// the last records are exported, admin port.
    pub async fn shutdown(&self, end: Shutdown, cut: impl Future<Output = ()>) {
        let orderly = async {
            self.app.drain_within(end.delay, end.grace).await;
            self.close_rest(end.grace, STATES_GRACE).await;
        };
        // Both arms are cancel-safe: an unfinished drain is finished below.
        let is_cut = tokio::select! {
            () = orderly => false,
            () = cut => true,
        };
        if is_cut {
            self.app.stop_within(Duration::ZERO, CUT_STATES_GRACE).await;
            self.close_rest(CUT_GRACE, CUT_GRACE).await;
        }
    }

    /// What stands around the data path; each of two steps takes at most `grace`, the writing of states at most `states`.
    async fn close_rest(&self, grace: Duration, states: Duration) {
        self.observers.shutdown(grace, states).await;
        self.stop_admin.cancel();
        self.tracker.close();
        let _ = tokio::time::timeout(grace, self.tracker.wait()).await;
    }

    /// Serves until SIGTERM, SIGINT or the admin port's drain; reloads on SIGHUP and when a file of the configuration changes.
    async fn serve_until_signal(
        &self,
        mut signals: mpsc::Receiver<Signal>,
        mut own_file: Watched,
        mut named_files: Watched,
    ) -> io::Result<()> {
        let mut files = self.control.files();
        let end = loop {
            // Every arm is cancel-safe: each returns what happened and loses nothing.
            let signal = tokio::select! {
                signal = signals.recv() => signal.unwrap_or(Signal::Terminate),
                () = own_file.changed() => Signal::Reload,
                () = named_files.changed() => Signal::Reload,
                () = self.control.drain.notified() => Signal::Terminate,
            };
            match signal {
                Signal::Reload => {
                    // The result is logged there.
                    let result = self.control.reload();
                    if self.control.files() != files {
                        files = self.control.files();
                        named_files = watched(&files);
                        if result.is_err() {
                            // What was missing may have come before it was watched.
                            drop(self.control.reload());
                        }
                    }
                }
                Signal::Terminate => break Shutdown::terminate(self.control.config().server.drain_delay),
                Signal::Interrupt => break Shutdown::interrupt(),
            }
        };
        tracing::info!(delay = ?end.delay, "draining; a second signal ends at once");
        self.shutdown(end, second_signal(&mut signals)).await;
        tracing::info!("stopped");
        Ok(())
    }

    /// Logs the addresses, the size of the fleet and what is open to the network.
    fn announce(&self, open_files: u64) {
        let config = self.control.config();
        let is_picker = self.launch.front == Front::EndpointPicker;
        let scheme = match (is_picker, config.server.tls.is_some()) {
            (true, false) => "grpc",
            (true, true) => "grpcs",
            (false, false) => "http",
            (false, true) => "https",
        };
        let replicas: usize = config.pools.iter().map(|p| p.replicas.len()).sum();
        let routes: Vec<&str> = config.routes.iter().map(|r| &*r.name).collect();
        let policies: Vec<&str> = config.routes.iter().map(|r| r.policy.as_str()).collect();
        if !config.server.listen.ip().is_loopback() && config.tenants.is_empty() {
            tracing::warn!(
                listen = %config.server.listen,
                "the data port is open to the network and no [[tenant]] asks for a key"
            );
        }
        if self.launch.log.is_text() {
            let (version, pools, data) = (env!("CARGO_PKG_VERSION"), config.pools.len(), self.app.data);
            tracing::info!(
                "tokenway {version}: pools: {pools}, replicas: {replicas}, routes: {}",
                routes.join(" ")
            );
            let speaks = if is_picker { "endpoint picker of Envoy" } else { "OpenAI API" };
            tracing::info!("gateway {scheme}://{data}  ({speaks})");
            tracing::info!("page    http://{}/", self.admin);
            if let Some(metrics) = self.metrics {
                tracing::info!("metrics http://{metrics}/metrics");
            }
            return;
        }
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            data = format!("{scheme}://{}", self.app.data),
            admin = format!("http://{}", self.admin),
            paths = paths(),
            extra_paths = ?config.server.extra_paths,
            metrics = self.metrics.map(|metrics| format!("http://{metrics}/metrics")),
            admin_paths = "/metrics /healthz /readyz / /api",
            pools = config.pools.len(), replicas, ?routes, ?policies,
            open_files,
            otlp_metrics = shown(config.telemetry.otlp_metrics.as_ref().map(|otlp| &otlp.target)),
            otlp = shown(config.telemetry.otlp.as_ref().map(|otlp| &otlp.traces)),
            "tokenway is listening"
        );
    }
}

/// Where exports go, without what may be a credential.
fn shown(target: Option<&OtlpTarget>) -> String {
    target.map_or_else(|| "off".to_owned(), |target| without_userinfo(&target.endpoint))
}

/// Keeps wall times to the machine's clock until `stop`.
async fn follow_wall(clock: Clock, stop: CancellationToken) {
    // Cancel-safe: the correction is made between two waits.
    while stop.run_until_cancelled(tokio::time::sleep(FOLLOW_WALL_EVERY)).await.is_some() {
        clock.follow_wall(FOLLOW_WALL_EVERY);
    }
}

async fn second_signal(signals: &mut mpsc::Receiver<Signal>) {
    while let Some(Signal::Reload) = signals.recv().await {}
}

/// As [`Shutdown::grace`], after a second signal.
const CUT_GRACE: Duration = Duration::from_millis(50);
/// A second signal ends the process within half a second, however slow the disk is.
const CUT_STATES_GRACE: Duration = Duration::from_millis(250);
const FOLLOW_WALL_EVERY: Duration = Duration::from_secs(10);
const THREADS_GRACE: Duration = Duration::from_millis(20);

/// The paths of the data port, for the start's log line.
fn paths() -> String {
    let served = SERVED.iter().map(|(path, _)| *path);
    served.chain(["/v1/models", "/v1/models/{id}", "/health", "/version"]).collect::<Vec<_>>().join(" ")
}
