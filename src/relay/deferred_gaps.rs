//! Gaps whose token count becomes known only when the stream ends, in bounded memory.
//!
//! The first gaps are kept as they are; a stream with more of them keeps counts and sums in buckets an eighth of an
//! octave wide, so that a stream of any length costs a few kilobytes and its mean stays exact.

use std::time::Duration;

/// Deferred gaps of one stream.
#[derive(Debug, Default)]
pub(super) struct DeferredGaps {
    /// Microseconds, the first [`MAX_EXACT`] gaps.
    exact: Vec<u32>,
    buckets: Vec<GapBucket>,
}

#[derive(Clone, Copy, Debug, Default)]
struct GapBucket {
    count: u32,
    sum: u64,
}

impl DeferredGaps {
    pub(super) fn push(&mut self, gap: Duration) {
        let micros = u32::try_from(gap.as_micros()).unwrap_or(u32::MAX);
        if self.exact.len() < MAX_EXACT {
            self.exact.push(micros);
            return;
        }
        if self.buckets.is_empty() {
            self.buckets.resize(BUCKETS, GapBucket::default());
        }
        if let Some(bucket) = self.buckets.get_mut(bucket_of(micros)) {
            bucket.count = bucket.count.saturating_add(1);
            bucket.sum = bucket.sum.saturating_add(u64::from(micros));
        }
    }

    /// Takes out every gap. A bucket yields its mean, `count` times.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Duration> {
        let exact = std::mem::take(&mut self.exact).into_iter().map(u64::from).map(Duration::from_micros);
        let buckets = std::mem::take(&mut self.buckets).into_iter().filter(|bucket| bucket.count > 0);
        exact.chain(buckets.flat_map(|bucket| {
            let mean = Duration::from_micros(bucket.sum) / bucket.count;
            std::iter::repeat_n(mean, usize::try_from(bucket.count).unwrap_or(usize::MAX))
        }))
    }
}

/// Linear below eight microseconds, then eight buckets to the octave.
fn bucket_of(micros: u32) -> usize {
    let octave = micros.max(8).ilog2() - 3;
    let within = micros >> octave;
    usize::try_from(octave * 8 + within).unwrap_or(usize::MAX).min(BUCKETS - 1)
}

const MAX_EXACT: usize = 512;
/// The linear eight, and eight for each of the 29 octaves from 8 µs to what a `u32` holds.
const BUCKETS: usize = 8 + 29 * 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_gaps_come_back_as_they_were_and_many_keep_count_mean_and_shape() {
        let mut late = DeferredGaps::default();
        let gaps = [0, 1, 20_000, 21_000, 5_000_000].map(Duration::from_micros);
        gaps.iter().for_each(|gap| late.push(*gap));
        assert_eq!(late.drain().collect::<Vec<_>>(), gaps);
        assert_eq!(late.drain().count(), 0);

        for i in 0..10_000_u64 {
            late.push(Duration::from_micros(if i % 10 == 0 { 900_000 } else { 20_000 + i % 50 }));
        }
        let all: Vec<_> = late.drain().collect();
        assert_eq!(all.len(), 10_000);
        assert_eq!(all.iter().filter(|gap| gap.as_millis() == 900).count(), 1_000);
        assert_eq!(all.iter().filter(|gap| gap.as_millis() == 20).count(), 9_000);
    }

    #[test]
    fn buckets_rise_with_the_gap_and_stay_in_bounds() {
        let mut last = 0;
        for shift in 0..32 {
            for micros in [1_u32 << shift, (1 << shift) + (1 << shift) / 2] {
                let bucket = bucket_of(micros);
                assert!(bucket >= last && bucket < BUCKETS, "{micros}");
                last = bucket;
            }
        }
        assert!(bucket_of(u32::MAX) < BUCKETS);
    }
}
