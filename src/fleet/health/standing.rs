//! The rule: evidence of one replica in, its standing out. Pure.
//!
//! What all replicas of a pool answer alike says nothing about any of them, so failures count only beyond those of its peers. How
//! slow a replica is costs it nothing here: the router's prediction prices that, and slow start alone heeds it for a while.

use crate::clock::Stamp;
use crate::fleet::life::ReplicaState;

/// What decides whether it takes a request; few atomics, for the data path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gate {
    pub(crate) state: ReplicaState,
    /// Its source or an operator keeps new requests away.
    pub(crate) is_held: bool,
    /// End of its back-off.
    pub(crate) paused_until: Stamp,
    /// Requests that it may have at once while it is on trial.
    pub(crate) trial: Option<u32>,
    /// Requests of ours that it has.
    pub(crate) inflight: u64,
}

/// What its evidence is worth beside that of its peers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Standing {
    /// Probability that it answers, relative to its peers, 0 to 1.
    pub(crate) success: f64,
    /// Fraction of its ordinary traffic that it should get, above 0, up to 1.
    pub(crate) share: f64,
}

impl Gate {
    /// Whether it takes another request now; in a back-off, or at the limit of its trial, it is only better than no replica at all.
    pub(crate) fn is_open(&self, now: Stamp) -> bool {
        let has_room = self.trial.is_none_or(|most| self.inflight < u64::from(most));
        self.state == ReplicaState::Ready && !self.is_held && now >= self.paused_until && has_room
    }

    /// Its state as people see it: one that is held drains.
    pub(crate) fn shown_state(&self) -> ReplicaState {
        if self.is_held && self.state == ReplicaState::Ready { ReplicaState::Draining } else { self.state }
    }
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

    const WELL: Gate = Gate {
        state: ReplicaState::Ready,
        is_held: false,
        paused_until: Stamp::from_nanos(0),
        trial: None,
        inflight: 9,
    };

    #[test]
    fn only_a_ready_replica_takes_requests_and_one_that_is_held_drains() {
        for state in ReplicaState::ALL {
            let of = |is_held| Gate { state, is_held, ..WELL };
            let is_ready = state == ReplicaState::Ready;
            assert_eq!(of(false).is_open(Stamp::default()), is_ready, "{state:?}");
            assert_eq!((of(false).shown_state(), of(true).is_open(Stamp::default())), (state, false));
            assert_eq!(of(true).shown_state(), if is_ready { ReplicaState::Draining } else { state });
        }
    }

    #[test]
    fn a_back_off_and_a_full_trial_leave_it_to_those_without_another() {
        let at = Stamp::from_nanos;
        for (paused_until, trial, inflight, expected) in [
            (at(0), None, 1000, true),
            (at(5), None, 0, true),
            (at(6), None, 0, false),
            (at(0), Some(1), 0, true),
            (at(0), Some(1), 1, false),
            (at(0), Some(2), 1, true),
        ] {
            let gate = Gate { paused_until, trial, inflight, ..WELL };
            assert_eq!(gate.is_open(at(5)), expected, "{gate:?}");
        }
    }

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
