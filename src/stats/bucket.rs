//! Rate limits: a token bucket, and a count per second for what many threads take at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Stamp;

/// A token bucket, full at first. Its size and refill are arguments: a reload may change them under what was used. A smaller bucket is as
/// full as the one before: held in tokens, 600 used would be a debt of many minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TokenBucket {
    /// Tokens below full; above the burst, the bucket is in debt.
    used: f64,
    at: Stamp,
    /// Its size then; 0 before anything was taken.
    burst: f64,
}

/// Size and refill of a [`TokenBucket`], in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Refill {
    /// Tokens in a full bucket.
    pub burst: f64,
    /// Tokens per second.
    pub per_second: f64,
}

impl Refill {
    /// A minute's allowance, refilled steadily.
    pub fn per_minute(allowance: u64) -> Self {
        Self { burst: allowance as f64, per_second: allowance as f64 / 60.0 }
    }
}

impl TokenBucket {
    /// A bucket of this size without tokens.
    pub const fn empty(burst: f64) -> Self {
        Self { used: burst, at: Stamp::from_nanos(0), burst }
    }

    /// Takes `amount` tokens.
    ///
    /// # Errors
    /// How long until they are there; nothing is taken then.
    pub fn take(&mut self, amount: f64, refill: &Refill, now: Stamp) -> Result<(), Duration> {
        self.check(amount, refill, now)?;
        self.charge(amount, refill, now);
        Ok(())
    }

    /// Whether `amount` tokens are there.
    ///
    /// # Errors
    /// How long until they are.
    pub fn check(&self, amount: f64, refill: &Refill, now: Stamp) -> Result<(), Duration> {
        let missing = self.used_at(refill, now) + amount - refill.burst;
        if missing < ROUNDING {
            return Ok(());
        }
        Err(Duration::try_from_secs_f64(missing / refill.per_second).unwrap_or(Duration::MAX))
    }

    /// Tokens that are there, and how long until it is full.
    pub fn left(&self, refill: &Refill, now: Stamp) -> (f64, Duration) {
        let used = self.used_at(refill, now);
        let full = Duration::try_from_secs_f64(used / refill.per_second).unwrap_or(Duration::MAX);
        ((refill.burst - used).max(0.0), full)
    }

    /// Takes `amount` tokens whether they are there or not.
    pub fn charge(&mut self, amount: f64, refill: &Refill, now: Stamp) {
        let used = self.used_at(refill, now) + amount;
        *self = Self { used, at: self.at.max(now), burst: refill.burst };
    }

    /// Puts `amount` tokens back, at most until the bucket is full; a negative one was used since, there or not.
    pub fn give_back(&mut self, amount: f64) {
        self.used = (self.used - amount).max(0.0);
    }

    fn used_at(&self, refill: &Refill, now: Stamp) -> f64 {
        let is_smaller = refill.burst < self.burst;
        let resized = if is_smaller { self.used * refill.burst / self.burst } else { self.used };
        (resized - now.since(self.at).as_secs_f64() * refill.per_second).max(0.0)
    }
}

/// At most so many a second, lock-free: the number of the second in the upper half, the count in the lower.
#[derive(Debug, Default)]
pub struct PerSecond(AtomicU64);

impl PerSecond {
    /// Counts one more unless `max` were counted in this second; then it is a relaxed load. What comes at once may be
    /// counted in either of two seconds.
    pub fn takes(&self, now: Stamp, max: u32) -> bool {
        let second = (now.as_nanos() / 1_000_000_000) << 32;
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |state| {
            let is_this_second = state & !u64::from(u32::MAX) == second;
            let count = if is_this_second { state & u64::from(u32::MAX) } else { 0 };
            (count < u64::from(max)).then_some(second | (count + 1))
        });
        taken.is_ok()
    }
}

/// Less than any token that is taken.
const ROUNDING: f64 = 1e-6;

#[cfg(test)]
mod tests {
    use super::*;

    const REFILL: Refill = Refill { burst: 5.0, per_second: 2.0 };

    fn at(millis: u64) -> Stamp {
        Stamp::default().after(Duration::from_millis(millis))
    }

    #[test]
    fn a_burst_may_come_at_once_and_then_as_it_refills() {
        let mut bucket = TokenBucket::default();
        assert!((0..5).all(|_| bucket.take(1.0, &REFILL, at(0)).is_ok()));
        for (now, wait) in [(0, Some(500)), (400, Some(100)), (500, None), (500, Some(500)), (60_000, None)] {
            let taken = bucket.take(1.0, &REFILL, at(now));
            assert_eq!(taken, wait.map_or(Ok(()), |wait| Err(Duration::from_millis(wait))), "at {now} ms");
        }
        bucket.charge(9.0, &REFILL, at(60_000));
        assert_eq!(bucket.check(1.0, &REFILL, at(60_000)), Err(Duration::from_secs(3)), "in debt");
        bucket.give_back(100.0);
        assert_eq!((0..9).filter(|_| bucket.take(1.0, &REFILL, at(60_000)).is_ok()).count(), 5);
    }

    #[test]
    fn without_a_refill_only_what_is_given_can_be_taken() {
        let refill = Refill { burst: 2.0, per_second: 0.0 };
        let mut bucket = TokenBucket::empty(2.0);
        assert_eq!(bucket.take(1.0, &refill, at(999)), Err(Duration::MAX));
        (0..10).for_each(|_| bucket.give_back(0.1));
        assert_eq!(bucket.take(1.0, &refill, at(0)), Ok(()));
        assert!(bucket.take(1.0, &refill, at(0)).is_err());
    }

    #[test]
    fn a_smaller_bucket_is_as_full_as_it_was_and_a_larger_one_has_more_at_once() {
        let [small, large] = [Refill::per_minute(60), Refill::per_minute(6_000)];
        let mut bucket = TokenBucket::default();
        bucket.charge(6_000.0, &large, at(0));
        assert_eq!(bucket.check(1.0, &small, at(0)), Err(Duration::from_secs(1)), "no debt of 99 minutes");
        assert_eq!(bucket.left(&small, at(30_000)), (30.0, Duration::from_secs(30)));
        bucket.charge(15.0, &small, at(30_000));
        assert_eq!(bucket.left(&large, at(30_000)).0, 5_955.0);
    }

    #[test]
    fn at_most_so_many_are_taken_in_a_second() {
        let rate = PerSecond::default();
        let kept = |millis| (0..10).filter(|_| rate.takes(at(millis), 3)).count();
        assert_eq!([kept(10), kept(900), kept(1_000), kept(5_500)], [3, 0, 3, 3]);
        let rate = PerSecond::default();
        let taken = |from_ms: u64, every_us: u64, count: u64| {
            let at = |n: u64| Stamp::from_nanos((from_ms * 1000 + n * every_us) * 1000);
            (0..count).filter(|n| rate.takes(at(*n), 200)).count()
        };
        assert_eq!(taken(0, 10_000, 100), 100, "a hundred a second");
        assert_eq!(taken(1_000, 100, 30_000), 600, "ten thousand a second for three seconds");
        assert_eq!(taken(10_000, 1_000, 1), 1);
    }
}
