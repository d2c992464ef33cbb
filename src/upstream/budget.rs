//! The retry budget: retries of work that may have started must not double the load of a failing fleet.
//!
//! Each request deposits a share, each retry withdraws one whole; a floor per second keeps small deployments
//! able to retry at all. The idea is that of the budgets of Finagle and Linkerd.

use parking_lot::Mutex;

use crate::clock::Stamp;
use crate::config::Retry;

/// A token bucket fed by requests.
#[derive(Debug)]
pub struct RetryBudget {
    bucket: Mutex<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    balance: f64,
    floor: f64,
    refilled: Stamp,
}

impl RetryBudget {
    /// A budget with its floor available at once.
    #[must_use]
    pub fn new(retry: &Retry, now: Stamp) -> Self {
        let floor = f64::from(retry.min_per_second);
        Self { bucket: Mutex::new(Bucket { balance: 0.0, floor, refilled: now }) }
    }

    /// A request came: it earns a share of a retry.
    pub fn deposit(&self, retry: &Retry) {
        let mut bucket = self.bucket.lock();
        bucket.balance = (bucket.balance + retry.budget).min(MAX_BALANCE);
    }

    /// Whether one more retry is within the budget; if so it is spent.
    #[must_use]
    pub fn withdraw(&self, retry: &Retry, now: Stamp) -> bool {
        let mut bucket = self.bucket.lock();
        let rate = f64::from(retry.min_per_second);
        let passed = now.since(bucket.refilled).as_secs_f64();
        bucket.floor = (bucket.floor + passed * rate).min(rate);
        bucket.refilled = now;
        let purse = if bucket.floor >= 1.0 { &mut bucket.floor } else { &mut bucket.balance };
        let affordable = *purse >= 1.0;
        if affordable {
            *purse -= 1.0;
        }
        affordable
    }
}

// Savings of quiet hours must not pay for a storm: at most a hundred retries beyond the floor.
const MAX_BALANCE: f64 = 100.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_is_held_to_the_share_plus_the_floor() {
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
