//! Retry budget: retries of work that may have started must not double the load of a failing pool.
//!
//! As in Finagle and Linkerd: each request deposits `retry.budget`, each retry withdraws 1; on top come
//! `retry.min_per_second` retries, so that small deployments can retry at all.

use parking_lot::Mutex;

use crate::clock::Stamp;
use crate::config::Retry;

/// Retries that may still be made in one pool.
#[derive(Debug, Default)]
pub struct RetryBudget {
    bucket: Mutex<TokenBucket>,
}

#[derive(Debug, Default)]
struct TokenBucket {
    /// Deposited by requests.
    balance: f64,
    /// Refilled by time, at most one second's worth.
    floor: f64,
    /// `None` before the first retry: the floor is whole then.
    refilled: Option<Stamp>,
}

impl RetryBudget {
    /// Deposits the share of one request.
    pub fn deposit(&self, retry: &Retry) {
        let mut bucket = self.bucket.lock();
        bucket.balance = (bucket.balance + retry.budget).min(MAX_BALANCE);
    }

    /// Withdraws one retry; `false` where the budget is exhausted.
    #[must_use]
    pub fn withdraw(&self, retry: &Retry, now: Stamp) -> bool {
        let mut bucket = self.bucket.lock();
        let rate = f64::from(retry.min_per_second);
        bucket.floor = match bucket.refilled {
            Some(before) => (bucket.floor + now.since(before).as_secs_f64() * rate).min(rate),
            None => rate,
        };
        bucket.refilled = Some(now);
        let source = if bucket.floor >= 1.0 { &mut bucket.floor } else { &mut bucket.balance };
        let is_granted = *source >= 1.0;
        if is_granted {
            *source -= 1.0;
        }
        is_granted
    }
}

// Deposits of quiet hours must not pay for a retry storm.
const MAX_BALANCE: f64 = 100.0;

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
