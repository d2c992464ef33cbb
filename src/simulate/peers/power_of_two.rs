//! Power of two choices: of two replicas drawn at random, the one with fewer requests in flight.
//!
//! The default of Ray Serve, Envoy's `LEAST_REQUEST` and vllm-router's `power_of_two` (M. Mitzenmacher, 2001). It
//! counts its own requests exactly and knows nothing of prompts.

use crate::clock::Stamp;
use crate::simulate::replay::{Dispatcher, Ended, Incoming, Placement, RequestId, Truth, Verdict};

use super::ledger::Ledger;

/// The policy.
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

impl Dispatcher for PowerOfTwo {
    fn place(&mut self, request: &Incoming<'_>, now: Stamp, _: &Truth<'_>) -> Verdict {
        let accounts = self.ledger.accounts();
        let (a, b) = (self.random.usize(..accounts.len()), self.random.usize(..accounts.len()));
        let replica = if accounts[b].inflight < accounts[a].inflight { b } else { a };
        self.ledger.place(request.id, replica, now, 0.0);
        Placement::on(replica)
    }

    fn ended(&mut self, request: RequestId, _: &Ended) {
        self.ledger.end(request);
    }
}
