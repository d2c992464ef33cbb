//! Holds the inter-token latencies of one stream against its SLO, in constant memory. Pure.
//!
//! Whether a percentile of the stream's own gaps is within its bound needs no list of gaps: it is so exactly when few
//! enough of them are over the bound. Fed with the batches that go to the series anyway, so an event costs nothing
//! here. Gaps that a slow client held up are not among them, as nowhere.

use std::time::Duration;

use smallvec::SmallVec;

use crate::config::ItlBounds;
use crate::record::Gaps;

/// Counts of one stream; made only where its SLO class bounds a percentile.
#[derive(Debug)]
pub struct ItlSlo {
    tokens: u64,
    limits: SmallVec<[Limit; 1]>,
}

#[derive(Debug)]
struct Limit {
    percent: u8,
    bound: Duration,
    over: u64,
}

impl ItlSlo {
    /// For a stream with these bounds; `None` without any.
    pub fn new(bounds: ItlBounds) -> Option<Box<Self>> {
        let limit = |(percent, bound)| Limit { percent, bound, over: 0 };
        (!bounds.is_empty()).then(|| Box::new(Self { tokens: 0, limits: bounds.iter().map(limit).collect() }))
    }

    /// Takes a batch of gaps.
    pub fn take(&mut self, gaps: &Gaps<'_>) {
        for (itl, tokens) in gaps.itl() {
            self.tokens += u64::from(tokens);
            for limit in self.limits.iter_mut().filter(|limit| itl > limit.bound) {
                limit.over += u64::from(tokens);
            }
        }
    }

    /// The lowest percentile that is over its bound, in percent. By nearest rank: the p-th percentile of n values is
    /// the smallest value that p percent of them do not exceed.
    pub fn missed(&self) -> Option<u8> {
        let is_over = |limit: &&Limit| {
            u128::from(limit.over) * 100 > u128::from(self.tokens) * u128::from(100 - limit.percent)
        };
        self.limits.iter().find(is_over).map(|limit| limit.percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Gap;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// What `gaps` (length in ms, tokens where known at once) miss of a median of 20 ms and a p99 of 100 ms.
    fn missed(gaps: &[(u64, Option<u32>)], late: &[(u64, u32)]) -> Option<u8> {
        let mut pace = ItlSlo::new(ItlBounds::new([Some(ms(20)), None, None, Some(ms(100))])).unwrap();
        let gaps: Vec<Gap> = gaps.iter().map(|(n, tokens)| Gap { length: ms(*n), tokens: *tokens }).collect();
        let late: Vec<_> = late.iter().map(|(n, tokens)| (ms(*n), *tokens)).collect();
        pace.take(&Gaps { gaps: &gaps, late_itl: &[], is_filling: false });
        pace.take(&Gaps { gaps: &[], late_itl: &late, is_filling: false });
        pace.missed()
    }

    #[test]
    fn percentiles_by_nearest_rank() {
        let some = |n, of| vec![(n, Some(1)); of];
        let cases = [
            ("no gaps", vec![], None),
            ("at the bound is within it", some(20, 7), None),
            ("half of them may be over the median's bound", [some(1, 5), some(99, 5)].concat(), None),
            ("but no more", [some(1, 5), some(99, 6)].concat(), Some(50)),
            ("one in a hundred may be slow", [some(1, 99), some(5000, 1)].concat(), None),
            ("one in ninety-nine may not", [some(1, 98), some(5000, 1)].concat(), Some(99)),
            ("several tokens share their gap", vec![(80, Some(4))], None),
            ("and count as often", [some(1, 50), vec![(5000, Some(2))]].concat(), Some(99)),
        ];
        for (name, gaps, expected) in cases {
            assert_eq!(missed(&gaps, &[]), expected, "{name}");
        }
    }

    #[test]
    fn gaps_whose_tokens_come_late_count_once() {
        assert_eq!(missed(&[(80, None), (80, None)], &[(80, 4), (80, 4)]), None);
        assert_eq!(missed(&[(80, None), (80, None)], &[(80, 1), (80, 1)]), Some(50));
        assert_eq!(missed(&[], &[(80, 0)]), None, "a count of none says nothing");
    }

    #[test]
    fn without_bounds_there_is_nothing_to_count() {
        assert!(ItlSlo::new(ItlBounds::default()).is_none());
    }
}
