//! The waiting room of a route: who waits, in which order they are asked about, and how many may. Pure.
//!
//! Earliest deadline first, in lanes: those that have time and wait for a gentler moment (paced) are not kept by those
//! that are late (queued), and long prompts, where they are isolated, neither fill nor hold up the lane of the others.
//! One at a time is called to ask routing again, so that the order holds; a round ends after a few that must stay,
//! because a thousand waiters that all ask would cost more than they could win. Time and waking are the caller's.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use super::Refusal;
use super::ruling::Outlook;
use crate::clock::Stamp;
use crate::config::Queue;

/// What a route's room admits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Of the late; `None` lets nobody wait for being late.
    pub queue: Option<Queue>,
}

/// Why somebody waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It has time, and any placement now would break streams.
    Paced,
    /// No replica can answer it in time.
    Queued,
}

/// Somebody who wants to wait.
#[derive(Clone, Copy, Debug)]
pub struct Guest {
    /// Why.
    pub kind: Kind,
    /// Until when its first token should be there: the order.
    pub deadline: Stamp,
    /// Whether its prompt is of class `long`.
    pub is_long: bool,
    /// Of its body.
    pub bytes: usize,
    /// What is predicted for it.
    pub outlook: Outlook,
}

/// A place in a room: given back once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    lane: usize,
    key: Key,
}

/// Earliest deadline first; who came first among equals.
type Key = (Stamp, u64);

/// Who waits; `T` is how each is called.
#[derive(Debug)]
pub struct Room<T> {
    limits: Limits,
    lanes: [Lane<T>; LANES],
    next: u64,
}

#[derive(Debug)]
struct Lane<T> {
    waiting: BTreeMap<Key, Waiter<T>>,
    bytes: usize,
    work: Duration,
    /// Who was called and has not answered yet.
    called: Option<Key>,
    /// The last one that was called in this round.
    passed: Option<Key>,
    /// How many more may say that they must stay, until the round is over.
    left: usize,
}

#[derive(Debug)]
struct Waiter<T> {
    bytes: usize,
    work: Duration,
    /// It was called and did not answer: whoever drives it is slow, and the others go on without it.
    is_silent: bool,
    call: T,
}

impl<T> Room<T> {
    /// An empty room.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, lanes: std::array::from_fn(|_| Lane::default()), next: 0 }
    }

    /// Takes somebody in. The paced are not counted: their own time bounds their wait.
    ///
    /// # Errors
    /// The limit that speaks against it.
    pub fn enter(&mut self, guest: &Guest, call: T) -> Result<Place, Refusal> {
        let at = self.lane_of(guest.kind, guest.is_long);
        let queue = self.limits.queue;
        let (next, lane) = (self.next, &mut self.lanes[at]);
        if guest.kind == Kind::Queued {
            lane.admits(guest, &queue.unwrap_or(NOBODY))?;
        }
        let key = (guest.deadline, next);
        let waiter = Waiter { bytes: guest.bytes, work: guest.outlook.work, is_silent: false, call };
        lane.bytes += waiter.bytes;
        lane.work = lane.work.saturating_add(waiter.work);
        lane.waiting.insert(key, waiter);
        self.next += 1;
        Ok(Place { lane: at, key })
    }

    /// Gives a place back; if its owner had been called, the next in line is: the returned one.
    pub fn leave(&mut self, place: Place) -> Option<&T> {
        let lane = self.lanes.get_mut(place.lane)?;
        let gone = lane.waiting.remove(&place.key)?;
        lane.bytes -= gone.bytes;
        lane.work = lane.work.saturating_sub(gone.work);
        if lane.called == Some(place.key) { lane.call_next() } else { None }
    }

    /// Whoever was called must stay; the next in line is called in its place, unless the round is over.
    pub fn stays(&mut self, place: Place) -> Option<&T> {
        let lane = self.lanes.get_mut(place.lane)?;
        if lane.called != Some(place.key) {
            if let Some(waiter) = lane.waiting.get_mut(&place.key) {
                waiter.is_silent = false;
            }
            return None;
        }
        lane.left = lane.left.saturating_sub(1);
        lane.call_next()
    }

    /// Begins a round in each lane: the first of each is called. The round of a lane ends when so many had to stay. One
    /// who never answered the last round is passed over and may still answer.
    pub fn round(&mut self, most: usize, mut call: impl FnMut(&T)) {
        for lane in &mut self.lanes {
            if let Some(silent) = lane.called.take().and_then(|key| lane.waiting.get_mut(&key)) {
                silent.is_silent = true;
            }
            (lane.passed, lane.left) = (None, most);
            if let Some(first) = lane.call_next() {
                call(first);
            }
        }
    }

    /// Everybody who is late.
    pub fn queued(&self) -> impl Iterator<Item = &T> {
        self.lanes[QUEUED..].iter().flat_map(|lane| lane.waiting.values().map(|waiter| &waiter.call))
    }

    /// Whether somebody waits, in its lane, who is late and comes before such a request.
    #[must_use]
    pub fn has_queued_before(&self, is_long: bool, deadline: Stamp) -> bool {
        let lane = &self.lanes[self.lane_of(Kind::Queued, is_long)];
        lane.waiting.keys().next().is_some_and(|first| first.0 <= deadline)
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lanes.iter().all(|lane| lane.waiting.is_empty())
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lanes.iter().map(|lane| lane.waiting.len()).sum()
    }

    fn lane_of(&self, kind: Kind, is_long: bool) -> usize {
        let is_apart = is_long && self.limits.queue.is_some_and(|queue| queue.isolate_long);
        let kind = if kind == Kind::Queued { QUEUED } else { PACED };
        kind + usize::from(is_apart)
    }
}

impl<T> Lane<T> {
    fn admits(&self, guest: &Guest, queue: &Queue) -> Result<(), Refusal> {
        let outlook = guest.outlook.behind(self.work);
        let retry_after = outlook.retry_after();
        let waiting = self.waiting.len();
        if waiting >= queue.max_requests {
            return Err(Refusal::MaxRequests { waiting, most: queue.max_requests, retry_after });
        }
        if self.bytes.saturating_add(guest.bytes) > queue.max_bytes {
            let (waiting, own, most) = (self.bytes, guest.bytes, queue.max_bytes);
            return Err(Refusal::MaxBytes { waiting, own, most, retry_after });
        }
        if outlook.drain > queue.max_wait {
            return Err(Refusal::TooLong { drain: outlook.drain, most: queue.max_wait, retry_after });
        }
        Ok(())
    }

    fn call_next(&mut self) -> Option<&T> {
        self.called = None;
        if self.left == 0 {
            return None;
        }
        let after = self.passed.map_or(Bound::Unbounded, Bound::Excluded);
        let mut behind = self.waiting.range((after, Bound::Unbounded));
        let (key, waiter) = behind.find(|(_, waiter)| !waiter.is_silent)?;
        (self.called, self.passed) = (Some(*key), Some(*key));
        Some(&waiter.call)
    }
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), bytes: 0, work: Duration::ZERO, called: None, passed: None, left: 0 }
    }
}

const PACED: usize = 0;
const QUEUED: usize = 2;
const LANES: usize = 4;
/// Of a route without a queue.
const NOBODY: Queue = Queue { max_requests: 0, max_bytes: 0, max_wait: Duration::ZERO, isolate_long: false };

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Stamp {
        Stamp::from_nanos(ms * 1_000_000)
    }

    fn queue(max_requests: usize, max_bytes: usize) -> Limits {
        let max_wait = Duration::from_secs(5);
        Limits { queue: Some(Queue { max_requests, max_bytes, max_wait, isolate_long: true }) }
    }

    fn guest(kind: Kind, deadline: u64) -> Guest {
        let outlook = Outlook { drain: Duration::ZERO, work: Duration::from_millis(100) };
        Guest { kind, deadline: at(deadline), is_long: false, bytes: 10, outlook }
    }

    /// Who is called in one round in which everybody must stay.
    fn round(room: &mut Room<u64>, places: &BTreeMap<u64, Place>, most: usize) -> Vec<u64> {
        let mut called = Vec::new();
        room.round(most, |id| called.push(*id));
        let mut all = called.clone();
        while let Some(id) = called.pop() {
            if let Some(next) = room.stays(places[&id]).copied() {
                called.push(next);
                all.push(next);
            }
        }
        all
    }

    #[test]
    fn the_earliest_deadlines_are_called_first_and_a_few_in_a_round() {
        let mut room = Room::new(Limits::default());
        let mut places = BTreeMap::new();
        for id in [7, 3, 9, 1, 5] {
            places.insert(id, room.enter(&guest(Kind::Paced, id), id).unwrap());
        }
        assert_eq!(round(&mut room, &places, 3), [1, 3, 5]);
        assert_eq!(round(&mut room, &places, 9), [1, 3, 5, 7, 9]);
        // One that goes makes room in its round: the next is called, and nothing of the round is used up.
        let mut first = None;
        room.round(1, |id| first = Some(*id));
        assert_eq!(first, Some(1));
        assert_eq!(room.leave(places[&1]), Some(&3));
        assert_eq!(room.leave(places[&3]), Some(&5));
        assert_eq!(room.stays(places[&5]), None);
        assert_eq!(room.leave(places[&9]), None, "it had not been called");
        assert_eq!(room.leave(places[&9]), None, "a place is given back once");
        assert_eq!(room.len(), 2);
    }

    #[test]
    fn one_who_does_not_answer_holds_nobody_up() {
        let mut room = Room::new(Limits::default());
        let enter = |room: &mut Room<u64>, id| (id, room.enter(&guest(Kind::Paced, id), id).unwrap());
        let places: BTreeMap<u64, Place> = [1, 2, 3].map(|id| enter(&mut room, id)).into();
        room.round(9, |id| assert_eq!(*id, 1));
        assert_eq!(round(&mut room, &places, 9), [2, 3]);
        assert_eq!(room.stays(places[&1]), None, "it answers at last");
        assert_eq!(round(&mut room, &places, 9), [1, 2, 3]);
    }

    #[test]
    fn bounds_hold_for_the_late_alone_and_for_each_lane() {
        let mut room = Room::new(queue(2, 25));
        let late = guest(Kind::Queued, 50);
        let long = Guest { is_long: true, ..late };
        let (first, second) = (room.enter(&late, 1).unwrap(), room.enter(&late, 2).unwrap());
        for (case, guest, code) in [
            ("a third", late, Some("max_requests")),
            ("paced ones are not counted", guest(Kind::Paced, 1), None),
            ("long ones have a lane", long, None),
            ("too many bytes", Guest { bytes: 16, ..long }, Some("max_bytes")),
            ("as many bytes as may be", Guest { bytes: 15, ..long }, None),
            ("and no third there", long, Some("max_requests")),
        ] {
            assert_eq!(room.enter(&guest, 9).err().map(|refusal| refusal.code()), code, "{case}");
        }
        room.leave(first);
        room.leave(second);
        assert!(room.enter(&Guest { bytes: 25, ..late }, 3).is_ok(), "all bytes were given back");
    }

    #[test]
    fn a_wait_that_would_be_too_long_is_not_begun_and_those_ahead_count() {
        let mut room = Room::new(queue(100, 1 << 20));
        let outlook =
            |drain, work| Outlook { drain: Duration::from_millis(drain), work: Duration::from_millis(work) };
        let late = guest(Kind::Queued, 50);
        let enter = |room: &mut Room<u64>, outlook| room.enter(&Guest { outlook, ..late }, 0);
        let refused = enter(&mut room, outlook(5_001, 0)).unwrap_err();
        assert_eq!((refused.code(), refused.retry_after()), ("max_wait", Duration::from_millis(5_001)));
        for _ in 0..4 {
            enter(&mut room, outlook(1_000, 1_000)).unwrap();
        }
        let refused = enter(&mut room, outlook(1_001, 1_000)).unwrap_err();
        assert_eq!((refused.code(), refused.retry_after()), ("max_wait", Duration::from_millis(5_001)));
        let none = Room::<u64>::new(Limits::default()).enter(&late, 0).unwrap_err();
        assert_eq!((none.code(), none.retry_after()), ("max_requests", Duration::from_secs(1)));
    }

    /// Random comings and goings against a plain list: the order, the bounds, and nothing left behind.
    #[test]
    fn whatever_comes_and_goes_the_order_holds_and_nothing_leaks() {
        for seed in 0..50 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut room = Room::new(queue(6, 200));
            let mut inside: BTreeMap<u64, (Guest, Place)> = BTreeMap::new();
            for id in 0..400 {
                if random.bool() {
                    let kind = if random.bool() { Kind::Paced } else { Kind::Queued };
                    let bytes = random.usize(1..60);
                    let new = Guest { is_long: random.bool(), bytes, ..guest(kind, random.u64(0..20)) };
                    let lane = |guest: &&Guest| (guest.kind, guest.is_long) == (new.kind, new.is_long);
                    let there: Vec<_> = inside.values().map(|(guest, _)| guest).filter(lane).collect();
                    let fits = there.len() < 6
                        && there.iter().map(|guest| guest.bytes).sum::<usize>() + bytes <= 200;
                    let place = room.enter(&new, id);
                    assert_eq!(place.is_ok(), kind == Kind::Paced || fits, "seed {seed}, {id}");
                    if let Ok(place) = place {
                        inside.insert(id, (new, place));
                    }
                } else if let Some(id) = random.choice(inside.keys().copied().collect::<Vec<_>>()) {
                    let (_, place) = inside.remove(&id).unwrap();
                    room.leave(place);
                }
                let places = inside.iter().map(|(id, (_, place))| (*id, *place)).collect();
                let mut called = round(&mut room, &places, usize::MAX);
                assert_eq!(called.len(), inside.len(), "everybody is called once");
                let order = |id: &u64| {
                    let guest = inside[id].0;
                    (guest.kind == Kind::Queued, guest.is_long, guest.deadline)
                };
                // Lanes take turns; within each the order is that of deadlines.
                called.sort_by_key(|id| {
                    let (kind, long, _) = order(id);
                    (kind, long)
                });
                assert!(called.is_sorted_by_key(order), "seed {seed}, {id}");
            }
            for (_, place) in inside.into_values() {
                room.leave(place);
            }
            assert!(room.is_empty() && room.lanes.iter().all(|lane| lane.bytes == 0 && lane.work.is_zero()));
        }
    }
}
