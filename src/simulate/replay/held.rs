//! Requests that wait in the gateway: earliest TTFT deadline first.
//!
//! They are asked about again at the moment that the dispatcher named, every ten milliseconds at least, and when a
//! replica gave a first token or finished an answer. One turn asks about a bounded number, so that an overload does
//! not make the simulation quadratic; a gateway could afford no more either.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Stamp;

use super::dispatch::RequestId;

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Held {
    by_deadline: BTreeMap<(Stamp, RequestId), Stamp>,
    next_turn: Stamp,
}

impl Held {
    /// Adds a request, or notes anew until when it waits.
    pub(super) fn hold(&mut self, deadline: Stamp, request: RequestId, now: Stamp, until: Stamp) {
        if self.by_deadline.is_empty() {
            self.next_turn = now.after(TURN);
        }
        self.by_deadline.insert((deadline, request), until);
        self.next_turn = self.next_turn.min(until.max(now.after(LEAST_WAIT)));
    }

    /// Takes a request out.
    pub(super) fn release(&mut self, deadline: Stamp, request: RequestId) {
        self.by_deadline.remove(&(deadline, request));
    }

    /// When [`Held::turn`] is due; `None` while nobody waits.
    pub(super) fn next_turn(&self) -> Option<Stamp> {
        (!self.by_deadline.is_empty()).then_some(self.next_turn)
    }

    /// Who is to be asked about at a regular turn.
    pub(super) fn turn(&mut self, now: Stamp, out: &mut Vec<(Stamp, RequestId)>) {
        self.next_turn = now.after(TURN);
        let due = self.by_deadline.iter().filter(|(_, until)| **until <= now.after(TURN));
        out.extend(due.map(|(key, _)| *key).take(MOST_A_TURN));
    }

    /// Who is to be asked about because something changed.
    pub(super) fn changed(&self, out: &mut Vec<(Stamp, RequestId)>) {
        out.extend(self.by_deadline.keys().take(MOST_A_CHANGE));
    }
}

/// Between two regular turns.
const TURN: Duration = Duration::from_millis(10);
/// A dispatcher that names a moment of the past is not asked without end.
const LEAST_WAIT: Duration = Duration::from_millis(1);
const MOST_A_TURN: usize = 16;
const MOST_A_CHANGE: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Stamp {
        Stamp::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn the_earliest_deadline_is_asked_about_first() {
        let mut held = Held::default();
        assert_eq!(held.next_turn(), None);
        held.hold(at(900), RequestId(1), at(0), at(4));
        held.hold(at(500), RequestId(2), at(0), at(8));
        held.hold(at(100), RequestId(3), at(0), at(5_000));
        assert_eq!(held.next_turn(), Some(at(4)));
        let mut asked = Vec::new();
        held.turn(at(4), &mut asked);
        assert_eq!(asked, [(at(500), RequestId(2)), (at(900), RequestId(1))]);
        asked.clear();
        held.changed(&mut asked);
        assert_eq!(asked.first(), Some(&(at(100), RequestId(3))));
        for (deadline, id) in asked {
            held.release(deadline, id);
        }
        assert_eq!(held.next_turn(), None);
    }
}
