//! The task that exports metrics at an interval, and once more at the end.
//!
//! The page of metrics and the exponential histograms. A collector that hangs, refuses or is gone costs counted exports and nothing else; totals are cumulative, so
//! that the next export that arrives has everything.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::metrics::v1::{Metric, ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use tokio_util::sync::CancellationToken;

use super::exporter::Exporter;
use super::{CollectorError, Route, resource, scope, tls};
use crate::config::{OtlpMetrics, Temporality};
use crate::fleet::status::FleetView;
use crate::observe::Surroundings;
use crate::observe::metrics::{DeliveryResult, Metrics, since};

pub(crate) struct MetricsExport {
    closing: CancellationToken,
    done: CancellationToken,
}

impl MetricsExport {
    /// Starts the task.
    ///
    /// # Errors
    /// The endpoint is unusable or TLS cannot be set up. A collector that does not answer is no error.
    pub(crate) fn start(
        config: &OtlpMetrics,
        around: &Surroundings,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, CollectorError> {
        let background = &around.background;
        let connector = tls::connector("METRICS_", background.tasks.clone())?;
        let route = Route::new(&config.target, connector, around);
        let exporter = route.exporter("metrics", config.is_gzip)?;
        let this = Self { closing: CancellationToken::new(), done: CancellationToken::new() };
        let task = Task {
            exporter,
            resource: resource(&around.instance),
            metrics: Arc::clone(metrics),
            fleet: around.fleet.clone(),
            temporality: config.temporality,
            delivered: Vec::new(),
            closing: this.closing.clone(),
        };
        let (done, interval) = (this.done.clone().drop_guard(), config.interval);
        let run = async move {
            task.run(interval).await;
            drop(done);
        };
        background.spawn(run);
        Ok(this)
    }

    /// Exports a last time, for at most `limit`.
    pub(crate) async fn shutdown(&self, limit: Duration) {
        self.closing.cancel();
        if tokio::time::timeout(limit, self.done.cancelled()).await.is_err() {
            tracing::warn!(?limit, "the last metrics were not exported before the end");
        }
    }
}

struct Task {
    exporter: Exporter,
    resource: Resource,
    metrics: Arc<Metrics>,
    fleet: FleetView,
    temporality: Temporality,
    /// What the last delta that arrived was counted to.
    delivered: Vec<Metric>,
    closing: CancellationToken,
}

impl Task {
    async fn run(mut self, interval: Duration) {
        let closing = self.closing.clone();
        loop {
            // Cancel-safe: nothing happens while it sleeps.
            let is_last = closing.run_until_cancelled(tokio::time::sleep(interval)).await.is_none();
            // An export that hangs must not keep the last one waiting.
            let export = Box::pin(self.export());
            if is_last {
                export.await;
                return;
            }
            if closing.run_until_cancelled(export).await.is_none() {
                Box::pin(self.export()).await;
                return;
            }
        }
    }

    async fn export(&mut self) {
        self.metrics.set_sources(&self.fleet.sources());
        let fleet = self.fleet.statuses();
        let metrics = Arc::clone(&self.metrics);
        // Of a large page this takes tens of milliseconds, and probes share the runtime's thread.
        let Ok(now) = tokio::task::spawn_blocking(move || metrics.otlp(&fleet)).await else { return };
        let (export, delivered) = match self.temporality {
            Temporality::Cumulative => (now, Vec::new()),
            Temporality::Delta => (since(&now, &self.delivered), now),
        };
        let request = ExportMetricsServiceRequest { resource_metrics: vec![self.wrapped(export)] };
        let sent = self.exporter.send(request, &self.closing).await;
        let result = if sent.is_ok() { DeliveryResult::Sent } else { DeliveryResult::Failed };
        self.metrics.families.process.otlp_exports.inc([result.as_str()]);
        if sent.is_ok() || sent.is_err_and(|undelivered| undelivered.is_partial()) {
            self.delivered = delivered;
        }
    }

    fn wrapped(&self, metrics: Vec<Metric>) -> ResourceMetrics {
        ResourceMetrics {
            resource: Some(self.resource.clone()),
            scope_metrics: vec![ScopeMetrics { scope: Some(scope()), metrics, ..ScopeMetrics::default() }],
            ..ResourceMetrics::default()
        }
    }
}
