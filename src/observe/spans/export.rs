//! The task that builds spans of queued records and exports them, one batch at a time.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use tokio::sync::mpsc;
use tokio::time::timeout_at;

use super::{End, build};
use crate::clock::Clock;
use crate::observe::metrics::{DropReason, Metrics};
use crate::observe::otlp::{Exporter, scope};
use crate::record::Record;

pub(super) struct Task {
    pub(super) records: mpsc::Receiver<Arc<Record>>,
    pub(super) exporter: Exporter,
    pub(super) resource: Resource,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<Metrics>,
    pub(super) end: End,
}

impl Task {
    /// Exports until the queue is closed and empty, or until it is given up.
    pub(super) async fn run(mut self) {
        // Fires on drop too, so that a waiter does not outlive a task dropped with its runtime.
        let _done = self.end.done.clone().drop_guard();
        let every = export_every();
        loop {
            let batch = self.gather(every).await;
            if batch.is_empty() {
                return;
            }
            let spans = batch.len() as u64;
            let export = wrapped(batch, self.resource.clone());
            // Boxed: large, and once a batch.
            let export = Box::pin(self.exporter.send(export));
            match self.end.given_up.run_until_cancelled(export).await {
                Some(true) => {}
                Some(false) => self.dropped(DropReason::ExportFailed, spans),
                None => return self.drop_rest(spans),
            }
        }
    }

    /// The spans of what is queued within `every`, up to a full batch; none when the queue is closed and empty.
    async fn gather(&mut self, every: Duration) -> Vec<Span> {
        let mut spans = Vec::new();
        let Some(record) = self.next().await else { return spans };
        spans.extend(build::spans(&record, &self.clock));
        let until = self.clock.instant(self.clock.now().after(every));
        while spans.len() < MAX_BATCH {
            let Ok(Some(record)) = timeout_at(until, self.next()).await else { break };
            spans.extend(build::spans(&record, &self.clock));
        }
        spans
    }

    async fn next(&mut self) -> Option<Arc<Record>> {
        if let Some(record) = self.end.closing.run_until_cancelled(self.records.recv()).await {
            return record;
        }
        self.records.close();
        self.records.recv().await
    }

    /// Counts what was not exported, `spans` of a running export included.
    fn drop_rest(&mut self, mut spans: u64) {
        while let Ok(record) = self.records.try_recv() {
            spans += build::span_count(&record);
        }
        self.dropped(DropReason::Shutdown, spans);
    }

    fn dropped(&self, reason: DropReason, spans: u64) {
        self.metrics.families.process.spans_dropped.inc_by([reason.as_str()], spans);
    }
}

fn wrapped(spans: Vec<Span>, resource: Resource) -> ExportTraceServiceRequest {
    let scope_spans = vec![ScopeSpans { scope: Some(scope()), spans, ..ScopeSpans::default() }];
    let spans = ResourceSpans { resource: Some(resource), scope_spans, ..ResourceSpans::default() };
    ExportTraceServiceRequest { resource_spans: vec![spans] }
}

/// As for a batch processor of an SDK, `OTEL_BSP_SCHEDULE_DELAY` milliseconds.
fn export_every() -> Duration {
    let delay = std::env::var("OTEL_BSP_SCHEDULE_DELAY").ok().and_then(|millis| millis.trim().parse().ok());
    delay.map_or(EXPORT_EVERY, Duration::from_millis)
}

/// A batch is exported when it has this many spans (one record's more at most) ...
const MAX_BATCH: usize = 512;
/// ... or after this time.
const EXPORT_EVERY: Duration = Duration::from_secs(1);
