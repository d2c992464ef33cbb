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
mod told;
mod webhook;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

pub use self::board::{Board, Found};
pub use self::events::FindingEvents;
pub use self::feed::{Busy, Feed};
use self::feed::{EndedRequest, FeedMessage};
use self::minutes::MinuteSignals;
use self::told::{ById, Told};
use super::detectors::table::{BATCH_EVERY, HOUR, IDLE_TICK, MAX_QUEUED};
use super::detectors::{Detectors, Finding, Mute, Saved, Settings, put_mute};
use crate::clock::{Clock, ticks};
use crate::config::Drift;
use crate::fleet::status::FleetView;
use crate::observe::Surroundings;
use crate::observe::metrics::Metrics;
use crate::observe::otlp::{Collector, CollectorError};
use crate::state_file::{self, OVERDUE, Writes};

/// Why drift detection cannot start.
#[expect(missing_docs, reason = "the messages are it")]
#[derive(Debug, thiserror::Error)]
pub enum DriftError {
    #[error("drift.webhook: tls: {0}")]
    Webhook(#[from] rustls::Error),
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
    let events = collector.map(|collector| FindingEvents::start(collector, around, metrics)).transpose()?;
    let (sender, receiver) = mpsc::channel(MAX_QUEUED);
    let board = Arc::new(Board::default());
    let (loud, findings) = watch::channel(ById::new());
    if let Some(endpoint) = &config.webhook {
        webhook::start(endpoint.clone(), around, Arc::clone(metrics), findings)?;
    }
    let feed = Feed { sender, board: Arc::clone(&board), clock, metrics: Arc::clone(metrics) };
    let service = DriftService {
        minutes: MinuteSignals::default(),
        fleet: around.fleet.clone(),
        detectors: Detectors::new(Settings::from(config)),
        board,
        told: Told::new(Arc::clone(metrics), loud, events.flatten()),
        clock,
        state: config.state.path().map(PathBuf::from),
        new: Vec::new(),
        is_dirty: false,
        writes: Writes::default(),
        is_write_failing: false,
        has_logged_left_out: false,
    };
    background.spawn(service.run(receiver));
    Ok(feed)
}

/// The task that owns the detectors.
struct DriftService {
    detectors: Detectors,
    minutes: MinuteSignals,
    fleet: FleetView,
    board: Arc<Board>,
    told: Told,
    clock: Clock,
    state: Option<PathBuf>,
    new: Vec<Finding>,
    /// A finding came, went or was spoken of since the last save.
    is_dirty: bool,
    writes: Writes<()>,
    is_write_failing: bool,
    has_logged_left_out: bool,
}

impl DriftService {
    async fn run(mut self, mut receiver: mpsc::Receiver<FeedMessage>) {
        self.load().await;
        let mut tick = ticks(IDLE_TICK);
        let mut ticks = 0_u64;
        let mut has_taken = false;
        loop {
            // A receiver that always waits is woken by every record, at the cost of the request that it ends: records
            // are taken in batches.
            if has_taken && receiver.is_empty() {
                has_taken = false;
                tokio::time::sleep(BATCH_EVERY).await;
            }
            // Every arm is cancel-safe: a message, a tick or an end is taken whole or not at all.
            let message = tokio::select! {
                message = receiver.recv() => message,
                _ = tick.tick() => {
                    ticks += 1;
                    self.advance();
                    if self.state.as_ref().is_some_and(|path| self.writes.is_overdue(path, self.clock.now())) {
                        self.unwritten(OVERDUE);
                    }
                    if ticks.is_multiple_of(HOUR as u64 / IDLE_TICK.as_secs()) || (self.is_dirty && ticks.is_multiple_of(12)) {
                        self.save();
                    }
                    continue;
                }
                Some((_, written)) = self.writes.ended() => {
                    self.written(written);
                    continue;
                }
            };
            match message {
                Some(FeedMessage::Ended(request)) => {
                    self.observe(&request);
                    has_taken = true;
                }
                Some(FeedMessage::Order(order)) => {
                    order(&mut self);
                    self.is_dirty = true;
                    self.publish();
                }
                Some(FeedMessage::End(done)) => {
                    self.save_all().await;
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
        let fleet = self.fleet.statuses();
        let lateness = self.told.metrics.lag.of_minute(self.clock.now());
        for (series, signals) in self.minutes.close(now, lateness, &fleet) {
            self.detectors.signals(&series, now, &signals);
        }
        self.detectors.judge(now, &mut self.new);
        if self.detectors.has_left_out() && !std::mem::replace(&mut self.has_logged_left_out, true) {
            let series = self.detectors.series();
            tracing::warn!(
                series,
                "more routes and revisions are in use than drift is looked for on: some are left out"
            );
        }
        self.publish();
    }

    /// Publishes new findings and those that have ended.
    fn publish(&mut self) {
        let now = self.now();
        for finding in self.new.drain(..) {
            self.told.found(&finding, now);
            self.board.found(finding);
            self.is_dirty = true;
        }
        let active: Vec<Finding> = self.detectors.active().cloned().collect();
        self.is_dirty |= self.told.settle(&active, now);
        self.board.settle(active, self.detectors.series(), now);
    }

    fn mute(&mut self, mute: Mute) {
        let now = self.now();
        put_mute(&mut self.told.mutes, mute, now);
        self.board.muted(self.told.mutes.clone());
    }

    /// Seconds since the Unix epoch.
    fn now(&self) -> f64 {
        feed::seconds(self.clock, self.clock.now())
    }

    async fn load(&mut self) {
        let Some(path) = self.state.clone() else { return };
        let shown = path.display().to_string();
        let read = tokio::task::spawn_blocking(move || state_file::read::<Saved>(&path)).await;
        let saved = match read.unwrap_or_else(|panicked| Err(io::Error::other(panicked))) {
            Ok(Some(saved)) => saved,
            Ok(None) => return,
            Err(error) => {
                tracing::error!(%error, path = shown, "the state of drift detection cannot be read: it starts empty");
                return;
            }
        };
        self.told.mutes.clone_from(&saved.mutes);
        self.board.muted(saved.mutes.clone());
        let now = self.now();
        let series = self.detectors.restore(saved, now);
        let findings = self.detectors.active().count();
        tracing::info!(series, findings, path = shown, "drift baselines restored");
        self.publish();
    }

    /// Begins to write the state, unless that hangs.
    fn save(&mut self) {
        let Some(path) = self.state.clone() else { return };
        if self.writes.is_running(&path) {
            return;
        }
        self.is_dirty = false;
        let mut saved = self.detectors.save();
        saved.mutes.clone_from(&self.told.mutes);
        self.writes.begin(path, self.clock.now(), move |path| state_file::write(path, &saved));
    }

    /// Writes the state, however long that takes.
    async fn save_all(&mut self) {
        for is_last in [false, true] {
            while let Some((_, written)) = self.writes.ended().await {
                self.written(written);
            }
            if !is_last {
                self.save();
            }
        }
    }

    fn written(&mut self, written: io::Result<()>) {
        match written {
            Ok(()) => self.is_write_failing = false,
            Err(error) => {
                // Tried again within a minute.
                self.is_dirty = true;
                self.unwritten(&error.to_string());
            }
        }
    }

    fn unwritten(&mut self, error: &str) {
        if !std::mem::replace(&mut self.is_write_failing, true) {
            let path = self.state.as_ref().map(|path| path.display().to_string());
            tracing::warn!(
                error,
                path,
                "drift.state cannot be written: baselines will not survive a restart"
            );
        }
    }
}

/// Writes the baselines, within `limit`, and ends the task.
pub async fn end(feed: &Feed, limit: Duration) {
    let (done, saved) = oneshot::channel();
    if feed.sender.try_send(FeedMessage::End(done)).is_ok() {
        // Past the limit the last hour of the baselines is lost, which is no harm.
        let _ = tokio::time::timeout(limit, saved).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Handle;
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::background::Background;
    use crate::config::check::check_str;
    use crate::state_file::hung::{Hung, passes};

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_hangs_holds_up_no_detection() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("drift.json");
        let text = format!(
            "[drift]\nstate = \"{}\"\n[[pool]]\nname = \"p\"\nreplicas = [\"http://127.0.0.1:1\"]\n",
            path.display()
        );
        let config = check_str("f.toml", &text, &|_| None).unwrap();
        let background = Background { runtime: Handle::current(), tasks: TaskTracker::new() };
        let (clock, fleet) = (Clock::start(), FleetView::default());
        let around = Surroundings { clock, background, instance: "test".into(), fleet };
        let feed = start(&config.drift, &around, &Arc::new(Metrics::new(&config, clock)), None).unwrap();
        // The baselines are read.
        tokio::time::sleep(IDLE_TICK).await;
        let hung = Hung::at(&path);
        let mute = || Mute { route: None, kind: None, until: feed.now() + HOUR };
        feed.mute(mute()).await.unwrap();
        passes(Duration::from_secs(70), IDLE_TICK).await;
        let muted = tokio::select! {
            biased;
            muted = feed.mute(mute()) => Some(muted),
            () = passes(2 * IDLE_TICK, IDLE_TICK) => None,
        };
        assert!(matches!(muted, Some(Ok(()))), "while the disk hangs");
        drop(hung);
        end(&feed, Duration::from_secs(60)).await;
        let kept: Option<Saved> = state_file::read(&path).unwrap();
        assert_eq!(kept.unwrap().mutes.len(), 1);
    }
}
