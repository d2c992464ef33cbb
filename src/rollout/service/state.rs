//! What is kept of a rollout over restarts.

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::rollout::judge::SavedEvidence;
use crate::rollout::plan::Plan;

/// A rollout as it is kept.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Saved {
    /// Which rollout: route, pool, revision and its description.
    pub(super) identity: String,
    /// Where it is.
    pub(super) plan: Plan,
    /// What was found so far.
    pub(super) evidence: SavedEvidence,
    /// Requests of baseline and canary.
    pub(super) requests: [u64; 2],
    /// Copies that the canary has answered.
    #[serde(default)]
    pub(super) shadowed: u64,
    /// Of the last breach.
    pub(super) report: Option<Json>,
}
