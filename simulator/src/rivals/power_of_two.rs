//! Power of two choices: of two replicas drawn at random, the one with fewer requests in flight.
//!
//! The default of Ray Serve, Envoy's `LEAST_REQUEST` and vllm-router's `power_of_two` (M. Mitzenmacher, 2001). It
//! counts its own requests exactly and ignores prompts.

use crate::replay::{Arrival, Ended, Fleet, RequestId, Router};

use super::ledger::Ledger;

#[derive(Debug)]
pub(super) struct PowerOfTwo {
    ledger: Ledger,
    random: fastrand::Rng,
}

impl PowerOfTwo {
    pub(super) fn new(replicas: usize, seed: u64) -> Self {
        Self { ledger: Ledger::new(replicas), random: fastrand::Rng::with_seed(seed) }
    }
}

impl Router for PowerOfTwo {
    fn arrive(&mut self, request: Arrival, fleet: &mut dyn Fleet) {
        let accounts = self.ledger.accounts();
        let (a, b) = (self.random.usize(..accounts.len()), self.random.usize(..accounts.len()));
        let replica = if accounts[b].inflight < accounts[a].inflight { b } else { a };
        self.ledger.note(request.id, replica, fleet.now(), 0.0);
        fleet.send(request.id, replica, None);
    }

    fn ended(&mut self, request: RequestId, _: &Ended) {
        self.ledger.end(request);
    }
}
