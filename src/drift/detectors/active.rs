//! Findings that hold: each is reported once and kept until it has not been seen for its kind's hold time.

use super::finding::{Finding, Kind};

/// Findings of one series that hold.
#[derive(Clone, Debug, Default)]
pub(super) struct ActiveFindings(Vec<ActiveFinding>);

#[derive(Clone, Debug)]
struct ActiveFinding {
    finding: Finding,
    last_seen: f64,
}

impl ActiveFindings {
    /// Pushes findings that are not active yet to `out`, renews the others.
    pub(super) fn raise(&mut self, found: impl IntoIterator<Item = Finding>, out: &mut Vec<Finding>) {
        for finding in found {
            let last_seen = finding.at;
            let is_same = |active: &&mut ActiveFinding| {
                active.finding.kind == finding.kind && active.finding.series.replica == finding.series.replica
            };
            if let Some(active) = self.0.iter_mut().find(is_same) {
                active.last_seen = last_seen;
            } else {
                out.push(finding.clone());
                self.0.push(ActiveFinding { finding, last_seen });
            }
        }
    }

    /// Renews findings of a kind that go on.
    pub(super) fn renew(&mut self, at: f64, kind: Kind) {
        let same = self.0.iter_mut().filter(|active| active.finding.kind == kind);
        same.for_each(|active| active.last_seen = at);
    }

    /// Drops what was not seen for its hold time.
    pub(super) fn expire(&mut self, at: f64) {
        self.0.retain(|active| at - active.last_seen <= active.finding.kind.hold());
    }

    pub(super) fn count(&self, kind: Kind) -> usize {
        self.iter().filter(|finding| finding.kind == kind).count()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Finding> {
        self.0.iter().map(|active| &active.finding)
    }
}
