//! Over how many replicas each side's answers are spread: what its load per replica is known by.
//!
//! Replicas that are ready and answer nothing, as those of a pool that stands by, take no load from the others.

use std::collections::{HashMap, VecDeque};

use crate::rollout::judge::Arm;

/// The latest answers of both sides of a canary, by replica.
#[derive(Debug, Default)]
pub(super) struct Spread {
    /// Hashes of the replicas that gave them, by [`Arm`].
    latest: [VecDeque<u64>; 2],
    /// Replicas that answer, by [`Arm`], at the last look.
    answering: [u64; 2],
}

impl Spread {
    pub(super) fn answered(&mut self, arm: Arm, replica: u64) {
        let Some(latest) = self.latest.get_mut(arm as usize) else { return };
        if latest.len() == LATEST {
            latest.pop_front();
        }
        latest.push_back(replica);
    }

    /// Counts the replicas anew, of those that are there still.
    pub(super) fn look(&mut self, is_there: impl Fn(u64) -> bool) {
        self.latest.iter_mut().for_each(|latest| latest.retain(|replica| is_there(*replica)));
        self.answering = self.latest.each_ref().map(answering);
    }

    /// Replicas of the baseline and of the canary that answer.
    pub(super) fn answering(&self) -> [u64; 2] {
        self.answering
    }
}

/// Those with at least a tenth of the answers of the busiest: one that only takes what overflows lightens no other's load.
fn answering(latest: &VecDeque<u64>) -> u64 {
    let mut answers = HashMap::new();
    for replica in latest {
        *answers.entry(replica).or_insert(0_u64) += 1;
    }
    let busiest = answers.values().copied().max().unwrap_or_default();
    answers.values().filter(|count| 10 * **count >= busiest).count() as u64
}

/// Enough to find all of a hundred replicas, and few enough to find soon those that join.
const LATEST: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_takes_what_overflows_or_is_gone_is_not_counted() {
        let mut spread = Spread::default();
        let mut answer = |replicas: &[u64]| {
            replicas.iter().for_each(|replica| spread.answered(Arm::Baseline, *replica));
            spread.look(|_| true);
            spread.answering()
        };
        assert_eq!(answer(&[]), [0, 0]);
        assert_eq!(answer(&[1, 1, 2, 1]), [2, 0]);
        assert_eq!(answer(&[1, 2].repeat(20)), [2, 0]);
        assert_eq!(answer(&[3, 4]), [2, 0], "of a standby pool, for a moment");
        assert_eq!(answer(&[1].repeat(LATEST)), [1, 0], "2 gets nothing any more");
        assert_eq!(answer(&[1, 2].repeat(LATEST)), [2, 0]);
        spread.look(|replica| replica != 2);
        assert_eq!(spread.answering(), [1, 0], "2 is gone");
    }
}
