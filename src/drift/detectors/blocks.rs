//! Histograms of one measure of one series: a sixth of a block (4 of 24 hours) each, as far back as the baseline reaches.
//!
//! A block is judged whole, because load repeats by the day; parts let it roll six times a block.

use super::table::PARTS;
use crate::stats::{Counts, Histogram, Ring};

/// Closed parts, coarse, and the one in progress.
#[derive(Clone, Debug)]
pub(super) struct BlockHistory {
    part_seconds: f64,
    max_parts: i64,
    current: Histogram,
    index: Option<i64>,
    past: Ring<Counts>,
}

impl BlockHistory {
    /// Both in seconds.
    pub(super) fn new(block: f64, reach: f64) -> Self {
        let part_seconds = block / PARTS as f64;
        // `config` allows a baseline of 100 blocks.
        let max_parts = (reach / part_seconds).ceil().clamp(PARTS as f64, 100.0 * PARTS as f64) as i64;
        Self { part_seconds, max_parts, current: Histogram::default(), index: None, past: Ring::default() }
    }

    pub(super) fn add(&mut self, at: f64, value: f64) {
        self.advance(at);
        self.current.add_seconds(value);
    }

    /// Closes the part in progress once `at` is beyond it. Time never goes back.
    pub(super) fn advance(&mut self, at: f64) {
        let index = (at / self.part_seconds).floor() as i64;
        let before = *self.index.get_or_insert(index);
        if index <= before {
            return;
        }
        self.index = Some(index);
        let part = self.current.take();
        if part.count() > 0 {
            self.past.push(before, part.coarse(), self.max_parts);
        }
        self.past.expire(index - self.max_parts);
    }

    /// Closed parts with their age in blocks: 0 is the block that ends with the last closed part.
    pub(super) fn aged(&self) -> impl Iterator<Item = (usize, &Counts)> {
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

    /// Closed parts, for the baseline file.
    pub(super) fn parts(&self) -> &Ring<Counts> {
        &self.past
    }

    /// The same blocks with the parts of a baseline file: none that is empty, of the future as of `now`, or out of order.
    pub(super) fn restored(mut self, parts: &Ring<Counts>, now: f64) -> Self {
        let open = (now / self.part_seconds).floor() as i64;
        for (index, part) in parts.range(0, open - 1).filter(|(_, part)| part.count() > 0) {
            if self.past.newest().is_none_or(|last| last < index) {
                self.past.push(index, part.clone(), self.max_parts);
                self.index = Some(index + 1);
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_become_blocks_and_leave_in_the_end() {
        let mut blocks = BlockHistory::new(60.0, 180.0);
        for second in 0..600 {
            blocks.add(f64::from(second), 0.1);
        }
        assert_eq!(blocks.parts().newest(), Some(58), "59 parts were closed");
        assert_eq!(blocks.age(), 3);
        let newest: u64 = blocks.aged().filter(|(age, _)| *age == 0).map(|(_, part)| part.count()).sum();
        assert_eq!(newest, 60);
        assert_eq!(blocks.parts().iter().count(), 18);
    }

    #[test]
    fn a_gap_leaves_empty_blocks_and_time_never_goes_back() {
        let mut blocks = BlockHistory::new(60.0, 600.0);
        blocks.add(0.0, 0.1);
        blocks.add(300.0, 0.1);
        blocks.add(100.0, 0.1);
        assert_eq!(blocks.aged().map(|(age, _)| age).collect::<Vec<_>>(), [4]);
    }
}
