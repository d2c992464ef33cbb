//! The past of one measure of one series, in parts of a sixth of a block.
//!
//! A block (24 hours) is judged whole, because a whole day is what load repeats by; parts let it roll six times a
//! block. Kept as long as the baseline reaches back; older parts leave. Does not judge anything.

use std::collections::VecDeque;

use super::histogram::{Dense, Sparse};

/// Parts of one measure.
#[derive(Clone, Debug)]
pub(super) struct Blocks {
    part: f64,
    kept: usize,
    current: Dense,
    index: Option<i64>,
    past: VecDeque<(i64, Sparse)>,
}

impl Blocks {
    /// `block` seconds to a block, `reach` seconds kept.
    pub(super) fn new(block: f64, reach: f64) -> Self {
        let part = block / PARTS as f64;
        // A reach beyond all reason is cut: 100 blocks are more than any baseline needs.
        let kept = (reach / part).ceil().clamp(PARTS as f64, 100.0 * PARTS as f64) as usize;
        Self { part, kept, current: Dense::default(), index: None, past: VecDeque::new() }
    }

    /// Takes one value; true when a part was closed by it.
    pub(super) fn add(&mut self, at: f64, value: f64) -> bool {
        let is_closed = self.advance(at);
        self.current.add(value);
        is_closed
    }

    /// Lets time pass; true when a part was closed.
    pub(super) fn advance(&mut self, at: f64) -> bool {
        let index = (at / self.part).floor() as i64;
        let before = *self.index.get_or_insert(index);
        if index <= before {
            return false;
        }
        self.index = Some(index);
        let part = self.current.take();
        if part.total > 0 {
            self.past.push_back((before, part));
        }
        self.forget(index);
        true
    }

    /// Closed parts with how many blocks ago they were: 0 is the block that ended with the last closed part.
    pub(super) fn aged(&self) -> impl Iterator<Item = (usize, &Sparse)> {
        let last = self.index.unwrap_or(0) - 1;
        self.past.iter().filter_map(move |(at, part)| {
            let age = usize::try_from(last - at).ok()? / PARTS;
            Some((age, part))
        })
    }

    /// Blocks between the first closed part and now.
    pub(super) fn age(&self) -> usize {
        self.aged().map(|(age, _)| age + 1).max().unwrap_or(0)
    }

    /// The last closed part that had values.
    pub(super) fn last_closed(&self) -> Option<i64> {
        self.past.back().map(|(index, _)| *index)
    }

    /// Closed parts, for the baseline file.
    pub(super) fn parts(&self) -> impl Iterator<Item = &(i64, Sparse)> {
        self.past.iter()
    }

    /// Takes a closed part, of a baseline file for one; parts come in order.
    pub(super) fn restore(&mut self, index: i64, part: Sparse) {
        if self.past.back().is_none_or(|(last, _)| *last < index) {
            self.past.push_back((index, part));
            self.index = Some(index + 1);
            self.forget(index + 1);
        }
    }

    fn forget(&mut self, now: i64) {
        let oldest = now.saturating_sub(i64::try_from(self.kept).unwrap_or(i64::MAX));
        while self.past.front().is_some_and(|(at, _)| *at < oldest) {
            self.past.pop_front();
        }
    }
}

/// Parts of a block.
pub(super) const PARTS: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_become_blocks_and_leave_in_the_end() {
        let mut blocks = Blocks::new(60.0, 180.0);
        let mut closed = 0;
        for second in 0..600 {
            closed += usize::from(blocks.add(f64::from(second), 0.1));
        }
        assert_eq!(closed, 59);
        assert_eq!(blocks.age(), 3);
        let newest: u64 = blocks.aged().filter(|(age, _)| *age == 0).map(|(_, part)| part.total).sum();
        assert_eq!(newest, 60);
        assert_eq!(blocks.parts().count(), 18);
    }

    #[test]
    fn a_gap_leaves_empty_blocks_and_time_never_goes_back() {
        let mut blocks = Blocks::new(60.0, 600.0);
        blocks.add(0.0, 0.1);
        blocks.add(300.0, 0.1);
        assert!(!blocks.add(100.0, 0.1));
        assert_eq!(blocks.aged().map(|(age, _)| age).collect::<Vec<_>>(), [4]);
    }
}
