//! When a difference from the baseline is a finding: one rule for doublings, shifts and slow replicas.
//!
//! Three bounds, all of which must be exceeded: a ratio, a z-score (beyond noise) and a difference in seconds (10 ms
//! instead of 5 ms is a ratio of two that no user notices). An active finding ends at a lower ratio than it began at, so
//! that it does not flap. False alarms and delays at these values: `docs/drift.md`, `benches/drift`.

/// Bounds on a latency against its baseline. Differences are of logarithms, so that they are ratios.
#[derive(Clone, Copy, Debug)]
pub(super) struct Threshold {
    /// Latency over baseline.
    pub(super) min_ratio: f64,
    /// Difference of logarithms over its standard error.
    pub(super) min_z: f64,
    /// Seconds above the baseline.
    pub(super) min_delta: f64,
    /// An active finding ends below this ratio.
    pub(super) clear_ratio: f64,
}

impl Threshold {
    /// `excess` and its standard error `noise` are logarithms, `delta` is in seconds.
    pub(super) fn is_exceeded(&self, excess: f64, noise: f64, delta: f64) -> bool {
        excess >= self.min_ratio.ln() && excess >= self.min_z * noise && delta >= self.min_delta
    }
}

/// A true doubling reaches 1.65 in five minutes even at 500 requests an hour.
pub(super) const TTFT_DOUBLED: Threshold =
    Threshold { min_ratio: 1.65, min_z: 5.4, min_delta: 0.025, clear_ratio: 1.3 };
/// A quarter, for hours: too small for a doubling.
pub(super) const TTFT_SHIFT: Threshold =
    Threshold { min_ratio: 1.25, min_z: 5.0, min_delta: 0.010, clear_ratio: 1.12 };
/// Tokens come every few milliseconds: a tenth of TTFT's difference is noticeable.
pub(super) const ITL_SHIFT: Threshold = Threshold { min_delta: 0.001, ..TTFT_SHIFT };
/// Peers cancel load, so that less noise is left than in a comparison with the past.
pub(super) const REPLICA_SLOW: Threshold =
    Threshold { min_ratio: 1.3, min_z: 4.5, min_delta: 0.010, clear_ratio: 1.15 };
/// While the replica's usual difference from its peers is unknown.
pub(super) const NEW_REPLICA_SLOW: Threshold = Threshold { min_ratio: 1.6, ..REPLICA_SLOW };

/// Score of a drift of TTFT over days; false alarms at this score are in `docs/results.md`.
pub(super) const SLOW_SCORE: f64 = 3.1;
pub(super) const SLOW_SCORE_ITL: f64 = 3.6;
/// While the series drifts, a lower score names the replicas that do.
pub(super) const SLOW_SCORE_AFFECTED: f64 = 1.0;

/// Share of the requests that must have a prediction before it explains them.
pub(super) const MIN_PREDICTED: f64 = 0.8;
