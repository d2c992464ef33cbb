//! Metrics of drift detection: findings, what holds, what was lost on the way.

use prometheus::IntCounter;

use super::Metrics;
use super::table::Drift;

/// What a finding's metrics are labelled with.
#[derive(Clone, Copy, Debug)]
pub struct FindingLabels<'a> {
    /// Route name.
    pub route: &'a str,
    /// Revision of the pool.
    pub revision: &'a str,
    /// Replica name, where the finding is of one.
    pub replica: Option<&'a str>,
    /// Kind of finding.
    pub kind: &'static str,
    /// Its diagnosis.
    pub diagnosis: &'static str,
}

impl<'a> FindingLabels<'a> {
    fn values(self) -> [&'a str; 5] {
        [self.route, self.revision, self.replica.unwrap_or("none"), self.kind, self.diagnosis]
    }
}

/// How the delivery of a finding ended, to the webhook or the collector (label `result`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryResult {
    /// It was taken.
    Sent,
    /// No answer, or not a good one.
    Failed,
    /// It never left: the queue was full.
    Dropped,
}

impl DeliveryResult {
    pub(super) const ALL: [Self; 3] = [Self::Sent, Self::Failed, Self::Dropped];

    fn as_str(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Failed => "failed",
            Self::Dropped => "dropped",
        }
    }
}

impl Metrics {
    /// Drift was found.
    pub fn drift_found(&self, finding: FindingLabels<'_>) {
        let labels = finding.values();
        self.drift.findings.get(&labels).inc();
        if let Some(gauge) = self.drift.active.get_exact(&labels) {
            gauge.set(1.0);
        }
    }

    /// A finding holds no more: its series goes, so that the number of them does not grow with time.
    pub fn drift_ended(&self, finding: FindingLabels<'_>) {
        self.drift.active.remove(&finding.values());
    }

    /// A request that drift detection will never see.
    pub fn drift_dropped(&self) {
        self.drift.dropped.inc();
    }

    /// A post to the webhook ended.
    pub fn drift_webhook(&self, result: DeliveryResult) {
        self.drift.posts(result).inc();
    }

    /// So many findings left as OTLP events, or did not.
    pub fn drift_events(&self, result: DeliveryResult, events: u64) {
        self.drift.events.get(&[result.as_str()]).inc_by(events);
    }
}

impl Drift {
    pub(super) fn posts(&self, result: DeliveryResult) -> IntCounter {
        self.webhook.get(&[result.as_str()])
    }
}
