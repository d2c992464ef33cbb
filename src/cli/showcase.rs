//! Runs `tokenway demo`: puts a gateway between the simulated fleet and its traffic, and prints what it saw.
//!
//! The gateway is the same that `serve` runs, started from the same kind of configuration. The fleet and its
//! clients have a runtime of their own, so that their work is not mistaken for the gateway's.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokenway_sim::server::SimReplica;
use tokenway_sim::traffic::{TrafficStats, run_traffic};
use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::demo::{DemoArgs, print_tables};
use crate::app::logging::LogFilter;
use crate::app::process::{Launch, RunError, Running, Runtimes, Shutdown};
use crate::app::signals;
use crate::config::check::parse_endpoint;
use crate::config::load::{Source, load};
use crate::config::{AccessLog, Config, Endpoint, Overrides};
use crate::observe::Tap;
use crate::observe::metrics::StreamKey;
use crate::record::{FirstToken, Gaps, Record};
use crate::simulate::DemoStats;

/// Runs the demo until its duration is over or a signal comes.
///
/// # Errors
/// When ports cannot be had or standard output cannot be written.
pub fn run(args: &DemoArgs, log: LogFilter) -> Result<(), RunError> {
    let runtimes = Runtimes::start()?;
    let sim_runtime =
        Builder::new_multi_thread().worker_threads(1).thread_name("simulation").enable_all().build()?;
    let (tracker, over) = (TaskTracker::new(), CancellationToken::new());
    let fleet = sim_runtime.block_on(args.start_fleet(&tracker, &over))?;
    let scores = Arc::new(DemoStats::default());
    let result = runtimes.data.block_on(async {
        let (source, overrides) = launch_source(args, &fleet)?;
        let config = Arc::new(configured(&source, &overrides)?);
        let launch = Launch { source, overrides, log };
        let tap: Arc<dyn Tap> = Arc::new(Scores(Arc::clone(&scores)));
        let running = Running::start(launch, config, &runtimes, Some(tap))?;
        announce(&running, &fleet)?;
        let clients = Arc::new(TrafficStats::default());
        until_ready(&running).await;
        let traffic = args.traffic(format!("http://{}", running.app.data));
        let sending = run_traffic(traffic, Arc::clone(&clients), tracker.clone(), over.clone());
        tracker.spawn_on(sending, sim_runtime.handle());
        watch_for_end(args.duration, &over, &tracker)?;
        let rows = || (scores.rows(&running.app.fleet.statuses()), clients.summary());
        print_tables(&mut io::stdout(), rows, over.clone()).await?;
        running.shutdown(Shutdown::interrupt(), std::future::pending()).await;
        Ok(())
    });
    over.cancel();
    sim_runtime.shutdown_timeout(Duration::from_secs(1));
    runtimes.end();
    result
}

/// The fleet's URLs as the source, the demo's flags as overrides.
fn launch_source(args: &DemoArgs, fleet: &[SimReplica]) -> Result<(Source, Overrides), RunError> {
    let endpoints: Result<Vec<Endpoint>, String> = fleet.iter().map(|r| parse_endpoint(&r.url())).collect();
    let source = Source::Upstreams(endpoints.map_err(io::Error::other)?);
    let overrides = Overrides {
        listen: Some(args.listen),
        admin_listen: Some(args.admin_listen),
        ..Overrides::default()
    };
    Ok((source, overrides))
}

/// As `serve` would have it, but for the access log: standard output belongs to the tables.
fn configured(source: &Source, overrides: &Overrides) -> Result<Config, RunError> {
    let mut config = load(source, overrides, &|name| std::env::var(name).ok())?;
    config.telemetry.access_log = AccessLog::Off;
    Ok(config)
}

fn announce(running: &Running, fleet: &[SimReplica]) -> io::Result<()> {
    let mut out = io::stdout();
    let admin: SocketAddr = running.admin;
    writeln!(out, "gateway   http://{}   (OpenAI API)", running.app.data)?;
    writeln!(out, "admin     http://{admin}   (/metrics, /readyz, /api/fleet, /api/latency?window=1m)")?;
    for (n, replica) in fleet.iter().enumerate() {
        writeln!(out, "replica {n} {}   (simulated)", replica.url())?;
    }
    writeln!(out, "try       curl -N http://{}/v1/chat/completions \\", running.app.data)?;
    writeln!(out, "            -H 'content-type: application/json' \\")?;
    writeln!(
        out,
        "            -d '{{\"model\":\"sim\",\"stream\":true,\"messages\":[{{\"role\":\"user\",\"content\":\"hello\"}}]}}'\n"
    )?;
    out.flush()
}

/// Waits until every route has a ready replica, so that no demo begins with refusals.
async fn until_ready(running: &Running) {
    for _ in 0..READY_CHECKS {
        let table = running.app.gateway.table.load_full();
        if table.routes.iter().all(|r| r.is_ready()) {
            return;
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

fn watch_for_end(limit: Option<Duration>, over: &CancellationToken, tracker: &TaskTracker) -> io::Result<()> {
    let mut signals = signals::listen()?;
    let over = over.clone();
    tracker.spawn(async move {
        // Both arms are cancel-safe, and either ends the demo.
        tokio::select! {
            _ = signals.recv() => {}
            () = async { match limit {
                Some(limit) => tokio::time::sleep(limit).await,
                None => std::future::pending().await,
            } } => {}
        }
        over.cancel();
    });
    Ok(())
}

/// Lets the table see what the gateway's observers see.
struct Scores(Arc<DemoStats>);

impl Tap for Scores {
    fn first_token(&self, first: &FirstToken) {
        self.0.record_first_token(first);
    }

    fn gaps(&self, stream: &StreamKey, gaps: &Gaps<'_>) {
        self.0.record_gaps(&stream.replica, gaps);
    }

    fn record(&self, record: &Record) {
        self.0.record_end(record);
    }
}

const READY_CHECKS: u32 = 100;
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
