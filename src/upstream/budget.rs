//! Retry budget: retries of work that may have started must not double the load of a failing pool.
//!
//! As in Finagle and Linkerd: each request deposits `retry.budget`, each retry withdraws 1; on top come
//! `retry.min_per_second` retries, so that small deployments can retry at all.

use parking_lot::Mutex;

use crate::clock::Stamp;
use crate::config::Retry;
use crate::stats::{Refill, TokenBucket};

/// Retries that may still be made in one pool.
#[derive(Debug, Default)]
pub struct RetryBudget(Mutex<Buckets>);

#[derive(Debug)]
struct Buckets {
    /// Refilled by time, at most one second's worth.
    floor: TokenBucket,
    /// Refilled by requests.
    deposits: TokenBucket,
}

impl Default for Buckets {
    fn default() -> Self {
        Self { floor: TokenBucket::default(), deposits: TokenBucket::empty(DEPOSITS.burst) }
    }
}

impl RetryBudget {
    /// Deposits the share of one request.
    pub fn deposit(&self, retry: &Retry) {
        self.0.lock().deposits.give_back(retry.budget);
    }

    /// Withdraws one retry; `false` where the budget is exhausted.
    pub fn withdraw(&self, retry: &Retry, now: Stamp) -> bool {
        let rate = f64::from(retry.min_per_second);
        let mut buckets = self.0.lock();
        buckets.floor.take(1.0, &Refill { burst: rate, per_second: rate }, now).is_ok()
            || buckets.deposits.take(1.0, &DEPOSITS, now).is_ok()
    }
}

/// Deposits of quiet hours must not pay for a retry storm.
const DEPOSITS: Refill = Refill { burst: 100.0, per_second: 0.0 };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retry_storm_is_bounded_by_the_share_plus_the_minimum() {
        let retry = Retry { attempts: 2, budget: 0.1, min_per_second: 3 };
        let budget = RetryBudget::default();
        let mut retried = 0;
        for second in 0..10_u64 {
            for _ in 0..100 {
                budget.deposit(&retry);
                retried += u32::from(budget.withdraw(&retry, Stamp::from_nanos(second * 1_000_000_000)));
            }
        }
        assert!((120..=140).contains(&retried), "{retried} retries for 1000 failing requests");
    }
}
