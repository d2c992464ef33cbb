//! The rule: evidence of one replica in, its standing out. Pure.
//!
//! What all replicas of a pool answer alike says nothing about any of them, so failures count only beyond those of its peers. How
//! slow a replica is costs it nothing here: the router's prediction prices that, and slow start alone heeds it for a while.

use crate::clock::Stamp;
use crate::fleet::life::ReplicaState;

/// What is known of one replica at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence {
    pub(crate) gate: Gate,
    /// [`super::answers::Answers::demotion_rate`]; `None` before its first answer.
    pub(crate) failing: Option<f64>,
    /// Fraction of its ordinary traffic that its slow start allows, 0 to 1.
    pub(crate) warmth: f64,
}

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

/// What follows of the evidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Standing {
    pub(crate) takes: Takes,
    /// Probability that it answers, relative to its peers, 0 to 1.
    pub(crate) success: f64,
    /// Fraction of its ordinary traffic that it should get, above 0, up to 1.
    pub(crate) share: f64,
    /// As people see it: one that is held drains.
    pub(crate) state: ReplicaState,
}

/// Whether it takes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    Nothing,
    /// In a back-off or at the limit of its trial: better than no replica at all.
    IfNoOther,
    Requests,
}

/// What a replica's evidence is worth beside its peers' failure rate.
pub(crate) fn standing(evidence: &Evidence, peers: f64, now: Stamp) -> Standing {
    let Gate { state, is_held, .. } = evidence.gate;
    let excess = (evidence.failing.unwrap_or_default() - peers).clamp(0.0, 1.0);
    let demoted = (1.0 - 2.0 * excess).max(0.0).powi(2).max(MIN_SHARE);
    Standing {
        takes: takes(&evidence.gate, now),
        success: 1.0 - excess,
        share: demoted * evidence.warmth,
        state: if is_held && state == ReplicaState::Ready { ReplicaState::Draining } else { state },
    }
}

/// The part of [`standing`] that needs no peers.
pub(crate) fn takes(gate: &Gate, now: Stamp) -> Takes {
    if gate.state != ReplicaState::Ready || gate.is_held {
        Takes::Nothing
    } else if now < gate.paused_until || gate.trial.is_some_and(|most| gate.inflight >= u64::from(most)) {
        Takes::IfNoOther
    } else {
        Takes::Requests
    }
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

    const WELL: Evidence = Evidence {
        gate: Gate {
            state: ReplicaState::Ready,
            is_held: false,
            paused_until: Stamp::from_nanos(0),
            trial: None,
            inflight: 9,
        },
        failing: None,
        warmth: 1.0,
    };

    #[test]
    fn only_a_ready_replica_takes_requests_and_one_that_is_held_drains() {
        for state in ReplicaState::ALL {
            let of = |is_held| {
                let evidence = Evidence { gate: Gate { state, is_held, ..WELL.gate }, ..WELL };
                standing(&evidence, 0.0, Stamp::default())
            };
            let is_ready = state == ReplicaState::Ready;
            assert_eq!(of(false).takes == Takes::Requests, is_ready, "{state:?}");
            assert_eq!((of(false).state, of(true).takes), (state, Takes::Nothing));
            assert_eq!(of(true).state, if is_ready { ReplicaState::Draining } else { state });
        }
    }

    #[test]
    fn a_back_off_and_a_full_trial_leave_it_to_those_without_another() {
        let at = Stamp::from_nanos;
        for (paused_until, trial, inflight, expected) in [
            (at(0), None, 1000, Takes::Requests),
            (at(5), None, 0, Takes::Requests),
            (at(6), None, 0, Takes::IfNoOther),
            (at(0), Some(1), 0, Takes::Requests),
            (at(0), Some(1), 1, Takes::IfNoOther),
            (at(0), Some(2), 1, Takes::Requests),
        ] {
            let gate = Gate { paused_until, trial, inflight, ..WELL.gate };
            assert_eq!(takes(&gate, at(5)), expected, "{gate:?}");
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
            let found = standing(&Evidence { failing, warmth, ..WELL }, peers, Stamp::default());
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
