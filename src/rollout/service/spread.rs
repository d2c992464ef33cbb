//! Over how many replicas each side's answers are spread, and what these replicas get: what its load per replica is known by.
//!
//! Replicas that are ready and answer nothing, as those of a pool that stands by, take no load from the others. What other routes send to
//! them does add to it.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::rollout::judge::Arm;

/// The latest answers of both sides of a canary, by replica.
#[derive(Debug, Default)]
pub(super) struct Spread {
    /// Hashes of the replicas that gave them, by [`Arm`].
    latest: [VecDeque<u64>; 2],
    /// Replicas that answer, by [`Arm`], at the last look.
    answering: [u64; 2],
    /// Requests of all routes, by replica.
    sent: HashMap<u64, Sent>,
    /// The recent ones at the replicas that answer, by [`Arm`].
    of_late: [f64; 2],
}

/// Requests that one replica got.
#[derive(Debug)]
struct Sent {
    /// In all, at the last look.
    all: u64,
    /// Recently: older ones count less.
    of_late: f64,
}

impl Spread {
    pub(super) fn answered(&mut self, arm: Arm, replica: u64) {
        let Some(latest) = self.latest.get_mut(arm as usize) else { return };
        if latest.len() == LATEST {
            latest.pop_front();
        }
        latest.push_back(replica);
    }

    /// Counts the replicas anew, of those that are there still with all that was sent to them so far; `passed`: since the last look.
    pub(super) fn look(&mut self, there: &HashMap<u64, u64>, passed: Duration) {
        let kept = (-passed.as_secs_f64() / LATELY.as_secs_f64()).exp();
        self.sent.retain(|replica, _| there.contains_key(replica));
        for (replica, all) in there {
            let sent = self.sent.entry(*replica).or_insert(Sent { all: *all, of_late: 0.0 });
            sent.of_late = kept * sent.of_late + all.saturating_sub(sent.all) as f64;
            sent.all = *all;
        }
        self.latest.iter_mut().for_each(|latest| latest.retain(|replica| there.contains_key(replica)));
        let answering = self.latest.each_ref().map(answering);
        let of_late = |replicas: &Vec<u64>| {
            replicas.iter().filter_map(|replica| self.sent.get(replica)).map(|sent| sent.of_late).sum()
        };
        self.of_late = answering.each_ref().map(of_late);
        self.answering = answering.map(|replicas| replicas.len() as u64);
    }

    /// Whether each replica that answers for the canary gets over a quarter more requests than one of the baseline, of all routes together,
    /// and by more than chance.
    pub(super) fn is_denser(&self) -> bool {
        let each = |arm: Arm, times: f64| {
            let at = |of: [f64; 2]| of.get(arm as usize).copied().unwrap_or_default();
            let (replicas, sent) = (at(self.answering.map(|count| count as f64)), at(self.of_late));
            (replicas > 0.0).then(|| [times / replicas * sent, (times / replicas).powi(2) * sent])
        };
        let (Some(baseline), Some(canary)) = (each(Arm::Baseline, 1.25), each(Arm::Canary, 1.0)) else {
            return false;
        };
        let [more, variance] = [canary[0] - baseline[0], canary[1] + baseline[1]];
        more > 2.0 * variance.sqrt()
    }

    /// Replicas of the baseline and of the canary that answer.
    pub(super) fn answering(&self) -> [u64; 2] {
        self.answering
    }
}

/// Those with at least a tenth of the answers of the busiest: one that only takes what overflows lightens no other's load.
fn answering(latest: &VecDeque<u64>) -> Vec<u64> {
    let mut answers = HashMap::new();
    for replica in latest {
        *answers.entry(replica).or_insert(0_u64) += 1;
    }
    let busiest = answers.values().copied().max().unwrap_or_default();
    answers.retain(|_, count| 10 * *count >= busiest);
    answers.into_keys().copied().collect()
}

/// Enough to find all of a hundred replicas, and few enough to find soon those that join.
const LATEST: usize = 512;
/// Enough requests to distinguish loads, and soon enough to follow them.
const LATELY: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn look(spread: &mut Spread, there: &[u64]) {
        spread.look(&there.iter().map(|replica| (*replica, 0)).collect(), Duration::ZERO);
    }

    #[test]
    fn a_side_is_denser_where_its_replicas_get_more_of_all_routes_than_chance_has_it() {
        let is_denser = |sent: [u64; 3]| {
            let mut spread = Spread::default();
            for (arm, replica) in [(Arm::Baseline, 1), (Arm::Baseline, 2), (Arm::Canary, 3)] {
                spread.answered(arm, replica);
            }
            look(&mut spread, &[1, 2, 3]);
            spread.look(&[1, 2, 3].into_iter().zip(sent).collect(), Duration::from_secs(1));
            let is_denser = spread.is_denser();
            spread.look(&[1, 2, 3].into_iter().zip(sent).collect(), Duration::from_secs(600));
            assert!(!spread.is_denser(), "long ago");
            is_denser
        };
        assert_eq!([[100, 100, 100], [100, 100, 300]].map(is_denser), [false, true]);
        assert_eq!([[300, 0, 300], [100, 100, 125]].map(is_denser), [true, false]);
        assert!(!is_denser([4, 4, 8]), "by chance");
    }

    #[test]
    fn a_replica_that_takes_what_overflows_or_is_gone_is_not_counted() {
        let mut spread = Spread::default();
        let mut answer = |replicas: &[u64]| {
            replicas.iter().for_each(|replica| spread.answered(Arm::Baseline, *replica));
            look(&mut spread, &[1, 2, 3, 4]);
            spread.answering()
        };
        assert_eq!(answer(&[]), [0, 0]);
        assert_eq!(answer(&[1, 1, 2, 1]), [2, 0]);
        assert_eq!(answer(&[1, 2].repeat(20)), [2, 0]);
        assert_eq!(answer(&[3, 4]), [2, 0], "of a standby pool, for a moment");
        assert_eq!(answer(&[1].repeat(LATEST)), [1, 0], "2 gets nothing any more");
        assert_eq!(answer(&[1, 2].repeat(LATEST)), [2, 0]);
        look(&mut spread, &[1, 3, 4]);
        assert_eq!(spread.answering(), [1, 0], "2 is gone");
    }
}
