//! What a router without KV events believes to be cached where: the prompts it sent there, least recently used first out.
//!
//! Stands in for the routers' radix trees: both find the longest prefix that a replica was sent. Its capacity is the
//! engine's, which most routers do not know.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::engine::EngineConfig;
use crate::replay::Arrival;

/// Prompts sent, by replica.
#[derive(Debug)]
pub(super) struct PrefixRecord {
    replicas: Vec<Lru>,
    block_size: u64,
    /// Every block ever sent to any replica.
    seen: HashSet<u64>,
}

impl PrefixRecord {
    pub(super) fn new(replicas: usize, engine: &EngineConfig) -> Self {
        let capacity = engine.num_blocks.saturating_mul(engine.block_size);
        Self {
            replicas: (0..replicas).map(|_| Lru::new(capacity)).collect(),
            block_size: engine.block_size,
            seen: HashSet::new(),
        }
    }

    /// Prompt tokens believed to be cached, by replica.
    pub(super) fn hits(&self, request: &Arrival) -> Vec<u64> {
        let hit = |replica: &Lru| self.tokens(replica.leading(&request.chain), request);
        self.replicas.iter().map(hit).collect()
    }

    /// Prompt tokens ever sent to any replica.
    pub(super) fn ever(&self, request: &Arrival) -> u64 {
        let blocks = request.chain.iter().take_while(|hash| self.seen.contains(*hash)).count();
        self.tokens(blocks, request)
    }

    pub(super) fn insert(&mut self, replica: usize, request: &Arrival) {
        self.replicas[replica].insert(&request.chain, &request.ends);
        self.seen.extend(&request.chain);
    }

    /// Whole engine blocks that `blocks` leading blocks of the prompt cover; its last token is always computed.
    fn tokens(&self, blocks: usize, request: &Arrival) -> u64 {
        let end = blocks.checked_sub(1).and_then(|last| request.ends.get(last)).copied().unwrap_or(0);
        let tokens = end.min(request.prompt.saturating_sub(1));
        tokens - tokens % self.block_size
    }
}

/// One replica's blocks in order of use.
#[derive(Debug)]
struct Lru {
    blocks: HashMap<u64, Block>,
    /// Hashes by last use; the smallest key is evicted first.
    uses: BTreeMap<u64, u64>,
    last_use: u64,
    tokens: u64,
    capacity: u64,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    last_use: u64,
    tokens: u64,
}

impl Lru {
    /// An empty one that keeps at most `capacity` tokens.
    fn new(capacity: u64) -> Self {
        Self { blocks: HashMap::new(), uses: BTreeMap::new(), last_use: 0, tokens: 0, capacity }
    }

    /// Leading blocks of the chain that are kept. A block is used after those behind it and evicted after them, so what
    /// is kept of a chain is a prefix, and halving finds its end.
    fn leading(&self, chain: &[u64]) -> usize {
        chain.partition_point(|hash| self.blocks.contains_key(hash))
    }

    /// Keeps as many leading blocks as fit; `ends` are the tokens at which they end.
    fn insert(&mut self, chain: &[u64], ends: &[u64]) {
        let fitting = ends.partition_point(|end| *end <= self.capacity).min(chain.len());
        for at in (0..fitting).rev() {
            let start = if at == 0 { 0 } else { ends[at - 1] };
            self.touch(chain[at], ends[at] - start);
            self.evict_surplus();
        }
    }

    fn touch(&mut self, hash: u64, tokens: u64) {
        self.last_use += 1;
        let block = Block { last_use: self.last_use, tokens };
        match self.blocks.insert(hash, block) {
            Some(before) => _ = self.uses.remove(&before.last_use),
            None => self.tokens += tokens,
        }
        self.uses.insert(self.last_use, hash);
    }

    fn evict_surplus(&mut self) {
        while self.tokens > self.capacity {
            let Some((_, hash)) = self.uses.pop_first() else { return };
            self.tokens -= self.blocks.remove(&hash).map_or(0, |block| block.tokens);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(replica: &mut Lru, chain: &[u64]) {
        let ends: Vec<u64> = (1..=chain.len() as u64).map(|block| block * 64).collect();
        replica.insert(chain, &ends);
    }

    #[test]
    fn the_least_recently_sent_prompt_loses_its_tail_first() {
        let mut replica = Lru::new(5 * 64);
        sent(&mut replica, &[1, 2, 3]);
        sent(&mut replica, &[1, 2, 4]);
        assert_eq!((replica.leading(&[1, 2, 3]), replica.leading(&[1, 9])), (3, 1));
        sent(&mut replica, &[7, 8]);
        assert_eq!((replica.leading(&[1, 2, 3]), replica.leading(&[1, 2, 4])), (2, 3));
        sent(&mut replica, &[10, 11, 12, 13, 14, 15, 16]);
        assert_eq!(replica.leading(&[10, 11, 12, 13, 14, 15, 16]), 5, "its head fits");
        assert_eq!(replica.leading(&[1, 2, 4]), 0);
    }
}
