//! From span data to the collector: the SDK's batch processor around the OTLP exporter, with honest counts.
//!
//! The batch processor drops silently when its queue is full, and forgets batches that fail. Both are counted
//! here: by never giving it more than fits, and by a wrapper around the exporter that sees every result. The
//! processor exports on a thread of its own without a runtime; `client` takes that into account.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use opentelemetry::{Key, KeyValue};
use opentelemetry_otlp::{Protocol, SpanExporter as OtlpExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanExporter, SpanProcessor,
};

use super::client::{Client, LastFault};
use super::{Background, SpansError};
use crate::config::Otlp;
use crate::observe::metrics::{BuildInfo, DropReason, Metrics};

/// Queues spans for export.
pub(super) struct Exporter {
    processor: BatchSpanProcessor,
    pending: Arc<AtomicUsize>,
    metrics: Arc<Metrics>,
}

impl Exporter {
    pub(super) fn start(
        otlp: &Otlp,
        build: BuildInfo,
        background: &Background,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, SpansError> {
        let pending = Arc::new(AtomicUsize::new(0));
        let client = Client::new(otlp, background)?;
        let last_fault = client.last_fault();
        let inner = OtlpExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(otlp.traces_endpoint.as_str())
            .with_timeout(otlp.timeout)
            .build()?;
        let counting = Counting {
            inner,
            pending: Arc::clone(&pending),
            metrics: Arc::clone(metrics),
            is_failing: AtomicBool::new(false),
            last_fault,
        };
        let mut batches =
            BatchConfigBuilder::default().with_max_queue_size(MAX_PENDING).with_max_export_batch_size(BATCH);
        if std::env::var_os("OTEL_BSP_SCHEDULE_DELAY").is_none() {
            batches = batches.with_scheduled_delay(EXPORT_EVERY);
        }
        let mut processor = BatchSpanProcessor::builder(counting).with_batch_config(batches.build()).build();
        processor.set_resource(&resource(build));
        Ok(Self { processor, pending, metrics: Arc::clone(metrics) })
    }

    /// Queues the spans of one request: all of them or, where they do not fit, none.
    pub(super) fn export(&self, spans: Vec<SpanData>) {
        let pending = self.pending.fetch_add(spans.len(), Ordering::AcqRel);
        if pending + spans.len() > MAX_PENDING {
            self.pending.fetch_sub(spans.len(), Ordering::AcqRel);
            self.metrics.spans_dropped(DropReason::QueueFull, spans.len() as u64);
            return;
        }
        for span in spans {
            self.processor.on_end(span);
        }
    }

    /// Exports what is queued; blocks for at most `limit`.
    pub(super) fn shutdown(&self, limit: Duration) {
        if let Err(error) = self.processor.shutdown_with_timeout(limit) {
            tracing::warn!(%error, "spans not exported before the end");
        }
        let left = self.pending.swap(0, Ordering::AcqRel);
        self.metrics.spans_dropped(DropReason::Shutdown, left as u64);
    }
}

/// `service.name` is ours unless `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` says otherwise.
pub(crate) fn resource(build: BuildInfo) -> Resource {
    let version = KeyValue::new("service.version", build.version);
    let detected = Resource::builder().build();
    let is_named = detected
        .get(&Key::from_static_str("service.name"))
        .is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    let builder = Resource::builder().with_attribute(version);
    if is_named { builder.build() } else { builder.with_service_name("tokenway").build() }
}

/// Counts what leaves the queue and what fails.
struct Counting<E> {
    inner: E,
    pending: Arc<AtomicUsize>,
    metrics: Arc<Metrics>,
    is_failing: AtomicBool,
    last_fault: LastFault,
}

impl<E> std::fmt::Debug for Counting<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Counting")
    }
}

impl<E: SpanExporter> SpanExporter for Counting<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let result = self.inner.export(batch).await;
        // After the answer, so that a slow collector fills our count and not the processor's queue. A shutdown
        // that gave up meanwhile has counted these spans already.
        let leave = |pending: usize| pending.checked_sub(spans);
        let was_pending = self.pending.fetch_update(Ordering::AcqRel, Ordering::Acquire, leave).is_ok();
        let was_failing = self.is_failing.swap(result.is_err(), Ordering::Relaxed);
        match &result {
            Err(error) => {
                if was_pending {
                    self.metrics.spans_dropped(DropReason::ExportFailed, spans as u64);
                }
                if !was_failing {
                    let error = self.last_fault.take().unwrap_or_else(|| error.to_string());
                    tracing::warn!(error, "span export fails; spans are dropped and counted until it works");
                }
            }
            Ok(()) if was_failing => tracing::info!("span export works again"),
            Ok(()) => {}
        }
        result
    }

    fn shutdown_with_timeout(&self, limit: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(limit)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

/// Spans that wait for the collector, those of a running export included.
const MAX_PENDING: usize = 8192;
const BATCH: usize = 512;
const EXPORT_EVERY: Duration = Duration::from_secs(1);
