//! A share of requests: is the canary's more than `increase` above the baseline's?
//!
//! Per block, the canary's share minus the baseline's in the same classes minus the allowance: its mean is not above zero
//! while the canary is within its bound.

use serde::{Deserialize, Serialize};

use super::wealth::{Conversations, EVEN, Restarts, STAKES, Wealth};
use super::{Arm, CLASSES};
use crate::diagnosis::figures::Count;

#[derive(Clone, Debug)]
pub(super) struct RateTest {
    increase: f64,
    /// Added to the canary's share.
    worse: f64,
    /// By class and arm; of one conversation each bad request counts for less.
    block: [[Count; 2]; CLASSES],
    wealth: RateWealth,
    conversations: Conversations,
}

/// What is kept over restarts of the gateway.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct RateWealth {
    wealth: Wealth,
    restarts: Restarts,
}

impl RateTest {
    /// Whether the canary's share, and `worse` more, is above its bound.
    pub(super) fn new(increase: f64, worse: f64, wealth: RateWealth) -> Self {
        Self { increase, worse, block: Default::default(), wealth, conversations: Conversations::default() }
    }

    pub(super) fn observe(&mut self, class: usize, arm: Arm, conversation: Option<u64>, is_bad: bool) {
        // A conversation that fails at every other turn is one event; one that fails after it had gone well for long is another.
        let bad = if is_bad {
            self.conversations.weight(conversation)
        } else {
            self.conversations.went_well(conversation);
            0.0
        };
        let counts = self.block.get_mut(class).and_then(|arms| arms.get_mut(arm as usize));
        if let Some(count) = counts {
            *count = Count { all: count.all + 1.0, bad: count.bad + bad };
        }
    }

    pub(super) fn close(&mut self) {
        let (mut requests, mut excess) = (0.0, 0.0);
        for arms in &mut self.block {
            // With little traffic a block lasts until both have come.
            if arms.iter().all(|count| count.all > 0.0) {
                let [baseline, canary] = std::mem::take(arms);
                requests += canary.all;
                excess += canary.bad - canary.all * baseline.bad / baseline.all;
            }
        }
        if requests > 0.0 {
            // At most 1 below zero, whatever the allowance is: no block is a bet of everything.
            let share = (excess / requests + self.worse).min(1.0);
            self.wealth.wealth.bet_on_mean((share - self.increase) / (1.0 + self.increase), &STAKES);
        }
        if self.wealth.restarts.is_due(self.log_mean()) {
            self.wealth.wealth = Wealth::default();
        }
    }

    fn log_mean(&self) -> f64 {
        Wealth::mean(&EVEN, std::iter::once((1.0, &self.wealth.wealth)))
    }

    /// Evidence against the canary as a fraction of what stops it at an error rate of `exp(-limit)`.
    pub(super) fn evidence(&self, limit: f64) -> f64 {
        self.log_mean() / (limit + self.wealth.restarts.price())
    }

    pub(super) fn wealth(&self) -> &RateWealth {
        &self.wealth
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evidence against a canary after 2,000 requests of each side, of which those of the canary are `bad` by place and conversation.
    fn evidence(conversation: impl Fn(u32) -> u64, is_bad: impl Fn(u32) -> bool) -> f64 {
        let mut test = RateTest::new(0.01, 0.0, RateWealth::default());
        for request in 0..2_000 {
            test.observe(0, Arm::Baseline, Some(u64::MAX), false);
            test.observe(0, Arm::Canary, Some(conversation(request)), is_bad(request));
            if request % 4 == 3 {
                test.close();
            }
        }
        test.evidence(5.0)
    }

    #[test]
    fn one_conversation_that_goes_wrong_at_every_other_turn_stops_no_canary() {
        let one_of_ten = |request| u64::from(request % 10);
        let goes_wrong = |request| request % 10 == 0 && request / 10 % 2 == 0;
        assert!(evidence(one_of_ten, goes_wrong) < 1.0);
        let fails = |request| request % 10 == 0;
        assert!(evidence(|request| u64::from(request / 20), fails) > 1.0, "an engine that fails one in ten");
    }
}
