//! Writes state of the running gateway every so often, off the threads of its runtimes.

use std::sync::Arc;
use std::time::Duration;

use crate::gateway::Gateway;

/// Calls `keep`, which waits for the disk, every `span`, forever. A killed process loses what has changed since the last call.
pub(super) async fn keep_every(span: Duration, gateway: Arc<Gateway>, keep: fn(&Gateway)) {
    loop {
        tokio::time::sleep(span).await;
        let gateway = Arc::clone(&gateway);
        let _ = tokio::task::spawn_blocking(move || keep(&gateway)).await;
    }
}
