//! The admission queue of a route: bounded, earliest deadline first (EDF), in four lanes. Pure.
//!
//! Lanes are {held, late} x {short, long}: late requests do not block held ones, and long prompts, where
//! `isolate_long` is set, neither fill nor block the lane of the others. One waiter per lane at a time is called to retry
//! routing, which keeps the order; a round ends after `max_stays` failed retries, because retrying a thousand waiters would
//! cost more than it could place. The caller keeps time and wakes tasks.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use super::Refusal;
use super::ruling::Outlook;
use crate::clock::Stamp;
use crate::config::QueueLimits;

/// Why a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// It has slack, and any placement now would break the ITL of running streams.
    Held,
    /// No replica can meet its TTFT bound.
    Late,
}

/// A request to be queued.
#[derive(Clone, Copy, Debug)]
pub struct Waiter {
    /// Selects the lane; only `Late` counts against the limits.
    pub reason: WaitReason,
    /// When its first token is due: the sort key within a lane.
    pub deadline: Stamp,
    /// Whether its prompt is of class `long`.
    pub is_long: bool,
    /// Bytes of its body, counted against `max_bytes`.
    pub bytes: usize,
    /// Prediction at the time that it is queued.
    pub outlook: Outlook,
}

/// A position in a queue; [`WaitQueue::leave`] frees it, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    lane: usize,
    key: LaneKey,
}

/// (deadline, arrival number): EDF, ties in order of arrival.
type LaneKey = (Stamp, u64);

/// Waiting requests; `T` is the handle by which the caller wakes one.
#[derive(Debug)]
pub struct WaitQueue<T> {
    limits: Option<QueueLimits>,
    lanes: [Lane<T>; LANES],
    next: u64,
}

#[derive(Debug)]
struct Lane<T> {
    waiting: BTreeMap<LaneKey, QueueEntry<T>>,
    bytes: usize,
    work: Duration,
    /// Called, no answer yet.
    called: Option<LaneKey>,
    /// The last one called in this round; the next call is for the first key above.
    passed: Option<LaneKey>,
    /// Failed retries left before the round ends.
    left: usize,
}

#[derive(Debug)]
struct QueueEntry<T> {
    bytes: usize,
    work: Duration,
    /// It has not answered its last call: passed over until it does.
    is_silent: bool,
    call: T,
}

impl<T> WaitQueue<T> {
    /// An empty queue. Without `limits` it takes held requests only.
    #[must_use]
    pub fn new(limits: Option<QueueLimits>) -> Self {
        Self { limits, lanes: std::array::from_fn(|_| Lane::default()), next: 0 }
    }

    /// Adds a request. Held ones do not count against the limits: their own deadline bounds their wait.
    ///
    /// # Errors
    /// The limit of its lane that it would exceed.
    pub fn enter(&mut self, waiter: &Waiter, call: T) -> Result<Position, Refusal> {
        let at = self.lane_of(waiter.reason, waiter.is_long);
        let (next, lane) = (self.next, &mut self.lanes[at]);
        if waiter.reason == WaitReason::Late {
            lane.admits(waiter, &self.limits.unwrap_or(NO_QUEUE))?;
        }
        let key = (waiter.deadline, next);
        let entry = QueueEntry { bytes: waiter.bytes, work: waiter.outlook.work, is_silent: false, call };
        lane.bytes += entry.bytes;
        lane.work = lane.work.saturating_add(entry.work);
        lane.waiting.insert(key, entry);
        self.next += 1;
        Ok(Position { lane: at, key })
    }

    /// Removes a request. If it was the called one, the next in its lane is called and returned.
    pub fn leave(&mut self, position: Position) -> Option<&T> {
        let lane = self.lanes.get_mut(position.lane)?;
        let gone = lane.waiting.remove(&position.key)?;
        lane.bytes -= gone.bytes;
        lane.work = lane.work.saturating_sub(gone.work);
        if lane.called == Some(position.key) { lane.call_next() } else { None }
    }

    /// A called request could not be placed: the next in its lane is called and returned, unless the round is over.
    pub fn stays(&mut self, position: Position) -> Option<&T> {
        let lane = self.lanes.get_mut(position.lane)?;
        if lane.called != Some(position.key) {
            if let Some(entry) = lane.waiting.get_mut(&position.key) {
                entry.is_silent = false;
            }
            return None;
        }
        lane.left = lane.left.saturating_sub(1);
        lane.call_next()
    }

    /// Begins a round: calls the first of each lane. A lane's round ends after `max_stays` calls of [`Self::stays`]. An
    /// entry that has not answered its last call is passed over and may still answer.
    pub fn round(&mut self, max_stays: usize, mut call: impl FnMut(&T)) {
        for lane in &mut self.lanes {
            if let Some(silent) = lane.called.take().and_then(|key| lane.waiting.get_mut(&key)) {
                silent.is_silent = true;
            }
            (lane.passed, lane.left) = (None, max_stays);
            if let Some(first) = lane.call_next() {
                call(first);
            }
        }
    }

    /// Handles of all late requests, in EDF order within each lane.
    pub fn late(&self) -> impl Iterator<Item = &T> {
        self.lanes[LATE..].iter().flat_map(|lane| lane.waiting.values().map(|entry| &entry.call))
    }

    /// Whether a late request with a deadline up to `deadline` waits in the lane of `is_long`.
    #[must_use]
    pub fn has_late_before(&self, is_long: bool, deadline: Stamp) -> bool {
        let lane = &self.lanes[self.lane_of(WaitReason::Late, is_long)];
        lane.waiting.keys().next().is_some_and(|first| first.0 <= deadline)
    }

    /// Whether no request waits, held ones included.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lanes.iter().all(|lane| lane.waiting.is_empty())
    }

    /// Number of waiting requests, held ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lanes.iter().map(|lane| lane.waiting.len()).sum()
    }

    fn lane_of(&self, reason: WaitReason, is_long: bool) -> usize {
        let is_apart = is_long && self.limits.is_some_and(|queue| queue.isolate_long);
        let first = if reason == WaitReason::Late { LATE } else { HELD };
        first + usize::from(is_apart)
    }
}

impl<T> Lane<T> {
    fn admits(&self, waiter: &Waiter, queue: &QueueLimits) -> Result<(), Refusal> {
        let outlook = waiter.outlook.behind(self.work);
        let retry_after = outlook.retry_after();
        let waiting = self.waiting.len();
        if waiting >= queue.max_requests {
            return Err(Refusal::MaxRequests { waiting, max: queue.max_requests, retry_after });
        }
        if self.bytes.saturating_add(waiter.bytes) > queue.max_bytes {
            let (waiting, own, max) = (self.bytes, waiter.bytes, queue.max_bytes);
            return Err(Refusal::MaxBytes { waiting, own, max, retry_after });
        }
        if outlook.drain > queue.max_wait {
            return Err(Refusal::TooLong { drain: outlook.drain, max: queue.max_wait, retry_after });
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
        let (key, entry) = behind.find(|(_, entry)| !entry.is_silent)?;
        (self.called, self.passed) = (Some(*key), Some(*key));
        Some(&entry.call)
    }
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), bytes: 0, work: Duration::ZERO, called: None, passed: None, left: 0 }
    }
}

const HELD: usize = 0;
const LATE: usize = 2;
const LANES: usize = 4;
/// Limits of a route without `[route.queue]`.
const NO_QUEUE: QueueLimits =
    QueueLimits { max_requests: 0, max_bytes: 0, max_wait: Duration::ZERO, isolate_long: false };

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Stamp {
        Stamp::from_nanos(ms * 1_000_000)
    }

    fn queue(max_requests: usize, max_bytes: usize) -> Option<QueueLimits> {
        let max_wait = Duration::from_secs(5);
        Some(QueueLimits { max_requests, max_bytes, max_wait, isolate_long: true })
    }

    fn waiter(reason: WaitReason, deadline: u64) -> Waiter {
        let outlook = Outlook { drain: Duration::ZERO, work: Duration::from_millis(100) };
        Waiter { reason, deadline: at(deadline), is_long: false, bytes: 10, outlook }
    }

    /// The ids called in one round in which every called request stays.
    fn round(
        waiting: &mut WaitQueue<u64>,
        positions: &BTreeMap<u64, Position>,
        max_stays: usize,
    ) -> Vec<u64> {
        let mut called = Vec::new();
        waiting.round(max_stays, |id| called.push(*id));
        let mut all = called.clone();
        while let Some(id) = called.pop() {
            if let Some(next) = waiting.stays(positions[&id]).copied() {
                called.push(next);
                all.push(next);
            }
        }
        all
    }

    #[test]
    fn the_earliest_deadlines_are_called_first_and_a_few_in_a_round() {
        let mut waiting = WaitQueue::new(None);
        let mut positions = BTreeMap::new();
        for id in [7, 3, 9, 1, 5] {
            positions.insert(id, waiting.enter(&waiter(WaitReason::Held, id), id).unwrap());
        }
        assert_eq!(round(&mut waiting, &positions, 3), [1, 3, 5]);
        assert_eq!(round(&mut waiting, &positions, 9), [1, 3, 5, 7, 9]);
        // A placed request does not use up the round: the next is called.
        let mut first = None;
        waiting.round(1, |id| first = Some(*id));
        assert_eq!(first, Some(1));
        assert_eq!(waiting.leave(positions[&1]), Some(&3));
        assert_eq!(waiting.leave(positions[&3]), Some(&5));
        assert_eq!(waiting.stays(positions[&5]), None);
        assert_eq!(waiting.leave(positions[&9]), None, "it had not been called");
        assert_eq!(waiting.leave(positions[&9]), None, "a position is given back once");
        assert_eq!(waiting.len(), 2);
    }

    #[test]
    fn a_silent_waiter_blocks_no_other() {
        let mut waiting = WaitQueue::new(None);
        let enter = |waiting: &mut WaitQueue<u64>, id| {
            (id, waiting.enter(&waiter(WaitReason::Held, id), id).unwrap())
        };
        let positions: BTreeMap<u64, Position> = [1, 2, 3].map(|id| enter(&mut waiting, id)).into();
        waiting.round(9, |id| assert_eq!(*id, 1));
        assert_eq!(round(&mut waiting, &positions, 9), [2, 3]);
        assert_eq!(waiting.stays(positions[&1]), None, "it answers at last");
        assert_eq!(round(&mut waiting, &positions, 9), [1, 2, 3]);
    }

    #[test]
    fn bounds_hold_for_the_late_alone_and_for_each_lane() {
        let mut waiting = WaitQueue::new(queue(2, 25));
        let late = waiter(WaitReason::Late, 50);
        let long = Waiter { is_long: true, ..late };
        let (first, second) = (waiting.enter(&late, 1).unwrap(), waiting.enter(&late, 2).unwrap());
        for (case, waiter, code) in [
            ("a third", late, Some("max_requests")),
            ("held ones are not counted", waiter(WaitReason::Held, 1), None),
            ("long ones have a lane", long, None),
            ("too many bytes", Waiter { bytes: 16, ..long }, Some("max_bytes")),
            ("as many bytes as may be", Waiter { bytes: 15, ..long }, None),
            ("and no third there", long, Some("max_requests")),
        ] {
            assert_eq!(waiting.enter(&waiter, 9).err().map(|refusal| refusal.code()), code, "{case}");
        }
        waiting.leave(first);
        waiting.leave(second);
        assert!(waiting.enter(&Waiter { bytes: 25, ..late }, 3).is_ok(), "all bytes were given back");
    }

    #[test]
    fn a_wait_that_would_be_too_long_is_not_begun_and_those_ahead_count() {
        let mut waiting = WaitQueue::new(queue(100, 1 << 20));
        let outlook =
            |drain, work| Outlook { drain: Duration::from_millis(drain), work: Duration::from_millis(work) };
        let late = waiter(WaitReason::Late, 50);
        let enter = |waiting: &mut WaitQueue<u64>, outlook| waiting.enter(&Waiter { outlook, ..late }, 0);
        let refused = enter(&mut waiting, outlook(5_001, 0)).unwrap_err();
        assert_eq!((refused.code(), refused.retry_after()), ("max_wait", Duration::from_millis(5_001)));
        for _ in 0..4 {
            enter(&mut waiting, outlook(1_000, 1_000)).unwrap();
        }
        let refused = enter(&mut waiting, outlook(1_001, 1_000)).unwrap_err();
        assert_eq!((refused.code(), refused.retry_after()), ("max_wait", Duration::from_millis(5_001)));
        let none = WaitQueue::<u64>::new(None).enter(&late, 0).unwrap_err();
        assert_eq!((none.code(), none.retry_after()), ("max_requests", Duration::from_secs(1)));
    }

    /// Random enter and leave against a plain list as the model: order, bounds, no leak.
    #[test]
    fn the_order_holds_and_nothing_leaks_whatever_comes_and_goes() {
        for seed in 0..50 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut waiting = WaitQueue::new(queue(6, 200));
            let mut inside: BTreeMap<u64, (Waiter, Position)> = BTreeMap::new();
            for id in 0..400 {
                if random.bool() {
                    let reason = if random.bool() { WaitReason::Held } else { WaitReason::Late };
                    let bytes = random.usize(1..60);
                    let new = Waiter { is_long: random.bool(), bytes, ..waiter(reason, random.u64(0..20)) };
                    let lane =
                        |waiter: &&Waiter| (waiter.reason, waiter.is_long) == (new.reason, new.is_long);
                    let there: Vec<_> = inside.values().map(|(waiter, _)| waiter).filter(lane).collect();
                    let fits = there.len() < 6
                        && there.iter().map(|waiter| waiter.bytes).sum::<usize>() + bytes <= 200;
                    let position = waiting.enter(&new, id);
                    assert_eq!(position.is_ok(), reason == WaitReason::Held || fits, "seed {seed}, {id}");
                    if let Ok(position) = position {
                        inside.insert(id, (new, position));
                    }
                } else if let Some(id) = random.choice(inside.keys().copied().collect::<Vec<_>>()) {
                    let (_, position) = inside.remove(&id).unwrap();
                    waiting.leave(position);
                }
                let positions = inside.iter().map(|(id, (_, position))| (*id, *position)).collect();
                let mut called = round(&mut waiting, &positions, usize::MAX);
                assert_eq!(called.len(), inside.len(), "every waiter is called once");
                let order = |id: &u64| {
                    let waiter = inside[id].0;
                    (waiter.reason == WaitReason::Late, waiter.is_long, waiter.deadline)
                };
                // Lanes take turns; within each the order is that of deadlines.
                called.sort_by_key(|id| {
                    let (is_late, is_long, _) = order(id);
                    (is_late, is_long)
                });
                assert!(called.is_sorted_by_key(order), "seed {seed}, {id}");
            }
            for (_, position) in inside.into_values() {
                waiting.leave(position);
            }
            assert!(
                waiting.is_empty() && waiting.lanes.iter().all(|lane| lane.bytes == 0 && lane.work.is_zero())
            );
        }
    }
}
