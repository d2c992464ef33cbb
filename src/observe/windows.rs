//! Percentiles over the last minute, five minutes and hour, by series; pure, time is an argument.
//!
//! Prometheus buckets answer "how many were below 300 ms"; an operator in an incident asks "what is p99 now". The slots of each
//! series ([`LatencySeries`]) are merged on reading. Series are limited, so memory is bounded.

use std::sync::Arc;

use super::latency::{LatencySeries, Measure, SeriesMap, Step, Window};
use crate::clock::Stamp;
use crate::labels::OTHER;
use crate::stats::Counts;

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

    /// Labels of the series that models and revisions of the same route without a place share: what is read of the route is whole.
    pub(super) fn rest(&self) -> Self {
        let other = || Arc::<str>::from(OTHER);
        Self { route: Arc::clone(&self.route), model: other(), revision: other() }
    }
}

/// What was observed in one window of one series, or of one of its parts.
#[derive(Clone, Debug)]
pub struct SeriesView {
    /// Labels of the series.
    pub key: WindowKey,
    /// The tenant, class or stage; `None` of all.
    pub part: Option<Arc<str>>,
    /// Of [`Measure::Ttft`].
    pub ttft: Counts,
    /// Of [`Measure::Icl`].
    pub icl: Counts,
    /// Of [`Measure::Itl`].
    pub itl: Counts,
    /// Of [`Measure::Tpot`].
    pub tpot: Counts,
    /// Of [`Measure::Duration`].
    pub duration: Counts,
}

impl SeriesView {
    /// Reads the window that ends `now`.
    pub(super) fn read(
        key: WindowKey,
        part: Option<Arc<str>>,
        series: &LatencySeries,
        (window, now): (Window, Stamp),
    ) -> Self {
        let read = |measure| series.window(measure, window, now);
        Self {
            key,
            part,
            ttft: read(Measure::Ttft),
            icl: read(Measure::Icl),
            itl: read(Measure::Itl),
            tpot: read(Measure::Tpot),
            duration: read(Measure::Duration),
        }
    }

    fn has_values(&self) -> bool {
        [&self.ttft, &self.icl, &self.itl, &self.duration].iter().any(|counts| counts.count() > 0)
    }
}

/// The series of all labels.
#[derive(Default)]
pub struct Windows(SeriesMap<WindowKey>);

impl Windows {
    /// The series of a key; past [`MAX_SERIES`], new models and revisions of a route share one labelled `other`.
    pub fn series(&self, key: &WindowKey) -> Arc<LatencySeries> {
        self.0.series(key, MAX_SERIES, || key.rest())
    }

    /// Values of a route, of all its models and revisions, in the slots from `oldest` to `newest`, both included.
    pub fn of_route(&self, route: &str, measure: Measure, step: Step, oldest: i64, newest: i64) -> Counts {
        self.merged(|key| *key.route == *route, |series| series.counts(measure, step, oldest, newest))
    }

    /// As [`Windows::of_route`], of one revision.
    pub fn of_revision(
        &self,
        (route, revision): (&str, &str),
        measure: Measure,
        step: Step,
        (oldest, newest): (i64, i64),
    ) -> Counts {
        let is_it = |key: &WindowKey| *key.route == *route && *key.revision == *revision;
        self.merged(is_it, |series| series.counts(measure, step, oldest, newest))
    }

    fn merged(&self, wanted: impl Fn(&WindowKey) -> bool, read: impl Fn(&LatencySeries) -> Counts) -> Counts {
        let counts: Vec<_> = self.0.collect(wanted).iter().map(|(_, series)| read(series)).collect();
        Counts::merged(&counts)
    }

    /// Updates the p99 of each series: over five minutes where there are enough values, else over an hour. Merges
    /// histograms, so not for the data path.
    pub fn update_p99(&self, now: Stamp) {
        for (_, series) in self.0.collect(|_| true) {
            series.update_p99(now);
        }
    }

    /// Every series with values in the window that ends `now`, ordered by key.
    pub fn read(&self, window: Window, now: Stamp) -> Vec<SeriesView> {
        let all = self.0.collect(|_| true).into_iter();
        let views = all.map(|(key, series)| SeriesView::read(key, None, &series, (window, now)));
        let mut views: Vec<_> = views.filter(SeriesView::has_values).collect();
        views.sort_by(|a, b| a.key.cmp(&b.key));
        views
    }
}

/// Series from which on new labels of a route share one.
pub(super) const MAX_SERIES: usize = 64;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::seconds as second;

    fn key(route: &str) -> WindowKey {
        WindowKey { route: route.into(), model: "m".into(), revision: "v1".into() }
    }

    fn observe(windows: &Windows, ms: impl Iterator<Item = u64>, now: Stamp) {
        windows.series(&key("r")).observe(Measure::Ttft, ms.map(Duration::from_millis), now);
    }

    #[test]
    fn percentiles_are_those_of_the_values() {
        let windows = Windows::default();
        observe(&windows, 1..=1000, second(5));
        let [view] = &windows.read(Window::Minute, second(5))[..] else { panic!("one series") };
        assert_eq!(view.ttft.count(), 1000);
        for expected in [0.5, 0.99, 0.999, 1.0] {
            let actual = view.ttft.quantile(expected).unwrap();
            assert!((actual / expected - 1.0).abs() < 0.004, "{actual} {expected}");
        }
        assert_eq!(view.icl.count(), 0);
    }

    #[test]
    fn values_expire_from_each_window() {
        let windows = Windows::default();
        observe(&windows, 1..=10, second(0));
        let count = |window, at| windows.read(window, second(at)).first().map_or(0, |view| view.ttft.count());
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
            let key = WindowKey { model: format!("m{i}").into(), ..key("r") };
            windows.series(&key).observe(Measure::Duration, [Duration::from_secs(9_999)], second(1));
        }
        let views = windows.read(Window::Minute, second(1));
        assert_eq!(views.len(), MAX_SERIES + 1);
        let other = views.iter().find(|view| &*view.key.model == "other").unwrap();
        assert_eq!(other.duration.count(), 136);
        let of_route = |route| windows.of_route(route, Measure::Duration, Step::Minute, 0, 0).count();
        windows.series(&key("late")).observe(Measure::Duration, [Duration::from_secs(1)], second(1));
        assert_eq!((of_route("r"), of_route("late")), (200, 1), "no route lacks or has what is another's");
        assert!((other.duration.quantile(1.0).unwrap() / 3600.0 - 1.0).abs() < 0.004, "clamped to an hour");
    }
}
