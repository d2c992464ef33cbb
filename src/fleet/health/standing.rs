//! The rule: evidence of one replica in, its standing out. Pure.
//!
//! What all replicas of a pool answer alike says nothing about any of them, so failures count only beyond those of its peers. How
//! slow a replica is costs it nothing here: the router's prediction prices that, and slow start alone heeds it for a while.

/// What its evidence is worth beside that of its peers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Standing {
    /// Probability that it answers, relative to its peers, 0 to 1.
    pub(crate) success: f64,
    /// Fraction of its ordinary traffic that it should get, above 0, up to 1.
    pub(crate) share: f64,
}

/// What a replica's failures ([`super::answers::Answers::demotion_rate`]; `None` before its first answer) are worth beside its peers'
/// rate, where its slow start allows it `warmth`, a fraction of its ordinary traffic.
pub(crate) fn standing(failing: Option<f64>, peers: f64, warmth: f64) -> Standing {
    let excess = (failing.unwrap_or_default() - peers).clamp(0.0, 1.0);
    let demoted = (1.0 - 2.0 * excess).max(0.0).powi(2).max(MIN_SHARE);
    Standing { success: 1.0 - excess, share: demoted * warmth }
}

/// Whether its failures are reason to eject it: more than its peers', beyond chance. On trial one more is enough where its peers
/// have hardly any. What most answers of its peers are like as well is no fault of it.
pub(crate) fn fails_alone(failures: f64, peers: f64, is_on_trial: bool) -> bool {
    let enough = 1.0 - (1.0 - EJECT_FROM) * (1.0 - peers).powi(3);
    peers <= MOST_OF_PEERS && (failures >= enough || (is_on_trial && peers < HARDLY_ANY))
}

/// Three failures in a row after good answers, or a quarter of all.
const EJECT_FROM: f64 = 0.25;
/// The shares are of the last twenty answers or so: chance brings a third more than half of the peers', seldom nine tenths.
const MOST_OF_PEERS: f64 = 0.5;
/// Less than one recent failure of the peer in the middle.
const HARDLY_ANY: f64 = 0.05;
/// Some requests always go there, or it could never show that it is well.
const MIN_SHARE: f64 = 0.02;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_cost_share_and_what_peers_do_too_costs_none() {
        for (failing, peers, warmth, success, share) in [
            (None, 0.0, 1.0, 1.0, 1.0),
            (Some(0.0), 0.5, 1.0, 1.0, 1.0),
            (Some(0.1), 0.0, 1.0, 0.9, 0.64),
            (Some(0.4), 0.4, 1.0, 1.0, 1.0),
            (Some(1.0), 0.0, 1.0, 0.0, MIN_SHARE),
            (Some(0.1), 0.0, 0.5, 0.9, 0.32),
            (None, 0.0, 0.25, 1.0, 0.25),
        ] {
            let found = standing(failing, peers, warmth);
            let is_close = |one: f64, other: f64| (one - other).abs() < 1e-9;
            assert!(
                is_close(found.success, success) && is_close(found.share, share),
                "{failing:?} {found:?}"
            );
        }
    }

    #[test]
    fn failures_eject_only_beyond_those_of_the_peers() {
        for (failures, peers, is_on_trial, expected) in [
            (0.271, 0.0, false, true),
            (0.24, 0.0, false, false),
            (0.271, 0.19, false, false),
            (0.6, 0.3, false, false),
            (0.8, 0.5, false, false),
            (0.95, 0.5, false, true),
            (1.0, 0.6, false, false),
            (1.0, 1.0, false, false),
            (0.0, 0.01, true, true),
            (0.2, 0.3, true, false),
            (0.9, 0.3, true, true),
        ] {
            assert_eq!(fails_alone(failures, peers, is_on_trial), expected, "{failures} beside {peers}");
        }
    }
}
