//! Rollouts as the admin API shows them.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value as Json;

use crate::rollout::judge::Evidence;
use crate::rollout::plan::RolloutState;

/// Every rollout at one moment.
#[derive(Debug, Default)]
pub struct Board(Mutex<Vec<RolloutView>>);

/// One rollout.
#[derive(Clone, Debug)]
pub struct RolloutView {
    /// Name of its route.
    pub route: Arc<str>,
    /// Name of its pool.
    pub pool: Arc<str>,
    /// The revision that is rolled out.
    pub revision: Arc<str>,
    /// Its state.
    pub state: RolloutState,
    /// Step from 1 on, 0 for the shadow step, and how many there are.
    pub step: (usize, usize),
    /// Its share of new requests, in ten thousandths.
    pub share: u32,
    /// Share of new requests of which it gets copies, in ten thousandths.
    pub shadow_share: u32,
    /// Seconds of the step's soak that are over.
    pub soaked: f64,
    /// Requests of baseline and canary.
    pub requests: [u64; 2],
    /// Copies that it has answered.
    pub shadowed: u64,
    /// Why it is in its state.
    pub reason: String,
    /// Evidence of each test.
    pub evidence: Vec<Evidence>,
    /// Of the last breach.
    pub report: Option<Json>,
}

impl Board {
    /// Every rollout, in the order of the routes.
    #[must_use]
    pub fn read(&self) -> Vec<RolloutView> {
        self.0.lock().clone()
    }

    pub(super) fn set(&self, rollouts: Vec<RolloutView>) {
        *self.0.lock() = rollouts;
    }
}
