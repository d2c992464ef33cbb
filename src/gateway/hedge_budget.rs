//! The share of a route's requests that may be hedged.

use parking_lot::Mutex;

use crate::clock::Stamp;
use crate::stats::{Refill, TokenBucket};

/// Hedges that a route may still make.
#[derive(Debug)]
pub struct HedgeBudget(Mutex<TokenBucket>);

impl Default for HedgeBudget {
    fn default() -> Self {
        Self(Mutex::new(TokenBucket::empty(DEPOSITS.burst)))
    }
}

impl HedgeBudget {
    /// A request of the route came, or a hedge was not made after all.
    pub(super) fn deposit(&self, share: f64) {
        self.0.lock().give_back(share);
    }

    /// Takes one hedge; `false` where the budget is exhausted.
    pub(super) fn withdraw(&self) -> bool {
        // Time refills nothing.
        self.0.lock().take(1.0, &DEPOSITS, Stamp::default()).is_ok()
    }
}

/// A burst of overdue requests must not double the load of a fleet that is slow for everybody.
const DEPOSITS: Refill = Refill { burst: 10.0, per_second: 0.0 };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hedges_are_paid_for_by_requests_that_came_before() {
        let budget = HedgeBudget::default();
        let mut granted = 0;
        for _ in 0..1000 {
            budget.deposit(0.02);
            granted += u32::from(budget.withdraw());
        }
        assert!((19..=20).contains(&granted), "{granted} of 1000");
        (0..100_000).for_each(|_| budget.deposit(0.02));
        let burst = (0..100).filter(|_| budget.withdraw()).count();
        assert_eq!(burst, 10);
    }
}
