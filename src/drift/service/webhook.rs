//! Posts findings to a webhook in Alertmanager's form.
//!
//! One task, one post at a time, each with a deadline; a bounded queue in front of it. While it hangs or answers 500,
//! detection goes on, what does not fit is dropped and counted, and every minute all findings that hold are sent
//! again: so a failed post needs no retry of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde_json::Value as Json;
use tokio::sync::mpsc;

use super::alert::alert;
use super::feed;
use crate::clock::Clock;
use crate::config::Endpoint;
use crate::drift::detectors::Finding;
use crate::observe::Surroundings;
use crate::observe::metrics::{DeliveryResult, Metrics};
use crate::upstream::call::{Call, CallError};
use crate::upstream::connect::Connector;

/// Queues findings for the webhook.
pub(super) struct Webhook {
    sender: mpsc::Sender<Change>,
    metrics: Arc<Metrics>,
}

enum Change {
    Raised(Finding),
    Ended(Finding),
}

impl Webhook {
    /// Starts the posting task.
    pub(super) fn start(
        endpoint: Endpoint,
        around: &Surroundings,
        metrics: Arc<Metrics>,
    ) -> Result<Self, rustls::Error> {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED);
        let background = &around.background;
        let poster = Poster {
            instance: Arc::clone(&around.instance),
            endpoint,
            connector: Connector::new(background.tasks.clone())?,
            clock: around.clock,
            metrics: Arc::clone(&metrics),
            active: BTreeMap::new(),
        };
        background.tasks.spawn_on(poster.run(receiver), &background.runtime);
        Ok(Self { sender, metrics })
    }

    pub(super) fn raised(&self, finding: &Finding) {
        self.send(Change::Raised(finding.clone()));
    }

    pub(super) fn ended(&self, finding: &Finding) {
        self.send(Change::Ended(finding.clone()));
    }

    fn send(&self, change: Change) {
        if self.sender.try_send(change).is_err() {
            self.metrics.families.control.drift_webhook.inc([DeliveryResult::Dropped.as_str()]);
        }
    }
}

struct Poster {
    instance: Arc<str>,
    endpoint: Endpoint,
    connector: Connector,
    clock: Clock,
    metrics: Arc<Metrics>,
    active: BTreeMap<String, Finding>,
}

impl Poster {
    async fn run(mut self, mut receiver: mpsc::Receiver<Change>) {
        let mut again = tokio::time::interval(REPEAT_EVERY);
        again.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            // Both arms are cancel-safe: a change or a tick is taken whole or not at all.
            let change = tokio::select! {
                change = receiver.recv() => Some(change),
                _ = again.tick() => None,
            };
            let ended = match change {
                Some(Some(change)) => self.take(change, &mut receiver),
                Some(None) => return,
                None => Vec::new(),
            };
            let now = feed::seconds(self.clock, self.clock.now());
            let until = now + ENDS_AFTER.as_secs_f64();
            let lasting = self.active.values().map(|finding| alert(finding, &self.instance, until));
            let ended = ended.iter().map(|finding| alert(finding, &self.instance, now));
            let alerts: Vec<Json> = lasting.chain(ended).collect();
            if !alerts.is_empty() {
                self.post(&Json::Array(alerts).to_string()).await;
            }
        }
    }

    /// Takes a change, and those that wait behind it: they leave in one post. Returns findings that ended.
    fn take(&mut self, first: Change, receiver: &mut mpsc::Receiver<Change>) -> Vec<Finding> {
        let mut ended = Vec::new();
        let mut next = Some(first);
        while let Some(change) = next {
            match change {
                Change::Raised(finding) if self.active.len() < MAX_ACTIVE => {
                    self.active.insert(key(&finding), finding);
                }
                Change::Raised(_) => {
                    self.metrics.families.control.drift_webhook.inc([DeliveryResult::Dropped.as_str()]);
                }
                Change::Ended(finding) => {
                    self.active.remove(&key(&finding));
                    ended.push(finding);
                }
            }
            next = receiver.try_recv().ok();
        }
        ended
    }

    async fn post(&self, body: &str) {
        let call = Call {
            endpoint: &self.endpoint,
            key: None,
            path: "",
            body: Some(body),
            timeout: TIMEOUT,
            rank: None,
        };
        let result = match call.send(&self.connector).await {
            Ok((status, _)) if status.is_success() => DeliveryResult::Sent,
            Ok((status, _)) => self.failed(&refused(status)),
            Err(error) => self.failed(&error),
        };
        self.metrics.families.control.drift_webhook.inc([result.as_str()]);
    }

    fn failed(&self, error: &CallError) -> DeliveryResult {
        tracing::warn!(%error, webhook = %self.endpoint, "findings were not delivered; they are sent again");
        DeliveryResult::Failed
    }
}

fn refused(status: StatusCode) -> CallError {
    CallError::Broken(format!("it answered {status}"))
}

fn key(finding: &Finding) -> String {
    let series = &finding.series;
    let replica = series.replica.as_deref().unwrap_or_default();
    format!("{}\n{}\n{}\n{replica}", finding.kind.as_str(), series.route, series.revision)
}

const MAX_QUEUED: usize = 64;
/// Findings that are repeated.
const MAX_ACTIVE: usize = 256;
const TIMEOUT: Duration = Duration::from_secs(10);
const REPEAT_EVERY: Duration = Duration::from_secs(60);
/// An alert that is not repeated ends after this.
const ENDS_AFTER: Duration = Duration::from_secs(240);
