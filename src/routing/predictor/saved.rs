//! What was learned of speed, as plain values: kept over restarts, handed to other gateways. What does not fit is not taken.

use serde::{Deserialize, Serialize};

use crate::routing::float::sane_total;

/// What a pool's replicas have in common.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SavedPool {
    pub(super) shape: SavedFit,
    pub(super) steps: SavedFit,
    /// Bins of the last answers' lengths.
    pub(super) lengths: Vec<u8>,
    pub(super) events: [f64; 2],
    pub(super) taught: u32,
    pub(super) round_trip: f64,
    pub(super) mean_uncached: f64,
    /// Of an average replica.
    pub(super) slowness: f64,
}

/// One replica, by its pool's measure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SavedSpeed {
    pub(super) speed: SavedFit,
    pub(super) steps: SavedFit,
    /// Seconds since its last lesson.
    pub(super) age: f64,
}

/// Sums of a fit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct SavedFit {
    pub(super) causes: Vec<f64>,
    pub(super) seconds: Vec<f64>,
    pub(super) count: f64,
    pub(super) observed: u32,
}

/// Whether these are figures that a learner may have.
pub(super) fn are_sound(figures: &[f64]) -> bool {
    figures.iter().all(|figure| sane_total(*figure).is_some())
}
