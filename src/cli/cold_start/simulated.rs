//! `--sim`: a replica that loads for a while after each start, and a gateway in front of it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokenway_sim::server::{SimConfig, SimReplica, start};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::measure::{MeasureError, Scaling, Subject};
use super::report::Report;
use super::{ColdStartArgs, Say};
use crate::app::logging::LogFilter;
use crate::app::process::{Launch, RunError, Running, Runtimes, Shutdown};
use crate::cli::admin_client::{AdminClient, endpoint};
use crate::config::load::{Source, load};
use crate::config::{AccessLog, DriftState, Overrides};

/// A simulated replica as its orchestrator sees it.
struct Simulated {
    replica: SimReplica,
    load: Duration,
}

impl Scaling for Simulated {
    async fn down(&self) -> Result<(), MeasureError> {
        self.replica.stop().await;
        Ok(())
    }

    async fn up(&self) -> Result<(), MeasureError> {
        tokio::time::sleep(self.load).await;
        Ok(self.replica.restart().await?)
    }

    fn who(&self) -> String {
        "the simulation".to_owned()
    }
}

/// Starts both, measures, and ends them.
///
/// # Errors
/// When ports cannot be had.
pub(super) fn measure(
    args: &ColdStartArgs,
    log: LogFilter,
    say: Say<'_>,
) -> Result<Result<Report, MeasureError>, RunError> {
    let runtimes = Runtimes::start()?;
    let result = runtimes.data.block_on(async {
        let (tracker, over) = (TaskTracker::new(), CancellationToken::new());
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let replica = start(SimConfig::default(), any, &tracker, over.clone()).await?;
        let upstream = endpoint(&replica.url()).map_err(std::io::Error::other)?;
        let source = Source::Upstreams(vec![upstream]);
        let overrides = Overrides { listen: Some(any), admin_listen: Some(any), ..Overrides::default() };
        let mut config = load(&source, &overrides, &|_| None)?;
        config.telemetry.access_log = AccessLog::Off;
        config.drift.state = DriftState::Off;
        config.pools.iter_mut().for_each(|pool| pool.scale.min_replicas = 0);
        let running = Running::start(Launch { source, overrides, log }, Arc::new(config), &runtimes, None)?;
        let simulated = Simulated { replica, load: args.gateway.load };
        let measured = of(&running, args, &simulated, say).await;
        running.shutdown(Shutdown::interrupt(), std::future::pending()).await;
        over.cancel();
        Ok(measured)
    });
    runtimes.end();
    result
}

async fn of(
    running: &Running,
    args: &ColdStartArgs,
    simulated: &Simulated,
    say: Say<'_>,
) -> Result<Report, MeasureError> {
    let url = endpoint(&format!("http://{}", running.admin)).map_err(MeasureError::NoData)?;
    let data = endpoint(&format!("http://{}", running.app.data)).map_err(MeasureError::NoData)?;
    let client = AdminClient::at(&url, None, &|_| None)?;
    let mut args = args.clone();
    (args.gateway.data, args.model) = (Some(data), Some(SimConfig::default().model));
    until_ready(running).await;
    Subject::find(client, &args, &url, None).await?.measure(simulated, say).await
}

/// Waits until the replica is ready; what is measured later says if it never is.
async fn until_ready(running: &Running) {
    for _ in 0..READY_CHECKS {
        if running.app.gateway.table.load_full().routes.iter().all(|route| route.is_ready()) {
            return;
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

const READY_CHECKS: u32 = 200;
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
