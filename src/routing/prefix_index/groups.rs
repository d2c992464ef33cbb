//! Who holds a block: one bit a replica, in a table for each 64 slots. A table exists from the first block on: most pools have few
//! replicas, and an empty one takes 8 KiB.

use std::sync::OnceLock;

use dashmap::DashMap;

use super::hash::BuildSame;

/// The tables of all slots.
#[derive(Debug)]
pub(super) struct Groups(Box<[OnceLock<Holders>]>);

/// Holders by the block's hash, a bit for each slot of the group.
pub(super) type Holders = DashMap<u64, u64, BuildSame>;

impl Groups {
    pub(super) fn new(slots: usize) -> Self {
        Self((0..slots.div_ceil(GROUP)).map(|_| OnceLock::new()).collect())
    }

    /// The table of a slot, if anything was ever put there.
    pub(super) fn get(&self, slot: usize) -> Option<&Holders> {
        self.0.get(slot / GROUP)?.get()
    }

    /// Sets the slot's bit at `hash`; true where it was not set.
    pub(super) fn set(&self, slot: usize, hash: u64) -> bool {
        let Some(group) = self.0.get(slot / GROUP) else { return false };
        // A shard doubles under its lock: many, so that each is small.
        let group = group.get_or_init(|| DashMap::with_hasher_and_shard_amount(BuildSame::default(), SHARDS));
        let mut bits = group.entry(hash).or_insert(0);
        let bit = 1 << (slot % GROUP);
        let is_new = *bits & bit == 0;
        *bits |= bit;
        is_new
    }

    /// Clears the slot's bit at `hash`; true where it was set.
    pub(super) fn clear(&self, slot: usize, hash: u64) -> bool {
        let Some(group) = self.get(slot) else { return false };
        let bit = 1 << (slot % GROUP);
        let mut was_set = false;
        group.remove_if_mut(&hash, |_, bits| {
            was_set = *bits & bit != 0;
            *bits &= !bit;
            *bits == 0
        });
        was_set
    }

    /// Each table that exists with its part of what there is of every slot.
    pub(super) fn beside<'g, T>(
        &'g self,
        slots: &'g mut [T],
    ) -> impl Iterator<Item = (&'g Holders, &'g mut [T])> {
        let tables = self.0.iter().zip(slots.chunks_mut(GROUP));
        tables.filter_map(|(group, slots)| Some((group.get()?, slots)))
    }
}

/// Slots of a table: bits of a word.
pub(super) const GROUP: usize = 64;
const SHARDS: usize = 64;
