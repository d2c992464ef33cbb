//! The blocks that one replica is believed to hold, least recently used first.
//!
//! A linked list threaded through one vector, so that a touch moves two indices and allocates nothing. Whoever
//! touches a chain does it from its tail to its root: then a block is always older than the blocks before it,
//! the tail is evicted first, as the engine does, and what is left is a prefix at all times.

use std::collections::HashMap;

use super::PassThrough;

/// A bounded set of block hashes in order of use.
#[derive(Debug)]
pub(super) struct Lru {
    places: HashMap<u64, u32, PassThrough>,
    nodes: Vec<Node>,
    /// Places of evicted blocks, to be used again.
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    capacity: usize,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    hash: u64,
    newer: u32,
    older: u32,
}

impl Lru {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            places: HashMap::default(),
            nodes: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            capacity,
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// The caller evicts by [`Self::evict_surplus`] afterwards.
    pub(super) fn set_capacity(&mut self, blocks: usize) {
        self.capacity = blocks;
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Makes a block the newest; true when it was not in the set before.
    pub(super) fn touch(&mut self, hash: u64) -> bool {
        if let Some(&place) = self.places.get(&hash) {
            if place != self.newest {
                self.unlink(place);
                self.link_newest(place);
            }
            return false;
        }
        let node = Node { hash, newer: NONE, older: NONE };
        let place = if let Some(place) = self.free.pop() {
            self.nodes[place as usize] = node;
            place
        } else {
            self.nodes.push(node);
            // The index bounds every capacity far below 2^32.
            u32::try_from(self.nodes.len() - 1).unwrap_or(NONE)
        };
        self.places.insert(hash, place);
        self.link_newest(place);
        true
    }

    /// Takes out the oldest block if there are more than the capacity allows.
    pub(super) fn evict_surplus(&mut self) -> Option<u64> {
        if self.places.len() <= self.capacity {
            return None;
        }
        self.evict()
    }

    /// Takes out the oldest block.
    pub(super) fn evict(&mut self) -> Option<u64> {
        let place = self.oldest;
        let hash = self.nodes.get(place as usize).map(|node| node.hash)?;
        self.unlink(place);
        self.places.remove(&hash);
        self.free.push(place);
        Some(hash)
    }

    fn link_newest(&mut self, place: u32) {
        let older = self.newest;
        let node = &mut self.nodes[place as usize];
        (node.newer, node.older) = (NONE, older);
        match self.nodes.get_mut(older as usize) {
            Some(node) => node.newer = place,
            None => self.oldest = place,
        }
        self.newest = place;
    }

    fn unlink(&mut self, place: u32) {
        let Node { newer, older, .. } = self.nodes[place as usize];
        match self.nodes.get_mut(newer as usize) {
            Some(node) => node.older = older,
            None => self.newest = older,
        }
        match self.nodes.get_mut(older as usize) {
            Some(node) => node.newer = newer,
            None => self.oldest = newer,
        }
    }
}

/// No node has this place, so looking it up finds none.
const NONE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

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
            for hash in touches {
                lru.touch(*hash);
            }
            assert_eq!(drain(&mut lru), expected, "{name}");
            assert_eq!(lru.len(), 0);
        }
    }

    #[test]
    fn places_are_used_again() {
        let mut lru = Lru::new(3);
        for hash in 0..1000 {
            assert!(lru.touch(hash));
            while lru.evict_surplus().is_some() {}
        }
        assert!(lru.nodes.len() <= 4);
        assert_eq!(drain(&mut lru), [997, 998, 999]);
    }
}
