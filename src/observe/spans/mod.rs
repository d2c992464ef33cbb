//! OTLP spans: decided at a request's end, built off its path, exported in the background.
//!
//! The record is the buffer that a tail decision needs, so no span exists while a request runs. A record that is
//! kept goes through a bounded queue to one task ([`export`]), which builds its spans and exports them. What
//! does not fit is dropped and counted; nothing here can make a request wait.

mod build;
mod export;
mod sampling;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::mpsc;

use self::export::SpanBatch;
pub use self::sampling::{Seen, keep};
use super::Surroundings;
use super::judgement::Judgement;
use super::metrics::{DropReason, Metrics};
use super::otlp::{BatchQueue, Collector, CollectorError};
use crate::config::Sampling;
use crate::record::Record;
use crate::stats::PerSecond;

/// Takes records and exports the spans of those that are kept.
pub struct Spans {
    queue: BatchQueue<SpanBatch>,
    sampling: ArcSwap<Sampling>,
    metrics: Arc<Metrics>,
    kept: PerSecond,
}

impl Spans {
    /// Starts the task that exports.
    ///
    /// # Errors
    /// The endpoint is unusable. A collector that does not answer is no error.
    pub fn start(
        collector: &Collector,
        sampling: &Sampling,
        around: &Surroundings,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, CollectorError> {
        let resource = collector.resource();
        let batch = SpanBatch { resource, clock: around.clock, metrics: Arc::clone(metrics) };
        Ok(Self {
            queue: BatchQueue::start(batch, collector.spans()?, MAX_QUEUED_RECORDS, around),
            sampling: ArcSwap::from_pointee(sampling.clone()),
            metrics: Arc::clone(metrics),
            kept: PerSecond::default(),
        })
    }

    /// Whether the spans of an ended request are to be exported.
    pub fn keeps(&self, record: &Record, judgement: &Judgement, seen: Seen) -> bool {
        let sampling = self.sampling.load();
        if !keep(record, judgement, seen, &sampling) {
            return false;
        }
        // A caller who sampled its trace gets our part of it in any case.
        if sampling::is_asked_for(record) || self.kept.takes(record.at.end, sampling.max_per_second) {
            return true;
        }
        self.dropped(DropReason::RateLimited, record);
        false
    }

    /// Queues a record whose spans are to be kept, or drops and counts them.
    pub fn queue(&self, record: &Arc<Record>) {
        let reason = match self.queue.sender.try_send(Arc::clone(record)) {
            Ok(()) => return,
            Err(mpsc::error::TrySendError::Full(_)) => DropReason::QueueFull,
            Err(mpsc::error::TrySendError::Closed(_)) => DropReason::Shutdown,
        };
        self.dropped(reason, record);
    }

    fn dropped(&self, reason: DropReason, record: &Record) {
        let dropped = &self.metrics.families.process.spans_dropped;
        dropped.inc_by([reason.as_str()], build::span_count(record));
    }

    /// Share of ordinary traces that is kept, for the flag that goes upstream.
    pub fn routine_share(&self) -> f64 {
        self.sampling.load().routine
    }

    /// Takes new sampling rules.
    pub fn set_sampling(&self, sampling: &Sampling) {
        self.sampling.store(Arc::new(sampling.clone()));
    }

    /// Exports what is queued, for at most `limit`; what is left is counted as dropped.
    pub async fn shutdown(&self, limit: Duration) {
        self.queue.shutdown("spans", limit).await;
    }
}

const MAX_QUEUED_RECORDS: usize = 4096;
