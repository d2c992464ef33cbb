//! Who holds a block: a table from a block's hash to one bit a replica, for up to 64 replicas.
//!
//! Buckets of one cache line with five entries each, so that a look-up costs one miss at ninety per cent full. An entry
//! keeps 32 bits of the hash beside its place (one look-up in a million takes another block for it, which costs a worse
//! guess and nothing else). A bucket counts the entries that found it full, so that a miss ends early and deletion leaves
//! no traces. Cut into shards with short locks of their own; growth is a fifth at a time and one shard at a time.

use parking_lot::RwLock;

/// The table.
#[derive(Debug)]
pub(super) struct Holders {
    shards: Box<[Shard]>,
}

#[derive(Debug, Default)]
#[repr(align(64))] // two shards' lock words never share a cache line
struct Shard(RwLock<Table>);

#[derive(Debug, Default)]
struct Table {
    buckets: Vec<Bucket>,
    entries: usize,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Bucket {
    /// Who holds the block; no one: the place is free.
    holders: [u64; PLACES],
    tags: [u32; PLACES],
    /// Entries that belong here or before and stand further on.
    passed: u32,
}

impl Holders {
    pub(super) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }

    /// The replicas that hold the block.
    #[inline]
    pub(super) fn of(&self, hash: u64) -> u64 {
        let table = self.shard(hash).0.read();
        table.find(tag(hash)).map_or(0, |(bucket, place)| table.buckets[bucket].holders[place])
    }

    /// A replica holds the block now.
    pub(super) fn add(&self, hash: u64, replica: usize) {
        self.shard(hash).0.write().add(tag(hash), 1 << replica);
    }

    /// A replica does not hold the block any more.
    pub(super) fn remove(&self, hash: u64, replica: usize) {
        self.shard(hash).0.write().remove(tag(hash), 1 << replica);
    }

    /// Bytes that the table takes.
    pub(super) fn bytes(&self) -> usize {
        let of = |shard: &Shard| shard.0.read().buckets.capacity() * size_of::<Bucket>();
        self.shards.len() * size_of::<Shard>() + self.shards.iter().map(of).sum::<usize>()
    }

    /// Blocks in it, and holders of them in all.
    #[cfg(test)]
    pub(super) fn count(&self) -> (usize, usize) {
        let mut count = (0, 0);
        for shard in &self.shards {
            let table = shard.0.read();
            count.0 += table.entries;
            let holders = table.buckets.iter().flat_map(|bucket| bucket.holders);
            count.1 += holders.map(|holders| holders.count_ones() as usize).sum::<usize>();
        }
        count
    }

    // Bits that neither the tag nor a replica's list uses for anything else.
    fn shard(&self, hash: u64) -> &Shard {
        &self.shards[(hash >> 1) as usize % SHARDS]
    }
}

impl Table {
    fn find(&self, tag: u32) -> Option<(usize, usize)> {
        let mut at = self.home(tag)?;
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            for place in 0..PLACES {
                if bucket.tags[place] == tag && bucket.holders[place] != 0 {
                    return Some((at, place));
                }
            }
            if bucket.passed == 0 {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    fn add(&mut self, tag: u32, holder: u64) {
        if let Some((bucket, place)) = self.find(tag) {
            self.buckets[bucket].holders[place] |= holder;
            return;
        }
        if (self.entries + 1) * 10 > self.buckets.len() * PLACES * 9 {
            self.grow();
        }
        self.put(tag, holder);
    }

    fn put(&mut self, tag: u32, holder: u64) {
        let Some(mut at) = self.home(tag) else { return };
        loop {
            let bucket = &mut self.buckets[at];
            if let Some(place) = bucket.holders.iter().position(|holders| *holders == 0) {
                bucket.holders[place] = holder;
                bucket.tags[place] = tag;
                self.entries += 1;
                return;
            }
            // There is room further on: the table is never full.
            bucket.passed += 1;
            at = self.after(at);
        }
    }

    fn remove(&mut self, tag: u32, holder: u64) {
        let (Some((found, place)), Some(mut at)) = (self.find(tag), self.home(tag)) else { return };
        let holders = &mut self.buckets[found].holders[place];
        *holders &= !holder;
        if *holders != 0 {
            return;
        }
        self.entries -= 1;
        while at != found {
            self.buckets[at].passed -= 1;
            at = self.after(at);
        }
    }

    fn grow(&mut self) {
        let larger = (self.buckets.len() + self.buckets.len() / 5).max(self.buckets.len() + 2);
        let smaller = std::mem::replace(&mut self.buckets, vec![Bucket::default(); larger]);
        self.entries = 0;
        for bucket in smaller {
            for (tag, holder) in
                bucket.tags.into_iter().zip(bucket.holders).filter(|(_, holder)| *holder != 0)
            {
                self.put(tag, holder);
            }
        }
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
            assert_eq!(holders.of(*hash), truth.get(hash).copied().unwrap_or(0), "{hash:x}");
        }
        for (hash, bits) in &truth {
            (0..64).filter(|replica| bits & (1 << replica) != 0).for_each(|r| holders.remove(*hash, r));
        }
        assert_eq!(holders.count(), (0, 0));
        let passed: u32 =
            holders.shards.iter().flat_map(|s| s.0.read().buckets.clone()).map(|b| b.passed).sum();
        assert_eq!(passed, 0, "an empty table remembers nobody who passed");
    }

    #[test]
    fn hashes_that_all_collide_stay_correct() {
        let holders = Holders::new();
        // One shard, and tags that all belong into the first bucket.
        let hashes: Vec<u64> = (0..300u64).map(|n| n << 32).collect();
        hashes.iter().for_each(|hash| holders.add(*hash, 3));
        assert!(hashes.iter().all(|hash| holders.of(*hash) == 8));
        hashes.iter().step_by(2).for_each(|hash| holders.remove(*hash, 3));
        for (n, hash) in hashes.iter().enumerate() {
            assert_eq!(holders.of(*hash) == 8, n % 2 == 1, "{n}");
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
