//! What prompts share: how often hits of late ended with the same block.
//!
//! The next turn of a conversation goes on where its last one ended, and no other prompt does. Where the hits of many prompts
//! end alike they end on a system prompt, a tool list or a document: who computes that once more needs it again soon.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Stamp;

/// Blocks with which hits ended, by hash; those that fall on one place displace each other.
#[derive(Debug)]
pub(super) struct SharedEnds(Box<[End]>);

/// Written without a lock: two writers at once lose a hit or count one for another block, which costs a worse guess.
#[derive(Debug, Default)]
struct End {
    block: AtomicU64,
    /// As bits of a float, as of `at`.
    hits: AtomicU32,
    at: AtomicU64,
}

impl Default for SharedEnds {
    fn default() -> Self {
        Self((0..ENDS).map(|_| End::default()).collect())
    }
}

impl SharedEnds {
    /// Hits that ended with this block, older ones for less.
    pub(super) fn hits(&self, block: u64, now: Stamp) -> f64 {
        let Some(end) = self.of(block) else { return 0.0 };
        if end.block.load(Ordering::Relaxed) != block {
            return 0.0;
        }
        let age = now.since(Stamp::from_nanos(end.at.load(Ordering::Relaxed)));
        let hits = f64::from(f32::from_bits(end.hits.load(Ordering::Relaxed)));
        hits * (-age.as_secs_f64() / MEMORY.as_secs_f64()).exp()
    }

    /// A hit ended with this block.
    pub(super) fn note(&self, block: u64, now: Stamp) {
        let Some(end) = self.of(block) else { return };
        let hits = self.hits(block, now) + 1.0;
        end.block.store(block, Ordering::Relaxed);
        end.hits.store((hits as f32).to_bits(), Ordering::Relaxed);
        end.at.store(now.as_nanos(), Ordering::Relaxed);
    }

    fn of(&self, block: u64) -> Option<&End> {
        self.0.get(block as usize % ENDS)
    }
}

/// Ends that are remembered: 24 KiB a pool.
const ENDS: usize = 1024;
/// How long a hit says something of the next ones: far less than a cache takes to be filled anew.
const MEMORY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Stamp {
        Stamp::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn hits_count_up_and_fade() {
        let ends = SharedEnds::default();
        assert_eq!(ends.hits(7, at(1)), 0.0);
        (0..10).for_each(|_| ends.note(7, at(1)));
        assert_eq!(ends.hits(7, at(1)), 10.0);
        let later = ends.hits(7, at(11));
        assert!((3.5..4.0).contains(&later), "{later}");
        assert!(ends.hits(7, at(6_000)) < 1e-6);
    }

    #[test]
    fn blocks_of_one_place_do_not_take_each_others_hits() {
        let ends = SharedEnds::default();
        (0..10).for_each(|_| ends.note(7, at(1)));
        ends.note(7 + ENDS as u64, at(1));
        assert_eq!((ends.hits(7, at(1)), ends.hits(7 + ENDS as u64, at(1))), (0.0, 1.0));
    }
}
