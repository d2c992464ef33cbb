//! The blocks that one replica is believed to hold, in order of use, by what they weigh.
//!
//! Whoever touches a chain does it from its tail to its root: then a block is always older than the blocks before it, the
//! tail is evicted first, as the engine does, and what is left is a prefix at all times. Prompts of other gateways are in it by
//! their ends ([`super::ends`]), which weigh what they added.

use hashlink::LinkedHashMap;

use super::hash::BuildSame;
use crate::request::chain::{COARSE_BLOCK, FINE_BLOCK};

/// A bounded LRU set of block hashes.
#[derive(Debug)]
pub(super) struct Held {
    /// Weights by hash, least recently used first.
    blocks: LinkedHashMap<u64, u32, BuildSame>,
    pub(super) weight: u64,
    /// Of prompts that the replica has yet to show to hold: it stands beside what the capacity allows.
    pub(super) expected: u64,
    /// Of all entries, ends.
    pub(super) ends: usize,
    pub(super) capacity: u64,
}

/// What is evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// A block of ours.
    Block(u64),
    /// The end of another gateway's prompt.
    End(u64),
}

impl Held {
    pub(super) fn new(capacity: u64) -> Self {
        let blocks = LinkedHashMap::with_hasher(BuildSame::default());
        Self { blocks, weight: 0, expected: 0, ends: 0, capacity: capacity.min(MAX_WEIGHT) }
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
        self.insert(hash, if is_coarse { COARSE_WEIGHT } else { 1 })
    }

    /// The same of an end.
    pub(super) fn touch_end(&mut self, hash: u64, weight: u32) -> bool {
        self.insert(hash ^ END_KEY, END | weight & WEIGHT)
    }

    fn insert(&mut self, key: u64, weight: u32) -> bool {
        if self.blocks.to_back(&key).is_some() {
            return false;
        }
        self.blocks.insert(key, weight);
        self.weight += u64::from(weight & WEIGHT);
        self.ends += usize::from(weight & END != 0);
        true
    }

    /// Takes out the oldest block if there is more than the capacity allows.
    pub(super) fn evict_surplus(&mut self) -> Option<Entry> {
        let beside = self.expected.min(self.capacity.saturating_mul(EXPECTED)).min(MAX_WEIGHT);
        if self.weight <= self.capacity + beside { None } else { self.evict() }
    }

    /// Takes out the oldest block.
    pub(super) fn evict(&mut self) -> Option<Entry> {
        let (key, weight) = self.blocks.pop_front()?;
        self.forget(weight);
        Some(if weight & END == 0 { Entry::Block(key) } else { Entry::End(key ^ END_KEY) })
    }

    /// Takes out a block; false where it is not there.
    pub(super) fn remove(&mut self, hash: u64) -> bool {
        self.blocks.remove(&hash).map(|weight| self.forget(weight)).is_some()
    }

    /// The same of an end.
    pub(super) fn remove_end(&mut self, hash: u64) -> bool {
        self.remove(hash ^ END_KEY)
    }

    fn forget(&mut self, weight: u32) {
        self.weight -= u64::from(weight & WEIGHT);
        self.ends -= usize::from(weight & END != 0);
    }

    pub(super) fn has(&self, hash: u64) -> bool {
        self.blocks.contains_key(&hash)
    }

    pub(super) fn has_end(&self, hash: u64) -> bool {
        self.has(hash ^ END_KEY)
    }

    /// Leaves an end that is continued a weight of one; returns the rest of it.
    pub(super) fn lighten_end(&mut self, hash: u64) -> u32 {
        let Some(weight) = self.blocks.get_mut(&(hash ^ END_KEY)) else { return 0 };
        let rest = (*weight & WEIGHT).saturating_sub(1);
        *weight -= rest;
        self.weight -= u64::from(rest);
        rest
    }
}

/// Ends and blocks of one hash are two entries.
const END_KEY: u64 = 0x9e37_79b9_7f4a_7c15;
/// Marks the weight of an end.
const END: u32 = 1 << 31;
const WEIGHT: u32 = END - 1;

/// Fine blocks in a coarse one.
pub(in crate::routing) const COARSE_WEIGHT: u32 = (COARSE_BLOCK / FINE_BLOCK) as u32;
/// Times the capacity that prompts on their way may have beside it: from there on they evict, as each of them is taken to be served.
const EXPECTED: u64 = 4;
/// Most that an index holds for one replica, in fine blocks, and again of prompts on their way.
pub(super) const MAX_WEIGHT: u64 = 1 << 20;
