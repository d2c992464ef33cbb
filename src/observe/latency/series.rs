//! The latencies of one series.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::map::Newest;
use super::slots::{LatencySlots, Step};
use super::window::Window;
use crate::clock::Stamp;
use crate::labels::labels;
use crate::record::Gaps;
use crate::stats::Counts;

labels! {
    /// A measured latency.
    pub enum Measure {
        /// From the last request byte to the first content event.
        Ttft = "ttft",
        /// Gap between two content events.
        Icl = "icl",
        /// That gap, shared over the tokens of the later event.
        Itl = "itl",
        /// Mean time per output token of a stream.
        Tpot = "tpot",
        /// From the head of a request to its end; of a stage, its time.
        Duration = "duration",
    }
}

/// The latencies of one series.
#[derive(Default)]
pub struct LatencySeries {
    slots: [Mutex<LatencySlots>; Measure::ALL.len()],
    p99: P99,
}

/// Nanoseconds at the last update; `u64::MAX` while unknown.
struct P99 {
    ttft: AtomicU64,
    duration: AtomicU64,
}

impl Default for P99 {
    fn default() -> Self {
        Self { ttft: AtomicU64::new(u64::MAX), duration: AtomicU64::new(u64::MAX) }
    }
}

impl LatencySeries {
    /// Observes gaps: each is one ICL, and `n` ITL where the later event has `n` tokens.
    pub fn gaps(&self, gaps: &Gaps<'_>, now: Stamp) {
        self.observe(Measure::Icl, gaps.icl(), now);
        self.observe_each(Measure::Itl, gaps.itl(), now);
    }

    /// Observes values under one lock.
    pub fn observe(&self, measure: Measure, values: impl IntoIterator<Item = Duration>, now: Stamp) {
        self.observe_each(measure, values.into_iter().map(|value| (value, 1)), now);
    }

    fn observe_each(&self, measure: Measure, values: impl Iterator<Item = (Duration, u32)>, now: Stamp) {
        // A request without a first token has three measures that are not there.
        if values.size_hint().1 != Some(0) {
            self.slots[measure as usize].lock().add(values, now);
        }
    }

    /// Values in the slots from `oldest` to `newest`, both included.
    pub fn counts(&self, measure: Measure, step: Step, oldest: i64, newest: i64) -> Counts {
        self.slots[measure as usize].lock().counts(step, oldest, newest)
    }

    /// Values of the window that ends `now`.
    pub(in crate::observe) fn window(&self, measure: Measure, window: Window, now: Stamp) -> Counts {
        let (step, oldest, newest) = window.ending(now);
        self.counts(measure, step, oldest, newest)
    }

    /// Whether TTFT or duration exceeds the p99 of the last [`LatencySeries::update_p99`].
    pub fn is_beyond_p99(&self, ttft: Option<Duration>, duration: Duration) -> bool {
        let beyond =
            |value: Duration, p99: &AtomicU64| value > Duration::from_nanos(p99.load(Ordering::Relaxed));
        ttft.is_some_and(|ttft| beyond(ttft, &self.p99.ttft)) || beyond(duration, &self.p99.duration)
    }

    /// Updates the p99: over five minutes where there are enough values, else over an hour.
    pub(in crate::observe) fn update_p99(&self, now: Stamp) {
        for (measure, p99) in [(Measure::Ttft, &self.p99.ttft), (Measure::Duration, &self.p99.duration)] {
            let read = [Window::FiveMinutes, Window::Hour]
                .into_iter()
                .map(|window| self.window(measure, window, now))
                .find(|read| read.count() >= MIN_COUNT_FOR_P99);
            let nanos = read.and_then(|read| read.quantile(0.99)).map_or(u64::MAX, |p99| (p99 * 1e9) as u64);
            p99.store(nanos, Ordering::Relaxed);
        }
    }
}

impl Newest for LatencySeries {
    fn newest(&self) -> i64 {
        self.slots.iter().map(|slots| slots.lock().newest()).max().unwrap_or(0)
    }
}

/// Below this the p99 is too noisy.
const MIN_COUNT_FOR_P99: u64 = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_either_step_have_what_was_observed_in_them_the_current_one_too() {
        let series = LatencySeries::default();
        let second = |n: u64| Stamp::from_nanos(n * 1_000_000_000);
        for n in [0, 5, 15, 61, 130, 700] {
            series.observe(Measure::Ttft, [Duration::from_millis(n)], second(n));
        }
        series.observe(Measure::Ttft, [Duration::from_secs(1)], second(695));
        let count = |step, oldest, newest| series.counts(Measure::Ttft, step, oldest, newest).count();
        assert_eq!(
            [count(Step::Minute, 0, 0), count(Step::Minute, 1, 2), count(Step::Minute, 11, 11)],
            [3, 2, 2]
        );
        assert_eq!(count(Step::Minute, 0, 99), 7);
        assert_eq!([count(Step::TenSeconds, 13, 13), count(Step::TenSeconds, 70, 70)], [1, 2]);
        assert_eq!(count(Step::TenSeconds, 0, 12), 0, "ten minutes");
        assert_eq!(series.counts(Measure::Itl, Step::Minute, 0, 99), Counts::default());
    }
}
