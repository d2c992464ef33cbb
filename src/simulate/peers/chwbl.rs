//! Consistent hashing with bounded loads (V. Mirrokni, M. Thorup, M. Zadimoghaddam, 2016), as KubeAI has it.
//!
//! From `internal/loadbalancer/balance_chwbl.go` of substratusai/kubeai: a ring with 256 places a replica; the walk
//! from the key's place takes the first replica with `load + 1 <= 1.25 (total + 1) / n`, else the key's own. The key is
//! the first 100 characters of the prompt, so that prompts with a common opening share one; the second form, with the
//! first three blocks of 512 tokens, is what the idea can give where openings are alike.

use crate::clock::Stamp;
use crate::routing::rendezvous;
use crate::simulate::replay::{Dispatcher, Ended, Incoming, Placement, RequestId, Truth, Verdict};

use super::ledger::Ledger;

/// What is hashed of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// The gateway's first block: 64 tokens, the finest that a trace can tell apart being 512.
    FirstBlock,
    /// The engine's first three blocks.
    ThreeEngineBlocks,
}

/// The policy.
#[derive(Debug)]
pub(super) struct Chwbl {
    ledger: Ledger,
    ring: Vec<(u64, usize)>,
    key: Key,
}

impl Chwbl {
    pub(super) fn new(replicas: usize, key: Key) -> Self {
        let place = |(replica, copy): (usize, u64)| (rendezvous::rank(copy, replica as u64), replica);
        let places = (0..replicas).flat_map(|replica| (0..PLACES).map(move |copy| (replica, copy)));
        let mut ring: Vec<(u64, usize)> = places.map(place).collect();
        ring.sort_unstable();
        Self { ledger: Ledger::new(replicas), ring, key }
    }

    fn key(&self, request: &Incoming<'_>) -> u64 {
        let block = match self.key {
            Key::FirstBlock => request.chain.first(),
            Key::ThreeEngineBlocks => request.engine_chain.get(2).or(request.chain.first()),
        };
        // A prompt shorter than a block has a key of its own.
        block.copied().unwrap_or(u64::from(request.id.0).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }
}

impl Dispatcher for Chwbl {
    fn place(&mut self, request: &Incoming<'_>, now: Stamp, _: &Truth<'_>) -> Verdict {
        let key = self.key(request);
        let start = self.ring.partition_point(|(place, _)| *place < key);
        let walk = (0..self.ring.len()).map(|step| self.ring[(start + step) % self.ring.len()].1);
        let accounts = self.ledger.accounts();
        let total: usize = accounts.iter().map(|account| account.inflight).sum();
        let bound = LOAD_FACTOR * (total + 1) as f64 / accounts.len() as f64;
        let fits = |replica: &usize| total == 0 || (accounts[*replica].inflight + 1) as f64 <= bound;
        let chosen = walk.clone().find(fits).or_else(|| walk.clone().next());
        let Some(replica) = chosen else { return Verdict::Refuse };
        self.ledger.place(request.id, replica, now, 0.0);
        Placement::on(replica)
    }

    fn ended(&mut self, request: RequestId, _: &Ended) {
        self.ledger.end(request);
    }
}

const PLACES: u64 = 256;
const LOAD_FACTOR: f64 = 1.25;
