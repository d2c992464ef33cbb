//! Posts reports to the webhook of `[route.canary]`: one task, a bounded queue, three tries for each.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::config::Endpoint;
use crate::observe::Surroundings;
use crate::observe::metrics::{DeliveryResult, Metrics};
use crate::upstream::call::Call;
use crate::upstream::connect::Connector;

pub(super) struct Webhook {
    sender: mpsc::Sender<(Endpoint, String)>,
    metrics: Arc<Metrics>,
}

impl Webhook {
    pub(super) fn start(around: &Surroundings, metrics: &Arc<Metrics>) -> Result<Self, rustls::Error> {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED);
        let background = &around.background;
        let connector = Connector::new(background.tasks.clone())?;
        background.spawn(deliver(receiver, connector, Arc::clone(metrics)));
        Ok(Self { sender, metrics: Arc::clone(metrics) })
    }

    pub(super) fn send(&self, endpoint: &Endpoint, report: String) {
        if self.sender.try_send((endpoint.clone(), report)).is_err() {
            self.metrics.families.control.canary_webhook.inc([DeliveryResult::Dropped.as_str()]);
        }
    }
}

async fn deliver(
    mut reports: mpsc::Receiver<(Endpoint, String)>,
    connector: Connector,
    metrics: Arc<Metrics>,
) {
    while let Some((endpoint, report)) = reports.recv().await {
        let mut result = DeliveryResult::Failed;
        for wait in WAITS {
            tokio::time::sleep(wait).await;
            let call = Call { body: Some(&report), ..Call::to(&endpoint, TIMEOUT) };
            match call.send(&connector).await {
                Ok((status, _)) if status.is_success() => {
                    result = DeliveryResult::Sent;
                    break;
                }
                Ok((status, _)) => {
                    tracing::warn!(%status, webhook = endpoint.origin(), "a canary's report was refused");
                }
                Err(error) => {
                    tracing::warn!(%error, webhook = endpoint.origin(), "a canary's report was not delivered");
                }
            }
        }
        metrics.families.control.canary_webhook.inc([result.as_str()]);
    }
}

const MAX_QUEUED: usize = 16;
const TIMEOUT: Duration = Duration::from_secs(10);
/// Before each try.
const WAITS: [Duration; 3] = [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(5)];
