//! Findings that hold: each is reported once and kept until it has recovered, or was not seen for its kind's hold time.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::blocks::BlockHistory;
use super::finding::Finding;
use super::kind::Kind;
use super::slow::{self, TailBound};
use crate::diagnosis::{Onset, Snapshot};

/// Findings of one series that hold.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct ActiveFindings(pub(super) Vec<ActiveFinding>);

/// A finding that holds, with what it takes to look at it again; in the baseline file as it is.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct ActiveFinding {
    pub(super) finding: Finding,
    pub(super) last_seen: f64,
    /// The signals of replicas before it began.
    pub(super) before: Snapshot,
    pub(super) onset: Onset,
    /// Of a drift over days: what its tail is held against, whatever the baseline becomes.
    pub(super) bound: Option<TailBound>,
}

impl ActiveFindings {
    /// Pushes findings that are not active yet to `out`, renews the others.
    pub(super) fn raise(&mut self, found: impl IntoIterator<Item = ActiveFinding>, out: &mut Vec<Finding>) {
        for found in found {
            let is_same = |active: &&mut ActiveFinding| {
                let (old, new) = (&active.finding, &found.finding);
                old.kind == new.kind && old.series.replica == new.series.replica
            };
            if let Some(active) = self.0.iter_mut().find(is_same) {
                active.last_seen = found.last_seen;
            } else {
                out.push(found.finding.clone());
                self.0.push(found);
            }
        }
    }

    /// Renews findings of a kind that last.
    pub(super) fn renew(&mut self, at: f64, kind: Kind) {
        let same = self.0.iter_mut().filter(|active| active.finding.kind == kind);
        same.for_each(|active| active.last_seen = at);
    }

    /// Renews the finding of a replica that is slow, or cannot be judged.
    pub(super) fn renew_replica(&mut self, at: f64, replica: &Arc<str>) {
        let same = self.0.iter_mut().filter(|active| active.finding.series.replica.as_ref() == Some(replica));
        same.for_each(|active| active.last_seen = at);
    }

    /// Ends drifts over days whose tail is back, renews those whose tail is not.
    pub(super) fn recover(&mut self, at: f64, ttft: &BlockHistory, itl: &BlockHistory) {
        self.0.retain_mut(|active| {
            let Some(bound) = &active.bound else { return true };
            let blocks = if active.finding.kind == Kind::ItlDrift { itl } else { ttft };
            match slow::goes_on(blocks, bound) {
                Some(true) => active.last_seen = at,
                Some(false) => return false,
                None => {}
            }
            true
        });
    }

    /// Drops what was not seen for its hold time.
    pub(super) fn expire(&mut self, at: f64) {
        self.0.retain(|active| at - active.last_seen <= active.finding.kind.row().hold);
    }

    /// Drops the finding with this name; whether it was there.
    pub(super) fn remove(&mut self, id: &str) -> Option<Finding> {
        let at = self.0.iter().position(|active| active.finding.id() == id)?;
        Some(self.0.remove(at).finding)
    }

    pub(super) fn of(&self, kind: Kind) -> Option<&Finding> {
        self.0.iter().map(|active| &active.finding).find(|finding| finding.kind == kind)
    }

    pub(super) fn count(&self, kind: Kind) -> usize {
        self.0.iter().filter(|active| active.finding.kind == kind).count()
    }
}
