//! The task that exports what is queued, one batch at a time, and the stages in which it ends.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout_at;
use tokio_util::sync::CancellationToken;

use super::exporter::{Exporter, Signal};
use crate::clock::Clock;
use crate::observe::Surroundings;
use crate::observe::metrics::DropReason;

/// What becomes of what is queued.
pub(crate) trait Batch: Send + 'static {
    type Queued: Send;
    /// A span, a log record.
    type Part: Send;
    /// A batch as the collector takes it.
    type Export: Signal + Clone + Sync + Send;

    /// Adds what was queued to a batch; returns its size.
    fn add(&self, queued: Self::Queued, parts: &mut Vec<Self::Part>) -> usize;

    /// Size from which on a batch is exported at once.
    fn full(&self) -> usize;

    fn export(&self, parts: Vec<Self::Part>) -> Self::Export;

    /// Counts what the collector took.
    fn sent(&self, _parts: u64) {}

    /// Counts what the collector did not get.
    fn lost(&self, reason: DropReason, parts: u64);
}

/// What is queued for the task that exports it.
pub(crate) struct BatchQueue<B: Batch> {
    pub(crate) sender: mpsc::Sender<B::Queued>,
    end: End,
}

impl<B: Batch> BatchQueue<B> {
    /// Starts the task; at most `max` wait for it.
    pub(crate) fn start(batch: B, exporter: Exporter, max: usize, around: &Surroundings) -> Self {
        let (sender, queue) = mpsc::channel(max);
        let end = End::default();
        let task = Task { queue, exporter, batch, clock: around.clock, end: end.clone() };
        around.background.spawn(task.run());
        Self { sender, end }
    }

    /// Exports what is queued, for at most `limit`; what is left is counted as lost.
    pub(crate) async fn shutdown(&self, what: &'static str, limit: Duration) {
        self.end.closing.cancel();
        if tokio::time::timeout(limit, self.end.done.cancelled()).await.is_err() {
            tracing::warn!(?limit, what, "not exported before the end");
            self.end.given_up.cancel();
            self.end.done.cancelled().await;
        }
    }
}

/// The stages in which an export ends.
#[derive(Clone, Debug, Default)]
struct End {
    /// Nothing more is taken in; what is queued is exported.
    closing: CancellationToken,
    /// What is left is dropped.
    given_up: CancellationToken,
    /// All is exported or counted.
    done: CancellationToken,
}

struct Task<B: Batch> {
    queue: mpsc::Receiver<B::Queued>,
    exporter: Exporter,
    batch: B,
    clock: Clock,
    end: End,
}

impl<B: Batch> Task<B> {
    /// Exports until the queue is closed and empty, or until it is given up.
    async fn run(mut self) {
        // Fires on drop too, so that a waiter does not outlive a task dropped with its runtime.
        let _done = self.end.done.clone().drop_guard();
        let every = export_every();
        loop {
            let parts = self.gather(every).await;
            if parts.is_empty() {
                return;
            }
            let count = parts.len() as u64;
            // Boxed: large, and once a batch.
            let export = Box::pin(self.exporter.deliver(self.batch.export(parts), &self.end.closing));
            let Some(sent) = self.end.given_up.run_until_cancelled(export).await else {
                return self.drop_rest(count);
            };
            let lost = sent.map_or_else(|lost| lost.of(count), |()| 0);
            self.batch.sent(count - lost);
            self.batch.lost(DropReason::ExportFailed, lost);
        }
    }

    /// What is queued within `every`, up to a full batch; nothing when the queue is closed and empty.
    async fn gather(&mut self, every: Duration) -> Vec<B::Part> {
        let mut parts = Vec::new();
        let Some(queued) = self.next().await else { return parts };
        let mut size = self.batch.add(queued, &mut parts);
        let until = self.clock.instant(self.clock.now().after(every));
        while size < self.batch.full() {
            let Ok(Some(queued)) = timeout_at(until, self.next()).await else { break };
            size += self.batch.add(queued, &mut parts);
        }
        parts
    }

    async fn next(&mut self) -> Option<B::Queued> {
        if let Some(queued) = self.end.closing.run_until_cancelled(self.queue.recv()).await {
            return queued;
        }
        self.queue.close();
        self.queue.recv().await
    }

    /// Counts what was not exported, `count` parts of a running export included.
    fn drop_rest(&mut self, count: u64) {
        let mut rest = Vec::new();
        while let Ok(queued) = self.queue.try_recv() {
            self.batch.add(queued, &mut rest);
        }
        self.batch.lost(DropReason::Shutdown, count + rest.len() as u64);
    }
}

/// As for a batch processor of an SDK, `OTEL_BSP_SCHEDULE_DELAY` milliseconds.
fn export_every() -> Duration {
    let delay = std::env::var("OTEL_BSP_SCHEDULE_DELAY").ok().and_then(|millis| millis.trim().parse().ok());
    delay.map_or(EXPORT_EVERY, Duration::from_millis)
}

/// A batch that does not fill is exported after this time.
const EXPORT_EVERY: Duration = Duration::from_secs(1);
