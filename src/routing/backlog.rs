//! How many prompts wait for their first token, for each replica of a pool: what a second of computing costs everybody else.
//!
//! Where nobody waits, a second that a prompt needs delays the next one at most. Where a queue stands, it delays everybody in
//! it and everybody who comes before the queue is gone. So the longer the queue, the more a hit is worth: a fleet that
//! gives its hits away in a burst has more to compute than before, and may never get out of it again.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::float::fast_min;
use super::standing::Standing;
use super::{Foreign, LoadView};
use crate::clock::Stamp;

/// Prompts that wait for good, for each replica but the one with the longest queue. Noted beside the request path, read by every decision.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    standing: AtomicU64,
    past: Mutex<Standing>,
}

impl Backlog {
    pub(super) fn note(&self, now: Stamp, replicas: impl Iterator<Item = Waiting>) {
        let mut queues: SmallVec<[f64; 64]> = replicas.map(|Waiting(prompts)| prompts).collect();
        queues.sort_unstable_by(f64::total_cmp);
        // A long queue beside short ones is for the other replicas to relieve: the fleet has time.
        let others = queues.get(..queues.len().saturating_sub(1)).unwrap_or_default();
        let most = MOST_OF_ONE * (1.0 + others.first().copied().unwrap_or(0.0));
        let waiting: f64 = others.iter().map(|prompts| fast_min(*prompts, most)).sum();
        let standing = self.past.lock().note(now, waiting / others.len().max(1) as f64);
        self.standing.store(standing.to_bits(), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn pressure(&self, queues_late: bool) -> Pressure {
        Pressure::of(f64::from_bits(self.standing.load(Ordering::Relaxed)), queues_late)
    }
}

/// Prompts that wait at one replica: ours and those of others.
#[derive(Clone, Copy, Debug)]
pub struct Waiting(f64);

impl Waiting {
    /// By our own books and what the engine told of others.
    #[must_use]
    pub fn at(own: &LoadView, foreign: &Foreign) -> Self {
        Self(own.awaiting as f64 + foreign.waiting)
    }
}

/// What a backlog does to the prices of a decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pressure {
    /// Seconds that others lose by a second of computing.
    pub(super) others_wait: f64,
    /// What one broken stream is worth, in seconds.
    pub(super) broken: f64,
    /// What one late first token is worth, in seconds.
    pub(super) late: f64,
}

impl Pressure {
    /// A prompt or two that wait say little; beyond that the prices go with the queue. In a long one many are late whatever is
    /// done, and time that is spent on sparing this one makes more of them. The same goes for streams, unless the late wait
    /// in the gateway: then streams can be spared under any load.
    fn of(backlog: f64, queues_late: bool) -> Self {
        let queue = backlog * backlog / (FEW + backlog);
        let hopeless = 1.0 + MISSED_ANYWAY * queue;
        Self {
            others_wait: OTHERS_WAIT + OTHERS_IN_QUEUE * queue,
            broken: if queues_late { MISS } else { MISS / hopeless },
            late: MISS / hopeless,
        }
    }
}

/// What one replica counts for at most, for each prompt at the one with the fewest and one more.
const MOST_OF_ONE: f64 = 4.0;
/// A second of prefill costs those who come next about as much as it costs us, ...
const OTHERS_WAIT: f64 = 1.0;
/// ... and the more the longer the queue: it delays those in it, those who come meanwhile, and evicts what they would have hit.
const OTHERS_IN_QUEUE: f64 = 50.0;
/// What one missed SLO is worth, in seconds, where nobody waits.
const MISS: f64 = 10.0;
/// How fast that falls with the queue.
const MISSED_ANYWAY: f64 = 12.0;
/// Prompts for each replica at which prices begin to go with the queue and no longer with its square.
const FEW: f64 = 2.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// The prices where so many have waited for a minute.
    fn noted(waiting: &[f64]) -> Pressure {
        standing(waiting).pressure(false)
    }

    fn standing(waiting: &[f64]) -> Backlog {
        let backlog = Backlog::default();
        for turn in 1..600 {
            backlog.note(Stamp::from_nanos(turn * 100_000_000), waiting.iter().map(|&n| Waiting(n)));
        }
        backlog
    }

    #[test]
    fn nobody_waits_and_nobody_is_there() {
        assert_eq!(noted(&[0.0; 3]), Backlog::default().pressure(false));
        assert_eq!(noted(&[]), Backlog::default().pressure(false));
        assert_eq!(noted(&[]).others_wait, OTHERS_WAIT);
    }

    #[test]
    fn the_longer_the_queue_the_dearer_is_work_and_the_cheaper_a_miss() {
        let pressures: Vec<_> = [0.0, 0.5, 2.0, 20.0, 200.0].map(|n| noted(&[n, n])).into();
        for pair in pressures.windows(2) {
            assert!(pair[1].others_wait > pair[0].others_wait, "{pair:?}");
            assert!(pair[1].late < pair[0].late && pair[1].broken < pair[0].broken, "{pair:?}");
        }
        assert!(pressures[1].others_wait < 6.5, "a single prompt for two is no overload");
    }

    #[test]
    fn one_long_queue_is_no_overload_of_the_fleet() {
        assert_eq!(noted(&[500.0, 0.0]), noted(&[0.0, 0.0]));
        let [hot, all] = [noted(&[500.0, 500.0, 0.0, 0.0]), noted(&[5.0; 4])];
        assert!(hot.others_wait < all.others_wait / 2.0, "{hot:?}, {all:?}");
    }

    #[test]
    fn streams_stay_dear_where_the_late_wait_in_the_gateway() {
        let backlog = standing(&[50.0; 2]);
        assert_eq!(backlog.pressure(true).broken, MISS);
        assert!(backlog.pressure(false).broken < MISS / 10.0);
        assert_eq!(backlog.pressure(true).others_wait, backlog.pressure(false).others_wait);
    }

    #[test]
    fn prompts_of_others_wait_too() {
        let own = LoadView { awaiting: 2, ..LoadView::default() };
        let Waiting(both) = Waiting::at(&own, &Foreign { requests: 9.0, waiting: 3.0 });
        assert_eq!(both, 5.0);
    }
}
