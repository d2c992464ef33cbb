//! Observers of the data path: they read first tokens, gaps and records, and never influence a request.
//!
//! [`Observer`] is the entry point; it feeds metrics, latency windows, the history, the decision ring, the access log and spans. Every
//! call is synchronous, short and bounded; an observer that cannot keep up drops and counts.

mod access_log;
mod attributes;
pub mod content;
pub(crate) mod decisions;
mod engine_spans;
#[cfg(test)]
pub(crate) mod fixture;
pub mod history;
pub mod instance;
pub(crate) mod judgement;
pub mod lag;
pub mod latency;
pub mod line_writer;
pub mod metrics;
pub mod otlp;
pub mod overdue;
pub(crate) mod record_guard;
pub mod rfc3339;
mod shadow;
pub(crate) mod slo;
pub mod spans;
pub(crate) mod stages;
pub mod style;
pub mod usage;
pub mod windows;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use self::access_log::AccessLogger;
use self::content::{Reader, Trail};
use self::decisions::Decisions;
pub use self::engine_spans::EngineSpansError;
use self::engine_spans::{EngineSpans, Settled};
use self::history::{History, RouteHistory};
pub use self::judgement::Judgement;
use self::latency::Measure;
use self::metrics::{GaugeGuard, Metrics, StreamKey};
use self::otlp::metrics::MetricsExport;
use self::otlp::{Collector, CollectorError};
use self::spans::{Seen, Spans};
use self::windows::{Series, WindowKey, Windows};
use crate::admission::EngineCharge;
use crate::background::Background;
use crate::clock::Clock;
use crate::config::{self, Config};
use crate::debug::debug_as;
use crate::error::Failure;
use crate::fleet::status::FleetView;
use crate::record::{FirstToken, Gaps, Record};
use crate::request::trace_context::{Trace, trace_of};

/// A further observer, registered before the first request: drift detection, the demo's table.
pub trait Tap: Send + Sync {
    /// Called at a request's first content event.
    fn first_token(&self, _first: &FirstToken<'_>) {}
    /// Called with gaps of a stream.
    fn gaps(&self, _stream: &StreamKey, _gaps: &Gaps<'_>) {}
    /// Called at a request's end.
    fn record(&self, record: &Arc<Record>, judgement: &Judgement);
    /// Whether it is called for the copies of requests that canaries get, too.
    fn sees_copies(&self) -> bool {
        false
    }
    /// Whether to keep the trace of an ended request.
    fn wants_trace(&self, _record: &Record) -> bool {
        false
    }
    /// Whether a canary that is being judged served the request.
    fn is_canary(&self, _record: &Record) -> bool {
        false
    }
}

/// Why observation cannot start.
#[expect(missing_docs, reason = "the messages are it")]
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    #[error("telemetry.access_log: {target}: {error}")]
    AccessLog { target: config::AccessLog, error: io::Error },
    #[error("telemetry.content: {path}: {error}", path = path.display())]
    Content { path: PathBuf, error: io::Error },
    #[error("telemetry.content: no thread: {0}")]
    Thread(io::Error),
    #[error(transparent)]
    Collector(#[from] CollectorError),
    #[error(transparent)]
    EngineSpans(#[from] EngineSpansError),
}

/// What observers need of the process.
#[derive(Clone)]
pub struct Surroundings {
    /// The clock that the data path stamps with.
    pub clock: Clock,
    /// Runtime and tracker of background tasks.
    pub background: Background,
    /// What this gateway is called among others; see [`instance::name`].
    pub instance: Arc<str>,
    /// The replicas, for gauges and diagnosis.
    pub fleet: FleetView,
}

/// All observers.
pub struct Observer {
    /// Metrics, for counters that do not come from records.
    pub metrics: Arc<Metrics>,
    /// Latency percentiles of the last minute, five minutes and hour, whole and by tenant, class or stage.
    pub windows: Arc<Windows>,
    /// The ring of the last routing decisions.
    pub decisions: Decisions,
    content: Option<Arc<Trail>>,
    collector: Option<Collector>,
    settled: Arc<Settled>,
    engine_spans: Option<EngineSpans>,
    metrics_export: Option<MetricsExport>,
    routine_at_start: f64,
    taps: Arc<[Arc<dyn Tap>]>,
    /// The clock of all stamps.
    pub clock: Clock,
    stop: CancellationToken,
    /// The gateway ends what still runs.
    is_cut_off: AtomicBool,
}

impl Observer {
    /// Starts every observer that the configuration asks for.
    ///
    /// # Errors
    /// The access log cannot be opened or the OTLP exporter refuses its configuration.
    pub fn start(config: &Config, around: Surroundings) -> Result<Self, ObserveError> {
        let metrics = Arc::new(Metrics::new(config, around.clock));
        let telemetry = &config.telemetry;
        let metrics_export = telemetry.otlp_metrics.as_ref();
        let metrics_export =
            metrics_export.map(|otlp| MetricsExport::start(otlp, &around, &metrics)).transpose()?;
        let clock = around.clock;
        let target = &telemetry.access_log;
        let access_log = AccessLogger::start(target, clock, &metrics)
            .map_err(|error| ObserveError::AccessLog { target: target.clone(), error })?
            .map(Arc::new);
        let collector = telemetry.otlp.as_ref().map(|otlp| Collector::new(otlp, &around)).transpose()?;
        let content = telemetry.content.as_ref();
        let content = content.map(|content| Trail::start(content, collector.as_ref(), &around, &metrics));
        let content = content.transpose()?.map(Arc::new);
        let spans = collector.as_ref();
        let spans = spans.map(|to| Spans::start(to, &telemetry.sampling, &around, &metrics));
        let spans = spans.transpose()?.map(Arc::new);
        let (windows, decisions) = (Arc::new(Windows::default()), Decisions::default());
        let stop = CancellationToken::new();
        if spans.is_some() {
            let tails = update_p99(Arc::clone(&windows), clock, stop.clone());
            around.background.spawn(tails);
        }
        let settled = Arc::new(Settled {
            metrics: Arc::clone(&metrics),
            spans,
            access_log,
            windows: Arc::clone(&windows),
            history: History::default(),
        });
        let engine_spans = telemetry
            .engine_spans
            .map(|config| EngineSpans::start(config.listen, collector.as_ref(), &settled, &around, &stop));
        let engine_spans = engine_spans.transpose()?;
        Ok(Self {
            metrics,
            windows,
            decisions,
            content,
            collector,
            settled,
            engine_spans,
            metrics_export,
            routine_at_start: telemetry.sampling.routine,
            taps: Arc::default(),
            clock,
            stop,
            is_cut_off: AtomicBool::new(false),
        })
    }

    /// From now on the gateway ends what still runs: a request that ends without a result was not left by its client.
    pub fn cut_off(&self) {
        self.is_cut_off.store(true, Ordering::Relaxed);
    }

    /// Why a request is dropped here and now, where its client did not leave.
    fn ended_by(&self) -> Option<Failure> {
        if std::thread::panicking() {
            return Some(Failure::Internal);
        }
        self.is_cut_off.load(Ordering::Relaxed).then_some(Failure::DrainCut)
    }

    /// Writes the access log as the process' log is written: for a process that has one.
    pub fn write_as(&self, format: style::LogFormat) {
        if let Some(log) = &self.settled.access_log {
            log.write_as(format);
        }
    }

    /// Registers a further observer.
    pub fn add_tap(&mut self, tap: Arc<dyn Tap>) {
        self.taps = self.taps.iter().cloned().chain([tap]).collect();
    }

    /// The audit trail, where there is one.
    pub fn content(&self) -> Option<Arc<dyn Reader>> {
        self.content.as_ref().map(|trail| Arc::clone(trail) as Arc<dyn Reader>)
    }

    /// The OTLP collector, where one is configured.
    pub fn collector(&self) -> Option<&Collector> {
        self.collector.as_ref()
    }

    /// The last hour by route.
    pub fn history(&self) -> &History {
        &self.settled.history
    }

    /// Trace context of a request: the client's, else a new one, with our sampling decision.
    pub fn trace_of(&self, headers: &http::HeaderMap) -> Trace {
        let share_of_spans = self.settled.spans.as_ref().map(|spans| spans.routine_share());
        // Engines export spans of sampled traces only, so traces are marked even where we export none.
        let share_of_engines = self.engine_spans.as_ref().map(|_| self.routine_at_start);
        trace_of(headers, share_of_spans.or(share_of_engines))
    }

    /// Bound address of the receiver of engines' spans.
    pub fn engine_spans_address(&self) -> Option<SocketAddr> {
        self.engine_spans.as_ref().map(|spans| spans.address)
    }

    /// The series that a stream's gaps belong to; resolved once per stream, at its first token.
    pub fn stream_series(&self, key: &StreamKey) -> StreamSeries {
        let window = WindowKey::new(&key.route, &key.model, &key.revision);
        StreamSeries {
            metrics: self.metrics.stream_series(key),
            windows: self.windows.series(&window),
            history: self.settled.history.route(&key.route),
            taps: Arc::clone(&self.taps),
            key: key.clone(),
            clock: self.clock,
        }
    }

    /// Observes a request's first content event.
    pub fn first_token(&self, first: &FirstToken<'_>) {
        self.metrics.first_token(first);
        let key = WindowKey::new(&first.record.route, &first.record.model, &first.served.revision);
        self.windows.series(&key).whole.observe(Measure::Ttft, [first.ttft], self.clock.now());
        for tap in &*self.taps {
            tap.first_token(first);
        }
    }

    /// Observes a request's end.
    pub fn record(&self, record: &Arc<Record>) {
        self.record_judged(record, &Judgement::of(record), None);
    }

    /// The same, with its judgement, of a tenant that was charged: `charge` is corrected by what the engine reports later.
    pub(crate) fn record_judged(
        &self,
        record: &Arc<Record>,
        judgement: &Judgement,
        charge: Option<EngineCharge>,
    ) {
        let (series, is_tail) = self.windows.record(record).unzip();
        let seen = || Seen {
            is_tail: is_tail.unwrap_or_default(),
            is_drifting: self.taps.iter().any(|tap| tap.wants_trace(record)),
            is_canary: self.taps.iter().any(|tap| tap.is_canary(record)),
        };
        let keep = self.settled.spans.as_ref().is_some_and(|spans| spans.keeps(record, judgement, seen()));
        // Before anything can correct it.
        self.settled.history.record(record, judgement);
        let waits =
            self.engine_spans.as_ref().is_some_and(|engine_spans| engine_spans.takes(record, keep, charge));
        self.metrics.record(record, judgement, !waits);
        if !waits {
            self.settled.keep(record, judgement, None, series.as_deref());
        }
        if keep && !waits {
            self.settled.export(record);
        }
        self.decisions.record(record);
        for tap in &*self.taps {
            tap.record(record, judgement);
        }
    }

    /// Applies what a reload may change: SLO targets and sampling rules.
    pub fn reconfigure(&self, config: &Config) {
        self.metrics.set_targets(config);
        self.metrics.follow_config(config);
        if let Some(spans) = &self.settled.spans {
            spans.set_sampling(&config.telemetry.sampling);
        }
    }

    /// Reopens the files of access log and audit trail, for rotation.
    pub fn reopen(&self) {
        if let Some(content) = &self.content {
            content.reopen();
        }
        if let Some(log) = &self.settled.access_log {
            log.lines.reopen();
        }
    }

    /// Publishes the records that wait for their engine's spans: they have a line to log, and are billed.
    pub fn settle(&self) {
        if let Some(engine_spans) = &self.engine_spans {
            engine_spans.give_up();
        }
    }

    /// Writes and exports queued data, for at most about `limit`.
    pub async fn shutdown(self: &Arc<Self>, limit: Duration) {
        self.stop.cancel();
        self.settle();
        let observer = Arc::clone(self);
        let log = tokio::task::spawn_blocking(move || {
            if let Some(content) = &observer.content {
                content.flush(limit);
            }
            if let Some(log) = &observer.settled.access_log {
                log.lines.flush(limit);
            }
        });
        let spans = async {
            if let Some(spans) = &self.settled.spans {
                spans.shutdown(limit).await;
            }
        };
        let metrics = async {
            if let Some(export) = &self.metrics_export {
                export.shutdown(limit).await;
            }
        };
        let logs = async {
            // An error means that the flush panicked: nothing left to do.
            let _ = log.await;
            // What was redacted by then.
            if let Some(content) = &self.content {
                content.shutdown(limit).await;
            }
        };
        tokio::join!(spans, metrics, logs);
    }
}

/// Updates the p99 of every series until `stop` is cancelled.
async fn update_p99(windows: Arc<Windows>, clock: Clock, stop: CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(P99_INTERVAL)).await.is_some() {
        windows.update_p99(clock.now());
    }
}

const P99_INTERVAL: Duration = Duration::from_secs(5);

/// Observes the gaps of one stream.
pub struct StreamSeries {
    metrics: Arc<metrics::StreamHistograms>,
    windows: Arc<Series>,
    history: Arc<RouteHistory>,
    taps: Arc<[Arc<dyn Tap>]>,
    key: StreamKey,
    clock: Clock,
}

impl StreamSeries {
    /// Observes gaps in metrics, windows and taps.
    pub fn gaps(&self, gaps: &Gaps<'_>) {
        self.metrics.gaps(gaps);
        let now = self.clock.now();
        self.windows.whole.gaps(gaps, now);
        self.history.gaps(&self.key.replica, gaps, now);
        for tap in &*self.taps {
            tap.gaps(&self.key, gaps);
        }
    }
}

debug_as!(
    GaugeGuard => "GaugeGuard",
    Metrics => "Metrics",
    Observer => "Observer",
    StreamSeries => "StreamSeries",
    Trail => "Trail",
);
