//! Spans of the engines: received, joined with our records, passed on.
//!
//! vLLM knows what no gateway can see from outside: how long a request stood in its queue and how long its prompt took. It
//! says so in the spans that it exports. They come in here ([`receiver`]), give the records that wait for them their
//! engine's times ([`join`]), and go on to the collector untouched ([`forward`]). Only requests whose trace was marked as
//! sampled upstream can have such a span, so only they wait; nothing of it is on a request's path.

mod figures;
mod forward;
mod join;
mod receiver;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use self::forward::Forward;
use self::join::{Join, Offered, Ready};
use super::access_log::AccessLogger;
use super::judgement::Judgement;
use super::metrics::{JoinResult, Metrics};
use super::spans::{Background, Spans, SpansError};
use crate::clock::Clock;
use crate::config::{self, Otlp};
use crate::record::Record;

/// Why spans of engines cannot be received.
#[derive(Debug, thiserror::Error)]
pub enum EngineSpansError {
    /// The port.
    #[error("cannot listen on {addr} (telemetry.engine_spans.listen): {source}")]
    Listen {
        /// Where.
        addr: SocketAddr,
        /// What the operating system said.
        source: io::Error,
    },
    /// The way to the collector.
    #[error(transparent)]
    Forward(#[from] SpansError),
}

/// Tells of a record that waited what depends on its stages: metrics of stages, its line in the access log, spans.
pub(super) struct Settled {
    pub(super) metrics: Arc<Metrics>,
    pub(super) spans: Option<Arc<Spans>>,
    pub(super) access_log: Option<Arc<AccessLogger>>,
}

impl Settled {
    /// Judged anew: with the engine's figures the time may have gone elsewhere.
    fn tell(&self, Ready { record, keep }: &Ready) {
        let judgement = Judgement::of(record);
        self.metrics.settled(record, &judgement);
        self.log(record, &judgement);
        if *keep {
            self.export(record);
        }
    }

    /// Writes the record's line.
    pub(super) fn log(&self, record: &Record, judgement: &Judgement) {
        if let Some(log) = &self.access_log {
            log.record(record, judgement);
        }
    }

    /// Exports the spans of a record that is kept.
    pub(super) fn export(&self, record: &Arc<Record>) {
        if let Some(spans) = &self.spans {
            self.metrics.exemplar(record);
            spans.queue(record);
        }
    }
}

/// Records and figures that wait for each other, and the port that figures come in by.
pub(super) struct EngineSpans {
    shared: Arc<Shared>,
    pub(super) address: SocketAddr,
}

struct Shared {
    join: Mutex<Join>,
    settled: Arc<Settled>,
    forward: Option<Forward>,
    clock: Clock,
}

impl EngineSpans {
    /// Opens the port and serves it on the telemetry runtime.
    pub(super) fn start(
        (config, otlp): (config::EngineSpans, Option<&Otlp>),
        settled: &Arc<Settled>,
        clock: Clock,
        background: &Background,
        stop: &CancellationToken,
    ) -> Result<Self, EngineSpansError> {
        let failed = |source| EngineSpansError::Listen { addr: config.listen, source };
        let socket = std::net::TcpListener::bind(config.listen).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let address = socket.local_addr().map_err(failed)?;
        // The socket belongs to the runtime on which it is made.
        let on = background.runtime.enter();
        let socket = TcpListener::from_std(socket).map_err(failed)?;
        drop(on);
        let forward = otlp.map(|otlp| Forward::start(otlp, background, &settled.metrics)).transpose()?;
        let shared = Shared { join: Mutex::default(), settled: Arc::clone(settled), forward, clock };
        let shared = Arc::new(shared);
        let sink: receiver::Sink = {
            let shared = Arc::clone(&shared);
            Arc::new(move |payload, export: &_| shared.received(payload, export))
        };
        let serving = receiver::serve(socket, sink, background.clone(), stop.clone());
        background.tasks.spawn_on(serving, &background.runtime);
        let waiting = Arc::clone(&shared).run(stop.clone());
        background.tasks.spawn_on(waiting, &background.runtime);
        tracing::info!(%address, "spans of engines are received");
        if !address.ip().is_loopback() {
            tracing::warn!(%address, "whoever reaches this port can tell times of stages and write to the collector");
        }
        Ok(Self { shared, address })
    }

    /// Whether it takes a record over, to tell what depends on its stages when its engine has told its times.
    pub(super) fn takes(&self, record: &Arc<Record>, keep: bool) -> bool {
        let offered = self.shared.join.lock().offer(record, keep, self.shared.clock.now());
        match offered {
            Offered::Waits => true,
            Offered::Back => false,
            Offered::Joined(record) => {
                self.shared.count(JoinResult::Joined, 1);
                self.shared.settled.tell(&Ready { record, keep });
                true
            }
        }
    }

    /// Tells all that still waits.
    pub(super) fn give_up(&self) {
        let left = self.shared.join.lock().give_up();
        for ready in &left {
            self.shared.settled.tell(ready);
        }
    }
}

impl Shared {
    fn received(&self, payload: Bytes, export: &ExportTraceServiceRequest) {
        let now = self.clock.now();
        for figures in figures::figures(export) {
            let ready = self.join.lock().told(figures, now);
            if let Some(ready) = ready {
                self.count(JoinResult::Joined, 1);
                self.settled.tell(&ready);
            }
        }
        if let Some(forward) = &self.forward {
            forward.pass(payload, figures::count(export));
        }
    }

    async fn run(self: Arc<Self>, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(LOOK_EVERY)).await.is_some() {
            let (late, unasked) = self.join.lock().overdue(self.clock.now());
            self.count(JoinResult::Missing, late.len() as u64);
            self.count(JoinResult::Unmatched, unasked);
            for ready in &late {
                self.settled.tell(ready);
            }
        }
    }

    fn count(&self, result: JoinResult, records: u64) {
        self.settled.metrics.engine_spans(result, records);
    }
}

const LOOK_EVERY: Duration = Duration::from_millis(500);
