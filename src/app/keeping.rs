//! Writes state of the running gateway every so often, off the threads of its runtimes.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{budgets, usage};
use crate::gateway::Gateway;

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

/// Calls `keep`, which waits for the disk, every `span`, forever. A killed process loses what has changed since the last call.
async fn keep_every(span: Duration, gateway: Arc<Gateway>, keep: fn(&Gateway)) {
    loop {
        tokio::time::sleep(span).await;
        let gateway = Arc::clone(&gateway);
        let _ = tokio::task::spawn_blocking(move || keep(&gateway)).await;
    }
}
