//! Requests that wait in the gateway: the live waiting room in simulated time.
//!
//! They are judged again every ten milliseconds, at the time their verdict named, and when a replica gave a first token or
//! finished an answer. Order, lanes and bounds are those of [`crate::admission`]; the ticks and the end of `max_wait` are
//! here.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use tokenway_sim::replay::RequestId;

use crate::admission::{Guest, Kind, Limits, Outlook, Place, Room};
use crate::clock::Stamp;
use crate::config::Queue;
use crate::units::Tokens;

/// A route's `[route.queue]`, and what counts as a long prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The section.
    pub queue: Queue,
    /// Longer prompts have a lane of their own where the queue isolates them.
    pub medium: Tokens,
}

/// A request that has to wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) id: RequestId,
    pub(super) prompt: Tokens,
    /// By when its first token is due.
    pub(super) deadline: Option<Stamp>,
}

/// The waiting requests.
#[derive(Debug)]
pub(super) struct Held {
    admission: Option<Admission>,
    room: Room<RequestId>,
    seats: HashMap<RequestId, (Kind, Place)>,
    /// When the `max_wait` of queued requests is over.
    ends: BTreeSet<(Stamp, RequestId)>,
    end_of: HashMap<RequestId, Stamp>,
    called: VecDeque<RequestId>,
    next_turn: Stamp,
}

impl Held {
    pub(super) fn new(admission: Option<Admission>) -> Self {
        Self {
            admission,
            room: Room::new(Limits { queue: admission.map(|admission| admission.queue) }),
            seats: HashMap::new(),
            ends: BTreeSet::new(),
            end_of: HashMap::new(),
            called: VecDeque::new(),
            next_turn: Stamp::default(),
        }
    }

    /// Holds a request that has time, until `until` at the latest. Always true.
    pub(super) fn hold(&mut self, request: &Waiter, now: Stamp, until: Stamp) -> bool {
        if let Some(end) = self.end_of.get(&request.id) {
            self.ends.remove(&(*end, request.id));
        }
        let is_in = self.seat(Kind::Paced, request, now, Outlook::default());
        self.next_turn = self.next_turn.min(until.max(now.after(MIN_WAIT)));
        is_in
    }

    /// Whether a request that is late may wait.
    pub(super) fn queue(&mut self, request: &Waiter, now: Stamp, outlook: Outlook) -> bool {
        let max = self.admission.map_or(Duration::ZERO, |admission| admission.queue.max_wait);
        let end = *self.end_of.entry(request.id).or_insert_with(|| now.after(max));
        let is_in = end > now && self.seat(Kind::Queued, request, now, outlook);
        if is_in {
            self.ends.insert((end, request.id));
        }
        is_in
    }

    /// Takes a request out.
    pub(super) fn release(&mut self, request: RequestId) {
        if let Some((_, place)) = self.seats.remove(&request) {
            self.called.extend(self.room.leave(place));
        }
        if let Some(end) = self.end_of.remove(&request) {
            self.ends.remove(&(end, request));
        }
    }

    /// Whether others that are late come before it.
    pub(super) fn is_behind_others(&self, request: &Waiter) -> bool {
        let is_queued = matches!(self.seats.get(&request.id), Some((Kind::Queued, _)));
        !is_queued && self.room.has_queued_before(self.is_long(request), deadline(request))
    }

    /// When [`Held::turn`] is due; `None` while nobody waits.
    pub(super) fn next_turn(&self) -> Option<Stamp> {
        (!self.room.is_empty()).then_some(self.next_turn)
    }

    /// Begins a round; requests whose `max_wait` is over are taken out and returned.
    pub(super) fn turn(&mut self, now: Stamp) -> Vec<RequestId> {
        self.next_turn = now.after(TURN);
        let over: Vec<RequestId> =
            self.ends.iter().take_while(|(end, _)| *end <= now).map(|(_, request)| *request).collect();
        over.iter().for_each(|request| self.release(*request));
        self.round(MAX_STAYS_A_TURN);
        over
    }

    /// Begins a short round: something changed at a replica.
    pub(super) fn changed(&mut self) {
        self.round(MAX_STAYS_A_CHANGE);
    }

    /// The next request to judge again in this round.
    pub(super) fn next_called(&mut self) -> Option<RequestId> {
        self.called.pop_front()
    }

    fn round(&mut self, max: usize) {
        self.called.clear();
        self.room.round(max, |request| self.called.push_back(*request));
    }

    fn seat(&mut self, kind: Kind, request: &Waiter, now: Stamp, outlook: Outlook) -> bool {
        match self.seats.get(&request.id) {
            Some((seated, place)) if *seated == kind => {
                self.called.extend(self.room.stays(*place));
                return true;
            }
            Some((_, place)) => self.called.extend(self.room.leave(*place)),
            None => {}
        }
        if self.room.is_empty() {
            self.next_turn = now.after(TURN);
        }
        let guest = Guest {
            kind,
            deadline: deadline(request),
            is_long: self.is_long(request),
            bytes: usize::try_from(request.prompt.0 * BYTES_PER_TOKEN).unwrap_or(usize::MAX),
            outlook,
        };
        let place = self.room.enter(&guest, request.id);
        self.seats.remove(&request.id);
        place.map(|place| self.seats.insert(request.id, (kind, place))).is_ok()
    }

    fn is_long(&self, request: &Waiter) -> bool {
        self.admission.is_some_and(|admission| request.prompt > admission.medium)
    }
}

fn deadline(request: &Waiter) -> Stamp {
    request.deadline.unwrap_or(FAR)
}

/// Between two regular rounds.
const TURN: Duration = Duration::from_millis(10);
/// Where a verdict names a time in the past.
const MIN_WAIT: Duration = Duration::from_millis(1);
const MAX_STAYS_A_TURN: usize = 16;
const MAX_STAYS_A_CHANGE: usize = 4;
const BYTES_PER_TOKEN: u64 = 4;
/// Later than any run.
const FAR: Stamp = Stamp::from_nanos(u64::MAX / 2);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Stamp {
        Stamp::from_nanos(ms * 1_000_000)
    }

    fn ask(held: &mut Held) -> Vec<u32> {
        std::iter::from_fn(|| held.next_called()).map(|request| request.0).collect()
    }

    #[test]
    fn turns_come_every_ten_milliseconds_or_when_named_and_waits_end() {
        let queue = Queue {
            max_requests: 1,
            max_bytes: 1 << 20,
            max_wait: Duration::from_millis(50),
            isolate_long: true,
        };
        let mut held = Held::new(Some(Admission { queue, medium: Tokens(100) }));
        let request =
            |id, arrived: u64| Waiter { id: RequestId(id), prompt: Tokens(10), deadline: Some(at(arrived + 900)) };
        assert_eq!(held.next_turn(), None);
        assert!(held.hold(&request(1, 7), at(7), at(11)));
        assert!(held.hold(&request(2, 0), at(7), at(5_000)));
        assert_eq!(held.next_turn(), Some(at(11)));
        assert!(held.turn(at(11)).is_empty());
        assert_eq!(held.next_turn(), Some(at(21)));
        assert_eq!(held.next_called(), Some(RequestId(2)), "its deadline is earlier");
        held.release(RequestId(2));
        assert_eq!(ask(&mut held), [1], "who goes calls the next");

        assert!(held.queue(&request(3, 20), at(20), Outlook::default()));
        assert!(!held.queue(&request(4, 20), at(20), Outlook::default()), "one may wait");
        assert!(held.is_behind_others(&request(5, 21)) && !held.is_behind_others(&request(3, 20)));
        assert!(held.turn(at(69)).is_empty());
        assert_eq!(held.turn(at(70)), [RequestId(3)], "its wait is over");
        held.release(RequestId(1));
        assert_eq!(held.next_turn(), None);
    }
}
