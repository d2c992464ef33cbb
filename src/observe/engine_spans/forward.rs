//! Passes the engines' spans on to the configured collector.
//!
//! A bounded queue and one task. A collector that hangs or refuses costs counted spans and nothing else; engines are
//! answered before their spans are sent on, so that none of them waits for our collector either.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::background::Background;
use crate::observe::metrics::{DropReason, Metrics};
use crate::observe::otlp::{Collector, CollectorError, Exporter};

pub(super) struct Forward {
    queue: mpsc::Sender<Export>,
    /// Bytes that may still be queued.
    free: Arc<Semaphore>,
    metrics: Arc<Metrics>,
}

struct Export {
    payload: Bytes,
    spans: u64,
    _free: OwnedSemaphorePermit,
}

impl Forward {
    pub(super) fn start(
        collector: &Collector,
        background: &Background,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, CollectorError> {
        let exporter = collector.forwarder()?;
        let (queue, exports) = mpsc::channel(MAX_QUEUED_EXPORTS);
        let send = send(exports, exporter, Arc::clone(metrics));
        background.spawn(send);
        let free = Arc::new(Semaphore::new(MAX_QUEUED_BYTES));
        Ok(Self { queue, free, metrics: Arc::clone(metrics) })
    }

    /// Queues an export of `spans` spans, or drops and counts them.
    pub(super) fn pass(&self, payload: Bytes, spans: u64) {
        let bytes = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let queued = Arc::clone(&self.free)
            .try_acquire_many_owned(bytes)
            .ok()
            .and_then(|free| self.queue.try_send(Export { payload, spans, _free: free }).ok());
        if queued.is_none() {
            self.metrics.families.process.spans_dropped.inc_by([DropReason::QueueFull.as_str()], spans);
        }
    }
}

async fn send(mut exports: mpsc::Receiver<Export>, mut exporter: Exporter, metrics: Arc<Metrics>) {
    while let Some(Export { payload, spans, _free }) = exports.recv().await {
        if let Err(lost) = exporter.pass(payload).await {
            metrics
                .families
                .process
                .spans_dropped
                .inc_by([DropReason::ExportFailed.as_str()], lost.of(spans));
        }
    }
}

const MAX_QUEUED_EXPORTS: usize = 256;
const MAX_QUEUED_BYTES: usize = 16 * 1024 * 1024;
