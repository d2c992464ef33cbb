//! Spans of queued records, as the collector takes them.

use std::sync::Arc;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};

use super::build;
use crate::clock::Clock;
use crate::observe::metrics::{DropReason, Metrics};
use crate::observe::otlp::{Batch, scope};
use crate::record::Record;

pub(super) struct SpanBatch {
    pub(super) resource: Resource,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<Metrics>,
}

impl Batch for SpanBatch {
    type Queued = Arc<Record>;
    type Part = Span;
    type Export = ExportTraceServiceRequest;

    fn add(&self, record: Arc<Record>, spans: &mut Vec<Span>) -> usize {
        let own = build::spans(&record, &self.clock);
        let count = own.len();
        spans.extend(own);
        count
    }

    fn full(&self) -> usize {
        MAX_BATCH
    }

    fn export(&self, spans: Vec<Span>) -> ExportTraceServiceRequest {
        let scope_spans = vec![ScopeSpans { scope: Some(scope()), spans, ..ScopeSpans::default() }];
        let resource = Some(self.resource.clone());
        let spans = ResourceSpans { resource, scope_spans, ..ResourceSpans::default() };
        ExportTraceServiceRequest { resource_spans: vec![spans] }
    }

    fn lost(&self, reason: DropReason, spans: u64) {
        self.metrics.families.process.spans_dropped.inc_by([reason.as_str()], spans);
    }
}

/// Spans of a batch (one record's more at most).
const MAX_BATCH: usize = 512;
