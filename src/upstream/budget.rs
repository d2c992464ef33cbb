//! Budgets of further attempts: retries and hedges of work that may have started must not double the load of a failing pool.
//!
//! As in Finagle and Linkerd: each request deposits a share (`retry.budget`, `hedge.budget`), each further attempt withdraws 1. On
//! top come `retry.min_per_second` retries, so that small deployments can retry at all.

use parking_lot::Mutex;

use crate::clock::Stamp;
use crate::stats::{Refill, TokenBucket};

/// Further attempts that may still be made: retries in one pool, or hedges of one route.
#[derive(Debug)]
pub struct AttemptBudget {
    /// The deposits that it holds.
    deposits: Refill,
    buckets: Mutex<Buckets>,
}

#[derive(Debug)]
struct Buckets {
    /// Refilled by time, at most one second's worth.
    floor: TokenBucket,
    /// Refilled by requests.
    deposits: TokenBucket,
}

impl AttemptBudget {
    /// An empty one, which holds at most `burst` deposits.
    pub fn new(burst: f64) -> Self {
        let buckets = Buckets { floor: TokenBucket::default(), deposits: TokenBucket::empty(burst) };
        Self { deposits: Refill { burst, per_second: 0.0 }, buckets: Mutex::new(buckets) }
    }

    /// Deposits the share of one request, or gives back an attempt that was not made after all.
    pub fn deposit(&self, share: f64) {
        self.buckets.lock().deposits.give_back(share);
    }

    /// Withdraws one attempt, of which time alone allows `per_second`; `false` where the budget is exhausted.
    pub fn withdraw(&self, per_second: u32, now: Stamp) -> bool {
        let rate = f64::from(per_second);
        let mut buckets = self.buckets.lock();
        buckets.floor.take(1.0, &Refill { burst: rate, per_second: rate }, now).is_ok()
            || buckets.deposits.take(1.0, &self.deposits, now).is_ok()
    }
}

/// Retries: deposits of quiet hours must not pay for a retry storm.
pub(crate) const RETRY_BURST: f64 = 100.0;

/// Hedges: a burst of overdue requests must not double the load of a fleet that is slow for everybody.
pub(crate) const HEDGE_BURST: f64 = 10.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retry_storm_is_bounded_by_the_share_plus_the_minimum() {
        let budget = AttemptBudget::new(RETRY_BURST);
        let mut retried = 0;
        for second in 0..10_u64 {
            for _ in 0..100 {
                budget.deposit(0.1);
                retried += u32::from(budget.withdraw(3, Stamp::from_nanos(second * 1_000_000_000)));
            }
        }
        assert!((120..=140).contains(&retried), "{retried} retries for 1000 failing requests");
    }

    #[test]
    fn hedges_are_paid_for_by_requests_that_came_before() {
        let budget = AttemptBudget::new(HEDGE_BURST);
        let mut granted = 0;
        for _ in 0..1000 {
            budget.deposit(0.02);
            granted += u32::from(budget.withdraw(0, Stamp::default()));
        }
        assert!((19..=20).contains(&granted), "{granted} of 1000");
        (0..100_000).for_each(|_| budget.deposit(0.02));
        let burst = (0..100).filter(|_| budget.withdraw(0, Stamp::default())).count();
        assert_eq!(burst, 10);
    }
}
