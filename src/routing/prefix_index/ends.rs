//! Prompts of other gateways, by the hash of their last block: who holds that holds all before it, and a lookup finds the longest
//! prompt of others that a chain continues.
//!
//! One probe of a filter for each block of the chain, and of the map for the few that pass it; nothing at all without a cluster.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use super::groups::Groups;

/// Ends by hash, with a bit for each replica that holds one.
#[derive(Debug)]
pub(super) struct Ends {
    groups: Groups,
    count: AtomicUsize,
    /// How many ends have a hash of this remainder; those that are full stay so.
    filter: OnceLock<Box<[AtomicU8]>>,
}

impl Ends {
    pub(super) fn new(slots: usize) -> Self {
        Self { groups: Groups::new(slots), count: AtomicUsize::new(0), filter: OnceLock::new() }
    }

    pub(super) fn insert(&self, slot: usize, hash: u64) {
        if self.groups.set(slot, hash) {
            self.count.fetch_add(1, Ordering::Relaxed);
            let filter = self.filter.get_or_init(|| (0..=MASK).map(|_| AtomicU8::new(0)).collect());
            change(filter, hash, |n| n.saturating_add(1));
        }
    }

    pub(super) fn remove(&self, slot: usize, hash: u64) {
        if self.groups.clear(slot, hash) {
            self.count.fetch_sub(1, Ordering::Relaxed);
            if let Some(filter) = self.filter.get() {
                change(filter, hash, |n| if n == u8::MAX { n } else { n.saturating_sub(1) });
            }
        }
    }

    /// Those of a chain's blocks that may be ends, the last one first, with their places.
    pub(super) fn of<'c>(&'c self, chain: &'c [u64]) -> impl Iterator<Item = (usize, u64)> + 'c {
        let filter = self.filter.get().filter(|_| self.count.load(Ordering::Relaxed) > 0);
        let blocks = filter.map_or(&[][..], |_| chain).iter().copied().enumerate().rev();
        blocks.filter(move |(_, hash)| {
            filter
                .and_then(|filter| filter.get(*hash as usize & MASK))
                .is_some_and(|n| n.load(Ordering::Relaxed) > 0)
        })
    }

    /// Makes the depths of a lookup at least those of the ends.
    pub(super) fn deepen(&self, chain: &[u64], depths: &mut [u32]) {
        for (at, hash) in self.of(chain) {
            let depth = u32::try_from(at + 1).unwrap_or(u32::MAX);
            for (group, depths) in self.groups.beside(depths) {
                let mut bits = group.get(&hash).map_or(0, |bits| *bits);
                while bits != 0 {
                    if let Some(known) = depths.get_mut(bits.trailing_zeros() as usize) {
                        *known = depth.max(*known);
                    }
                    bits &= bits - 1;
                }
            }
        }
    }
}

fn change(filter: &[AtomicU8], hash: u64, by: impl Fn(u8) -> u8) {
    if let Some(cell) = filter.get(hash as usize & MASK) {
        let _ = cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| Some(by(n)));
    }
}

/// 256 KiB a pool that has any.
const MASK: usize = (1 << 18) - 1;
