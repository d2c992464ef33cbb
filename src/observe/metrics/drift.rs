//! Metrics of drift detection: findings, active ones, losses.

use super::Metrics;

/// Labels of a finding's metrics.
#[derive(Clone, Copy, Debug)]
pub struct FindingLabels<'a> {
    /// Label `route`.
    pub route: &'a str,
    /// Label `revision`, of the pool.
    pub revision: &'a str,
    /// Label `replica`; `none` unless the finding is about one replica.
    pub replica: Option<&'a str>,
    /// Label `kind`.
    pub kind: &'static str,
    /// Label `diagnosis`: most likely cause.
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

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Failed => "failed",
            Self::Dropped => "dropped",
        }
    }
}

impl Metrics {
    /// Counts a finding.
    pub fn drift_found(&self, finding: FindingLabels<'_>) {
        self.drift.findings.get(&finding.values()).inc();
    }

    /// Marks a finding as active.
    pub fn drift_shown(&self, finding: FindingLabels<'_>) {
        self.drift.active.set(&finding.values(), Some(1.0));
    }

    /// A finding is over, known or muted: removes its series, so that their number does not grow with time.
    pub fn drift_hidden(&self, finding: FindingLabels<'_>) {
        self.drift.active.remove(&finding.values());
    }

    /// Counts a request that drift detection missed.
    pub fn drift_dropped(&self) {
        self.drift.dropped.inc();
    }

    /// A post to the webhook ended.
    pub fn drift_webhook(&self, result: DeliveryResult) {
        self.drift.webhook.get(&[result.as_str()]).inc();
    }

    /// Counts findings exported as OTLP events, or lost.
    pub fn drift_events(&self, result: DeliveryResult, events: u64) {
        self.drift.events.get(&[result.as_str()]).inc_by(events);
    }
}
