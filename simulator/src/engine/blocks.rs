//! The KV cache: a pool of blocks with a prefix cache, as reference counts without memory behind them.
//!
//! A full block is named by its chained hash, so that equal prefixes share blocks. A block without holders stays in the
//! prefix cache until it is evicted: least recently used first, the tail of a prompt before its head.

use std::collections::{BTreeMap, HashMap};

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Chained hashes of the full blocks of `tokens`: hash i covers blocks 0..=i. `root` separates models and salts.
#[must_use]
pub fn chain(tokens: &[u32], block: usize, root: u64) -> Vec<u64> {
    let mut previous = root;
    let mut bytes = Vec::with_capacity(block * 4);
    let mut hashes = Vec::with_capacity(tokens.len() / block.max(1));
    for full in tokens.chunks_exact(block.max(1)) {
        bytes.clear();
        full.iter().for_each(|token| bytes.extend_from_slice(&token.to_le_bytes()));
        previous = xxh3_64_with_seed(&bytes, previous);
        hashes.push(previous);
    }
    hashes
}

/// The blocks of one sequence.
#[derive(Debug, Default)]
pub(super) struct Holding {
    /// Published blocks, in order from the start of the prompt.
    published: Vec<u64>,
    /// Blocks that are not in the prefix cache (yet).
    private: u64,
}

impl Holding {
    fn total(&self) -> u64 {
        self.published.len() as u64 + self.private
    }
}

#[derive(Debug)]
struct Published {
    holders: u32,
    /// Key in `BlockCache::idle` while it has no holder.
    idle_since: u64,
}

/// The block pool with its prefix cache.
#[derive(Debug)]
pub(super) struct BlockCache {
    capacity: u64,
    free: u64,
    published: HashMap<u64, Published>,
    idle: BTreeMap<u64, u64>,
    /// Counts releases.
    tick: u64,
}

impl BlockCache {
    pub(super) fn new(capacity: u64) -> Self {
        Self { capacity, free: capacity, published: HashMap::new(), idle: BTreeMap::new(), tick: 0 }
    }

    /// Leading blocks of the chain that are cached.
    pub(super) fn lookup(&self, chain: &[u64]) -> usize {
        chain.iter().take_while(|hash| self.published.contains_key(hash)).count()
    }

    /// Allocates the cached blocks of `hits` and new ones up to `total`; `None` without room.
    pub(super) fn admit(&mut self, hits: &[u64], total: u64) -> Option<Holding> {
        if !self.has_room(hits, total) {
            return None;
        }
        let new = total.saturating_sub(hits.len() as u64);
        for hash in hits {
            self.hold(*hash);
        }
        let mut holding = Holding { published: hits.to_vec(), private: 0 };
        self.take(new, &mut holding);
        Some(holding)
    }

    /// Whether `hits` and new blocks up to `total` could be taken now.
    pub(super) fn has_room(&self, hits: &[u64], total: u64) -> bool {
        let new = total.saturating_sub(hits.len() as u64);
        let available = self.free + self.idle.len() as u64;
        if available < new {
            return false;
        }
        let idle_hits = hits.iter().filter(|hash| self.published.get(hash).is_some_and(|b| b.holders == 0));
        available - idle_hits.count() as u64 >= new
    }

    /// Grows the holding to `total` blocks; without room it is `false` and changes nothing.
    pub(super) fn grow(&mut self, holding: &mut Holding, total: u64) -> bool {
        let new = total.saturating_sub(holding.total());
        if self.free + (self.idle.len() as u64) < new {
            return false;
        }
        self.take(new, holding);
        true
    }

    /// Enters the first `full` blocks of a holding into the prefix cache.
    pub(super) fn publish(&mut self, holding: &mut Holding, chain: &[u64], full: usize) {
        let start = holding.published.len();
        for hash in chain.iter().take(full).skip(start) {
            if holding.private == 0 {
                return;
            }
            holding.private -= 1;
            if self.published.contains_key(hash) {
                // Two sequences computed the same block at once: one copy is enough.
                self.free += 1;
                self.hold(*hash);
            } else {
                self.published.insert(*hash, Published { holders: 1, idle_since: 0 });
            }
            holding.published.push(*hash);
        }
    }

    /// Frees all blocks; published ones stay cached.
    pub(super) fn release(&mut self, holding: &mut Holding) {
        self.free += std::mem::take(&mut holding.private);
        for hash in std::mem::take(&mut holding.published).into_iter().rev() {
            let Some(block) = self.published.get_mut(&hash) else { continue };
            block.holders -= 1;
            if block.holders == 0 {
                self.tick += 1;
                block.idle_since = self.tick;
                self.idle.insert(self.tick, hash);
            }
        }
    }

    /// Enters blocks that were computed elsewhere, as far as blocks are free.
    pub(super) fn preload(&mut self, hashes: &[u64]) {
        // As when a sequence ends: the tail is evicted first.
        for hash in hashes.iter().rev() {
            if self.free == 0 || self.published.contains_key(hash) {
                continue;
            }
            self.free -= 1;
            self.tick += 1;
            self.published.insert(*hash, Published { holders: 0, idle_since: self.tick });
            self.idle.insert(self.tick, *hash);
        }
    }

    /// Share of the blocks that are held.
    pub(super) fn usage(&self) -> f64 {
        let held = self.capacity - self.free - self.idle.len() as u64;
        held as f64 / self.capacity.max(1) as f64
    }

    fn hold(&mut self, hash: u64) {
        if let Some(block) = self.published.get_mut(&hash) {
            if block.holders == 0 {
                self.idle.remove(&block.idle_since);
            }
            block.holders += 1;
        }
    }

    /// The caller has checked that `new` blocks are free or idle.
    fn take(&mut self, new: u64, holding: &mut Holding) {
        for _ in 0..new {
            if self.free > 0 {
                self.free -= 1;
            } else if let Some((_, hash)) = self.idle.pop_first() {
                self.published.remove(&hash);
            }
        }
        holding.private += new;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(n: u32, first: u32) -> Vec<u32> {
        (first..first + n).collect()
    }

    #[test]
    fn equal_prefixes_have_equal_chains_and_the_root_tells_them_apart() {
        let (a, b) = (tokens(64, 0), [tokens(48, 0), tokens(16, 900)].concat());
        let (chain_a, chain_b) = (chain(&a, 16, 7), chain(&b, 16, 7));
        assert_eq!(chain_a[..3], chain_b[..3]);
        assert_ne!(chain_a[3], chain_b[3]);
        assert_ne!(chain(&a, 16, 8)[0], chain_a[0]);
        assert_eq!(chain(&a[..31], 16, 7).len(), 1);
    }

    #[test]
    fn released_blocks_are_found_again_until_their_place_is_needed() {
        let mut cache = BlockCache::new(4);
        let hashes = chain(&tokens(64, 0), 16, 0);
        let mut holding = cache.admit(&[], 4).unwrap();
        assert!(cache.admit(&[], 1).is_none(), "full");
        cache.publish(&mut holding, &hashes, 4);
        assert_eq!(cache.usage(), 1.0);
        cache.release(&mut holding);
        assert_eq!((cache.usage(), cache.lookup(&hashes)), (0.0, 4));
        let _other = cache.admit(&[], 1).unwrap();
        assert_eq!(cache.lookup(&hashes), 3, "the tail goes first");
    }

    #[test]
    fn hits_are_not_counted_as_room() {
        let mut cache = BlockCache::new(2);
        let hashes = chain(&tokens(32, 0), 16, 0);
        let mut holding = cache.admit(&[], 2).unwrap();
        cache.publish(&mut holding, &hashes, 2);
        cache.release(&mut holding);
        assert!(cache.admit(&hashes, 3).is_none());
        assert!(cache.admit(&hashes[..1], 2).is_some());
    }
}
