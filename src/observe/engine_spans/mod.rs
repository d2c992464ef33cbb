//! Spans of the engines: received, joined with our records, passed on.
//!
//! Queue time and prefill time of a request are known to its engine alone; vLLM exports them as attributes of a span.
//! Spans come in here ([`receiver`]), their times are joined with the records that wait for them ([`join`]), and they go
//! on to the collector unchanged ([`forward`]). Only requests whose trace was marked as sampled upstream can have such a
//! span, so only they wait; nothing of it is on a request's path.

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
use super::Surroundings;
use super::access_log::AccessLogger;
use super::history::History;
use super::judgement::Judgement;
use super::metrics::{JoinResult, Metrics};
use super::otlp::{Collector, CollectorError};
use super::spans::Spans;
use super::stages;
use super::windows::{Series, Windows};
use crate::admission::EngineCharge;
use crate::clock::Clock;
use crate::record::Record;

/// Why spans of engines cannot be received.
#[expect(missing_docs, reason = "the messages are it")]
#[derive(Debug, thiserror::Error)]
pub enum EngineSpansError {
    #[error("cannot listen on {addr} (telemetry.engine_spans.listen): {source}")]
    Listen { addr: SocketAddr, source: io::Error },
    #[error(transparent)]
    Forward(#[from] CollectorError),
}

/// Publishes what depends on a record's stages: stage metrics, the line in the access log, spans.
pub(super) struct Settled {
    pub(super) metrics: Arc<Metrics>,
    pub(super) spans: Option<Arc<Spans>>,
    pub(super) access_log: Option<Arc<AccessLogger>>,
    pub(super) windows: Arc<Windows>,
    pub(super) history: History,
}

impl Settled {
    fn publish(&self, Ready { record, keep, charge, times }: Ready) {
        let estimated = Judgement::of(&record);
        // Where the engine reported nothing, what was charged and blamed stays as estimated.
        let record = match times {
            None => {
                self.settle(&record, &estimated, None);
                record
            }
            Some(times) => {
                let record = Arc::new(Record { engine: Some(times), ..Record::clone(&record) });
                let measured = Judgement::of(&record);
                if let Some(charge) = charge {
                    charge.correct(stages::charged_time(&record, &measured.stages));
                }
                self.settle(&record, &measured, Some(&estimated));
                record
            }
        };
        if keep {
            self.export(&record);
        }
    }

    fn settle(&self, record: &Arc<Record>, judgement: &Judgement, before: Option<&Judgement>) {
        self.metrics.settled(record, judgement);
        self.keep(record, judgement, before, self.windows.series_of(record).as_deref());
    }

    /// Adds its times by stage to its series, in place of those that were estimated `before`, and writes its line.
    pub(super) fn keep(
        &self,
        record: &Arc<Record>,
        judgement: &Judgement,
        before: Option<&Judgement>,
        series: Option<&Series>,
    ) {
        if let Some(series) = series {
            series.add_stages(&judgement.stages, record.at.end);
        }
        self.history.settled(record, judgement, before);
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

/// Records and figures that wait for each other, and the port that takes the figures.
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
        listen: SocketAddr,
        collector: Option<&Collector>,
        settled: &Arc<Settled>,
        around: &Surroundings,
        stop: &CancellationToken,
    ) -> Result<Self, EngineSpansError> {
        let Surroundings { clock, background, .. } = around;
        let clock = *clock;
        let failed = |source| EngineSpansError::Listen { addr: listen, source };
        let socket = std::net::TcpListener::bind(listen).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let address = socket.local_addr().map_err(failed)?;
        // The socket belongs to the runtime on which it is made.
        let on = background.runtime.enter();
        let socket = TcpListener::from_std(socket).map_err(failed)?;
        drop(on);
        let forward =
            collector.map(|collector| Forward::start(collector, background, &settled.metrics)).transpose()?;
        let shared = Shared { join: Mutex::default(), settled: Arc::clone(settled), forward, clock };
        let shared = Arc::new(shared);
        let sink: receiver::Sink = {
            let shared = Arc::clone(&shared);
            Arc::new(move |payload, export: &_| shared.received(payload, export))
        };
        let (panics, tasks) = (settled.metrics.families.process.panics.clone(), background.tasks.clone());
        background.spawn(receiver::serve(socket, sink, clock, panics, tasks, stop.clone()));
        let waiting = Arc::clone(&shared).run(stop.clone());
        background.spawn(waiting);
        tracing::info!(%address, "spans of engines are received");
        if !address.ip().is_loopback() {
            tracing::warn!(%address, "anyone who can reach this port can forge stage timings and write to the collector");
        }
        Ok(Self { shared, address })
    }

    /// Whether it takes a record over, to publish what depends on its stages when its engine's times are known.
    pub(super) fn takes(&self, record: &Arc<Record>, keep: bool, charge: Option<EngineCharge>) -> bool {
        let ready = Ready { record: Arc::clone(record), keep, charge, times: None };
        let offered = self.shared.join.lock().offer(ready, self.shared.clock.now());
        match offered {
            Offered::Waits => true,
            Offered::Refused => false,
            Offered::Joined(ready) => {
                self.shared.count(JoinResult::Joined, 1);
                self.shared.settled.publish(*ready);
                true
            }
        }
    }

    /// Publishes every record that still waits.
    pub(super) fn give_up(&self) {
        let left = self.shared.join.lock().give_up();
        for ready in left {
            self.shared.settled.publish(ready);
        }
    }
}

impl Shared {
    fn received(&self, payload: Bytes, export: &ExportTraceServiceRequest) {
        let now = self.clock.now();
        for figures in figures::figures(export) {
            let ready = self.join.lock().receive(figures, now);
            if let Some(ready) = ready {
                self.count(JoinResult::Joined, 1);
                self.settled.publish(ready);
            }
        }
        if let Some(forward) = &self.forward {
            forward.pass(payload, figures::count(export));
        }
    }

    async fn run(self: Arc<Self>, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(CHECK_EVERY)).await.is_some() {
            let (late, unmatched) = self.join.lock().overdue(self.clock.now());
            self.count(JoinResult::Missing, late.len() as u64);
            self.count(JoinResult::Unmatched, unmatched);
            for ready in late {
                self.settled.publish(ready);
            }
        }
    }

    fn count(&self, result: JoinResult, records: u64) {
        self.settled.metrics.families.process.engine_spans.inc_by([result.as_str()], records);
    }
}

const CHECK_EVERY: Duration = Duration::from_millis(500);
