//! What a router without KV events believes to be cached where: what it sent there, with the engine's capacity.
//!
//! The product's prefix index stands in for the routers' radix trees: both find the longest prefix that a replica was
//! sent. Its capacity is the engine's, which most routers do not know.

use std::collections::HashSet;

use crate::routing::prefix_index::{Hits, capacity_of};
use crate::routing::{PrefixIndex, Prompt};
use crate::simulate::engine::EngineConfig;
use crate::simulate::replay::Incoming;

/// Prompts sent, by replica.
#[derive(Debug)]
pub(super) struct History {
    index: PrefixIndex,
    replicas: usize,
    block_tokens: u64,
    /// Every block ever sent anywhere: a conversation's past.
    seen: HashSet<u64>,
}

impl History {
    pub(super) fn new(replicas: usize, engine: &EngineConfig) -> Self {
        let index = PrefixIndex::new(replicas);
        let capacity = capacity_of(engine.num_blocks, engine.block_size, BYTES_PER_TOKEN);
        (0..replicas).for_each(|slot| index.set_capacity(slot, capacity));
        Self { index, replicas, block_tokens: engine.block_size, seen: HashSet::new() }
    }

    /// Prompt tokens believed to be cached, by replica.
    pub(super) fn hits(&self, request: &Incoming<'_>) -> Vec<u64> {
        let mut hits = Hits::default();
        self.index.lookup(request.chain, &mut hits);
        (0..self.replicas).map(|replica| self.tokens(hits.blocks(replica), request)).collect()
    }

    /// Prompt tokens that were ever sent to anybody.
    pub(super) fn ever(&self, request: &Incoming<'_>) -> u64 {
        let blocks = request.chain.iter().take_while(|hash| self.seen.contains(*hash)).count();
        self.tokens(blocks, request)
    }

    pub(super) fn note(&mut self, replica: usize, request: &Incoming<'_>) {
        let block_end =
            |block: usize| request.ends.get(block).map_or(0, |end| (*end as f64 * BYTES_PER_TOKEN) as u64);
        let prompt = Prompt {
            chain: request.chain,
            block_end: &block_end,
            bytes: request.prompt.0,
            tokens: request.prompt,
        };
        self.index.insert(replica, &prompt);
        self.seen.extend(request.chain);
    }

    fn tokens(&self, blocks: usize, request: &Incoming<'_>) -> u64 {
        let end = blocks.checked_sub(1).and_then(|last| request.ends.get(last)).copied().unwrap_or(0);
        let tokens = end.min(request.prompt.0.saturating_sub(1));
        tokens - tokens % self.block_tokens
    }
}

/// As the replay's gateway has it.
const BYTES_PER_TOKEN: f64 = 4.0;
