//! Observers: they read first tokens, gaps and records, and never speak back to the line.
//!
//! [`Observer`] is the one door: the data path calls it, and it tells metrics, latency windows, the decision ring,
//! the access log and spans. Every call is synchronous, short and bounded; what cannot keep up drops and counts.
//! Nothing here decides anything about a request.

pub mod access_log;
pub mod attributes;
mod debug;
pub mod decisions;
#[cfg(test)]
mod fixture;
pub mod metrics;
pub mod rfc3339;
pub mod slo;
pub mod spans;
pub mod stages;
pub mod trace_context;
pub mod windows;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use self::access_log::AccessLog;
use self::decisions::Decisions;
use self::metrics::{BuildInfo, Metrics, StreamKey};
use self::spans::{Background, Spans, SpansError};
use self::windows::{Measure, WindowKey, Windows};
use crate::clock::Clock;
use crate::config::Config;
use crate::control::watch::{self, Feed};
use crate::record::{FirstToken, Gaps, Record, Trace};

/// Another reader of what happens: the demo's table.
pub trait Tap: Send + Sync {
    /// A request's first content event.
    fn first_token(&self, first: &FirstToken);
    /// Gaps of a stream that `replica` serves.
    fn gaps(&self, replica: &Arc<str>, gaps: &Gaps<'_>);
    /// A request's end.
    fn record(&self, record: &Record);
}

/// Why observation cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// The access log cannot be opened.
    #[error("access log: {0}")]
    AccessLog(#[from] io::Error),
    /// Spans cannot be exported.
    #[error(transparent)]
    Spans(#[from] SpansError),
    /// TLS of the drift webhook.
    #[error("drift.webhook: tls: {0}")]
    Drift(#[from] rustls::Error),
}

/// What observers need of the process.
pub struct Surroundings {
    /// The process' clock.
    pub clock: Clock,
    /// What runs.
    pub build: BuildInfo,
    /// Where background work runs.
    pub background: Background,
    /// A further reader.
    pub tap: Option<Arc<dyn Tap>>,
}

/// All observers.
pub struct Observer {
    metrics: Arc<Metrics>,
    windows: Windows,
    decisions: Decisions,
    access_log: Option<AccessLog>,
    spans: Option<Spans>,
    drift: Feed,
    tap: Option<Arc<dyn Tap>>,
    clock: Clock,
}

impl Observer {
    /// Starts every observer that the configuration asks for.
    ///
    /// # Errors
    /// The access log cannot be opened or the OTLP exporter refuses its configuration.
    pub fn start(config: &Config, around: Surroundings) -> Result<Self, ObserveError> {
        let Surroundings { clock, build, background, tap } = around;
        let metrics = Arc::new(Metrics::new(config, build, clock));
        let telemetry = &config.telemetry;
        let access_log = AccessLog::start(&telemetry.access_log, clock, &metrics)?;
        let spans = match &telemetry.otlp {
            Some(otlp) => {
                Some(Spans::start((otlp, &telemetry.sampling), build, clock, &background, &metrics)?)
            }
            None => None,
        };
        let drift = watch::start(&config.drift, clock, &background, &metrics)?;
        let (windows, decisions) = (Windows::default(), Decisions::default());
        Ok(Self { metrics, windows, decisions, access_log, spans, drift, tap, clock })
    }

    /// The metrics, for counters that are not about one request.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
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

    /// Drift detection.
    #[must_use]
    pub fn drift(&self) -> &Feed {
        &self.drift
    }

    /// The clock that stamps are of.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// The trace context of a request.
    #[must_use]
    pub fn trace_of(&self, headers: &http::HeaderMap) -> Trace {
        trace_context::trace_of(headers, self.spans.as_ref().map(Spans::routine_share))
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
            tap: self.tap.clone(),
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
        if let Some(tap) = &self.tap {
            tap.first_token(first);
        }
    }

    /// A request's end.
    pub fn record(&self, record: &Arc<Record>) {
        self.metrics.record(record);
        if let Some(served) = record.served() {
            let key = WindowKey {
                route: Arc::clone(&record.route),
                model: Arc::clone(&record.model),
                revision: Arc::clone(&served.revision),
            };
            let duration = std::iter::once(record.duration());
            self.windows.series(&key).observe(Measure::Duration, duration, self.clock.now());
        }
        self.decisions.record(record);
        if let Some(log) = &self.access_log {
            log.record(record);
        }
        if let Some(spans) = &self.spans {
            spans.record(record);
        }
        self.drift.record(record);
        if let Some(tap) = &self.tap {
            tap.record(record);
        }
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
        let observer = Arc::clone(self);
        let log = tokio::task::spawn_blocking(move || {
            if let Some(log) = &observer.access_log {
                log.flush(limit);
            }
        });
        if let Some(spans) = &self.spans {
            spans.shutdown(limit).await;
        }
        watch::end(&self.drift, limit).await;
        // A writer that panicked has nothing left to flush.
        let _ = log.await;
    }
}

/// Takes the gaps of one stream.
pub struct StreamSeries {
    metrics: Arc<metrics::StreamSeries>,
    windows: Arc<windows::Series>,
    tap: Option<Arc<dyn Tap>>,
    replica: Arc<str>,
    clock: Clock,
}

impl StreamSeries {
    /// Observes a batch of gaps.
    pub fn gaps(&self, gaps: &Gaps<'_>) {
        self.metrics.gaps(gaps);
        let lengths = gaps.gaps.iter().map(|gap| gap.length);
        self.windows.observe(Measure::Icl, lengths, self.clock.now());
        if let Some(tap) = &self.tap {
            tap.gaps(&self.replica, gaps);
        }
    }
}
