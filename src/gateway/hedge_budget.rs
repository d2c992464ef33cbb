//! The share of a route's requests that may be hedged.

use parking_lot::Mutex;

/// Hedges that a route may still make.
#[derive(Debug, Default)]
pub struct HedgeBudget(Mutex<f64>);

impl HedgeBudget {
    /// A request of the route came.
    pub(super) fn deposit(&self, share: f64) {
        let mut balance = self.0.lock();
        *balance = (*balance + share).min(MAX_BALANCE);
    }

    /// Takes one hedge; `false` where the budget is exhausted.
    pub(super) fn withdraw(&self) -> bool {
        let mut balance = self.0.lock();
        let is_granted = *balance >= 1.0;
        if is_granted {
            *balance -= 1.0;
        }
        is_granted
    }
}

/// A burst of overdue requests must not double the load of a fleet that is slow for everybody.
const MAX_BALANCE: f64 = 10.0;

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
