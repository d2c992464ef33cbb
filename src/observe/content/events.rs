//! Entries of the audit trail on their way to the collector.

use std::sync::Arc;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;

use crate::observe::Surroundings;
use crate::observe::metrics::{ContentLoss, DropReason, Metrics};
use crate::observe::otlp::{Batch, BatchQueue, Collector, CollectorError, logs};

/// Starts the task that exports them.
///
/// # Errors
/// The endpoint is unusable, or takes traces alone.
pub(super) fn start(
    collector: &Collector,
    around: &Surroundings,
    metrics: &Arc<Metrics>,
) -> Result<BatchQueue<Entries>, CollectorError> {
    let exporter = collector.logs()?.ok_or(CollectorError::TracesAlone)?;
    let batch = Entries { resource: collector.resource(), metrics: Arc::clone(metrics) };
    Ok(BatchQueue::start(batch, exporter, MAX_QUEUED, around))
}

/// Entries, one log record each.
pub(super) struct Entries {
    resource: Resource,
    metrics: Arc<Metrics>,
}

impl Batch for Entries {
    type Queued = LogRecord;
    type Part = LogRecord;
    type Export = ExportLogsServiceRequest;

    fn add(&self, entry: LogRecord, entries: &mut Vec<LogRecord>) -> usize {
        let bytes = entry.encoded_len();
        entries.push(entry);
        bytes
    }

    fn full(&self) -> usize {
        MAX_BATCH
    }

    fn export(&self, entries: Vec<LogRecord>) -> ExportLogsServiceRequest {
        logs(entries, self.resource.clone())
    }

    fn lost(&self, _: DropReason, entries: u64) {
        let reason = ContentLoss::ExportFailed.as_str();
        self.metrics.families.process.content_dropped.inc_by([reason], entries);
    }
}

/// Entries that wait; each has at most about twice `max_entry` bytes.
const MAX_QUEUED: usize = 256;
/// Bytes of a batch (one entry's more at most): collectors take 4 MiB over gRPC.
const MAX_BATCH: usize = 2 << 20;
