//! Rollouts as the admin API shows them.

use parking_lot::Mutex;

use crate::api::canaries::Canary;

/// Every rollout at one moment.
#[derive(Debug, Default)]
pub struct Board(Mutex<Vec<Canary>>);

impl Board {
    /// Every rollout, in the order of the routes.
    pub(crate) fn read(&self) -> Vec<Canary> {
        self.0.lock().clone()
    }

    pub(super) fn set(&self, rollouts: Vec<Canary>) {
        *self.0.lock() = rollouts;
    }
}
