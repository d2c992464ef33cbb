//! Which replica of a pool is believed to hold which prefix: from what we sent there, with the engine's capacity.
//!
//! One table maps a block's chain hash to a bit per replica, so that one walk along a prompt's chain finds the
//! longest cached prefix on every replica at once (once per 64 replicas). Beside it each replica has an LRU of its
//! blocks that says what to forget. The table is cut into shards with short locks; a decision takes read locks
//! only. Races leave a bit stale for microseconds, which costs a worse guess and nothing else.
//!
//! Memory is bounded by the sum of the capacities: 16 bytes a table entry and 32 a block and replica, before
//! the slack of the hash tables.

mod lru;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;

use self::lru::Lru;

/// The prefix index of one pool; replicas are slots from zero.
#[derive(Debug)]
pub struct PrefixIndex {
    /// Slots 0..64, 64..128, and so on.
    groups: Box<[Group]>,
    held: Box<[Mutex<Lru>]>,
    /// Slots below this one have held something: the others need no look.
    used: AtomicUsize,
}

/// How many blocks of a chain each slot is believed to hold, from the first one without a gap.
#[derive(Clone, Debug, Default)]
pub struct Hits {
    blocks: SmallVec<[u32; 64]>,
}

impl Hits {
    /// Leading blocks that the slot holds.
    #[must_use]
    pub fn blocks(&self, slot: usize) -> usize {
        self.blocks.get(slot).map_or(0, |blocks| *blocks as usize)
    }
}

impl PrefixIndex {
    /// An index for `slots` replicas, each with [`DEFAULT_CAPACITY`].
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self {
            groups: (0..slots.div_ceil(64)).map(|_| Group::new()).collect(),
            held: (0..slots).map(|_| Mutex::new(Lru::new(DEFAULT_CAPACITY))).collect(),
            used: AtomicUsize::new(0),
        }
    }

    /// Finds how far each replica's cache reaches into a prompt.
    pub fn lookup(&self, chain: &[u64], hits: &mut Hits) {
        hits.blocks.clear();
        hits.blocks.resize(self.used.load(Ordering::Acquire), 0);
        for (group, depths) in self.groups.iter().zip(hits.blocks.chunks_mut(64)) {
            group.walk(chain, depths);
        }
    }

    /// Notes that a replica was sent this prompt and will hold it. To be called when the replica was chosen, so
    /// that the next request of a burst already finds it.
    pub fn insert(&self, slot: usize, chain: &[u64]) {
        let Some(held) = self.held.get(slot) else { return };
        self.used.fetch_max(slot + 1, Ordering::AcqRel);
        // The replica's lock is held over the table's updates: a bit is set and cleared in the order in which
        // its block came and went.
        let mut held = held.lock();
        let fitting = chain.len().min(held.capacity());
        for &hash in chain[..fitting].iter().rev() {
            if held.touch(hash) {
                self.set(slot, hash);
            }
        }
        self.forget_surplus(slot, &mut held);
    }

    /// Sets how many blocks a replica's cache holds; see [`capacity_of`].
    pub fn set_capacity(&self, slot: usize, blocks: usize) {
        let Some(held) = self.held.get(slot) else { return };
        let mut held = held.lock();
        held.set_capacity(blocks.min(MOST_BLOCKS));
        self.forget_surplus(slot, &mut held);
    }

    /// Forgets all that a replica held: it restarted, slept, or the slot has a new owner.
    pub fn forget(&self, slot: usize) {
        let Some(held) = self.held.get(slot) else { return };
        let mut held = held.lock();
        while let Some(hash) = held.evict() {
            self.clear(slot, hash);
        }
    }

    /// Blocks that a replica is believed to hold.
    #[must_use]
    pub fn held(&self, slot: usize) -> usize {
        self.held.get(slot).map_or(0, |held| held.lock().len())
    }

    fn forget_surplus(&self, slot: usize, held: &mut Lru) {
        while let Some(hash) = held.evict_surplus() {
            self.clear(slot, hash);
        }
    }

    fn set(&self, slot: usize, hash: u64) {
        *self.groups[slot / 64].shard(hash).write().entry(hash).or_insert(0) |= 1 << (slot % 64);
    }

    fn clear(&self, slot: usize, hash: u64) {
        let mut shard = self.groups[slot / 64].shard(hash).write();
        let Some(holders) = shard.get_mut(&hash) else { return };
        *holders &= !(1 << (slot % 64));
        if *holders == 0 {
            shard.remove(&hash);
        }
    }
}

/// The cache of an engine in our blocks: its KV blocks times their tokens, as bytes of prompt.
#[must_use]
pub fn capacity_of(total_blocks: u64, block_tokens: u64, bytes_per_token: f64) -> usize {
    let bytes = total_blocks as f64 * block_tokens as f64 * bytes_per_token;
    // A float-to-integer cast saturates, and takes NaN for zero.
    ((bytes / BLOCK_BYTES) as usize).min(MOST_BLOCKS)
}

/// Up to 64 replicas: block hash to the set of those that hold it.
#[derive(Debug)]
struct Group {
    shards: Box<[Shard]>,
}

#[derive(Debug, Default)]
#[repr(align(64))] // two shards' lock words never share a cache line
struct Shard {
    holders: RwLock<HashMap<u64, u64, PassThrough>>,
}

impl Group {
    fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }

    // Not the topmost bits: the hash table takes its tags from those, and its buckets from the lowest.
    fn shard(&self, hash: u64) -> &RwLock<HashMap<u64, u64, PassThrough>> {
        &self.shards[(hash >> 40) as usize % SHARDS].holders
    }

    fn walk(&self, chain: &[u64], depths: &mut [u32]) {
        let mut alive = u64::MAX >> (64 - depths.len());
        for (depth, &hash) in (0u32..).zip(chain) {
            let holders = self.shard(hash).read().get(&hash).copied().unwrap_or(0);
            note_depth(alive & !holders, depth, depths);
            alive &= holders;
            if alive == 0 {
                return;
            }
        }
        note_depth(alive, u32::try_from(chain.len()).unwrap_or(u32::MAX), depths);
    }
}

fn note_depth(mut slots: u64, depth: u32, depths: &mut [u32]) {
    while slots != 0 {
        depths[slots.trailing_zeros() as usize] = depth;
        slots &= slots - 1;
    }
}

/// Block hashes are uniform already: hashing them again is a waste.
pub(super) type PassThrough = BuildHasherDefault<PassThroughHasher>;

#[derive(Debug, Default)]
pub(super) struct PassThroughHasher(u64);

impl Hasher for PassThroughHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// Blocks a replica until its engine tells: 8 MiB of prompt text, about two million tokens.
pub const DEFAULT_CAPACITY: usize = 32_768;
/// No engine's claim makes us hold more for one replica: some 100 MB.
const MOST_BLOCKS: usize = 1 << 20;
/// Bytes of prompt in a block of the prefix chain (coarser in very long prompts: those then count for less).
const BLOCK_BYTES: f64 = 256.0;
/// A power of two; enough that two cores rarely meet.
const SHARDS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// A chain as the request part makes them: every hash depends on all blocks before it.
    fn chain(blocks: &[u64]) -> Vec<u64> {
        let mut hash = 0;
        let link = |block: &u64| {
            hash = xxhash_rust::xxh3::xxh3_64_with_seed(&block.to_le_bytes(), hash);
            hash
        };
        blocks.iter().map(link).collect()
    }

    fn depths(index: &PrefixIndex, slots: usize, chain: &[u64]) -> Vec<usize> {
        let mut hits = Hits::default();
        index.lookup(chain, &mut hits);
        (0..slots).map(|slot| hits.blocks(slot)).collect()
    }

    #[test]
    fn one_walk_finds_the_longest_prefix_on_every_replica() {
        let index = PrefixIndex::new(4);
        index.insert(0, &chain(&[1, 2, 3, 4]));
        index.insert(1, &chain(&[1, 2, 9]));
        index.insert(2, &chain(&[5, 2, 3]));
        let cases: [(&[u64], [usize; 4]); 5] = [
            (&[1, 2, 3, 4, 5], [4, 2, 0, 0]),
            (&[1, 2, 9, 9], [2, 3, 0, 0]),
            (&[5, 2, 3], [0, 0, 3, 0]),
            (&[7], [0, 0, 0, 0]),
            (&[], [0, 0, 0, 0]),
        ];
        for (blocks, expected) in cases {
            assert_eq!(depths(&index, 4, &chain(blocks)), expected, "{blocks:?}");
        }
    }

    #[test]
    fn holds_for_more_than_64_replicas() {
        let index = PrefixIndex::new(130);
        let prompt = chain(&[1, 2, 3]);
        for slot in [0, 63, 64, 129] {
            index.insert(slot, &prompt[..=slot % 3]);
        }
        let found = depths(&index, 130, &prompt);
        for (slot, depth) in found.into_iter().enumerate() {
            let expected = if [0, 63, 64, 129].contains(&slot) { slot % 3 + 1 } else { 0 };
            assert_eq!(depth, expected, "slot {slot}");
        }
    }

    #[test]
    fn a_full_cache_loses_the_tail_of_the_least_recently_used_prompt() {
        let index = PrefixIndex::new(1);
        index.set_capacity(0, 6);
        let (old, new) = (chain(&[1, 2, 3, 4]), chain(&[5, 6, 7]));
        index.insert(0, &old);
        index.insert(0, &new);
        assert_eq!((depths(&index, 1, &old), depths(&index, 1, &new)), (vec![3], vec![3]));
        index.insert(0, &old);
        assert_eq!((depths(&index, 1, &old), depths(&index, 1, &new)), (vec![4], vec![2]));
    }

    #[test]
    fn a_shared_root_outlives_the_branches() {
        let index = PrefixIndex::new(1);
        index.set_capacity(0, 4);
        for branch in 10..50 {
            index.insert(0, &chain(&[1, 2, branch]));
        }
        assert_eq!(depths(&index, 1, &chain(&[1, 2, 3])), [2]);
        assert_eq!(depths(&index, 1, &chain(&[1, 2, 49])), [3]);
        assert_eq!(depths(&index, 1, &chain(&[1, 2, 10])), [2]);
    }

    #[test]
    fn memory_is_bounded_by_the_capacity() {
        let index = PrefixIndex::new(2);
        index.set_capacity(0, 100);
        for prompt in 0..1000 {
            index.insert(0, &chain(&[prompt, 1, 2, 3, 4]));
        }
        index.insert(0, &chain(&(0..5000).collect::<Vec<_>>()));
        assert_eq!(index.held(0), 100);
        let entries: usize = index.groups[0].shards.iter().map(|s| s.holders.read().len()).sum();
        assert_eq!(entries, 100);
        index.set_capacity(0, 10);
        assert_eq!(index.held(0), 10);
        index.set_capacity(0, 0);
        index.insert(0, &chain(&[1]));
        assert_eq!(index.held(0), 0);
    }

    #[test]
    fn a_restarted_replica_is_forgotten_and_the_others_are_not() {
        let index = PrefixIndex::new(2);
        let prompt = chain(&[1, 2, 3]);
        index.insert(0, &prompt);
        index.insert(1, &prompt);
        index.forget(0);
        assert_eq!(depths(&index, 2, &prompt), [0, 3]);
        index.insert(0, &prompt[..1]);
        assert_eq!(depths(&index, 2, &prompt), [1, 3]);
    }

    #[test]
    fn an_unknown_slot_is_nobody() {
        let index = PrefixIndex::new(1);
        index.insert(7, &chain(&[1]));
        index.set_capacity(7, 1);
        index.forget(7);
        assert_eq!(depths(&index, 1, &chain(&[1])), [0]);
        assert_eq!(index.held(7), 0);
    }

    #[test]
    fn capacity_follows_the_engine_within_a_bound() {
        let cases = [
            ("vLLM on a GPU", 50_000, 16, 4.0, 12_500),
            ("unknown", 0, 16, 4.0, 0),
            ("a boast", u64::MAX, 1024, 4.0, MOST_BLOCKS),
            ("no ratio", 1000, 16, f64::NAN, 0),
        ];
        for (name, total, block_tokens, ratio, expected) in cases {
            assert_eq!(capacity_of(total, block_tokens, ratio), expected, "{name}");
        }
    }

    #[test]
    fn threads_that_insert_and_forget_leave_table_and_lists_in_step() {
        let index = PrefixIndex::new(3);
        (0..3).for_each(|slot| index.set_capacity(slot, 20));
        std::thread::scope(|scope| {
            for thread in 0..3u64 {
                let index = &index;
                scope.spawn(move || {
                    for i in 0..300 {
                        let slot = ((i + thread) % 3) as usize;
                        index.insert(slot, &chain(&[i % 7, i % 5, i % 3, thread]));
                        if i % 50 == 0 {
                            index.forget(slot);
                        }
                    }
                });
            }
        });
        let bits: u32 = index.groups[0]
            .shards
            .iter()
            .map(|s| s.holders.read().values().map(|holders| holders.count_ones()).sum::<u32>())
            .sum();
        assert_eq!(bits as usize, (0..3).map(|slot| index.held(slot)).sum::<usize>());
    }
}
