//! A ring of time slots.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Values by the number of their slot, oldest first. Empty slots are not kept.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Ring<T>(VecDeque<(i64, T)>);

impl<T> Default for Ring<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Ring<T> {
    /// The slot of that number, of which the last `kept` stay. A number older than the newest, of another thread's stamp, counts
    /// into the newest.
    pub fn at(&mut self, number: i64, kept: i64) -> &mut T
    where
        T: Default,
    {
        if self.newest().is_none_or(|newest| newest < number) {
            self.push(number, T::default(), kept);
        }
        &mut self.0.back_mut().expect("invariant: the newest slot is pushed above").1
    }

    /// Adds a slot that is newer than all; those that lie `kept` or more before it are dropped.
    pub fn push(&mut self, number: i64, value: T, kept: i64) {
        self.0.push_back((number, value));
        self.expire(number.saturating_sub(kept).saturating_add(1));
    }

    /// Drops the slots before `oldest`.
    pub fn expire(&mut self, oldest: i64) {
        while self.pop_before(oldest).is_some() {}
    }

    /// The oldest slot, taken out, where it lies before `oldest`.
    pub fn pop_before(&mut self, oldest: i64) -> Option<T> {
        let is_old = self.0.front().is_some_and(|(number, _)| *number < oldest);
        if is_old { self.0.pop_front().map(|(_, value)| value) } else { None }
    }

    /// Number of the newest slot.
    pub fn newest(&self) -> Option<i64> {
        self.0.back().map(|(number, _)| *number)
    }

    /// The slot of that number, if it is kept.
    pub fn get_mut(&mut self, number: i64) -> Option<&mut T> {
        self.0.iter_mut().rev().find(|(kept, _)| *kept == number).map(|(_, value)| value)
    }

    /// Slots with their numbers, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (i64, &T)> + Clone {
        self.0.iter().map(|(number, value)| (*number, value))
    }

    /// Slots with numbers from `oldest` to `newest`, both included, oldest first.
    pub fn range(&self, oldest: i64, newest: i64) -> impl DoubleEndedIterator<Item = (i64, &T)> + Clone {
        self.iter().filter(move |(number, _)| (oldest..=newest).contains(number))
    }

    /// Without slots after `newest`, in order: for rings from a file.
    #[must_use]
    pub fn up_to(mut self, newest: i64) -> Self {
        self.0.retain(|(number, _)| *number <= newest);
        self.0.make_contiguous().sort_by_key(|(number, _)| *number);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_leave_when_they_are_too_old_and_late_values_count_into_the_newest() {
        let mut ring = Ring::default();
        for number in [1, 2, 2, 5, 4] {
            *ring.at(number, 4) += 1;
        }
        let read = |ring: &Ring<i32>| ring.iter().map(|(number, count)| (number, *count)).collect::<Vec<_>>();
        assert_eq!(read(&ring), [(2, 2), (5, 2)]);
        assert_eq!(ring.range(3, 9).map(|(number, _)| number).collect::<Vec<_>>(), [5]);
        assert_eq!((ring.newest(), ring.pop_before(2), ring.pop_before(3)), (Some(5), None, Some(2)));
        let from_file: Ring<i32> = serde_json::from_str("[[7,1],[3,1],[99,1]]").unwrap();
        assert_eq!(read(&from_file.up_to(9)), [(3, 1), (7, 1)]);
    }
}
