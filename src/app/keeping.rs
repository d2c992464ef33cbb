//! Writes state of the running gateway every so often, off the threads of its runtimes.

use std::fs::{self, File};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tokio_util::sync::CancellationToken;

use super::{budgets, usage};
use crate::background::Background;
use crate::cluster::{self, Snapshot};
use crate::config::Config;
use crate::gateway::Gateway;

/// Keeps budgets and usage, and exports what is used of budgets, until `stopped`.
pub(super) fn start(gateway: &Arc<Gateway>, background: &Background, stopped: &CancellationToken) {
    background.spawn_until(stopped, budgets::export(Arc::clone(gateway)));
    let keep = |span, keep: fn(&Gateway)| {
        background.spawn_until(stopped, keep_every(span, Arc::clone(gateway), keep));
    };
    keep(budgets::KEEP_EVERY, budgets::keep);
    keep(usage::KEEP_EVERY, usage::keep);
}

/// Takes the state files of this admin port for as long as the file lives, and removes what a killed gateway left half written. Where
/// another gateway has them it only warns: one that drains has them until it ends.
pub(super) fn claim(config: &Config) -> Option<File> {
    let place = config.state.as_ref()?;
    // Who cannot write there warns of each file.
    let lock = place.lock_file().ok()?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
        tracing::warn!(
            path = %place.file("keys").display(),
            "another gateway with this admin port keeps its state in the same directory: of keys, usage and budgets each \
             overwrites the other's; give one of them another port in admin.listen, or another STATE_DIRECTORY"
        );
        return None;
    }
    place.unfinished().for_each(|file| drop(fs::remove_file(file)));
    Some(lock)
}

/// Warns of budgets and keys that lie under another admin port's name: a gateway that had it before begins without them.
pub(super) fn warn_of_another_port(config: &Config) {
    let Some(place) = &config.state else { return };
    if place.file("usage").exists() {
        // It has run under this name: the others are of other gateways.
        return;
    }
    let has_budgets = config.tenants.iter().any(|tenant| !tenant.budgets.is_empty());
    for (kind, is_used) in [("budgets", has_budgets), ("keys", !config.tenants.is_empty())] {
        if let Some(other) = place.file_of_another_port(kind).filter(|_| is_used) {
            tracing::warn!(
                path = %place.file(kind).display(),
                other = %other.display(),
                "{kind} begin anew, and those of another admin port lie there: if this gateway had that port, stop it, \
                 rename the other file to this path and start it again"
            );
        }
    }
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
    let snapshot = Snapshot::start(path, seed, &deps.fleet, deps.gateway.clock);
    deps.background.spawn_until(&deps.stopped, Arc::clone(&snapshot).run());
    Some(snapshot)
}

/// Calls `keep`, which waits for the disk, every `span`, forever. A killed process loses what has changed since the last call.
async fn keep_every(span: Duration, gateway: Arc<Gateway>, keep: fn(&Gateway)) {
    loop {
        tokio::time::sleep(span).await;
        let gateway = Arc::clone(&gateway);
        let _ = tokio::task::spawn_blocking(move || keep(&gateway)).await;
    }
}
