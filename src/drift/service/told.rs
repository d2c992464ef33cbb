//! Who is told of findings: the gauge, the webhook and the collector, for as long as nobody has acknowledged or muted them.

use std::collections::HashMap;
use std::sync::Arc;

use super::events::FindingEvents;
use super::webhook::Webhook;
use crate::drift::detectors::{Finding, Mute};
use crate::observe::metrics::Metrics;

/// Receivers of findings, and what they were told.
pub(super) struct Told {
    pub(super) metrics: Arc<Metrics>,
    pub(super) webhook: Option<Webhook>,
    pub(super) events: Option<FindingEvents>,
    pub(super) mutes: Vec<Mute>,
    /// By [`Finding::id`].
    known: HashMap<String, Finding>,
}

impl Told {
    pub(super) fn new(
        metrics: Arc<Metrics>,
        webhook: Option<Webhook>,
        events: Option<FindingEvents>,
    ) -> Self {
        Self { metrics, webhook, events, mutes: Vec::new(), known: HashMap::new() }
    }

    pub(super) fn is_muted(&self, finding: &Finding, now: f64) -> bool {
        self.mutes.iter().any(|mute| mute.covers(finding, now))
    }

    /// A new finding.
    pub(super) fn found(&self, finding: &Finding, now: f64) {
        self.metrics.families.control.drift_findings.inc(finding.labels());
        if self.is_muted(finding, now) {
            return;
        }
        // A struct of strings and numbers is always JSON.
        let text = serde_json::to_string(&finding.to_api()).unwrap_or_default();
        tracing::warn!(
            kind = finding.kind.as_str(), diagnosis = finding.diagnosis().as_str(),
            route = %finding.series.route, revision = %finding.series.revision,
            replica = finding.series.replica.as_deref(), finding = text,
            "drift found"
        );
        if let Some(events) = &self.events {
            events.found(finding);
        }
    }

    /// A finding that holds no more.
    pub(super) fn ended(&self, finding: &Finding, now: f64) {
        tracing::info!(
            kind = finding.kind.as_str(), route = %finding.series.route, revision = %finding.series.revision,
            replica = finding.series.replica.as_deref(), "drift ended"
        );
        if let Some(events) = self.events.as_ref().filter(|_| !self.is_muted(finding, now)) {
            events.ended(finding, now);
        }
    }

    /// Gauge and webhook hold what is in `active` and neither acknowledged nor muted, with its diagnosis of now.
    pub(super) fn settle(&mut self, active: &[Finding], now: f64) {
        let loud = active.iter().filter(|one| !one.is_acknowledged && !self.is_muted(one, now));
        let loud: HashMap<String, Finding> = loud.map(|finding| (finding.id(), finding.clone())).collect();
        for (id, old) in &self.known {
            let new = loud.get(id);
            if new.is_none_or(|new| new.diagnosis() != old.diagnosis()) {
                self.metrics.families.control.drift_active.remove(old.labels());
            }
            if let Some(webhook) = self.webhook.as_ref().filter(|_| new.is_none()) {
                webhook.ended(old);
            }
        }
        for (id, new) in &loud {
            if self.known.get(id).is_some_and(|old| old.diagnosis() == new.diagnosis()) {
                continue;
            }
            self.metrics.families.control.drift_active.set(new.labels(), Some(1.0));
            if let Some(webhook) = &self.webhook {
                webhook.raised(new);
            }
        }
        self.known = loud;
    }
}
