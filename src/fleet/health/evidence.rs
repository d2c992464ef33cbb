//! The evidence on one replica in one place, and its publication.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use super::answers::Answers;
use super::slow_start::SlowStart;
use super::standing::{Standing, standing};
use super::vitals::Vitals;
use super::warmth::Warmth;
use crate::clock::{Stamp, doubled};
use crate::fleet::life::ReplicaState;
use crate::routing::Target;
use crate::units::AtomicF64;

/// Evidence on one replica.
#[derive(Debug, Default)]
pub struct Health {
    /// Signs of life, shared with its streams.
    pub vitals: Arc<Vitals>,
    pub(crate) answers: Answers,
    /// Cold start and slow start.
    pub(crate) warmth: Warmth,
    /// Failure rate of its peers when they were compared last.
    peers: AtomicF64,
    /// Ejections since it was last proved well.
    ejections: AtomicU32,
    /// Failed requests ejected it: it comes back on trial.
    is_due_for_trial: AtomicBool,
}

/// One replica of a pool, for comparison with its peers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member<'r> {
    pub(crate) health: &'r Health,
    pub(crate) target: &'r Target,
    pub(crate) state: ReplicaState,
    pub(crate) is_held: bool,
}

impl Health {
    /// Of a replica that is discovered now.
    pub(crate) fn new(now: Stamp) -> Self {
        Self { warmth: Warmth::new(now), ..Self::default() }
    }

    /// Its peers were compared: their usual demotion rate.
    pub(crate) fn beside(&self, peers: f64) {
        self.peers.store(peers);
    }

    /// Whether failed requests ejected it, so that it comes back on trial.
    pub(crate) fn is_due_for_trial(&self) -> bool {
        self.is_due_for_trial.load(Ordering::Relaxed)
    }

    /// Failed requests prove it sick.
    pub(crate) fn failed_requests(&self) {
        self.is_due_for_trial.store(true, Ordering::Relaxed);
    }

    /// It takes requests from now on: few at first where failed requests had ejected it.
    pub(crate) fn became_ready(&self) {
        if self.is_due_for_trial.swap(false, Ordering::Relaxed) {
            self.answers.begin_trial();
        } else {
            self.answers.resume();
        }
    }

    /// It was ejected, or nobody listens there any more.
    pub(crate) fn was_left(&self) {
        if self.answers.is_on_trial() {
            self.failed_requests();
        }
        self.ejections.fetch_add(1, Ordering::Relaxed);
    }

    /// A first token or a whole answer came.
    pub(crate) fn succeeded(&self, is_ready: bool, now: Stamp) {
        self.warmth.slow_start(SlowStart::answered);
        let is_proved = self.answers.good(now) || !self.answers.is_on_trial();
        if is_proved && is_ready && self.ejections.load(Ordering::Relaxed) != 0 {
            self.ejections.store(0, Ordering::Relaxed);
        }
    }

    /// Delay of the first probe after an ejection: 500 ms, doubled for each ejection since it was last proved well, at
    /// most `interval`. Keeps a replica that passes probes but fails requests from flapping.
    pub(crate) fn hold_off(&self, interval: Duration) -> Duration {
        doubled(FIRST_HOLD_OFF, self.ejections.load(Ordering::Relaxed).clamp(1, 8) - 1, interval)
    }
}

impl Member<'_> {
    /// Whether it takes new requests, be it only where no other one does.
    pub(crate) fn is_ready(&self) -> bool {
        self.state == ReplicaState::Ready && !self.is_held
    }

    /// Whether it takes another request now; in a back-off, or at the limit of its trial, it is only better than no replica at all.
    pub(crate) fn is_open(&self, now: Stamp) -> bool {
        self.is_ready() && self.health.answers.admits(self.target.load.own(), now)
    }

    /// Fraction of its ordinary traffic that it gets, for people: without the trials of slow start, which would show as all or nothing.
    pub(crate) fn lasting_share(&self, now: Stamp) -> f64 {
        let warmth = self.health.warmth.slow_start(|slow| slow.lasting_share()).unwrap_or(1.0);
        self.standing(warmth, now).share
    }

    /// Publishes what its evidence is worth, for routing to read.
    pub(crate) fn publish(&self, now: Stamp) {
        let warmth = self.health.warmth.slow_start(|slow| slow.share(now)).unwrap_or(1.0);
        let standing = self.standing(warmth, now);
        self.target.set_standing(standing.success, standing.share);
    }

    fn standing(&self, warmth: f64, now: Stamp) -> Standing {
        let Health { answers, peers, .. } = self.health;
        standing(answers.demotion_rate(now), peers.load().max(answers.shared_rate(now)), warmth)
    }

    /// It was chosen for a request: in slow start one trial at a time.
    pub(crate) fn chosen(&self, now: Stamp) {
        if self.health.warmth.slow_start(|slow| slow.chosen(now)).is_some() {
            self.publish(now);
        }
    }
}

const FIRST_HOLD_OFF: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_ready_replica_that_is_not_held_takes_requests() {
        let (health, target) = (Health::new(Stamp::default()), Target::new(0, 0));
        for state in ReplicaState::ALL {
            let of = |is_held| Member { health: &health, target: &target, state, is_held };
            assert_eq!(of(false).is_open(Stamp::default()), state == ReplicaState::Ready, "{state:?}");
            assert!(!of(true).is_open(Stamp::default()), "{state:?}");
        }
    }
}
