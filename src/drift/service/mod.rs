//! Drift detection in a running gateway: records in, findings out.
//!
//! The observer hands each ended request over a bounded channel ([`Feed`]) to one task on the telemetry runtime, which
//! owns the detectors. Findings go to the [`Board`] (admin API), to metrics, to the log, to the webhook and, as events, to
//! the OTLP collector. A full channel drops and counts: no request waits for detection, no detection for a webhook.

mod alert;
mod board;
mod events;
mod feed;
mod minutes;
mod state;
mod webhook;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

pub use self::board::{Board, Found};
pub use self::events::FindingEvents;
pub use self::feed::Feed;
use self::feed::{EndedRequest, FeedMessage, FleetSource};
use self::minutes::MinuteSignals;
use self::webhook::Webhook;
use super::detectors::{Detectors, Finding, Settings};
use crate::clock::Clock;
use crate::config::Drift;
use crate::observe::Surroundings;
use crate::observe::metrics::Metrics;
use crate::observe::otlp::{Collector, CollectorError};

/// Why drift detection cannot start.
#[derive(Debug, thiserror::Error)]
pub enum DriftError {
    /// TLS of the webhook.
    #[error("drift.webhook: tls: {0}")]
    Webhook(#[from] rustls::Error),
    /// The OTLP exporter of findings.
    #[error(transparent)]
    Events(#[from] CollectorError),
}

/// Starts detection; its tasks belong to the background of `around`.
///
/// # Errors
/// When the webhook's TLS or the exporter of findings cannot be set up.
pub fn start(
    config: &Drift,
    around: &Surroundings,
    metrics: &Arc<Metrics>,
    collector: Option<&Collector>,
) -> Result<Feed, DriftError> {
    let (clock, background) = (around.clock, &around.background);
    let events = match collector {
        Some(collector) => FindingEvents::start(collector, background, metrics)?,
        None => None,
    };
    let (sender, receiver) = mpsc::channel(MAX_QUEUED);
    let board = Arc::new(Board::default());
    let webhook = match &config.webhook {
        Some(endpoint) => Some(Webhook::start(endpoint.clone(), around, Arc::clone(metrics))?),
        None => None,
    };
    let feed = Feed::new(sender, Arc::clone(&board), clock, Arc::clone(metrics));
    let service = DriftService {
        minutes: MinuteSignals::default(),
        fleet: feed.fleet(),
        detectors: Detectors::new(Settings::from(config)),
        board,
        metrics: Arc::clone(metrics),
        webhook,
        events,
        clock,
        state: config.state.clone(),
        new: Vec::new(),
    };
    background.tasks.spawn_on(service.run(receiver), &background.runtime);
    Ok(feed)
}

/// The task that owns the detectors.
struct DriftService {
    detectors: Detectors,
    minutes: MinuteSignals,
    fleet: Arc<OnceLock<FleetSource>>,
    board: Arc<Board>,
    metrics: Arc<Metrics>,
    webhook: Option<Webhook>,
    events: Option<FindingEvents>,
    clock: Clock,
    state: Option<PathBuf>,
    new: Vec<Finding>,
}

impl DriftService {
    async fn run(mut self, mut receiver: mpsc::Receiver<FeedMessage>) {
        self.load().await;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut ticks = 0_u64;
        let mut has_taken = false;
        loop {
            // A receiver that always waits is woken by every record, at the cost of the request that it ends: records
            // are taken in batches.
            if has_taken && receiver.is_empty() {
                has_taken = false;
                tokio::time::sleep(BATCH_EVERY).await;
            }
            // Both arms are cancel-safe: a message or a tick is taken whole or not at all.
            let message = tokio::select! {
                message = receiver.recv() => message,
                _ = tick.tick() => {
                    ticks += 1;
                    self.advance();
                    if ticks.is_multiple_of(TICKS_PER_SAVE) {
                        self.save().await;
                    }
                    continue;
                }
            };
            match message {
                Some(FeedMessage::Ended(request)) => {
                    self.observe(&request);
                    has_taken = true;
                }
                Some(FeedMessage::End(done)) => {
                    self.save().await;
                    // Nobody may be waiting any more.
                    let _ = done.send(());
                    return;
                }
                None => return,
            }
        }
    }

    fn observe(&mut self, request: &EndedRequest) {
        self.minutes.add(request);
        self.detectors.observe(&request.observation(), &mut self.new);
        if !self.new.is_empty() {
            self.publish();
        }
    }

    fn advance(&mut self) {
        let now = self.now();
        let fleet = self.fleet.get().map(|fleet| fleet()).unwrap_or_default();
        for (series, signals) in self.minutes.close(now, &fleet) {
            self.detectors.signals(&series, now, &signals);
        }
        self.detectors.judge(now, &mut self.new);
        self.publish();
    }

    /// Publishes new findings and those that have ended.
    fn publish(&mut self) {
        for finding in self.new.drain(..) {
            tracing::warn!(
                kind = finding.kind.as_str(), diagnosis = finding.diagnosis.as_str(),
                route = %finding.series.route, revision = %finding.series.revision,
                replica = finding.series.replica.as_deref(), finding = %finding.to_json(),
                "drift found"
            );
            self.metrics.drift_found(finding.labels());
            if let Some(webhook) = &self.webhook {
                webhook.raised(&finding);
            }
            if let Some(events) = &self.events {
                events.found(&finding);
            }
            self.board.found(finding);
        }
        let active: Vec<Finding> = self.detectors.active().cloned().collect();
        let now = self.now();
        for ended in self.board.settle(active, self.detectors.series(), now) {
            tracing::info!(
                kind = ended.kind.as_str(), route = %ended.series.route, revision = %ended.series.revision,
                replica = ended.series.replica.as_deref(), "drift ended"
            );
            self.metrics.drift_ended(ended.labels());
            if let Some(webhook) = &self.webhook {
                webhook.ended(&ended);
            }
            if let Some(events) = &self.events {
                events.ended(&ended, now);
            }
        }
    }

    /// Seconds since the Unix epoch.
    fn now(&self) -> f64 {
        feed::seconds(self.clock, self.clock.now())
    }

    async fn load(&mut self) {
        let Some(path) = self.state.clone() else { return };
        let read = tokio::task::spawn_blocking(move || state::read(&path)).await;
        match read {
            Ok(Ok(Some(saved))) => {
                let series = self.detectors.restore(saved, self.now());
                tracing::info!(series, "drift baselines restored");
            }
            Ok(Ok(None)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "drift.state cannot be read: baselines start empty"),
            Err(error) => tracing::warn!(%error, "drift.state was not read: baselines start empty"),
        }
    }

    async fn save(&self) {
        let Some(path) = self.state.clone() else { return };
        let saved = self.detectors.save();
        let written = tokio::task::spawn_blocking(move || state::write(&path, &saved)).await;
        if let Ok(Err(error)) = written {
            tracing::warn!(%error, "drift.state cannot be written: baselines will not survive a restart");
        }
    }
}

/// Writes the baselines, within `limit`, and ends the task.
pub async fn end(feed: &Feed, limit: Duration) {
    let (done, saved) = oneshot::channel();
    if feed.end(done) {
        // Past the limit the last hour of the baselines is lost, which is no harm.
        let _ = tokio::time::timeout(limit, saved).await;
    }
}

const MAX_QUEUED: usize = 4096;
const BATCH_EVERY: Duration = Duration::from_millis(50);
/// Between two judgements without a request.
const TICK: Duration = Duration::from_secs(5);
/// An hour.
const TICKS_PER_SAVE: u64 = 720;
