//! The last hour in memory, by route: for the page, `tokenway top` and the verdict.
//!
//! Slots of 10 s for ten minutes and of a minute for an hour, each with misses and who took part ([`slot`]), the times in each
//! stage, and the slowest and the failed requests of the hour ([`worst`]). TTFT and ITL are those of the windows. Routes, slots,
//! parts of a slot and kept requests are limited, so memory is bounded; nothing is written to disk.

mod heat;
mod slot;
mod worst;

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

pub use self::heat::{heat, heat_edges};
pub use self::slot::{Dimension, Part, Slot};
use self::worst::Worst;
pub use self::worst::{Kept, Why};
use super::judgement::Judgement;
use super::latency::{IN_MINUTE, LatencySlots, Newest, SLOTS, SeriesMap, Step};
use crate::clock::Stamp;
use crate::record::{Gaps, Record};
use crate::stage::{ByStage, Stage};
use crate::stats::{Counts, Mean, Ring};

/// The hour of all routes.
#[derive(Default)]
pub struct History(SeriesMap<Arc<str>, RouteHistory>);

impl History {
    /// The history of a route to count in; past [`MAX_ROUTES`] further ones share one that is no route's.
    pub fn route(&self, name: &Arc<str>) -> Arc<RouteHistory> {
        self.0.series(name, MAX_ROUTES, || "".into())
    }

    /// What is known of a route alone; empty where it has no history of its own.
    pub fn of(&self, name: &Arc<str>) -> Arc<RouteHistory> {
        self.0.get(name).unwrap_or_default()
    }

    /// Every route with its history, by name.
    pub fn routes(&self) -> Vec<(Arc<str>, Arc<RouteHistory>)> {
        let mut routes = self.0.collect(|name| !name.is_empty());
        routes.sort_by(|a, b| a.0.cmp(&b.0));
        routes
    }

    /// Counts an ended request but for the times in its stages. One that ended before its route was known is of no route.
    pub fn record(&self, record: &Arc<Record>, judgement: &Judgement) {
        if !record.has_no_route() {
            self.route(&record.route).record(record, judgement);
        }
    }

    /// Corrects a counted request's times in its stages as its engine measured them where they were estimated `before`, and adds those
    /// of one that no replica served: the others are in the windows.
    pub(super) fn settled(&self, record: &Arc<Record>, judgement: &Judgement, before: Option<&Judgement>) {
        let is_unserved = record.served().is_none();
        if record.has_no_route() || (before.is_none() && !is_unserved) {
            return;
        }
        let route = self.route(&record.route);
        if is_unserved {
            route.stages(record, judgement);
        }
        if let Some(before) = before {
            route.rings.lock().correct(record, before, judgement);
            route.worst.lock().correct(record);
        }
    }

    /// Requests kept for their slowness or failure, newest first.
    pub fn kept(&self, now: Stamp) -> Vec<Kept> {
        let mut kept: Vec<Kept> =
            self.0.collect(|_| true).iter().flat_map(|(_, route)| route.worst.lock().read(now)).collect();
        // By the root span where two ended at once, so that the order is the same each time.
        kept.sort_by_key(|kept| std::cmp::Reverse((kept.record.at.end, kept.record.trace.root)));
        kept
    }
}

/// The hour of one route.
#[derive(Default)]
pub struct RouteHistory {
    rings: Mutex<Rings>,
    /// Of requests that no replica served.
    stages: ByStage<Mutex<LatencySlots>>,
    worst: Mutex<Worst>,
}

impl Newest for RouteHistory {
    fn newest(&self) -> i64 {
        self.rings.lock().short.newest().unwrap_or(0)
    }
}

impl RouteHistory {
    /// Counts gaps of a stream that `replica` serves.
    pub fn gaps(&self, replica: &Arc<str>, gaps: &Gaps<'_>, now: Stamp) {
        let mut sum = Mean::default();
        gaps.itl().for_each(|(itl, tokens)| sum.add_times(itl.as_secs_f64(), f64::from(tokens)));
        if sum.count > 0.0 {
            self.rings.lock().at(now).part(Dimension::Replica, replica).itl += sum;
        }
    }

    fn record(&self, record: &Arc<Record>, judgement: &Judgement) {
        self.rings.lock().at(record.at.end).record(record, judgement);
        let dropped = self.worst.lock().record(record, judgement);
        // Freed outside of the lock.
        drop(dropped);
    }

    fn stages(&self, record: &Record, judgement: &Judgement) {
        for time in &judgement.stages {
            self.stages[time.stage].lock().add([(time.duration, 1)].into_iter(), record.at.end);
        }
    }

    /// Slots with values of the last `n` whole steps and the current one, oldest first, with their numbers.
    pub fn slots(&self, step: Step, n: i64, now: Stamp) -> Vec<(i64, Slot)> {
        let newest = step.slot(now);
        let rings = self.rings.lock();
        let kept = rings.of(step).range(newest - n, newest).map(|(number, slot)| (number, slot.clone()));
        let minute = if step == Step::Minute { rings.minute() } else { None };
        let in_progress = minute.filter(|(number, _)| (newest - n..=newest).contains(number));
        kept.chain(in_progress).collect()
    }

    /// What was usual: the last ten minutes in which no more of the SLO was missed than ever, however long ago, and how many seconds they
    /// are. What lasts is compared with what was before it, not with itself.
    pub fn calm(&self) -> (Slot, f64) {
        let rings = self.rings.lock();
        let mut sum = Slot::default();
        for (_, slot) in &rings.calm {
            sum.merge(slot);
        }
        (sum, rings.calm.len() as f64 * Step::TenSeconds.seconds() as f64)
    }

    /// Times in a stage of requests that no replica served, in the slots from `oldest` to `newest`, both included.
    pub fn stage(&self, stage: Stage, step: Step, oldest: i64, newest: i64) -> Counts {
        self.stages[stage].lock().counts(step, oldest, newest)
    }
}

#[derive(Default)]
struct Rings {
    short: Ring<Slot>,
    /// Those that are over.
    minutes: Ring<Slot>,
    /// Of ten seconds each, with their numbers, oldest first.
    calm: VecDeque<(i64, Slot)>,
}

impl Rings {
    fn of(&self, step: Step) -> &Ring<Slot> {
        match step {
            Step::TenSeconds => &self.short,
            Step::Minute => &self.minutes,
        }
    }

    /// Keeps a slot once those that follow it are calm as well: what is to be late waits for a while.
    fn note_calm(&mut self) {
        let last = self.short.iter().rev().take(CALM_IN_A_ROW);
        let is_known = self.calm.len() >= CALM_KNOWN;
        let usual = is_known.then(|| sums(self.calm.iter().map(|(_, slot)| slot)));
        let together = sums(last.clone().map(|(_, slot)| slot));
        let are_calm = last.clone().count() == CALM_IN_A_ROW && together.is_calm(usual.as_ref());
        let oldest =
            last.last().filter(|(number, _)| self.calm.back().is_none_or(|(known, _)| known < number));
        if let Some((number, slot)) = oldest.filter(|_| are_calm) {
            if self.calm.len() >= CALM_KEPT {
                self.calm.pop_front();
            }
            self.calm.push_back((number, slot.clone()));
        }
    }

    /// Corrects the slot that a record is counted in, and its minute if that is over.
    fn correct(&mut self, record: &Record, before: &Judgement, measured: &Judgement) {
        let number = Step::TenSeconds.slot(record.at.end);
        let slots = [self.short.get_mut(number), self.minutes.get_mut(number / IN_MINUTE)];
        slots.into_iter().flatten().for_each(|slot| slot.correct(record, before, measured));
    }

    /// The newest minute so far, with its number.
    fn minute(&self) -> Option<(i64, Slot)> {
        let minute = self.short.newest()? / IN_MINUTE;
        let first = minute * IN_MINUTE;
        let mut sum = Slot::default();
        for (_, slot) in self.short.range(first, first + IN_MINUTE - 1) {
            sum.absorb(slot);
        }
        Some((minute, sum))
    }

    fn at(&mut self, now: Stamp) -> &mut Slot {
        let next = Step::TenSeconds.slot(now);
        if self.short.newest().is_some_and(|newest| newest < next) {
            self.note_calm();
            if self.short.newest().is_some_and(|newest| newest / IN_MINUTE < next / IN_MINUTE)
                && let Some((minute, slot)) = self.minute()
            {
                self.minutes.push(minute, slot, SLOTS);
            }
        }
        self.short.at(next, SLOTS)
    }
}

fn sums<'a>(slots: impl Iterator<Item = &'a Slot>) -> Slot {
    let mut sum = Slot::default();
    slots.for_each(|slot| sum.merge_sums(slot));
    sum
}

/// Slots in a row that are calm together, of which the first is kept.
const CALM_IN_A_ROW: usize = 4;
/// A minute shows what is usual: a single slot may have no miss by chance.
const CALM_KNOWN: usize = 6;
/// Ten minutes.
const CALM_KEPT: usize = 60;
/// Routes that are idle for an hour make room. With two rings of parts at their limits some 3 MB each; ordinary ones have some
/// hundred kB.
const MAX_ROUTES: usize = 256;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::seconds as at;
    use crate::observe::fixture;
    use crate::record::Outcome;

    /// Counts a good request.
    fn end(history: &History, route: &str, seconds: u64) {
        let mut record = Record { route: route.into(), ..fixture::stream() };
        record.at.end = at(seconds);
        count(history, record);
    }

    fn count(history: &History, record: Record) {
        let judgement = Judgement::of(&record);
        history.record(&Arc::new(record), &judgement);
    }

    #[test]
    fn slots_end_after_an_hour_and_after_ten_minutes() {
        let history = History::default();
        [0, 3000, 3599].into_iter().for_each(|second| end(&history, "chat", second));
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
    fn a_minute_is_the_sum_of_its_slots_while_it_lasts_and_afterwards() {
        let history = History::default();
        let route = history.route(&"chat".into());
        let requests = |now| -> Vec<(i64, u32)> {
            let minutes = route.slots(Step::Minute, 60, at(now));
            minutes.iter().map(|(number, slot)| (*number, slot.requests)).collect()
        };
        for (second, expected) in [
            (0, vec![(0, 1)]),
            (15, vec![(0, 2)]),
            (59, vec![(0, 3)]),
            (60, vec![(0, 3), (1, 1)]),
            (200, vec![(0, 3), (1, 1), (3, 1)]),
        ] {
            end(&history, "chat", second);
            assert_eq!(requests(second), expected, "{second}");
        }
        let replica = Arc::clone(&fixture::stream().attempts[0].served.replica);
        let slots = route.slots(Step::Minute, 60, at(200));
        let first = &slots[0].1.parts[&(Dimension::Replica, replica)];
        assert_eq!((first.requests, first.answers), (3, 3));
    }

    #[test]
    fn what_was_usual_is_remembered_for_as_long_as_the_misses_last() {
        let history = History::default();
        let route = history.route(&"chat".into());
        let record = |seconds, tenant: &str, bound| {
            let mut record = fixture::stream();
            (record.route, record.tenant, record.at.end) = ("chat".into(), tenant.into(), at(seconds));
            record.slo.ttft = Some(Duration::from_millis(bound));
            count(&history, record);
        };
        (0..300).for_each(|seconds| record(seconds, "acme", 500));
        (300..9000).for_each(|seconds| record(seconds, "flood", 1));
        let (calm, seconds) = route.calm();
        assert!((250.0..=300.0).contains(&seconds) && calm.all_missed() == 0, "{seconds}");
        assert!(calm.parts.contains_key(&(Dimension::Tenant, "acme".into())));
        assert!(!calm.parts.contains_key(&(Dimension::Tenant, "flood".into())));
        (9000..9900).for_each(|seconds| record(seconds, "flood", 500));
        assert!(!route.calm().0.parts.contains_key(&(Dimension::Tenant, "acme".into())), "over");
    }

    #[test]
    fn what_was_usual_of_a_route_that_always_misses_a_little_is_remembered_too() {
        let history = History::default();
        let route = history.route(&"chat".into());
        let run = |seconds: std::ops::Range<u64>, tenant: &str, misses: &dyn Fn(u64) -> bool| {
            for n in seconds.flat_map(|second| (0..5).map(move |n| 5 * second + n)) {
                let mut record = fixture::stream();
                (record.route, record.tenant, record.at.end) = ("chat".into(), tenant.into(), at(n / 5));
                record.slo.ttft = Some(Duration::from_millis(if misses(n) { 1 } else { 500 }));
                count(&history, record);
            }
        };
        run(0..130, "acme", &|n| n >= 50 && n % 25 == 7);
        run(130..3000, "flood", &|n| n % 4 == 0);
        let (calm, seconds) = route.calm();
        let has = |tenant: &str| calm.parts.contains_key(&(Dimension::Tenant, tenant.into()));
        assert!((90.0..=130.0).contains(&seconds) && has("acme") && !has("flood"), "{seconds}");
        // What is bad from the first request on is not usual.
        let history = History::default();
        let route = history.route(&"chat".into());
        for second in 0..900 {
            let mut record = Record { route: "chat".into(), ..fixture::stream() };
            record.at.end = at(second);
            record.slo.ttft = Some(Duration::from_millis(if second % 4 == 0 { 1 } else { 500 }));
            count(&history, record);
        }
        assert_eq!(route.calm().1, 0.0);
    }

    #[test]
    fn routes_are_bounded_and_no_route_is_none() {
        let history = History::default();
        (0..300).for_each(|i| end(&history, &format!("r{i}"), 1));
        end(&history, "none", 1);
        let routes = history.routes();
        assert_eq!(routes.len(), MAX_ROUTES);
        assert!(routes.iter().all(|(name, _)| !["none", ""].contains(&&**name)));
        let requests = |name: &str| {
            let slots = history.of(&name.into()).slots(Step::Minute, 1, at(1));
            slots.iter().map(|(_, slot)| slot.requests).sum::<u32>()
        };
        assert_eq!((requests("r0"), requests("r299")), (1, 0), "none shows what is another's");
    }

    #[test]
    fn the_failed_are_kept_with_the_slow_newest_first() {
        let history = History::default();
        end(&history, "chat", 5);
        let mut failed = Record { outcome: Outcome::Failed, ..fixture::stream() };
        failed.at.end = at(6);
        count(&history, failed);
        let kept = history.kept(at(7));
        let why: Vec<_> = kept.iter().map(|kept| kept.why).collect();
        assert_eq!(why, [Why::Failed, Why::Slow]);
        assert!(history.kept(at(4000)).is_empty(), "an hour later");
    }
}
