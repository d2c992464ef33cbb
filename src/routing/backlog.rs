//! How many prompts wait for their first token, for each replica of a pool: what a second of computing costs everybody else.
//!
//! Where nobody waits, a second that a prompt needs delays the next one at most. Where a queue stands, it delays everybody in
//! it and everybody who comes before the queue is gone. So the longer the queue, the more a hit is worth: a fleet that
//! gives its hits away in a burst has more to compute than before, and may never get out of it again.

use parking_lot::Mutex;

use super::float::fast_max;
use super::{Foreign, LoadView};
use crate::clock::Stamp;
use crate::routing::tuning::{memories, prices};
use crate::units::AtomicF64;

/// Prompts that wait, for each replica but the one with the longest queue, where there are several, with chance taken out. Noted
/// beside the request path, read by every decision.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    pub(super) standing: AtomicF64,
    noted: Mutex<Stamp>,
}

impl Backlog {
    pub(super) fn note(&self, now: Stamp, replicas: impl Iterator<Item = Waiting>) {
        let (mut all, mut longest, mut count) = (0.0, 0.0, 0.0);
        for Waiting(prompts) in replicas {
            (all, longest, count) = (all + prompts, fast_max(prompts, longest), count + 1.0);
        }
        // A long queue beside short ones is for the other replicas to relieve: the fleet has time. A lone one has no other.
        let waiting = if count > 1.0 { (all - longest) / (count - 1.0) } else { all };
        let passed = now.since(std::mem::replace(&mut self.noted.lock(), now)).as_secs_f64();
        let standing = self.standing.load();
        // Bunches of arrivals make a queue that is gone a moment later: it would be wrong to pay for it.
        let settled = standing + (1.0 - (-passed / memories::QUEUE_SETTLING).exp()) * (waiting - standing);
        self.standing.store(settled);
    }
}

/// Seconds that others lose by a second of computing where so many prompts wait. A prompt or two say little; beyond that it goes
/// with the queue.
#[inline]
pub(super) fn others_wait(prompts: f64) -> f64 {
    1.0 + prices::QUEUE_PRICE * prompts * prompts / (prices::QUEUE_KNEE + prompts)
}

/// Prompts that wait at one replica: ours and those of others.
#[derive(Clone, Copy, Debug)]
pub struct Waiting(f64);

impl Waiting {
    /// By our own books and what the engine told of others. What awaits KV is computed elsewhere and delays none here.
    pub fn at(own: &LoadView, foreign: &Foreign) -> Self {
        Self(own.awaiting.saturating_sub(own.elsewhere) as f64 + foreign.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The price where so many have waited for a minute.
    fn noted(waiting: &[f64]) -> f64 {
        let backlog = Backlog::default();
        for turn in 1..600 {
            backlog.note(Stamp::from_nanos(turn * 100_000_000), waiting.iter().map(|&n| Waiting(n)));
        }
        others_wait(backlog.standing.load())
    }

    #[test]
    fn nobody_waits_and_nobody_is_there() {
        for nobody in [noted(&[0.0; 3]), noted(&[]), others_wait(Backlog::default().standing.load())] {
            assert_eq!(nobody, 1.0);
        }
    }

    #[test]
    fn what_awaits_kv_makes_nothing_dearer() {
        let own = LoadView { awaiting: 9, elsewhere: 9, ..LoadView::default() };
        assert_eq!(Waiting::at(&own, &Foreign::default()).0, 0.0);
        assert_eq!(Waiting::at(&LoadView { elsewhere: 4, ..own }, &Foreign::default()).0, 5.0);
    }

    #[test]
    fn the_longer_the_queue_the_dearer_is_work() {
        let prices = [0.0, 0.5, 2.0, 20.0, 200.0].map(|n| noted(&[n, n]));
        assert!(prices.is_sorted(), "{prices:?}");
        assert!(
            prices[1] < 6.5 && prices[1] < prices[2],
            "a single prompt for two is no overload: {prices:?}"
        );
    }

    #[test]
    fn one_long_queue_is_no_overload_of_the_fleet() {
        assert_eq!(noted(&[500.0, 0.0]), noted(&[0.0, 0.0]));
    }

    #[test]
    fn a_bunch_of_arrivals_costs_little_and_a_queue_that_has_gone_is_forgotten() {
        let backlog = Backlog::default();
        let waits = |from: u64, seconds: u64, prompts: f64| {
            for turn in from * 100..(from + seconds) * 100 {
                backlog.note(Stamp::from_nanos(turn * 10_000_000), [Waiting(prompts); 2].into_iter());
            }
            backlog.standing.load()
        };
        waits(0, 60, 0.0);
        assert!(waits(60, 1, 4.0) < 0.5);
        assert!(waits(61, 60, 4.0) > 3.9);
        assert!(waits(121, 30, 0.0) < 0.1);
    }

    #[test]
    fn prompts_of_others_wait_too() {
        let own = LoadView { awaiting: 2, ..LoadView::default() };
        let Waiting(both) = Waiting::at(&own, &Foreign { requests: 9.0, waiting: 3.0 });
        assert_eq!(both, 5.0);
    }
}
