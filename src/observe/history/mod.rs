//! The last hour in memory, by route: for the page, `tokenway top` and the verdict.
//!
//! Slots of 10 s for ten minutes and of a minute for an hour, each with percentiles, misses and stages ([`slot`]), and the
//! slowest and the failed requests of the hour ([`worst`]). Everything is counted when it happens: TTFT at the first token,
//! gaps as they are batched, the rest at the end. Routes, slots, parts of a slot and kept requests are limited, so memory
//! is bounded; nothing is written to disk.

mod histogram;
mod slot;
mod worst;

use std::collections::VecDeque;
use std::hash::RandomState;
use std::sync::Arc;

use dashmap::DashMap;
use parking_lot::Mutex;

pub use self::histogram::{LogHistogram, heat_edges};
pub use self::slot::{Dimension, Part, REASONS, Slot};
use self::worst::Worst;
pub use self::worst::{Kept, Why};
use super::judgement::Judgement;
use crate::clock::Stamp;
use crate::record::{FirstToken, Gaps, Record};

/// The hour of all routes.
#[derive(Default)]
pub struct History(DashMap<Arc<str>, Arc<RouteHistory>, RandomState>);

/// Length of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// For the last ten minutes.
    TenSeconds,
    /// For the last hour.
    Minute,
}

impl Step {
    /// The step named `10s` or `1m`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "10s" => Some(Self::TenSeconds),
            "1m" => Some(Self::Minute),
            _ => None,
        }
    }

    /// Length of a slot in seconds.
    #[must_use]
    pub fn seconds(self) -> u64 {
        match self {
            Self::TenSeconds => 10,
            Self::Minute => 60,
        }
    }

    /// Number of the slot of a stamp.
    #[must_use]
    pub fn slot(self, at: Stamp) -> u64 {
        at.as_nanos() / (self.seconds() * 1_000_000_000)
    }
}

impl History {
    /// The history of a route; past [`MAX_ROUTES`] further ones share `other`.
    pub fn route(&self, name: &Arc<str>) -> Arc<RouteHistory> {
        if let Some(route) = self.0.get(name) {
            return Arc::clone(&route);
        }
        let name = if self.0.len() < MAX_ROUTES { Arc::clone(name) } else { "other".into() };
        Arc::clone(&self.0.entry(name).or_default())
    }

    /// Every route with its history, by name.
    #[must_use]
    pub fn routes(&self) -> Vec<(Arc<str>, Arc<RouteHistory>)> {
        let mut routes: Vec<_> =
            self.0.iter().map(|e| (Arc::clone(e.key()), Arc::clone(e.value()))).collect();
        routes.sort_by(|a, b| a.0.cmp(&b.0));
        routes
    }

    /// Counts an ended request. One that ended before its route was known is of no route.
    pub fn record(&self, record: &Arc<Record>, judgement: &Judgement) {
        if &*record.route != "none" {
            self.route(&record.route).record(record, judgement);
        }
    }

    /// Requests kept for their slowness or failure, newest first.
    #[must_use]
    pub fn kept(&self, now: Stamp) -> Vec<Kept> {
        let mut kept: Vec<Kept> = self.0.iter().flat_map(|route| route.worst.lock().read(now)).collect();
        // By the root span where two ended at once, so that the order is the same each time.
        kept.sort_by_key(|kept| std::cmp::Reverse((kept.record.at.end, kept.record.trace.root)));
        kept
    }
}

/// The hour of one route.
#[derive(Default)]
pub struct RouteHistory {
    rings: Mutex<Rings>,
    worst: Mutex<Worst>,
}

impl RouteHistory {
    /// Counts a first token.
    pub fn first_token(&self, first: &FirstToken, now: Stamp) {
        self.rings.lock().each(now, |slot| slot.ttft.add(first.ttft, 1));
    }

    /// Counts gaps of a stream that `replica` serves.
    pub fn gaps(&self, replica: &Arc<str>, gaps: &Gaps<'_>, now: Stamp) {
        let itl = gaps.itl();
        if itl.clone().next().is_some() {
            self.rings.lock().each(now, |slot| slot.gaps(replica, itl.clone()));
        }
    }

    fn record(&self, record: &Arc<Record>, judgement: &Judgement) {
        self.rings.lock().each(record.at.end, |slot| slot.record(record, judgement));
        let dropped = self.worst.lock().record(record, judgement);
        // Freed outside of the lock.
        drop(dropped);
    }

    /// Slots with values of the last `n` whole steps and the current one, oldest first, with their numbers.
    #[must_use]
    pub fn slots(&self, step: Step, n: usize, now: Stamp) -> Vec<(u64, Slot)> {
        let newest = step.slot(now);
        let oldest = newest.saturating_sub(n as u64);
        let rings = self.rings.lock();
        let slots = rings.of(step).slots.iter();
        slots.filter(|(number, _)| (oldest..=newest).contains(number)).cloned().collect()
    }
}

#[derive(Default)]
struct Rings {
    short: Ring,
    long: Ring,
}

impl Rings {
    fn of(&self, step: Step) -> &Ring {
        match step {
            Step::TenSeconds => &self.short,
            Step::Minute => &self.long,
        }
    }

    fn each(&mut self, now: Stamp, mut add: impl FnMut(&mut Slot)) {
        for (step, ring) in [(Step::TenSeconds, &mut self.short), (Step::Minute, &mut self.long)] {
            if let Some(slot) = ring.at(step.slot(now)) {
                add(slot);
            }
        }
    }
}

/// Slots by number, oldest first. Only those with values are there.
#[derive(Default)]
struct Ring {
    slots: VecDeque<(u64, Slot)>,
}

impl Ring {
    /// The slot of that number. An older one than the newest, of a stamp of another thread, counts into the newest.
    fn at(&mut self, number: u64) -> Option<&mut Slot> {
        if self.slots.back().is_none_or(|(newest, _)| *newest < number) {
            self.slots.push_back((number, Slot::default()));
            while self.slots.front().is_some_and(|(oldest, _)| *oldest + SLOTS as u64 <= number) {
                self.slots.pop_front();
            }
        }
        self.slots.back_mut().map(|(_, slot)| slot)
    }
}

/// Kept slots of either step, the current one included.
pub const SLOTS: usize = 61;
/// With two rings of a route at their limits some 3 MB each; ordinary ones have some hundred kB.
const MAX_ROUTES: usize = 32;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::observe::fixture;
    use crate::record::Outcome;

    fn at(seconds: u64) -> Stamp {
        Stamp::from_nanos(seconds * 1_000_000_000)
    }

    fn ended(route: &str, seconds: u64) -> Arc<Record> {
        let mut record = fixture::stream();
        record.route = route.into();
        record.at.end = at(seconds);
        Arc::new(record)
    }

    #[test]
    fn slots_end_after_an_hour_and_after_ten_minutes() {
        let history = History::default();
        for second in [0, 3000, 3599] {
            let record = ended("chat", second);
            history.record(&record, &Judgement::of(&record));
        }
        let route = history.route(&"chat".into());
        let requests = |step, n, now| -> Vec<u32> {
            route.slots(step, n, at(now)).iter().map(|(_, slot)| slot.requests).collect()
        };
        assert_eq!(requests(Step::Minute, 60, 3599), [1, 1, 1]);
        assert_eq!(requests(Step::TenSeconds, 60, 3599), [1, 1], "ten minutes");
        assert_eq!(requests(Step::Minute, 60, 3660), [1, 1]);
        assert_eq!(requests(Step::TenSeconds, 6, 3599), [1]);
        assert_eq!(requests(Step::Minute, 60, 100_000), [0u32; 0]);
    }

    #[test]
    fn gaps_count_once_for_each_token() {
        let (history, replica) = (History::default(), Arc::<str>::from("r1"));
        let route = history.route(&"chat".into());
        let gap = crate::record::Gap { length: Duration::from_millis(40), tokens: Some(2) };
        route.gaps(&replica, &Gaps { gaps: &[gap], late_itl: &[(Duration::from_millis(30), 3)] }, at(5));
        let slots = route.slots(Step::Minute, 1, at(5));
        let itl = &slots[0].1.itl;
        assert_eq!(itl.count(), 5);
        assert!((itl.quantile(0.99).unwrap() / 0.02 - 1.0).abs() < 0.03);
    }

    #[test]
    fn routes_are_bounded_and_no_route_is_none() {
        let history = History::default();
        for i in 0..100 {
            let record = ended(&format!("r{i}"), 1);
            history.record(&record, &Judgement::of(&record));
        }
        let record = ended("none", 1);
        history.record(&record, &Judgement::of(&record));
        let routes = history.routes();
        assert_eq!(routes.len(), MAX_ROUTES + 1);
        assert!(routes.iter().all(|(name, _)| &**name != "none"));
    }

    #[test]
    fn the_failed_are_kept_with_the_slow_newest_first() {
        let history = History::default();
        let good = ended("chat", 5);
        let mut failed = fixture::stream();
        failed.outcome = Outcome::Failed;
        failed.at.end = at(6);
        let failed = Arc::new(failed);
        for record in [&good, &failed] {
            history.record(record, &Judgement::of(record));
        }
        let kept = history.kept(at(7));
        let why: Vec<_> = kept.iter().map(|kept| kept.why).collect();
        assert_eq!(why, [Why::Failed, Why::Slow]);
        assert!(history.kept(at(4000)).is_empty(), "an hour later");
    }
}
