//! Which decisions are written down with the terms of every candidate.
//!
//! The decision log keeps so many a second and no more; pricing the losers to the last term and naming them costs more than
//! the decision itself. So as many a second are explained as are kept. A flood reads one shared word here and writes none.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::Stamp;

/// Counts what was explained in this second.
#[derive(Debug, Default)]
pub struct Explained {
    /// The second in the upper half, the count in the lower one.
    now: AtomicU64,
}

impl Explained {
    /// Whether to explain a decision made now. Races explain one more or less.
    pub(super) fn is_due(&self, now: Stamp) -> bool {
        let second = now.as_nanos() / 1_000_000_000 + 1;
        let seen = self.now.load(Ordering::Relaxed);
        let count = if seen >> 32 == second & COUNT { seen & COUNT } else { 0 };
        if count >= A_SECOND {
            return false;
        }
        self.now.store(second << 32 | (count + 1), Ordering::Relaxed);
        true
    }
}

const COUNT: u64 = 0xFFFF_FFFF;
/// As many as the decision log takes.
const A_SECOND: u64 = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_are_all_explained_and_of_a_flood_so_many_a_second() {
        let explained = Explained::default();
        let asked = |from_ms: u64, every_us: u64, count: u64| {
            let at = |n: u64| Stamp::from_nanos((from_ms * 1000 + n * every_us) * 1000);
            (0..count).filter(|n| explained.is_due(at(*n))).count()
        };
        assert_eq!(asked(0, 10_000, 100), 100, "a hundred a second");
        assert_eq!(asked(1_000, 100, 30_000), 600, "ten thousand a second for three seconds");
        assert_eq!(asked(10_000, 1_000, 1), 1);
    }
}
