//! Requests that wait in the gateway: the live waiting room in simulated time.
//!
//! Who waits is asked about every ten milliseconds at least, at the moment that the dispatcher named, and when a
//! replica gave a first token or finished an answer. The order, the lanes, the bounds and how many are asked in a round are
//! those of `crate::admission`; here are the clock and the end of `max_wait`.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use crate::admission::{MAX_STAYS, Outlook, Position, ROUND_EVERY, WaitQueue, WaitReason, Waiter};
use crate::clock::Stamp;

use super::dispatch::{Admission, Incoming, RequestId};

/// Everybody who waits.
#[derive(Debug)]
pub(super) struct Held {
    admission: Option<Admission>,
    room: WaitQueue<RequestId>,
    seats: HashMap<RequestId, (WaitReason, Position)>,
    /// Ends of waits among the late.
    ends: BTreeSet<(Stamp, RequestId)>,
    end_of: HashMap<RequestId, Stamp>,
    called: VecDeque<RequestId>,
    next_turn: Stamp,
}

impl Held {
    pub(super) fn new(admission: Option<Admission>) -> Self {
        Self {
            admission,
            room: WaitQueue::new(admission.map(|admission| admission.queue)),
            seats: HashMap::new(),
            ends: BTreeSet::new(),
            end_of: HashMap::new(),
            called: VecDeque::new(),
            next_turn: Stamp::default(),
        }
    }

    /// Holds a request that has time, until then at the latest. Always true.
    pub(super) fn hold(&mut self, request: &Incoming<'_>, now: Stamp, until: Stamp) -> bool {
        if let Some(end) = self.end_of.get(&request.id) {
            self.ends.remove(&(*end, request.id));
        }
        let is_in = self.seat(WaitReason::Held, request, now, Outlook::default());
        self.next_turn = self.next_turn.min(until.max(now.after(LEAST_WAIT)));
        is_in
    }

    /// Whether a request that is late may wait.
    pub(super) fn queue(&mut self, request: &Incoming<'_>, now: Stamp, outlook: Outlook) -> bool {
        let most = self.admission.map_or(Duration::ZERO, |admission| admission.queue.max_wait);
        let end = *self.end_of.entry(request.id).or_insert_with(|| now.after(most));
        let is_in = end > now && self.seat(WaitReason::Late, request, now, outlook);
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
    pub(super) fn is_behind_others(&self, request: &Incoming<'_>) -> bool {
        let is_queued = matches!(self.seats.get(&request.id), Some((WaitReason::Late, _)));
        !is_queued && self.room.has_late_before(self.is_long(request), deadline(request))
    }

    /// When [`Held::turn`] is due; `None` while nobody waits.
    pub(super) fn next_turn(&self) -> Option<Stamp> {
        (!self.room.is_empty()).then_some(self.next_turn)
    }

    /// Calls whose turn it is; those whose wait is over are taken out and returned.
    pub(super) fn turn(&mut self, now: Stamp) -> Vec<RequestId> {
        self.next_turn = now.after(ROUND_EVERY);
        let over: Vec<RequestId> =
            self.ends.iter().take_while(|(end, _)| *end <= now).map(|(_, request)| *request).collect();
        over.iter().for_each(|request| self.release(*request));
        self.round(MAX_STAYS);
        over
    }

    /// Calls a few because something changed.
    pub(super) fn changed(&mut self) {
        self.round(MOST_A_CHANGE);
    }

    /// Who is to be asked about next, until everybody called has been.
    pub(super) fn next_called(&mut self) -> Option<RequestId> {
        self.called.pop_front()
    }

    fn round(&mut self, most: usize) {
        self.called.clear();
        self.room.round(most, |request| self.called.push_back(*request));
    }

    fn seat(&mut self, kind: WaitReason, request: &Incoming<'_>, now: Stamp, outlook: Outlook) -> bool {
        match self.seats.get(&request.id) {
            Some((seated, place)) if *seated == kind => {
                self.called.extend(self.room.stays(*place));
                return true;
            }
            Some((_, place)) => self.called.extend(self.room.leave(*place)),
            None => {}
        }
        if self.room.is_empty() {
            self.next_turn = now.after(ROUND_EVERY);
        }
        let guest = Waiter {
            reason: kind,
            deadline: deadline(request),
            is_long: self.is_long(request),
            bytes: usize::try_from(request.prompt.0 * BYTES_PER_TOKEN).unwrap_or(usize::MAX),
            outlook,
        };
        let place = self.room.enter(&guest, request.id);
        self.seats.remove(&request.id);
        place.map(|place| self.seats.insert(request.id, (kind, place))).is_ok()
    }

    fn is_long(&self, request: &Incoming<'_>) -> bool {
        self.admission.is_some_and(|admission| request.prompt > admission.medium)
    }
}

fn deadline(request: &Incoming<'_>) -> Stamp {
    request.ttft_bound().map_or(FAR, |bound| request.arrived.after(bound))
}

/// A dispatcher that names a moment of the past is not asked without end.
const LEAST_WAIT: Duration = Duration::from_millis(1);
const MOST_A_CHANGE: usize = 4;
const BYTES_PER_TOKEN: u64 = 4;
/// Later than any run.
const FAR: Stamp = Stamp::from_nanos(u64::MAX / 2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Queue, Slo, TtftBound};
    use crate::units::Tokens;

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
        let ttft = TtftBound { base: Duration::from_millis(900), per_prompt_token: Duration::ZERO };
        let slo = Slo { ttft: Some(ttft), ..Slo::default() };
        let request = |id, arrived| Incoming {
            id: RequestId(id),
            arrived: at(arrived),
            prompt: Tokens(10),
            chain: &[],
            ends: &[],
            slo: &slo,
            engine_chain: &[],
            output: 1,
            is_behind_others: false,
        };
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
