//! Log records on their way to the collector.

use std::sync::Arc;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;

use super::{Batch, BatchQueue, Collector, CollectorError, scope};
use crate::observe::Surroundings;
use crate::observe::metrics::{DeliveryResult, DropReason, Metrics};

/// Counts log records by what became of them.
type Count = fn(&Metrics, DeliveryResult, u64);

/// Log records of one kind.
pub(crate) struct LogBatch {
    resource: Resource,
    metrics: Arc<Metrics>,
    count: Count,
}

impl LogBatch {
    /// Starts the task that exports them; at most `max` wait for it. `None` where the address is one of traces alone.
    pub(crate) fn start(
        collector: &Collector,
        around: &Surroundings,
        metrics: &Arc<Metrics>,
        max: usize,
        count: Count,
    ) -> Result<Option<BatchQueue<Self>>, CollectorError> {
        let batch = Self { resource: collector.resource.clone(), metrics: Arc::clone(metrics), count };
        Ok(collector.logs()?.map(|exporter| BatchQueue::start(batch, exporter, max, around)))
    }
}

impl Batch for LogBatch {
    type Queued = LogRecord;
    type Part = LogRecord;
    type Export = ExportLogsServiceRequest;

    fn add(&self, record: LogRecord, records: &mut Vec<LogRecord>) -> usize {
        let bytes = record.encoded_len();
        records.push(record);
        bytes
    }

    fn full(&self) -> usize {
        MAX_BATCH
    }

    fn export(&self, log_records: Vec<LogRecord>) -> ExportLogsServiceRequest {
        let scope_logs = vec![ScopeLogs { scope: Some(scope()), log_records, ..ScopeLogs::default() }];
        let resource = Some(self.resource.clone());
        let logs = ResourceLogs { resource, scope_logs, ..ResourceLogs::default() };
        ExportLogsServiceRequest { resource_logs: vec![logs] }
    }

    fn sent(&self, records: u64) {
        (self.count)(&self.metrics, DeliveryResult::Sent, records);
    }

    fn lost(&self, _: DropReason, records: u64) {
        (self.count)(&self.metrics, DeliveryResult::Failed, records);
    }
}

/// Bytes of a batch (one record's more at most): collectors take 4 MiB over gRPC.
const MAX_BATCH: usize = 2 << 20;
