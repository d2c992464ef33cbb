//! Which replica stands out among its pool's: pure comparison of failure rates, and of speeds for those in slow start.
//!
//! What all replicas answer alike says nothing about any of them, so every figure is taken relative to the lower median
//! of the others: with half of a pool sick, the healthy half is still the measure.

use std::time::Duration;

use crate::clock::Stamp;
use crate::routing::PoolModel;
use crate::stats::Peers;

/// What a replica's recent answers are worth to routing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Standing {
    /// Probability that it answers, relative to its peers, 0 to 1.
    pub(super) success: f64,
    /// Fraction of its ordinary traffic that it should get, above 0, up to 1.
    pub(super) share: f64,
}

impl Standing {
    /// From its failure rate and that of its peers.
    #[must_use]
    pub(super) fn of(failures: f64, peers: f64) -> Self {
        let excess = (failures - peers).clamp(0.0, 1.0);
        Self { success: 1.0 - excess, share: (1.0 - 2.0 * excess).max(0.0).powi(2).max(MIN_SHARE) }
    }
}

/// Whether failures are reason to eject: they leave those of the peers behind, beyond chance.
#[must_use]
pub(super) fn fails_alone(failures: f64, peers: f64) -> bool {
    failures >= EJECT_FROM + 2.0 * peers
}

/// How slow one replica is, in seconds: a typical first token, and each further one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Speeds {
    pub(crate) ttft: Option<f64>,
    pub(crate) itl: Option<f64>,
}

impl Speeds {
    /// What the pool's model knows of the replica in `slot`.
    pub(crate) fn of(model: &PoolModel, slot: usize, now: Stamp) -> Self {
        Self { ttft: model.typical_ttft(slot, now), itl: model.typical_itl(slot, now) }
    }
}

/// Times what is usual among the others, by the worse of the two figures; 1 where there is nothing to compare.
pub(crate) fn slowness(own: &Speeds, ttfts: &Peers, itls: &Peers) -> f64 {
    let beside = |own: Option<f64>, peers: &Peers, least: f64| {
        let usual = peers.beside(Some(own?))?;
        Some((own? + least) / (usual + least))
    };
    let ttft = beside(own.ttft, ttfts, NEGLIGIBLE_TTFT).unwrap_or(1.0);
    let worst = ttft.max(beside(own.itl, itls, NEGLIGIBLE_ITL).unwrap_or(1.0));
    if worst.is_finite() { worst } else { 1.0 }
}

/// Between two comparisons of a pool's replicas.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Seconds of which nobody is aware: a few times as much is no outlier.
const NEGLIGIBLE_TTFT: f64 = 0.02;
const NEGLIGIBLE_ITL: f64 = 0.002;
/// Three failures in a row after good answers, or a quarter of all.
const EJECT_FROM: f64 = 0.25;
/// Some requests always go there, or it could never show that it is well.
const MIN_SHARE: f64 = 0.02;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_cost_share_and_what_peers_do_too_costs_none() {
        let some = Standing::of(0.1, 0.0);
        assert!((0.6..0.7).contains(&some.share) && (some.success - 0.9).abs() < 1e-9, "{some:?}");
        assert_eq!(Standing::of(1.0, 0.0), Standing { success: 0.0, share: MIN_SHARE });
        assert_eq!(Standing::of(0.4, 0.4), Standing { success: 1.0, share: 1.0 });
        assert!(fails_alone(0.271, 0.0) && !fails_alone(0.271, 0.19) && !fails_alone(1.0, 0.5));
    }
}
