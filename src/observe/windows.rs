//! Percentiles over the last minute, five minutes and hour, by series; pure, time is an argument.
//!
//! Prometheus buckets answer "how many were below 300 ms"; an operator in an incident asks "what is p99 now". Each series
//! keeps HDR histograms (three digits) in time slots that are merged on reading. A value is recorded in the current 10 s
//! slot; full slots are added to the longer windows. Slots form rings and series are limited, so memory is bounded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use std::hash::RandomState;

use crate::clock::Stamp;
use crate::record::Gaps;

/// Labels of a series.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WindowKey {
    /// Label `route`.
    pub route: Arc<str>,
    /// Label `model`.
    pub model: Arc<str>,
    /// Label `revision`, of the pool.
    pub revision: Arc<str>,
}

impl WindowKey {
    /// The key with these labels.
    pub fn new(route: &Arc<str>, model: &Arc<str>, revision: &Arc<str>) -> Self {
        Self { route: Arc::clone(route), model: Arc::clone(model), revision: Arc::clone(revision) }
    }
}

/// A look-back window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// `1m`: 6 slots of 10 s.
    Minute,
    /// `5m`: 5 slots of 1 min.
    FiveMinutes,
    /// `1h`: 12 slots of 5 min.
    Hour,
}

impl Window {
    /// The window named `1m`, `5m` or `1h`.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Minute, Self::FiveMinutes, Self::Hour].into_iter().find(|window| window.as_str() == text)
    }

    /// Name in the admin API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Minute => "1m",
            Self::FiveMinutes => "5m",
            Self::Hour => "1h",
        }
    }
}

/// A measured latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// From the last request byte to the first content event.
    Ttft,
    /// Gap between two content events.
    Icl,
    /// That gap, shared over the tokens of the later event.
    Itl,
    /// Mean time per output token of a stream.
    Tpot,
    /// From the head of a request to its end.
    Duration,
}

/// Percentiles of one measure in one window, in seconds; 0 without values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Percentiles {
    /// Number of values in the window.
    pub count: u64,
    /// Median, seconds.
    pub p50: f64,
    /// 90th percentile, seconds.
    pub p90: f64,
    /// 95th percentile, seconds.
    pub p95: f64,
    /// 99th percentile, seconds.
    pub p99: f64,
    /// 99.9th percentile, seconds.
    pub p999: f64,
    /// Maximum, seconds.
    pub max: f64,
}

/// Percentiles of one series in one window.
#[derive(Clone, Debug)]
pub struct SeriesView {
    /// Labels of the series.
    pub key: WindowKey,
    /// Of [`Measure::Ttft`].
    pub ttft: Percentiles,
    /// Of [`Measure::Icl`].
    pub icl: Percentiles,
    /// Of [`Measure::Itl`].
    pub itl: Percentiles,
    /// Of [`Measure::Tpot`].
    pub tpot: Percentiles,
    /// Of [`Measure::Duration`].
    pub duration: Percentiles,
}

/// The series of all labels.
#[derive(Default)]
pub struct Windows(DashMap<WindowKey, Arc<WindowSeries>, RandomState>);

impl Windows {
    /// The series of a key; past [`MAX_SERIES`], new keys share one series labelled `other`.
    pub fn series(&self, key: &WindowKey) -> Arc<WindowSeries> {
        if let Some(series) = self.0.get(key) {
            return Arc::clone(&series);
        }
        let other = || Arc::<str>::from("other");
        let key = if self.0.len() < MAX_SERIES {
            key.clone()
        } else {
            WindowKey { route: other(), model: other(), revision: other() }
        };
        Arc::clone(&self.0.entry(key).or_default())
    }

    /// Updates the p99 of each series: over five minutes where there are enough values, else over an hour. Merges
    /// histograms, so not for the data path.
    pub fn update_p99(&self, now: Stamp) {
        let all: Vec<_> = self.0.iter().map(|entry| Arc::clone(entry.value())).collect();
        for series in all {
            series.update_p99(now);
        }
    }

    /// Every series with values in the window that ends `now`, ordered by key.
    pub fn read(&self, window: Window, now: Stamp) -> Vec<SeriesView> {
        // Collected first: merging histograms must not keep a shard of the map locked.
        let all: Vec<_> = self.0.iter().map(|e| (e.key().clone(), Arc::clone(e.value()))).collect();
        let mut views: Vec<_> = all
            .into_iter()
            .map(|(key, series)| SeriesView {
                key,
                ttft: series.ttft.lock().read(window, now),
                icl: series.icl.lock().read(window, now),
                itl: series.itl.lock().read(window, now),
                tpot: series.tpot.lock().read(window, now),
                duration: series.duration.lock().read(window, now),
            })
            .filter(|view| view.ttft.count + view.icl.count + view.itl.count + view.duration.count > 0)
            .collect();
        views.sort_by(|a, b| a.key.cmp(&b.key));
        views
    }
}

/// The windows of one series.
#[derive(Default)]
pub struct WindowSeries {
    ttft: Mutex<Rings>,
    icl: Mutex<Rings>,
    itl: Mutex<Rings>,
    tpot: Mutex<Rings>,
    duration: Mutex<Rings>,
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

impl WindowSeries {
    /// Observes gaps: each is one ICL, and `n` ITL where the later event has `n` tokens.
    pub fn gaps(&self, gaps: &Gaps<'_>, now: Stamp) {
        if !gaps.gaps.is_empty() {
            self.observe(Measure::Icl, gaps.icl(), now);
        }
        let mut itl = gaps.itl().peekable();
        if itl.peek().is_some() {
            self.observe_each(Measure::Itl, itl, now);
        }
    }

    /// Whether TTFT or duration exceeds the p99 of the last [`Windows::update_p99`].
    pub fn is_beyond_p99(&self, ttft: Option<Duration>, duration: Duration) -> bool {
        let beyond =
            |value: Duration, p99: &AtomicU64| value > Duration::from_nanos(p99.load(Ordering::Relaxed));
        ttft.is_some_and(|ttft| beyond(ttft, &self.p99.ttft)) || beyond(duration, &self.p99.duration)
    }

    fn update_p99(&self, now: Stamp) {
        for (rings, p99) in [(&self.ttft, &self.p99.ttft), (&self.duration, &self.p99.duration)] {
            let read = [Window::FiveMinutes, Window::Hour]
                .map(|window| rings.lock().read(window, now))
                .into_iter()
                .find(|read| read.count >= MIN_COUNT_FOR_P99);
            let nanos = read.map_or(u64::MAX, |read| (read.p99 * 1e9) as u64);
            p99.store(nanos, Ordering::Relaxed);
        }
    }

    /// Observes values under one lock.
    pub fn observe(&self, measure: Measure, values: impl Iterator<Item = Duration>, now: Stamp) {
        self.observe_each(measure, values.map(|value| (value, 1)), now);
    }

    /// Observes each value as often as its count says, under one lock.
    pub fn observe_each(&self, measure: Measure, values: impl Iterator<Item = (Duration, u32)>, now: Stamp) {
        let rings = match measure {
            Measure::Ttft => &self.ttft,
            Measure::Icl => &self.icl,
            Measure::Itl => &self.itl,
            Measure::Tpot => &self.tpot,
            Measure::Duration => &self.duration,
        };
        rings.lock().observe(values, now);
    }
}

/// The current slot, and a ring of full slots for each window.
pub(super) struct Rings {
    current: Option<(u64, Histogram<u32>)>,
    windows: [Ring; 3],
    /// Significant digits of its histograms.
    digits: u8,
}

impl Default for Rings {
    fn default() -> Self {
        Self::new(DIGITS)
    }
}

impl Rings {
    pub(super) fn new(digits: u8) -> Self {
        Self { current: None, windows: SLOTS.map(Ring::new), digits }
    }

    /// Observes each value as often as its count says.
    pub(super) fn observe(&mut self, values: impl Iterator<Item = (Duration, u32)>, now: Stamp) {
        let current = self.current(now);
        for (value, times) in values {
            let units = u64::try_from(value.as_micros() / UNIT_MICROS).unwrap_or(u64::MAX).min(MAX_UNITS);
            // Infallible: values are clamped and the histogram resizes.
            let _ = current.record_n(units, times);
        }
    }

    /// The current slot's histogram. A slightly older stamp of another thread counts into it as well.
    fn current(&mut self, now: Stamp) -> &mut Histogram<u32> {
        let number = number(now);
        let digits = self.digits;
        let (held, histogram) = self.current.get_or_insert_with(|| (number, empty(digits)));
        if number > *held {
            for window in &mut self.windows {
                window.fold(*held, histogram);
            }
            histogram.reset();
            *held = number;
        }
        histogram
    }

    pub(super) fn read(&self, window: Window, now: Stamp) -> Percentiles {
        let mut merged = empty(self.digits);
        if let Some(ring) = self.windows.get(window as usize) {
            ring.read(number(now), self.current.as_ref(), &mut merged);
        }
        percentiles(&merged)
    }
}

/// Full slots of one window; the oldest is overwritten.
struct Ring {
    /// Number of 10 s slots in one of these.
    factor: u64,
    /// Slot number since the clock's start, and its values.
    slots: Vec<Option<(u64, Histogram<u32>)>>,
}

impl Ring {
    fn new((factor, whole): (u64, usize)) -> Self {
        // One more than the window, because the current slot is only partly filled.
        Self { factor, slots: (0..=whole).map(|_| None).collect() }
    }

    /// Adds a full 10 s slot.
    fn fold(&mut self, short: u64, full: &Histogram<u32>) {
        let number = short / self.factor;
        let at = usize::try_from(number).unwrap_or(0) % self.slots.len();
        let Some(slot) = self.slots.get_mut(at) else { return };
        let (held, histogram) = slot.get_or_insert_with(|| (number, empty(full.sigfig())));
        if *held != number {
            histogram.reset();
            *held = number;
        }
        // Fails only on overflow, which saturates.
        let _ = histogram.add(full);
    }

    fn read(&self, now: u64, current: Option<&(u64, Histogram<u32>)>, merged: &mut Histogram<u32>) {
        let number = now / self.factor;
        let oldest = number.saturating_sub(self.slots.len() as u64 - 1);
        let full = self.slots.iter().flatten().map(|(held, histogram)| (*held, histogram));
        let current = current.map(|(held, histogram)| (held / self.factor, histogram));
        for (_, histogram) in full.chain(current).filter(|(held, _)| (oldest..=number).contains(held)) {
            let _ = merged.add(histogram);
        }
    }
}

/// Number of the 10 s slot of a stamp.
fn number(now: Stamp) -> u64 {
    now.as_nanos() / SHORT_SLOT_NANOS
}

fn empty(digits: u8) -> Histogram<u32> {
    Histogram::new(digits).expect("invariant: one to five significant digits are valid")
}

fn percentiles(histogram: &Histogram<u32>) -> Percentiles {
    let seconds = |units: u64| Duration::from_micros(units * UNIT_MICROS as u64).as_secs_f64();
    let at = |quantile| seconds(histogram.value_at_quantile(quantile));
    Percentiles {
        count: histogram.len(),
        p50: at(0.5),
        p90: at(0.9),
        p95: at(0.95),
        p99: at(0.99),
        p999: at(0.999),
        max: seconds(histogram.max()),
    }
}

const SHORT_SLOT_NANOS: u64 = 10_000_000_000;
/// 10 s slots per slot, and slots per window, in the order of [`Window`].
const SLOTS: [(u64, usize); 3] = [(1, 6), (6, 5), (30, 12)];
/// Below this the p99 is too noisy.
const MIN_COUNT_FOR_P99: u64 = 200;
const MAX_SERIES: usize = 64;
const DIGITS: u8 = 3;
/// Resolution: fine enough for ITL, coarse enough for small histograms.
const UNIT_MICROS: u128 = 10;
/// One hour.
const MAX_UNITS: u64 = 360_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn key(route: &str) -> WindowKey {
        WindowKey { route: route.into(), model: "m".into(), revision: "v1".into() }
    }

    fn second(n: u64) -> Stamp {
        Stamp::from_nanos(n * 1_000_000_000)
    }

    fn observe(windows: &Windows, ms: impl Iterator<Item = u64>, now: Stamp) {
        windows.series(&key("r")).observe(Measure::Ttft, ms.map(Duration::from_millis), now);
    }

    #[test]
    fn percentiles_are_those_of_the_values() {
        let windows = Windows::default();
        observe(&windows, 1..=1000, second(5));
        let [view] = &windows.read(Window::Minute, second(5))[..] else { panic!("one series") };
        assert_eq!(view.ttft.count, 1000);
        for (actual, expected) in
            [(view.ttft.p50, 0.5), (view.ttft.p99, 0.99), (view.ttft.p999, 0.999), (view.ttft.max, 1.0)]
        {
            assert!((actual / expected - 1.0).abs() < 0.001, "{actual} {expected}");
        }
        assert_eq!(view.icl.count, 0);
    }

    #[test]
    fn values_expire_from_each_window() {
        let windows = Windows::default();
        observe(&windows, 1..=10, second(0));
        let count = |window, at| windows.read(window, second(at)).first().map_or(0, |view| view.ttft.count);
        let table = [
            (Window::Minute, 59, 10),
            (Window::Minute, 70, 0),
            (Window::FiveMinutes, 299, 10),
            (Window::FiveMinutes, 360, 0),
            (Window::Hour, 3599, 10),
            (Window::Hour, 3900, 0),
        ];
        for (window, at, expected) in table {
            assert_eq!(count(window, at), expected, "{window:?} at {at}");
        }
        observe(&windows, 1..=3, second(70));
        assert_eq!(count(Window::Minute, 71), 3, "a slot that is used again starts empty");
    }

    #[test]
    fn the_tail_begins_at_the_p99_of_enough_requests() {
        let windows = Windows::default();
        let series = windows.series(&key("r"));
        let is_tail =
            |ttft| series.is_beyond_p99(Some(Duration::from_millis(ttft)), Duration::from_millis(1));
        observe(&windows, 1..=199, second(1));
        windows.update_p99(second(2));
        assert!(!is_tail(60_000), "too few to have a p99");
        observe(&windows, 200..=1000, second(3));
        assert!(!is_tail(60_000), "not looked at yet");
        windows.update_p99(second(4));
        assert!(is_tail(1000) && !is_tail(980));
        windows.update_p99(second(1000));
        assert!(is_tail(1000), "the last hour, where the last five minutes are empty");
        windows.update_p99(second(5000));
        assert!(!is_tail(60_000));
    }

    #[test]
    fn series_are_bounded() {
        let windows = Windows::default();
        for i in 0..200 {
            let series = windows.series(&key(&format!("r{i}")));
            series.observe(Measure::Duration, std::iter::once(Duration::from_secs(9_999)), second(1));
        }
        let views = windows.read(Window::Minute, second(1));
        assert_eq!(views.len(), MAX_SERIES + 1);
        let other = views.iter().find(|view| &*view.key.route == "other").unwrap();
        assert_eq!(other.duration.count, 136);
        assert!((other.duration.max / 3600.0 - 1.0).abs() < 0.001, "clamped to an hour");
    }
}
