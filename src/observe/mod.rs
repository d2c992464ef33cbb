//! Observers: they read first tokens, gaps and records, and never speak back to the line.
//!
//! [`Observer`] is the one door: the data path calls it, and it tells metrics, latency windows, the decision ring,
//! the access log and spans. Every call is synchronous, short and bounded; what cannot keep up drops and counts.
//! Nothing here decides anything about a request.

pub mod access_log;
pub mod attributes;
mod debug;
pub mod decisions;
mod engine_spans;
#[cfg(test)]
mod fixture;
pub mod judgement;
pub mod metrics;
pub mod otlp;
pub mod record_guard;
pub mod rfc3339;
pub mod slo;
pub mod spans;
pub mod stages;
pub mod windows;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use self::access_log::AccessLog;
use self::decisions::Decisions;
pub use self::engine_spans::EngineSpansError;
use self::engine_spans::{EngineSpans, Settled};
use self::judgement::Judgement;
use self::metrics::{BuildInfo, Metrics, StreamKey};
use self::otlp::{Collector, CollectorError};
use self::spans::{Background, Seen, Spans};
use self::windows::{Measure, WindowKey, Windows};
use crate::clock::Clock;
use crate::config::Config;
use crate::record::{FirstToken, Gaps, Record};
use crate::request::trace_context::{Trace, trace_of};

/// A further reader, registered before the first request: drift detection, the demo's table.
pub trait Tap: Send + Sync {
    /// A request's first content event.
    fn first_token(&self, _first: &FirstToken) {}
    /// Gaps of a stream that `replica` serves.
    fn gaps(&self, _replica: &Arc<str>, _gaps: &Gaps<'_>) {}
    /// A request's end.
    fn record(&self, record: &Record);
    /// Whether the trace of an ended request is of interest.
    fn wants_trace(&self, _record: &Record) -> bool {
        false
    }
}

/// Why observation cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// The access log cannot be opened.
    #[error("access log: {0}")]
    AccessLog(#[from] io::Error),
    /// Nothing can be exported to the collector.
    #[error(transparent)]
    Collector(#[from] CollectorError),
    /// Spans of engines cannot be received.
    #[error(transparent)]
    EngineSpans(#[from] EngineSpansError),
}

/// What observers need of the process.
#[derive(Clone)]
pub struct Surroundings {
    /// The process' clock.
    pub clock: Clock,
    /// What runs.
    pub build: BuildInfo,
    /// Where background work runs.
    pub background: Background,
}

/// All observers.
pub struct Observer {
    metrics: Arc<Metrics>,
    windows: Arc<Windows>,
    decisions: Decisions,
    access_log: Option<Arc<AccessLog>>,
    collector: Option<Collector>,
    spans: Option<Arc<Spans>>,
    settled: Arc<Settled>,
    engine_spans: Option<EngineSpans>,
    routine_at_start: f64,
    taps: Arc<[Arc<dyn Tap>]>,
    clock: Clock,
    stop: CancellationToken,
}

impl Observer {
    /// Starts every observer that the configuration asks for.
    ///
    /// # Errors
    /// The access log cannot be opened or the OTLP exporter refuses its configuration.
    pub fn start(config: &Config, around: Surroundings) -> Result<Self, ObserveError> {
        let Surroundings { clock, build, background } = around;
        let metrics = Arc::new(Metrics::new(config, build, clock));
        let telemetry = &config.telemetry;
        let access_log = AccessLog::start(&telemetry.access_log, clock, &metrics)?.map(Arc::new);
        let collector =
            telemetry.otlp.as_ref().map(|otlp| Collector::new(otlp, build, &background)).transpose()?;
        let spans = collector
            .as_ref()
            .map(|collector| Spans::start(collector, &telemetry.sampling, clock, &background, &metrics))
            .transpose()?
            .map(Arc::new);
        let (windows, decisions) = (Arc::new(Windows::default()), Decisions::default());
        let stop = CancellationToken::new();
        if spans.is_some() {
            let tails = learn_tails(Arc::clone(&windows), clock, stop.clone());
            background.tasks.spawn_on(tails, &background.runtime);
        }
        let settled = Arc::new(Settled {
            metrics: Arc::clone(&metrics),
            spans: spans.clone(),
            access_log: access_log.clone(),
        });
        let engine_spans = telemetry
            .engine_spans
            .map(|config| {
                EngineSpans::start(config.listen, collector.as_ref(), &settled, clock, &background, &stop)
            })
            .transpose()?;
        Ok(Self {
            metrics,
            windows,
            decisions,
            access_log,
            collector,
            spans,
            settled,
            engine_spans,
            routine_at_start: telemetry.sampling.routine,
            taps: Arc::default(),
            clock,
            stop,
        })
    }

    /// Registers a further reader.
    pub fn add_tap(&mut self, tap: Arc<dyn Tap>) {
        self.taps = self.taps.iter().cloned().chain([tap]).collect();
    }

    /// The metrics, for counters that are not about one request.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// The OTLP collector, where one is configured.
    #[must_use]
    pub fn collector(&self) -> Option<&Collector> {
        self.collector.as_ref()
    }

    /// Latency windows.
    #[must_use]
    pub fn windows(&self) -> &Windows {
        &self.windows
    }

    /// The last decisions.
    #[must_use]
    pub fn decisions(&self) -> &Decisions {
        &self.decisions
    }

    /// The clock that stamps are of.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// The trace context of a request.
    #[must_use]
    pub fn trace_of(&self, headers: &http::HeaderMap) -> Trace {
        let of_spans = self.spans.as_ref().map(|spans| spans.routine_share());
        // Engines export spans of marked traces only, also where we export none.
        let of_engines = self.engine_spans.as_ref().map(|_| self.routine_at_start);
        trace_of(headers, of_spans.or(of_engines))
    }

    /// Where engines export their spans to, if they may.
    #[must_use]
    pub fn engine_spans_address(&self) -> Option<SocketAddr> {
        self.engine_spans.as_ref().map(|spans| spans.address)
    }

    /// Where the gaps of a stream go; resolved once a stream, at its first token.
    #[must_use]
    pub fn stream_series(&self, key: &StreamKey) -> StreamSeries {
        let window = WindowKey {
            route: Arc::clone(&key.route),
            model: Arc::clone(&key.model),
            revision: Arc::clone(&key.revision),
        };
        StreamSeries {
            metrics: self.metrics.stream_series(key),
            windows: self.windows.series(&window),
            taps: Arc::clone(&self.taps),
            replica: Arc::clone(&key.replica),
            clock: self.clock,
        }
    }

    /// A request's first content event.
    pub fn first_token(&self, first: &FirstToken) {
        self.metrics.first_token(first);
        let key = WindowKey {
            route: Arc::clone(&first.route),
            model: Arc::clone(&first.model),
            revision: Arc::clone(&first.served.revision),
        };
        let ttft = std::iter::once(first.ttft);
        self.windows.series(&key).observe(Measure::Ttft, ttft, self.clock.now());
        for tap in &*self.taps {
            tap.first_token(first);
        }
    }

    /// A request's end.
    pub fn record(&self, record: &Arc<Record>) {
        let judgement = Judgement::of(record);
        let is_tail = self.note_duration(record);
        let seen = Seen { is_tail, is_drifting: self.taps.iter().any(|tap| tap.wants_trace(record)) };
        let keep = self.spans.as_ref().is_some_and(|spans| spans.keeps(record, &judgement, seen));
        let waits = self.engine_spans.as_ref().is_some_and(|engine_spans| engine_spans.takes(record, keep));
        self.metrics.record(record, &judgement, !waits);
        if !waits {
            self.settled.log(record, &judgement);
        }
        if keep && !waits {
            self.settled.export(record);
        }
        self.decisions.record(record);
        for tap in &*self.taps {
            tap.record(record);
        }
    }

    /// Takes a duration in; returns whether the request is among the slowest of its series.
    fn note_duration(&self, record: &Record) -> bool {
        let Some(served) = record.served() else { return false };
        let key = WindowKey {
            route: Arc::clone(&record.route),
            model: Arc::clone(&record.model),
            revision: Arc::clone(&served.revision),
        };
        let series = self.windows.series(&key);
        let is_tail = series.is_beyond_p99(record.ttft(), record.duration());
        series.observe(Measure::Duration, std::iter::once(record.duration()), record.at.end);
        is_tail
    }

    /// Takes what may change in a running process: sampling rules.
    pub fn reconfigure(&self, config: &Config) {
        self.metrics.set_targets(config);
        if let Some(spans) = &self.spans {
            spans.set_sampling(&config.telemetry.sampling);
        }
    }

    /// Reopens the access log's file, for log rotation.
    pub fn reopen(&self) {
        if let Some(log) = &self.access_log {
            log.reopen();
        }
    }

    /// Writes and exports what is queued, for at most about twice `limit`.
    pub async fn shutdown(self: &Arc<Self>, limit: Duration) {
        self.stop.cancel();
        // First of all, because what waited for its engine has a line to write.
        if let Some(engine_spans) = &self.engine_spans {
            engine_spans.give_up();
        }
        let observer = Arc::clone(self);
        let log = tokio::task::spawn_blocking(move || {
            if let Some(log) = &observer.access_log {
                log.flush(limit);
            }
        });
        if let Some(spans) = &self.spans {
            spans.shutdown(limit).await;
        }
        // A writer that panicked has nothing left to flush.
        let _ = log.await;
    }
}

/// Looks where the tails begin, until told to stop.
async fn learn_tails(windows: Arc<Windows>, clock: Clock, stop: CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(LEARN_TAILS_EVERY)).await.is_some() {
        windows.learn_tails(clock.now());
    }
}

const LEARN_TAILS_EVERY: Duration = Duration::from_secs(5);

/// Takes the gaps of one stream.
pub struct StreamSeries {
    metrics: Arc<metrics::StreamSeries>,
    windows: Arc<windows::Series>,
    taps: Arc<[Arc<dyn Tap>]>,
    replica: Arc<str>,
    clock: Clock,
}

impl StreamSeries {
    /// Observes a batch of gaps.
    pub fn gaps(&self, gaps: &Gaps<'_>) {
        self.metrics.gaps(gaps);
        self.windows.gaps(gaps, self.clock.now());
        for tap in &*self.taps {
            tap.gaps(&self.replica, gaps);
        }
    }
}
