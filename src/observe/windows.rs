//! Percentiles of the last minute, five minutes and hour, by series.
//!
//! Histogram buckets answer "how many were below 300 ms"; an operator in an incident asks "what is p99 now".
//! Each series keeps HDR histograms (three digits) in time slots, which are merged on reading. A value is recorded once,
//! in the slot of these ten seconds; when they are over, that slot goes into those of the longer windows. A slot is
//! reused when its time comes again, so memory is bounded; so is the number of series. Knows no clock: time is an argument.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use foldhash::fast::RandomState;
use hdrhistogram::Histogram;
use parking_lot::Mutex;

use crate::clock::Stamp;
use crate::record::{Gaps, MOST_TOKENS_AN_EVENT};

/// Which series a value belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WindowKey {
    /// Route name.
    pub route: Arc<str>,
    /// Label-safe model name.
    pub model: Arc<str>,
    /// Revision.
    pub revision: Arc<str>,
}

/// How far back to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// One minute.
    Minute,
    /// Five minutes.
    FiveMinutes,
    /// One hour.
    Hour,
}

impl Window {
    /// Parses `1m`, `5m` or `1h`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Minute, Self::FiveMinutes, Self::Hour].into_iter().find(|window| window.as_str() == text)
    }

    /// Its name in the admin API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Minute => "1m",
            Self::FiveMinutes => "5m",
            Self::Hour => "1h",
        }
    }

    fn index(self) -> usize {
        match self {
            Self::Minute => 0,
            Self::FiveMinutes => 1,
            Self::Hour => 2,
        }
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Time to first token.
    Ttft,
    /// Inter-chunk latency.
    Icl,
    /// Inter-token latency.
    Itl,
    /// Whole request.
    Duration,
}

/// Percentiles of one measure in one window, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Percentiles {
    /// Values in the window.
    pub count: u64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Largest value.
    pub max: f64,
}

/// One series, read.
#[derive(Clone, Debug)]
pub struct SeriesView {
    /// Which series.
    pub key: WindowKey,
    /// Time to first token.
    pub ttft: Percentiles,
    /// Inter-chunk latency.
    pub icl: Percentiles,
    /// Inter-token latency.
    pub itl: Percentiles,
    /// Whole requests.
    pub duration: Percentiles,
}

/// All series.
#[derive(Default)]
pub struct Windows(DashMap<WindowKey, Arc<Series>, RandomState>);

impl Windows {
    /// The series of a key; one that is shared by all further keys once there are too many.
    #[must_use]
    pub fn series(&self, key: &WindowKey) -> Arc<Series> {
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

    /// Finds the 99th percentiles that the tail of each series begins at: of five minutes where there is enough, else
    /// of an hour. Merges histograms, so not for the data path.
    pub fn learn_tails(&self, now: Stamp) {
        let all: Vec<_> = self.0.iter().map(|entry| Arc::clone(entry.value())).collect();
        for series in all {
            series.learn_tail(now);
        }
    }

    /// Every series that has values in the window that ends `now`, in order of its key.
    #[must_use]
    pub fn read(&self, window: Window, now: Stamp) -> Vec<SeriesView> {
        // Taken out first: merging histograms must not keep a shard of the map locked.
        let all: Vec<_> = self.0.iter().map(|e| (e.key().clone(), Arc::clone(e.value()))).collect();
        let mut views: Vec<_> = all
            .into_iter()
            .map(|(key, series)| SeriesView {
                key,
                ttft: series.ttft.lock().read(window, now),
                icl: series.icl.lock().read(window, now),
                itl: series.itl.lock().read(window, now),
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
pub struct Series {
    ttft: Mutex<Rings>,
    icl: Mutex<Rings>,
    itl: Mutex<Rings>,
    duration: Mutex<Rings>,
    tail: Tail,
}

/// 99th percentiles as they last were, in nanoseconds.
struct Tail {
    ttft: AtomicU64,
    duration: AtomicU64,
}

impl Default for Tail {
    fn default() -> Self {
        // Nothing is beyond what is not known.
        Self { ttft: AtomicU64::new(u64::MAX), duration: AtomicU64::new(u64::MAX) }
    }
}

impl Series {
    /// Takes a batch of gaps in: each is one ICL, and as many ITL as the later event has tokens, once they are known.
    pub fn gaps(&self, gaps: &Gaps<'_>, now: Stamp) {
        if !gaps.gaps.is_empty() {
            self.observe(Measure::Icl, gaps.gaps.iter().map(|gap| gap.length), now);
        }
        let at_once = gaps.gaps.iter().filter_map(|gap| Some((gap.length, gap.tokens?)));
        let mut shares = at_once.chain(gaps.late_itl.iter().copied()).peekable();
        if shares.peek().is_some() {
            let share = |(gap, tokens): (Duration, u32)| {
                let tokens = tokens.min(MOST_TOKENS_AN_EVENT);
                Some((gap.checked_div(tokens)?, tokens))
            };
            self.observe_each(Measure::Itl, shares.filter_map(share), now);
        }
    }

    /// Whether a request was slower than the 99th percentile that [`Windows::learn_tails`] found last, to its first token
    /// or in all.
    #[must_use]
    pub fn is_beyond_p99(&self, ttft: Option<Duration>, duration: Duration) -> bool {
        let beyond =
            |value: Duration, p99: &AtomicU64| value > Duration::from_nanos(p99.load(Ordering::Relaxed));
        ttft.is_some_and(|ttft| beyond(ttft, &self.tail.ttft)) || beyond(duration, &self.tail.duration)
    }

    fn learn_tail(&self, now: Stamp) {
        for (rings, p99) in [(&self.ttft, &self.tail.ttft), (&self.duration, &self.tail.duration)] {
            let seen = [Window::FiveMinutes, Window::Hour]
                .map(|window| rings.lock().read(window, now))
                .into_iter()
                .find(|seen| seen.count >= ENOUGH_FOR_P99);
            let nanos = seen.map_or(u64::MAX, |seen| (seen.p99 * 1e9) as u64);
            p99.store(nanos, Ordering::Relaxed);
        }
    }

    /// Takes values in; for batches, so that the lock is taken once.
    pub fn observe(&self, measure: Measure, values: impl Iterator<Item = Duration>, now: Stamp) {
        self.observe_each(measure, values.map(|value| (value, 1)), now);
    }

    /// Takes values in, each so many times.
    pub fn observe_each(&self, measure: Measure, values: impl Iterator<Item = (Duration, u32)>, now: Stamp) {
        let rings = match measure {
            Measure::Ttft => &self.ttft,
            Measure::Icl => &self.icl,
            Measure::Itl => &self.itl,
            Measure::Duration => &self.duration,
        };
        let mut rings = rings.lock();
        let current = rings.current(now);
        for (value, times) in values {
            let units = u64::try_from(value.as_micros() / UNIT_MICROS).unwrap_or(u64::MAX).min(MAX_UNITS);
            // Values are clamped and histograms grow, so recording does not fail.
            let _ = current.record_n(units, times);
        }
    }
}

/// The slot that is filled now, and a ring of full ones for each window.
struct Rings {
    current: Option<(u64, Histogram<u32>)>,
    windows: [Ring; 3],
}

impl Default for Rings {
    fn default() -> Self {
        Self { current: None, windows: SLOTS.map(Ring::new) }
    }
}

impl Rings {
    /// The histogram of this moment. A stamp of another thread may be a little older than the slot: it joins it.
    fn current(&mut self, now: Stamp) -> &mut Histogram<u32> {
        let number = number(now);
        let (held, histogram) = self.current.get_or_insert_with(|| (number, empty()));
        if number > *held {
            for window in &mut self.windows {
                window.fold(*held, histogram);
            }
            histogram.reset();
            *held = number;
        }
        histogram
    }

    fn read(&self, window: Window, now: Stamp) -> Percentiles {
        let mut merged = empty();
        if let Some(ring) = self.windows.get(window.index()) {
            ring.read(number(now), self.current.as_ref(), &mut merged);
        }
        percentiles(&merged)
    }
}

/// The slots of one window; the oldest is overwritten.
struct Ring {
    /// Short slots that make one of these.
    factor: u64,
    /// Number of the slot in time, and what fell into it.
    slots: Vec<Option<(u64, Histogram<u32>)>>,
}

impl Ring {
    fn new((factor, whole): (u64, usize)) -> Self {
        // One more than the window has, because the current one is only partly filled.
        Self { factor, slots: (0..=whole).map(|_| None).collect() }
    }

    /// Takes a short slot in whose time is over.
    fn fold(&mut self, short: u64, full: &Histogram<u32>) {
        let number = short / self.factor;
        let at = usize::try_from(number).unwrap_or(0) % self.slots.len();
        let Some(slot) = self.slots.get_mut(at) else { return };
        let (held, histogram) = slot.get_or_insert_with(|| (number, empty()));
        if *held != number {
            histogram.reset();
            *held = number;
        }
        // Only counts that overflow fail, and they saturate.
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

/// Number of the short slot that a stamp falls into.
fn number(now: Stamp) -> u64 {
    now.as_nanos() / SHORT_SLOT_NANOS
}

fn empty() -> Histogram<u32> {
    Histogram::new(DIGITS).expect("invariant: three significant digits are valid")
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
/// How many short slots make a slot, and how many slots make the window, in the order of [`Window::index`].
const SLOTS: [(u64, usize); 3] = [(1, 6), (6, 5), (30, 12)];
/// Fewer values have no 99th percentile worth the name.
const ENOUGH_FOR_P99: u64 = 200;
const MAX_SERIES: usize = 64;
const DIGITS: u8 = 3;
/// Ten microseconds: fine enough for gaps between tokens, coarse enough to keep histograms small.
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
    fn values_leave_each_window_in_its_time() {
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
        windows.learn_tails(second(2));
        assert!(!is_tail(60_000), "too few to have a p99");
        observe(&windows, 200..=1000, second(3));
        assert!(!is_tail(60_000), "not looked at yet");
        windows.learn_tails(second(4));
        assert!(is_tail(1000) && !is_tail(980));
        windows.learn_tails(second(1000));
        assert!(is_tail(1000), "the last hour, where the last five minutes are empty");
        windows.learn_tails(second(5000));
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
