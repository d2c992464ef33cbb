//! The queue that stands: what is left of a queue when chance is taken out of it.
//!
//! Arrivals in bunches make a queue that is gone a moment later, and it would be wrong to pay for it. A queue that does not
//! empty even for a moment is another matter. Active queue management tells the two apart by the minimum over a window
//! (Nichols and Jacobson, "Controlling Queue Delay", 2012; RFC 8289, section 3); here the minimum settles over some seconds, since
//! prices that change with every bunch change the mind of every decision.

use std::time::Duration;

use super::float::fast_min;
use crate::clock::Stamp;

/// A queue's past, as far as it matters.
#[derive(Debug, Default)]
pub(super) struct Standing {
    noted: Stamp,
    half_began: Stamp,
    /// The shortest in the half of the window before this one, and in this one.
    shortest: [f64; 2],
    settled: f64,
}

impl Standing {
    /// The queue is so long now; returns how long the standing one is taken to be.
    pub(super) fn note(&mut self, now: Stamp, length: f64) -> f64 {
        let age = now.since(self.half_began);
        let [before, this] = self.shortest;
        self.shortest = if age < HALF_A_WINDOW {
            [before, fast_min(this, length)]
        } else {
            self.half_began = now;
            // Of what was before a silence nothing is known to have lasted.
            [if age < 2 * HALF_A_WINDOW { this } else { length }, length]
        };
        let [before, this] = self.shortest;
        let floor = fast_min(before, this);
        let settling = if floor > self.settled { RISING } else { FALLING };
        let passed = now.since(self.noted).as_secs_f64();
        self.settled += (1.0 - (-passed / settling.as_secs_f64()).exp()) * (floor - self.settled);
        self.noted = now;
        self.settled
    }
}

/// A window is a few steps of an engine with prompts in them. Windows of a second do not see the bursts of chats in time (load 0.75, 15 %
/// missed instead of 11); no window takes chance for overload (tools, 0.69 % instead of 0.57).
const HALF_A_WINDOW: Duration = Duration::from_millis(150);
/// Between 5 and 20 s nothing changes by more than seeds do.
const RISING: Duration = Duration::from_secs(10);
/// As slow as it rises, streams are given away for a queue that has gone (agents, 1.3 % missed instead of 0.7); in a second, a burst is
/// taken for over in every gap (bursts, 34 % instead of 11 to 18).
const FALLING: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    /// The standing queue after so many seconds, asked every 10 ms.
    fn after(queue: &mut Standing, from: u64, seconds: u64, length: impl Fn(u64) -> f64) -> f64 {
        let turns = (from * 100 + 1)..=((from + seconds) * 100);
        turns.fold(0.0, |_, turn| queue.note(Stamp::from_nanos(turn * 10_000_000), length(turn)))
    }

    #[test]
    fn bunches_that_clear_are_no_standing_queue() {
        let standing = after(&mut Standing::default(), 0, 60, |turn| if turn % 15 == 0 { 0.0 } else { 40.0 });
        assert!(standing < 0.01, "{standing}");
    }

    #[test]
    fn a_queue_that_never_clears_stands_and_is_forgotten_when_it_has_gone() {
        let mut queue = Standing::default();
        let shaking = |turn| if turn % 2 == 0 { 9.0 } else { 4.0 };
        let [early, late] =
            [(0, 5), (5, 40)].map(|(from, seconds)| after(&mut queue, from, seconds, shaking));
        assert!(
            (1.0..3.0).contains(&early) && (3.9..=4.0).contains(&late),
            "{early} after 5 s, {late} after 45"
        );
        let gone = after(&mut queue, 45, 30, |_| 0.0);
        assert!(gone < 0.25, "{gone}");
    }

    #[test]
    fn what_was_before_a_silence_does_not_last() {
        let mut queue = Standing::default();
        after(&mut queue, 0, 60, |_| 50.0);
        let standing = queue.note(Stamp::from_nanos(600_000_000_000), 1.0);
        assert!((standing - 1.0).abs() < 1e-6, "{standing}");
    }
}
