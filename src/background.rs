//! Where work runs that no request waits for: probes, scrapes, exports, verdicts.

use std::pin::Pin;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Looks every so often until it `holds`, for at most `limit`; whether it did.
pub async fn until(limit: Duration, every: Duration, holds: impl Fn() -> bool) -> bool {
    let looking = async {
        while !holds() {
            tokio::time::sleep(every).await;
        }
    };
    tokio::time::timeout(limit, looking).await.is_ok()
}

/// A runtime of its own, so that what runs there gets through while the data path's is saturated.
#[derive(Clone, Debug)]
pub struct Background {
    /// The runtime.
    pub runtime: Handle,
    /// Awaited at shutdown.
    pub tasks: TaskTracker,
}

impl Background {
    /// Runs `work` to its end.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        self.tasks.spawn_on(boxed(work), &self.runtime)
    }

    /// Runs `work` until `stopped`.
    pub fn spawn_until(&self, stopped: &CancellationToken, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(boxed_until(stopped, work), &self.runtime);
    }
}

/// What tasks do, all of one kind but those of connections: each kind has six kilobytes of code of its own.
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// `work` as a task does it.
pub fn boxed(work: impl Future<Output = ()> + Send + 'static) -> Work {
    Box::pin(work)
}

/// The same, until `stopped`.
pub fn boxed_until(stopped: &CancellationToken, work: impl Future<Output = ()> + Send + 'static) -> Work {
    let stopped = stopped.clone();
    Box::pin(async move {
        stopped.run_until_cancelled(work).await;
    })
}
