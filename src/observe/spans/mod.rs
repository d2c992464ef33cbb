//! OTLP spans: decided at a request's end, built off its path, exported in the background.
//!
//! The record is the buffer that a tail decision needs, so no span exists while a request runs. A record that is
//! kept goes through a bounded queue to one task, which builds its spans and hands them to the SDK's batch
//! processor. Whatever does not fit is dropped and counted; nothing here can make a request wait.

mod build;
pub(crate) mod client;
mod exporter;
pub(crate) mod grpc;
mod sampling;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use opentelemetry_otlp::ExporterBuildError;
use tokio::sync::{mpsc, oneshot};

use self::exporter::Exporter;
pub(crate) use self::exporter::resource;
pub use self::sampling::{Seen, keep};
use super::judgement::Judgement;
use super::metrics::{BuildInfo, DropReason, Metrics};
use crate::clock::Clock;
use crate::config::{Otlp, Sampling};
use crate::record::Record;

/// Where background work of the observers runs.
#[derive(Clone, Debug)]
pub struct Background {
    /// The telemetry runtime.
    pub runtime: tokio::runtime::Handle,
    /// Its tasks.
    pub tasks: tokio_util::task::TaskTracker,
}

/// Runs what HTTP/2 needs beside a connection as tasks of the telemetry runtime.
#[derive(Clone, Debug)]
pub(super) struct Tracked(pub(super) Background);

impl<F> hyper::rt::Executor<F> for Tracked
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, task: F) {
        self.0.tasks.spawn_on(task, &self.0.runtime);
    }
}

/// Why spans cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum SpansError {
    /// The exporter refused its configuration.
    #[error("otlp exporter: {0}")]
    Exporter(#[from] ExporterBuildError),
    /// TLS could not be set up.
    #[error("otlp exporter: tls: {0}")]
    Tls(#[from] rustls::Error),
}

/// Takes records and exports the spans of those that are kept.
pub struct Spans {
    queue: mpsc::Sender<Message>,
    sampling: ArcSwap<Sampling>,
    exporter: Arc<Exporter>,
    metrics: Arc<Metrics>,
}

enum Message {
    Record(Arc<Record>),
    /// The last message: what came before it has been handed to the exporter.
    End(oneshot::Sender<()>),
}

impl Spans {
    /// Starts the exporter and the task that feeds it.
    ///
    /// # Errors
    /// The endpoint or the TLS set-up is unusable. A collector that does not answer is no error.
    pub fn start(
        (otlp, sampling): (&Otlp, &Sampling),
        build: BuildInfo,
        clock: Clock,
        background: &Background,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, SpansError> {
        let exporter = Arc::new(Exporter::start(otlp, build, background, metrics)?);
        let (queue, messages) = mpsc::channel(QUEUED_RECORDS);
        let feed = feed(messages, clock, Arc::clone(&exporter));
        background.tasks.spawn_on(feed, &background.runtime);
        let sampling = ArcSwap::from_pointee(sampling.clone());
        Ok(Self { queue, sampling, exporter, metrics: Arc::clone(metrics) })
    }

    /// Whether the spans of an ended request are to be exported.
    #[must_use]
    pub fn keeps(&self, record: &Record, judgement: &Judgement, seen: Seen) -> bool {
        keep(record, judgement, seen, &self.sampling.load())
    }

    /// Queues a record whose spans are to be kept, or drops and counts them.
    pub fn queue(&self, record: &Arc<Record>) {
        let reason = match self.queue.try_send(Message::Record(Arc::clone(record))) {
            Ok(()) => return,
            Err(mpsc::error::TrySendError::Full(_)) => DropReason::QueueFull,
            Err(mpsc::error::TrySendError::Closed(_)) => DropReason::Shutdown,
        };
        self.metrics.spans_dropped(reason, build::span_count(record));
    }

    /// Share of ordinary traces that is kept, for the flag that goes upstream.
    #[must_use]
    pub fn routine_share(&self) -> f64 {
        self.sampling.load().routine
    }

    /// Takes new sampling rules.
    pub fn set_sampling(&self, sampling: &Sampling) {
        self.sampling.store(Arc::new(sampling.clone()));
    }

    /// Exports what is queued, for at most `limit`; what is left is counted as dropped.
    pub async fn shutdown(&self, limit: Duration) {
        let (done, is_done) = oneshot::channel();
        let handed_over = async {
            if self.queue.send(Message::End(done)).await.is_ok() {
                // The task is gone: so is all that it had to do.
                let _ = is_done.await;
            }
        };
        // Handing over is quick; the limit is for the collector.
        let _ = tokio::time::timeout(limit, handed_over).await;
        let exporter = Arc::clone(&self.exporter);
        // The SDK's shutdown blocks, but never longer than its limit.
        let _ = tokio::task::spawn_blocking(move || exporter.shutdown(limit)).await;
    }
}

async fn feed(mut messages: mpsc::Receiver<Message>, clock: Clock, exporter: Arc<Exporter>) {
    while let Some(message) = messages.recv().await {
        match message {
            Message::Record(record) => exporter.export(build::spans(&record, &clock)),
            Message::End(done) => {
                messages.close();
                // Nobody waits any more: fine.
                let _ = done.send(());
            }
        }
    }
}

const QUEUED_RECORDS: usize = 4096;
