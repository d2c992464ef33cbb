//! Posts findings to a webhook in Alertmanager's form.
//!
//! One task, one post at a time, each with a deadline. It looks at what holds when that changes, and every minute: a failed
//! post needs no retry of its own, and while the webhook hangs or answers 500 nothing queues up and detection goes on.

use std::sync::Arc;

use serde_json::Value as Json;
use tokio::sync::watch;

use super::alert::alert;
use super::feed;
use super::told::ById;
use crate::clock::{Clock, ticks};
use crate::config::Endpoint;
use crate::drift::detectors::table::{POST_TIMEOUT, REPEAT_EVERY};
use crate::observe::Surroundings;
use crate::observe::metrics::{DeliveryResult, Metrics};
use crate::upstream::call::{Call, CallError};
use crate::upstream::connect::Connector;

/// Starts the task that posts what `findings` shows.
pub(super) fn start(
    endpoint: Endpoint,
    around: &Surroundings,
    metrics: Arc<Metrics>,
    findings: watch::Receiver<ById>,
) -> Result<(), rustls::Error> {
    let background = &around.background;
    let poster = Poster {
        instance: Arc::clone(&around.instance),
        endpoint,
        connector: Connector::new(background.tasks.clone())?,
        clock: around.clock,
        metrics,
    };
    background.spawn(poster.run(findings));
    Ok(())
}

struct Poster {
    instance: Arc<str>,
    endpoint: Endpoint,
    connector: Connector,
    clock: Clock,
    metrics: Arc<Metrics>,
}

impl Poster {
    async fn run(self, mut findings: watch::Receiver<ById>) {
        let mut again = ticks(REPEAT_EVERY);
        let mut before = ById::new();
        loop {
            // Both arms are cancel-safe: a change or a tick is taken whole or not at all.
            tokio::select! {
                changed = findings.changed() => if changed.is_err() { return },
                _ = again.tick() => {}
            }
            let active = findings.borrow_and_update().clone();
            let now = feed::seconds(self.clock, self.clock.now());
            let until = now + 4.0 * REPEAT_EVERY.as_secs_f64();
            let lasting = active.values().map(|finding| alert(finding, &self.instance, until));
            let ended = before.iter().filter(|(id, _)| !active.contains_key(*id));
            let ended = ended.map(|(_, finding)| alert(finding, &self.instance, now));
            let alerts: Vec<Json> = lasting.chain(ended).collect();
            before = active;
            if !alerts.is_empty() {
                self.post(&Json::Array(alerts).to_string()).await;
            }
        }
    }

    async fn post(&self, body: &str) {
        let call = Call { body: Some(body), ..Call::to(&self.endpoint, POST_TIMEOUT) };
        let result = match call.send(&self.connector).await {
            Ok((status, _)) if status.is_success() => DeliveryResult::Sent,
            Ok((status, _)) => self.failed(&CallError::Broken(format!("it answered {status}"))),
            Err(error) => self.failed(&error),
        };
        self.metrics.families.control.drift_webhook.inc([result.as_str()]);
    }

    fn failed(&self, error: &CallError) -> DeliveryResult {
        tracing::warn!(%error, webhook = self.endpoint.origin(), "findings were not delivered; they are sent again");
        DeliveryResult::Failed
    }
}
