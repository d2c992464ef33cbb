//! A small set of replica slots: which replicas a request has tried already.
//!
//! A slot is a replica's place in its pool, from zero, stable while the replica lives. Sets of up to 128 slots
//! allocate nothing, so a retry costs no more than the first try. It knows nothing of replicas themselves.

use smallvec::SmallVec;

/// A set of slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotSet {
    words: SmallVec<[u64; 2]>,
}

impl SlotSet {
    /// An empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a slot.
    pub fn insert(&mut self, slot: usize) {
        let (word, bit) = place(slot);
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= bit;
    }

    /// Whether the slot is in the set.
    pub fn contains(&self, slot: usize) -> bool {
        let (word, bit) = place(slot);
        self.words.get(word).is_some_and(|w| w & bit != 0)
    }

    /// Whether no slot is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|w| *w == 0)
    }
}

impl FromIterator<usize> for SlotSet {
    fn from_iter<I: IntoIterator<Item = usize>>(slots: I) -> Self {
        let mut set = Self::new();
        slots.into_iter().for_each(|slot| set.insert(slot));
        set
    }
}

fn place(slot: usize) -> (usize, u64) {
    (slot / 64, 1 << (slot % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_what_was_inserted_and_nothing_else() {
        let set: SlotSet = [0, 63, 64, 200].into_iter().collect();
        for slot in 0..400 {
            assert_eq!(set.contains(slot), [0, 63, 64, 200].contains(&slot), "slot {slot}");
        }
        assert!(!set.is_empty());
        assert!(SlotSet::new().is_empty());
    }
}
