//! Rate limit for explained decisions: those that record the cost terms of every candidate.
//!
//! Explaining costs more than the decision itself, and the decision log keeps [`MAX_PER_SECOND`] only. Above that rate a
//! decision costs one relaxed load here and no store.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::Stamp;

/// Explained decisions of the current second.
#[derive(Debug, Default)]
pub struct ExplainLimiter {
    /// Second in the upper 32 bits, count in the lower 32.
    packed: AtomicU64,
}

impl ExplainLimiter {
    /// Whether to explain a decision made at `now`. Not exact under races: concurrent callers may share a count.
    pub(super) fn is_due(&self, now: Stamp) -> bool {
        let second = now.as_nanos() / 1_000_000_000 + 1;
        let seen = self.packed.load(Ordering::Relaxed);
        let count = if seen >> 32 == second & COUNT_MASK { seen & COUNT_MASK } else { 0 };
        if count >= MAX_PER_SECOND {
            return false;
        }
        self.packed.store(second << 32 | (count + 1), Ordering::Relaxed);
        true
    }
}

const COUNT_MASK: u64 = 0xFFFF_FFFF;
/// Capacity of the decision log per second.
const MAX_PER_SECOND: u64 = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_the_limit_all_are_explained_and_above_it_200_per_second() {
        let limiter = ExplainLimiter::default();
        let explained = |from_ms: u64, every_us: u64, count: u64| {
            let at = |n: u64| Stamp::from_nanos((from_ms * 1000 + n * every_us) * 1000);
            (0..count).filter(|n| limiter.is_due(at(*n))).count()
        };
        assert_eq!(explained(0, 10_000, 100), 100, "a hundred a second");
        assert_eq!(explained(1_000, 100, 30_000), 600, "ten thousand a second for three seconds");
        assert_eq!(explained(10_000, 1_000, 1), 1);
    }
}
