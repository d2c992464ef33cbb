//! Percentiles of the last minute, five minutes and hour, by series.
//!
//! Histogram buckets answer "how many were below 300 ms"; an operator in an incident asks "what is p99 now".
//! Each series keeps HDR histograms (three digits) in short time slots, which are merged on reading. A slot is
//! reused when its time comes again, so memory is bounded; so is the number of series. Knows no clock: time is an
//! argument.

use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use foldhash::fast::RandomState;
use hdrhistogram::Histogram;
use parking_lot::Mutex;

use crate::clock::Stamp;

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
                duration: series.duration.lock().read(window, now),
            })
            .filter(|view| view.ttft.count + view.icl.count + view.duration.count > 0)
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
    duration: Mutex<Rings>,
}

impl Series {
    /// Takes values in; for batches, so that the lock is taken once.
    pub fn observe(&self, measure: Measure, values: impl Iterator<Item = Duration>, now: Stamp) {
        let rings = match measure {
            Measure::Ttft => &self.ttft,
            Measure::Icl => &self.icl,
            Measure::Duration => &self.duration,
        };
        let mut rings = rings.lock();
        for value in values {
            rings.observe(value, now);
        }
    }
}

/// One ring for each window.
struct Rings([Ring; 3]);

impl Default for Rings {
    fn default() -> Self {
        Self(SLOTS.map(Ring::new))
    }
}

impl Rings {
    fn observe(&mut self, value: Duration, now: Stamp) {
        let units = u64::try_from(value.as_micros() / UNIT_MICROS).unwrap_or(u64::MAX).min(MAX_UNITS);
        for ring in &mut self.0 {
            // Values are clamped below and histograms grow, so recording does not fail.
            let _ = ring.current(now).record(units);
        }
    }

    fn read(&self, window: Window, now: Stamp) -> Percentiles {
        self.0.get(window.index()).map_or_else(Percentiles::default, |ring| ring.read(now))
    }
}

/// Time slots of one width; the oldest is overwritten.
struct Ring {
    width: Duration,
    /// Number of the slot in time, and what fell into it.
    slots: Vec<Option<(u64, Histogram<u32>)>>,
}

impl Ring {
    fn new((width, whole): (Duration, usize)) -> Self {
        // One more than the window has, because the current one is only partly filled.
        Self { width, slots: (0..=whole).map(|_| None).collect() }
    }

    fn number(&self, now: Stamp) -> u64 {
        now.as_nanos() / u64::try_from(self.width.as_nanos()).unwrap_or(u64::MAX).max(1)
    }

    fn current(&mut self, now: Stamp) -> &mut Histogram<u32> {
        let number = self.number(now);
        let at = usize::try_from(number).unwrap_or(0) % self.slots.len();
        let (held, histogram) = self.slots[at].get_or_insert_with(|| (number, empty()));
        if *held != number {
            histogram.reset();
            *held = number;
        }
        histogram
    }

    fn read(&self, now: Stamp) -> Percentiles {
        let number = self.number(now);
        let oldest = number.saturating_sub(self.slots.len() as u64 - 1);
        let mut merged = empty();
        for (held, histogram) in self.slots.iter().flatten() {
            if (oldest..=number).contains(held) {
                // Only counts that overflow fail, and they saturate.
                let _ = merged.add(histogram);
            }
        }
        percentiles(&merged)
    }
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

/// Width of a slot and how many make the window, in the order of [`Window::index`].
const SLOTS: [(Duration, usize); 3] =
    [(Duration::from_secs(10), 6), (Duration::from_secs(60), 5), (Duration::from_secs(300), 12)];
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
