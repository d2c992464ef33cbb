//! Retry budget: retries of work that may have started must not double the load of a failing fleet.
//!
//! As in Finagle and Linkerd: each request deposits `retry.budget`, each retry withdraws 1; on top come
//! `retry.min_per_second` retries, so that small deployments can retry at all.

use parking_lot::Mutex;

use crate::clock::Stamp;
use crate::config::Retry;

/// Retries that the gateway may still make.
#[derive(Debug)]
pub struct RetryBudget {
    bucket: Mutex<TokenBucket>,
}

#[derive(Debug)]
struct TokenBucket {
    /// Deposited by requests.
    balance: f64,
    /// Refilled by time, at most one second's worth.
    floor: f64,
    refilled: Stamp,
}

impl RetryBudget {
    /// A budget of one second's minimum.
    pub fn new(retry: &Retry, now: Stamp) -> Self {
        let floor = f64::from(retry.min_per_second);
        Self { bucket: Mutex::new(TokenBucket { balance: 0.0, floor, refilled: now }) }
    }

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
        let passed = now.since(bucket.refilled).as_secs_f64();
        bucket.floor = (bucket.floor + passed * rate).min(rate);
        bucket.refilled = now;
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
        let budget = RetryBudget::new(&retry, Stamp::default());
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
