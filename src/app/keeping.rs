//! Writes state of the running gateway every so often, off the threads of its runtimes.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{budgets, usage};
use crate::cluster::{self, Snapshot};
use crate::config::Config;
use crate::gateway::Gateway;
use crate::kv_events;
use crate::upstream::connect::Connector;

/// Keeps budgets and usage, and exports what is used of budgets, until `stopped`.
pub(super) fn start(
    gateway: &Arc<Gateway>,
    tracker: &TaskTracker,
    stopped: &CancellationToken,
    control: &Handle,
) {
    let exporting = budgets::export(Arc::clone(gateway));
    tracker.spawn_on(stopped.clone().run_until_cancelled_owned(exporting), control);
    let keep = |span, keep: fn(&Gateway)| {
        let keeping = keep_every(span, Arc::clone(gateway), keep);
        tracker.spawn_on(stopped.clone().run_until_cancelled_owned(keeping), control);
    };
    keep(budgets::KEEP_EVERY, budgets::keep);
    keep(usage::KEEP_EVERY, usage::keep);
}

/// Shares what is known of the fleet with the other gateways of a cluster, or keeps it for the gateway's own next start; returns what
/// is to be kept at the end.
pub(super) fn share(config: &Config, deps: cluster::Deps) -> Option<Arc<Snapshot>> {
    let seed = &config.routing.seed;
    if let Some(cluster) = &config.cluster {
        cluster::start(cluster, seed, deps);
        return None;
    }
    let path = config.state.as_ref()?.file("decisions");
    let snapshot = Snapshot::start(path, seed, &deps.fleet, deps.clock);
    let keeping = Arc::clone(&snapshot).run();
    deps.tracker.spawn_on(deps.stopped.run_until_cancelled_owned(keeping), &deps.control);
    Some(snapshot)
}

/// Follows what engines publish of their caches, where a pool has that.
pub(super) fn follow_caches(deps: &cluster::Deps, connector: Connector) {
    kv_events::start(kv_events::Deps {
        fleet: Arc::clone(&deps.fleet),
        gateway: Arc::clone(&deps.gateway),
        connector,
        control: deps.control.clone(),
        tracker: deps.tracker.clone(),
        stopped: deps.stopped.clone(),
        clock: deps.clock,
    });
}

/// Calls `keep`, which waits for the disk, every `span`, forever. A killed process loses what has changed since the last call.
async fn keep_every(span: Duration, gateway: Arc<Gateway>, keep: fn(&Gateway)) {
    loop {
        tokio::time::sleep(span).await;
        let gateway = Arc::clone(&gateway);
        let _ = tokio::task::spawn_blocking(move || keep(&gateway)).await;
    }
}
