//! The blocks that one replica is believed to hold, in order of use, by what they weigh.
//!
//! Whoever touches a chain does it from its tail to its root: then a block is always older than the blocks before it, the
//! tail is evicted first, as the engine does, and what is left is a prefix at all times.

use hashlink::LinkedHashMap;

use super::hash::BuildSame;

/// A bounded LRU set of block hashes.
#[derive(Debug)]
pub(super) struct Held {
    /// Weights by hash, least recently used first.
    blocks: LinkedHashMap<u64, u32, BuildSame>,
    weight: u64,
    capacity: u64,
}

impl Held {
    pub(super) fn new(capacity: u64) -> Self {
        let blocks = LinkedHashMap::with_hasher(BuildSame::default());
        Self { blocks, weight: 0, capacity: capacity.min(MAX_WEIGHT) }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The caller evicts by [`Self::evict_surplus`] afterwards.
    pub(super) fn set_capacity(&mut self, weight: u64) {
        self.capacity = weight.min(MAX_WEIGHT);
    }

    pub(super) fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Makes a block the newest; true when it was not in the set before.
    pub(super) fn touch(&mut self, hash: u64, is_coarse: bool) -> bool {
        if self.blocks.to_back(&hash).is_some() {
            return false;
        }
        let weight = if is_coarse { COARSE_WEIGHT } else { 1 };
        self.blocks.insert(hash, weight);
        self.weight += u64::from(weight);
        true
    }

    /// Takes out the oldest block if there is more than the capacity allows.
    pub(super) fn evict_surplus(&mut self) -> Option<u64> {
        if self.weight <= self.capacity { None } else { self.evict() }
    }

    /// Takes out the oldest block.
    pub(super) fn evict(&mut self) -> Option<u64> {
        let (hash, weight) = self.blocks.pop_front()?;
        self.weight -= u64::from(weight);
        Some(hash)
    }
}

/// Fine blocks in a coarse one.
pub(super) const COARSE_WEIGHT: u32 = 8;
/// Most that an index holds for one replica, in fine blocks.
pub(super) const MAX_WEIGHT: u64 = 1 << 20;
