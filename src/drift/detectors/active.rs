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
    /// Pushes a finding to `out` unless it is active already.
    pub(super) fn raise(&mut self, at: f64, finding: Finding, out: &mut Vec<Finding>) {
        let is_same = |active: &&mut ActiveFinding| {
            active.finding.kind == finding.kind && active.finding.series.replica == finding.series.replica
        };
        if let Some(active) = self.0.iter_mut().find(is_same) {
            active.last_seen = at;
            return;
        }
        out.push(finding.clone());
        self.0.push(ActiveFinding { finding, last_seen: at });
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
