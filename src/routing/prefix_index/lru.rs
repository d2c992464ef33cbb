//! The blocks that one replica is believed to hold, least recently used first, counted by what they weigh.
//!
//! A linked list threaded through chunks of nodes, found by an open table of their numbers: a touch moves a few indices
//! and allocates nothing. Whoever touches a chain does it from its tail to its root: then a block is always older than
//! the blocks before it, the tail is evicted first, as the engine does, and what is left is a prefix at all times.

/// A bounded set of block hashes in order of use. 16 bytes a node and 5 a place in the table.
#[derive(Debug)]
pub(super) struct Lru {
    /// Numbers of nodes by hash; made when the first block comes, for as many as fit.
    table: Vec<u32>,
    chunks: Vec<Box<[Node]>>,
    /// First of the nodes that are free, linked by `older`.
    free: u32,
    newest: u32,
    oldest: u32,
    blocks: usize,
    weight: u64,
    capacity: u64,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    /// The block's hash; its lowest bit says whether the block is coarse.
    hash: u64,
    newer: u32,
    older: u32,
}

impl Lru {
    pub(super) fn new(capacity: u64) -> Self {
        let capacity = capacity.min(MOST_WEIGHT);
        Self {
            table: Vec::new(),
            chunks: Vec::new(),
            free: NONE,
            newest: NONE,
            oldest: NONE,
            blocks: 0,
            weight: 0,
            capacity,
        }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The caller evicts by [`Self::evict_surplus`] afterwards.
    pub(super) fn set_capacity(&mut self, weight: u64) {
        self.capacity = weight.min(MOST_WEIGHT);
        if !self.table.is_empty() && self.table.len() < places(self.capacity) {
            self.make_table();
        }
    }

    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    pub(super) fn bytes(&self) -> usize {
        let nodes: usize = self.chunks.iter().map(|chunk| chunk.len() * size_of::<Node>()).sum();
        nodes + self.table.capacity() * size_of::<u32>()
    }

    /// Makes a block the newest; true when it was not in the set before.
    pub(super) fn touch(&mut self, hash: u64, is_coarse: bool) -> bool {
        if self.table.is_empty() {
            self.make_table();
        }
        let hash = (hash & !COARSE) | u64::from(is_coarse);
        match self.find(hash) {
            Ok(place) => {
                let id = self.table[place];
                if id != self.newest {
                    self.unlink(id);
                    self.link_newest(id);
                }
                false
            }
            Err(place) => {
                let id = self.new_node(hash);
                self.table[place] = id;
                self.link_newest(id);
                self.blocks += 1;
                self.weight += weight_of(hash);
                true
            }
        }
    }

    /// Takes out the oldest block if there is more than the capacity allows.
    pub(super) fn evict_surplus(&mut self) -> Option<u64> {
        if self.weight <= self.capacity { None } else { self.evict() }
    }

    /// Takes out the oldest block.
    pub(super) fn evict(&mut self) -> Option<u64> {
        let id = self.oldest;
        if id == NONE {
            return None;
        }
        let hash = self.node(id).hash;
        self.unlink(id);
        if let Ok(place) = self.find(hash) {
            self.close_gap(place);
        }
        let free = self.free;
        self.node_mut(id).older = free;
        self.free = id;
        self.blocks -= 1;
        self.weight -= weight_of(hash);
        Some(hash)
    }

    /// The place of a hash in the table, or the one where it would go.
    fn find(&self, hash: u64) -> Result<usize, usize> {
        let mut place = self.home(hash);
        loop {
            let id = self.table[place];
            if id == NONE {
                return Err(place);
            }
            if (self.node(id).hash ^ hash) & !COARSE == 0 {
                return Ok(place);
            }
            place = self.after(place);
        }
    }

    /// Frees a place and moves up those behind it that may stand further ahead: no tombstones.
    fn close_gap(&mut self, mut gap: usize) {
        let mut place = gap;
        loop {
            place = self.after(place);
            let id = self.table[place];
            if id == NONE {
                break;
            }
            let home = self.home(self.node(id).hash);
            let may_stay =
                if gap <= place { gap < home && home <= place } else { gap < home || home <= place };
            if !may_stay {
                self.table[gap] = id;
                gap = place;
            }
        }
        self.table[gap] = NONE;
    }

    fn make_table(&mut self) {
        self.table = vec![NONE; places(self.capacity).max(places(self.blocks as u64))];
        let mut id = self.newest;
        while id != NONE {
            let Node { hash, older, .. } = *self.node(id);
            if let Err(place) = self.find(hash) {
                self.table[place] = id;
            }
            id = older;
        }
    }

    fn home(&self, hash: u64) -> usize {
        // The hash's upper half as a fraction: the table need not be a power of two.
        (((hash >> 32) * self.table.len() as u64) >> 32) as usize
    }

    fn after(&self, place: usize) -> usize {
        if place + 1 == self.table.len() { 0 } else { place + 1 }
    }

    fn new_node(&mut self, hash: u64) -> u32 {
        if self.free == NONE {
            // Every capacity is far below 2^32.
            let first = u32::try_from(self.chunks.len() * CHUNK).unwrap_or(NONE);
            let node = |n: u32| Node {
                hash: 0,
                newer: NONE,
                older: if n + 1 < CHUNK as u32 { first + n + 1 } else { NONE },
            };
            self.chunks.push((0..CHUNK as u32).map(node).collect());
            self.free = first;
        }
        let id = self.free;
        let node = self.node_mut(id);
        let next = node.older;
        *node = Node { hash, newer: NONE, older: NONE };
        self.free = next;
        id
    }

    fn link_newest(&mut self, id: u32) {
        let older = self.newest;
        let node = self.node_mut(id);
        (node.newer, node.older) = (NONE, older);
        if older == NONE {
            self.oldest = id;
        } else {
            self.node_mut(older).newer = id;
        }
        self.newest = id;
    }

    fn unlink(&mut self, id: u32) {
        let Node { newer, older, .. } = *self.node(id);
        if newer == NONE {
            self.newest = older;
        } else {
            self.node_mut(newer).older = older;
        }
        if older == NONE {
            self.oldest = newer;
        } else {
            self.node_mut(older).newer = newer;
        }
    }

    fn node(&self, id: u32) -> &Node {
        &self.chunks[id as usize / CHUNK][id as usize % CHUNK]
    }

    fn node_mut(&mut self, id: u32) -> &mut Node {
        &mut self.chunks[id as usize / CHUNK][id as usize % CHUNK]
    }
}

/// What a block weighs, in units of a fine block.
pub(super) fn weight_of(hash: u64) -> u64 {
    if hash & COARSE == 0 { 1 } else { COARSE_WEIGHT }
}

/// Places for so many blocks at four fifths full. A chain may bring one block more before the oldest goes.
fn places(blocks: u64) -> usize {
    usize::try_from(blocks + blocks / 4).unwrap_or(usize::MAX).saturating_add(8)
}

const COARSE: u64 = 1;
/// A coarse block of the chain is as long as eight fine ones.
pub(super) const COARSE_WEIGHT: u64 = 8;
/// No engine's claim makes us hold more for one replica.
pub(super) const MOST_WEIGHT: u64 = 1 << 20;
const NONE: u32 = u32::MAX;
const CHUNK: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    /// Spread over the table as hashes are; the lowest bit is not part of a block's identity.
    fn hash(n: u64) -> u64 {
        n.wrapping_mul(0x9E37_79B9_7F4A_7C15) << 1
    }

    fn drain(lru: &mut Lru) -> Vec<u64> {
        std::iter::from_fn(|| lru.evict()).collect()
    }

    #[test]
    fn evicts_the_least_recently_touched() {
        let cases: [(&str, &[u64], &[u64]); 5] = [
            ("in order", &[1, 2, 3], &[1, 2, 3]),
            ("touching the oldest", &[1, 2, 3, 1], &[2, 3, 1]),
            ("touching one in the middle", &[1, 2, 3, 2], &[1, 3, 2]),
            ("touching the newest", &[1, 2, 3, 3], &[1, 2, 3]),
            ("a single one twice", &[7, 7], &[7]),
        ];
        for (name, touches, expected) in cases {
            let mut lru = Lru::new(8);
            for n in touches {
                lru.touch(hash(*n), false);
            }
            assert_eq!(drain(&mut lru), expected.iter().map(|n| hash(*n)).collect::<Vec<_>>(), "{name}");
            assert_eq!((lru.blocks(), lru.weight), (0, 0));
        }
    }

    #[test]
    fn coarse_blocks_weigh_what_they_hold() {
        let mut lru = Lru::new(20);
        for n in 0..3 {
            lru.touch(hash(n), true);
        }
        assert_eq!(lru.evict_surplus(), Some(hash(0) | 1));
        assert_eq!((lru.evict_surplus(), lru.blocks()), (None, 2));
        (10..14).for_each(|n| _ = lru.touch(hash(n), false));
        assert_eq!(lru.evict_surplus(), None);
        lru.touch(hash(14), false);
        assert_eq!(lru.evict_surplus(), Some(hash(1) | 1));
    }

    #[test]
    fn behaves_like_a_list_whatever_comes() {
        let mut lru = Lru::new(300);
        let mut truth: Vec<u64> = Vec::new();
        let mut random = fastrand::Rng::with_seed(2);
        for turn in 0..20_000 {
            let block = hash(random.u64(..500));
            let is_new = lru.touch(block, false);
            assert_eq!(is_new, !truth.contains(&block), "turn {turn}");
            truth.retain(|known| *known != block);
            truth.push(block);
            if turn == 9_000 {
                lru.set_capacity(900);
            }
            while let Some(evicted) = lru.evict_surplus() {
                assert_eq!(evicted, truth.remove(0));
            }
        }
        assert_eq!(drain(&mut lru), truth);
    }

    #[test]
    fn takes_at_most_22_bytes_a_block_when_it_is_full() {
        let mut lru = Lru::new(100_000);
        for n in 0..300_000 {
            lru.touch(hash(n), false);
            while lru.evict_surplus().is_some() {}
        }
        assert!(lru.bytes() <= 22 * 100_000, "{} bytes", lru.bytes());
    }
}
