//! Passes the engines' spans on to the configured collector, as they came.
//!
//! A bounded queue and one task. A collector that hangs or refuses costs counted spans and nothing else; engines are
//! answered before their spans are sent on, so that none of them waits for our collector either.

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request};
use tokio::sync::{Semaphore, mpsc};

use crate::config::Otlp;
use crate::observe::metrics::{DropReason, Metrics};
use crate::observe::spans::client::Client;
use crate::observe::spans::{Background, SpansError};

/// Queues exports for the collector.
pub(super) struct Forward {
    queue: mpsc::Sender<Export>,
    /// Bytes that may still be queued.
    room: Arc<Semaphore>,
    metrics: Arc<Metrics>,
}

struct Export {
    payload: Bytes,
    spans: u64,
    _room: tokio::sync::OwnedSemaphorePermit,
}

impl Forward {
    pub(super) fn start(
        otlp: &Otlp,
        background: &Background,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, SpansError> {
        let client = Client::new(otlp, background)?;
        let (queue, exports) = mpsc::channel(QUEUED_EXPORTS);
        let send = send(exports, client, otlp.traces_endpoint.clone(), Arc::clone(metrics));
        background.tasks.spawn_on(send, &background.runtime);
        Ok(Self { queue, room: Arc::new(Semaphore::new(QUEUED_BYTES)), metrics: Arc::clone(metrics) })
    }

    /// Queues an export of so many spans, or drops and counts them.
    pub(super) fn pass(&self, payload: Bytes, spans: u64) {
        let bytes = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let queued = Arc::clone(&self.room)
            .try_acquire_many_owned(bytes)
            .ok()
            .and_then(|room| self.queue.try_send(Export { payload, spans, _room: room }).ok());
        if queued.is_none() {
            self.metrics.spans_dropped(DropReason::QueueFull, spans);
        }
    }
}

async fn send(mut exports: mpsc::Receiver<Export>, client: Client, endpoint: String, metrics: Arc<Metrics>) {
    let mut is_failing = false;
    while let Some(Export { payload, spans, _room }) = exports.recv().await {
        let mut request = Request::new(payload);
        *request.method_mut() = Method::POST;
        // Checked with the configuration; a fault here shows as a failed export.
        *request.uri_mut() = endpoint.parse().unwrap_or_default();
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        let failure = match client.send(request).await {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("the collector answered {}", answer.status())),
            Err(error) => Some(error.to_string()),
        };
        if let Some(error) = &failure {
            metrics.spans_dropped(DropReason::ExportFailed, spans);
            if !is_failing {
                tracing::warn!(%error, "engines' spans cannot be passed on; they are dropped and counted");
            }
        }
        is_failing = failure.is_some();
    }
}

const QUEUED_EXPORTS: usize = 256;
const QUEUED_BYTES: usize = 16 * 1024 * 1024;
