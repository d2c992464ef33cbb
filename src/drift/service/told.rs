//! Who is told of findings: the gauge, the webhook and the collector, for as long as nobody has acknowledged or muted them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio::sync::watch;

use super::events::FindingEvents;
use crate::drift::detectors::{Finding, Mute};
use crate::observe::metrics::Metrics;

/// Findings by [`Finding::id`].
pub(super) type ById = BTreeMap<String, Finding>;

/// Receivers of findings, and what they were told.
pub(super) struct Told {
    pub(super) metrics: Arc<Metrics>,
    pub(super) events: Option<FindingEvents>,
    pub(super) mutes: Vec<Mute>,
    /// What the gauge shows and the webhook repeats.
    loud: watch::Sender<ById>,
    /// Those that hold, muted ones as well.
    active: HashMap<String, Finding>,
}

impl Told {
    /// What `loud` shows is for the webhook.
    pub(super) fn new(
        metrics: Arc<Metrics>,
        loud: watch::Sender<ById>,
        events: Option<FindingEvents>,
    ) -> Self {
        Self { metrics, events, mutes: Vec::new(), loud, active: HashMap::new() }
    }

    pub(super) fn is_muted(&self, finding: &Finding, now: f64) -> bool {
        self.mutes.iter().any(|mute| mute.covers(finding, now))
    }

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
    fn ended(&self, finding: &Finding, now: f64) {
        if self.is_muted(finding, now) {
            return;
        }
        tracing::info!(
            kind = finding.kind.as_str(), route = %finding.series.route, revision = %finding.series.revision,
            replica = finding.series.replica.as_deref(), "drift ended"
        );
        if let Some(events) = &self.events {
            events.ended(finding, now);
        }
    }

    /// Takes the findings that hold; whether any has ended. Gauge and webhook hold those that are neither acknowledged nor
    /// muted, with their diagnosis of now.
    pub(super) fn settle(&mut self, active: &[Finding], now: f64) -> bool {
        let active: HashMap<String, Finding> =
            active.iter().map(|finding| (finding.id(), finding.clone())).collect();
        let before = std::mem::replace(&mut self.active, active);
        let mut ended = before.iter().filter(|(id, _)| !self.active.contains_key(*id)).peekable();
        let has_ended = ended.peek().is_some();
        ended.for_each(|(_, finding)| self.ended(finding, now));
        let loud = self.active.iter().filter(|(_, one)| !one.is_acknowledged && !self.is_muted(one, now));
        let loud: ById = loud.map(|(id, finding)| (id.clone(), finding.clone())).collect();
        self.loud.send_if_modified(|before| {
            let is_in = |(id, finding): &(&String, &Finding), all: &ById| {
                all.get(*id).is_some_and(|other| other.diagnosis() == finding.diagnosis())
            };
            let gauge = &self.metrics.families.control.drift_active;
            let gone: Vec<_> = before.iter().filter(|one| !is_in(one, &loud)).collect();
            let new: Vec<_> = loud.iter().filter(|one| !is_in(one, before)).collect();
            gone.iter().for_each(|(_, finding)| gauge.remove(finding.labels()));
            new.iter().for_each(|(_, finding)| gauge.set(finding.labels(), Some(1.0)));
            let is_modified = !gone.is_empty() || !new.is_empty();
            *before = loud;
            is_modified
        });
        has_ended
    }
}
