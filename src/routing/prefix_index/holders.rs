//! Who holds a block: a table from a block's hash to one bit a replica, for up to 64 replicas.
//!
//! Buckets of one cache line with five entries each, so that a look-up costs one miss at ninety per cent full. An entry
//! keeps 32 bits of the hash beside its place (one look-up in a million takes another block for it, which costs a worse
//! guess and nothing else). A bucket counts the entries that found it full, so that a miss ends early and deletion leaves
//! no traces. Readers take no lock: a look-up waits for memory and for nothing else, and several wait together. Writers
//! take the short lock of a shard; growth is a fifth at a time and one shard at a time, into a table of its own that is
//! published when it is whole. A reader may see an entry half written, or the table from before: again a worse guess.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;

/// The table.
#[derive(Debug)]
pub(super) struct Holders {
    tables: ArcSwap<Tables>,
    shards: Box<[Shard]>,
}

/// One a shard.
type Tables = Vec<Arc<Table>>;

/// What writers of a shard need: how many entries its table has.
#[derive(Debug, Default)]
#[repr(align(64))] // two shards' lock words never share a cache line
struct Shard(Mutex<usize>);

#[derive(Debug, Default)]
struct Table {
    buckets: Box<[Bucket]>,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Bucket {
    /// Who holds the block; no one: the place is free.
    holders: [AtomicU64; PLACES],
    tags: [AtomicU32; PLACES],
    /// Entries that belong here or before and stand further on.
    passed: AtomicU32,
}

/// The table as it is now, for many look-ups.
pub(super) struct View(Guard<Arc<Tables>>);

impl View {
    /// The replicas that hold the block.
    #[inline]
    pub(super) fn of(&self, hash: u64) -> u64 {
        self.0.get(shard_of(hash)).map_or(0, |table| table.holders(tag(hash)))
    }
}

impl Holders {
    pub(super) fn new() -> Self {
        let tables = (0..SHARDS).map(|_| Arc::default()).collect();
        let shards = (0..SHARDS).map(|_| Shard::default()).collect();
        Self { tables: ArcSwap::from_pointee(tables), shards }
    }

    pub(super) fn view(&self) -> View {
        View(self.tables.load())
    }

    /// A replica holds the block now.
    pub(super) fn add(&self, hash: u64, replica: usize) {
        let (shard, tag, holder) = (shard_of(hash), tag(hash), 1 << replica);
        let mut entries = self.shards[shard].0.lock();
        let tables = self.tables.load();
        let table = &tables[shard];
        if let Some((bucket, place)) = table.find(tag) {
            table.buckets[bucket].holders[place].fetch_or(holder, Ordering::Relaxed);
            return;
        }
        *entries += 1;
        if *entries * 10 <= table.buckets.len() * PLACES * 9 {
            table.put(tag, holder);
            return;
        }
        let larger = Arc::new(table.grown());
        larger.put(tag, holder);
        // Another shard may be growing: only this one's place is ours.
        self.tables.rcu(|tables| {
            let mut tables = Tables::clone(tables);
            tables[shard] = Arc::clone(&larger);
            tables
        });
    }

    /// A replica does not hold the block any more.
    pub(super) fn remove(&self, hash: u64, replica: usize) {
        let shard = shard_of(hash);
        let mut entries = self.shards[shard].0.lock();
        if self.tables.load()[shard].remove(tag(hash), 1 << replica) {
            *entries -= 1;
        }
    }

    /// Bytes that the table takes.
    pub(super) fn bytes(&self) -> usize {
        let buckets: usize = self.tables.load().iter().map(|table| table.buckets.len()).sum();
        self.shards.len() * (size_of::<Shard>() + size_of::<Arc<Table>>() + size_of::<Table>())
            + buckets * size_of::<Bucket>()
    }

    /// Blocks in it, and holders of them in all.
    #[cfg(test)]
    pub(super) fn count(&self) -> (usize, usize) {
        let mut count = (0, 0);
        for (shard, table) in self.shards.iter().zip(self.tables.load().iter()) {
            count.0 += *shard.0.lock();
            let holders = table.buckets.iter().flat_map(|bucket| &bucket.holders);
            count.1 += holders.map(|holders| read(holders).count_ones() as usize).sum::<usize>();
        }
        count
    }
}

// Writers are alone, by their shard's lock; readers live with what they see.
impl Table {
    /// Who holds the block with this tag.
    #[inline]
    fn holders(&self, tag: u32) -> u64 {
        let Some(mut at) = self.home(tag) else { return 0 };
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            // All places, without a branch: which one it is cannot be foreseen, and a wrong guess costs more than the rest.
            let matching = bucket.tags.iter().zip(&bucket.holders).map(|(other, holders)| {
                let mask = u64::from(other.load(Ordering::Relaxed) == tag).wrapping_neg();
                read(holders) & mask
            });
            let found = matching.fold(0, |all, holders| all | holders);
            if found != 0 || bucket.passed.load(Ordering::Relaxed) == 0 {
                return found;
            }
            at = self.after(at);
        }
        0
    }

    fn find(&self, tag: u32) -> Option<(usize, usize)> {
        let mut at = self.home(tag)?;
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            for place in 0..PLACES {
                if bucket.tags[place].load(Ordering::Relaxed) == tag && read(&bucket.holders[place]) != 0 {
                    return Some((at, place));
                }
            }
            if bucket.passed.load(Ordering::Relaxed) == 0 {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    fn put(&self, tag: u32, holders: u64) {
        let Some(mut at) = self.home(tag) else { return };
        loop {
            let bucket = &self.buckets[at];
            if let Some(place) = bucket.holders.iter().position(|holders| read(holders) == 0) {
                bucket.tags[place].store(tag, Ordering::Relaxed);
                bucket.holders[place].store(holders, Ordering::Release);
                return;
            }
            // There is room further on: the table is never full.
            bucket.passed.fetch_add(1, Ordering::Relaxed);
            at = self.after(at);
        }
    }

    /// Whether nobody holds the block any more.
    fn remove(&self, tag: u32, holder: u64) -> bool {
        let (Some((found, place)), Some(mut at)) = (self.find(tag), self.home(tag)) else { return false };
        let before = self.buckets[found].holders[place].fetch_and(!holder, Ordering::Relaxed);
        if before & !holder != 0 {
            return false;
        }
        while at != found {
            self.buckets[at].passed.fetch_sub(1, Ordering::Relaxed);
            at = self.after(at);
        }
        true
    }

    /// The same entries with more room.
    fn grown(&self) -> Self {
        let len = (self.buckets.len() + self.buckets.len() / 5).max(self.buckets.len() + 2);
        let larger = Self { buckets: (0..len).map(|_| Bucket::default()).collect() };
        for bucket in &self.buckets {
            for (tag, holders) in bucket.tags.iter().zip(&bucket.holders) {
                if read(holders) != 0 {
                    larger.put(tag.load(Ordering::Relaxed), read(holders));
                }
            }
        }
        larger
    }

    fn home(&self, tag: u32) -> Option<usize> {
        let buckets = self.buckets.len() as u64;
        // The tag as a fraction of 2^32: no power of two is needed, so the table may grow by a fifth.
        (buckets > 0).then(|| ((u64::from(tag) * buckets) >> 32) as usize)
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.buckets.len() { 0 } else { at + 1 }
    }
}

#[inline]
fn read(holders: &AtomicU64) -> u64 {
    holders.load(Ordering::Relaxed)
}

// Bits that neither the tag nor a replica's list uses for anything else.
fn shard_of(hash: u64) -> usize {
    (hash >> 1) as usize % SHARDS
}

fn tag(hash: u64) -> u32 {
    (hash >> 32) as u32
}

const PLACES: usize = 5;
/// A power of two; enough that two cores rarely meet.
const SHARDS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn is_a_map_from_blocks_to_sets_whatever_comes_and_goes() {
        let holders = Holders::new();
        let mut truth: HashMap<u64, u64> = HashMap::new();
        let mut random = fastrand::Rng::with_seed(5);
        let hashes: Vec<u64> = (0..20_000).map(|_| random.u64(..)).collect();
        for turn in 0..200_000 {
            // First mostly filling, then mostly emptying.
            let (hash, replica) = (hashes[random.usize(..hashes.len())], random.usize(..64));
            let bits = truth.entry(hash).or_insert(0);
            if random.u32(..100) < if turn < 120_000 { 80 } else { 30 } {
                holders.add(hash, replica);
                *bits |= 1 << replica;
            } else {
                holders.remove(hash, replica);
                *bits &= !(1 << replica);
            }
        }
        for hash in &hashes {
            assert_eq!(holders.view().of(*hash), truth.get(hash).copied().unwrap_or(0), "{hash:x}");
        }
        for (hash, bits) in &truth {
            (0..64).filter(|replica| bits & (1 << replica) != 0).for_each(|r| holders.remove(*hash, r));
        }
        assert_eq!(holders.count(), (0, 0));
        let tables = holders.tables.load();
        let buckets = tables.iter().flat_map(|table| &table.buckets);
        let passed: u32 = buckets.map(|bucket| bucket.passed.load(Ordering::Relaxed)).sum();
        assert_eq!(passed, 0, "an empty table remembers nobody who passed");
    }

    #[test]
    fn nothing_is_lost_when_many_write_while_it_grows() {
        let holders = Holders::new();
        let hashes: Vec<u64> = (0..20_000u64).map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
        let stays = |replica: usize, at: usize| at % 4 != replica;
        std::thread::scope(|threads| {
            for replica in 0..4 {
                let (holders, hashes) = (&holders, &hashes);
                threads.spawn(move || {
                    hashes.iter().for_each(|hash| holders.add(*hash, replica));
                    let view = holders.view();
                    assert!(hashes.iter().all(|hash| view.of(*hash) & (1 << replica) != 0));
                    let gone = hashes.iter().enumerate().filter(|(at, _)| !stays(replica, *at));
                    gone.for_each(|(_, hash)| holders.remove(*hash, replica));
                });
            }
        });
        let view = holders.view();
        for (at, hash) in hashes.iter().enumerate() {
            let expected: u64 =
                (0..4).filter(|replica| stays(*replica, at)).map(|replica| 1 << replica).sum();
            assert_eq!(view.of(*hash), expected, "{at}");
        }
        assert_eq!(holders.count(), (20_000, 60_000));
    }

    #[test]
    fn hashes_that_all_collide_stay_correct() {
        let holders = Holders::new();
        // One shard, and tags that all belong into the first bucket.
        let hashes: Vec<u64> = (0..300u64).map(|n| n << 32).collect();
        hashes.iter().for_each(|hash| holders.add(*hash, 3));
        assert!(hashes.iter().all(|hash| holders.view().of(*hash) == 8));
        hashes.iter().step_by(2).for_each(|hash| holders.remove(*hash, 3));
        for (n, hash) in hashes.iter().enumerate() {
            assert_eq!(holders.view().of(*hash) == 8, n % 2 == 1, "{n}");
        }
    }

    #[test]
    fn takes_at_most_nineteen_bytes_a_block_once_it_is_large() {
        let holders = Holders::new();
        let mut random = fastrand::Rng::with_seed(8);
        for blocks in 1..=400_000usize {
            holders.add(random.u64(..), blocks % 64);
            if blocks > 50_000 && blocks % 1000 == 0 {
                assert!(holders.bytes() < 19 * blocks, "{} bytes for {blocks} blocks", holders.bytes());
            }
        }
    }
}
