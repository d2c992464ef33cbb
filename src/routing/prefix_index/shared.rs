//! What prompts share: how often hits of late ended with the same block.
//!
//! The next turn of a conversation goes on where its last one ended, and no other prompt does. Where the hits of many prompts
//! end alike they end on a system prompt, a tool list or a document: who computes that once more needs it again soon.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::clock::Stamp;
use crate::routing::tuning::memories;

/// Blocks with which hits ended, by hash; in a full bucket the one that was seen last the longest ago goes.
#[derive(Debug)]
pub(super) struct SharedEnds(Box<[[End; WAYS]]>);

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
        Self((0..BUCKETS).map(|_| Default::default()).collect())
    }
}

impl SharedEnds {
    /// Hits that ended with this block, older ones for less.
    pub(super) fn hits(&self, block: u64, now: Stamp) -> f64 {
        let mut ends = self.bucket(block).iter();
        let Some(end) = ends.find(|end| end.block.load(Ordering::Relaxed) == block) else { return 0.0 };
        let age = now.since(Stamp::from_nanos(end.at.load(Ordering::Relaxed)));
        let hits = f64::from(f32::from_bits(end.hits.load(Ordering::Relaxed)));
        hits * (-age.as_secs_f64() / memories::STANDING.as_secs_f64()).exp()
    }

    /// A hit ended with this block.
    pub(super) fn note(&self, block: u64, now: Stamp) {
        let is_it = |end: &&End| end.block.load(Ordering::Relaxed) == block;
        let oldest = || self.bucket(block).iter().min_by_key(|end| end.at.load(Ordering::Relaxed));
        let Some(end) = self.bucket(block).iter().find(is_it).or_else(oldest) else { return };
        let hits = self.hits(block, now) + 1.0;
        end.block.store(block, Ordering::Relaxed);
        end.hits.store((hits as f32).to_bits(), Ordering::Relaxed);
        end.at.store(now.as_nanos(), Ordering::Relaxed);
    }

    fn bucket(&self, block: u64) -> &[End] {
        self.0.get(block as usize % BUCKETS).map_or(&[], |bucket| bucket.as_slice())
    }
}

/// 96 KiB a pool.
const BUCKETS: usize = 1024;
const WAYS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::seconds as at;

    #[test]
    fn hits_count_up_and_fade() {
        let ends = SharedEnds::default();
        assert_eq!(ends.hits(7, at(1)), 0.0);
        (0..10).for_each(|_| ends.note(7, at(1)));
        assert_eq!(ends.hits(7, at(1)), 10.0);
        let later = ends.hits(7, at(61));
        assert!((3.5..4.0).contains(&later), "{later}");
        assert!(ends.hits(7, at(6_000)) < 1e-6);
    }

    #[test]
    fn blocks_of_one_bucket_do_not_take_each_others_hits() {
        let ends = SharedEnds::default();
        let block = |n: u64| 7 + n * BUCKETS as u64;
        (0..10).for_each(|_| ends.note(block(0), at(1)));
        (1..=WAYS as u64).for_each(|n| ends.note(block(n), at(1 + n)));
        assert_eq!(ends.hits(block(0), at(5)), 0.0, "the oldest made room");
        (1..=WAYS as u64).for_each(|n| assert!(ends.hits(block(n), at(5)) > 0.6, "{n}"));
    }
}
