//! Consistent hashing with bounded loads (V. Mirrokni, M. Thorup, M. Zadimoghaddam, 2016), as KubeAI has it.
//!
//! From `internal/loadbalancer/balance_chwbl.go` of substratusai/kubeai: a ring with 256 points per replica; the walk
//! from the key's point takes the first replica with `load + 1 <= 1.25 (total + 1) / n`, else the key's own. KubeAI's key
//! is the first 100 characters of the prompt. The second form, with the first three blocks of 512 tokens, shows what the
//! method can reach where prompts have a common opening.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::replay::{Arrival, Ended, Fleet, RequestId, Router};

use super::ledger::Ledger;

/// The part of a prompt that is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyBlocks {
    /// The gateway's first block: 64 tokens.
    FirstBlock,
    /// The engine's first three blocks.
    ThreeEngineBlocks,
}

#[derive(Debug)]
pub(super) struct Chwbl {
    ledger: Ledger,
    ring: Vec<(u64, usize)>,
    key_blocks: KeyBlocks,
}

impl Chwbl {
    pub(super) fn new(replicas: usize, key_blocks: KeyBlocks) -> Self {
        let point = |replica: usize, copy: u64| xxh3_64_with_seed(&copy.to_le_bytes(), replica as u64);
        let points = |replica| (0..POINTS).map(move |copy| (point(replica, copy), replica));
        let mut ring: Vec<(u64, usize)> = (0..replicas).flat_map(points).collect();
        ring.sort_unstable();
        Self { ledger: Ledger::new(replicas), ring, key_blocks }
    }

    fn key(&self, request: &Arrival) -> u64 {
        let block = match self.key_blocks {
            KeyBlocks::FirstBlock => request.chain.first(),
            KeyBlocks::ThreeEngineBlocks => request.engine_chain.get(2).or(request.chain.first()),
        };
        // A prompt shorter than a block has a key of its own.
        block.copied().unwrap_or(u64::from(request.id.0).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }
}

impl Router for Chwbl {
    fn arrive(&mut self, request: Arrival, fleet: &mut dyn Fleet) {
        let key = self.key(&request);
        let start = self.ring.partition_point(|(point, _)| *point < key);
        let walk = (0..self.ring.len()).map(|step| self.ring[(start + step) % self.ring.len()].1);
        let accounts = self.ledger.accounts();
        let total: usize = accounts.iter().map(|account| account.inflight).sum();
        let bound = LOAD_FACTOR * (total + 1) as f64 / accounts.len() as f64;
        let fits = |replica: &usize| total == 0 || (accounts[*replica].inflight + 1) as f64 <= bound;
        let chosen = walk.clone().find(fits).or_else(|| walk.clone().next());
        let Some(replica) = chosen else { return };
        self.ledger.note(request.id, replica, fleet.now(), 0.0);
        fleet.send(request.id, replica, None);
    }

    fn ended(&mut self, request: RequestId, _: &Ended) {
        self.ledger.end(request);
    }
}

const POINTS: u64 = 256;
const LOAD_FACTOR: f64 = 1.25;
