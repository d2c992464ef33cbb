//! Percentiles over the last minute, five minutes and hour, by series, whole and split by tenant, class of prompt and stage; pure,
//! time is an argument.
//!
//! Prometheus buckets answer "how many were below 300 ms"; an operator in an incident asks "what is p99 now". The slots of each
//! series ([`LatencySeries`]) are merged on reading. One split at a time: a series for every combination of tenant, class and stage
//! would be tenants × 27 of them. Series are limited, so memory is bounded.

use std::sync::Arc;

use parking_lot::Mutex;

use super::history::Dimension;
use super::latency::{LatencySeries, LatencySlots, Measure, Newest, SeriesMap, Step, Window};
use super::stages::StageTime;
use crate::clock::Stamp;
use crate::labels::{OTHER, labels};
use crate::record::{Attempt, Record};
use crate::request::class::Class;
use crate::stage::{ByStage, Stage};
use crate::stats::Counts;

labels! {
    /// What a series is split by.
    pub enum SplitBy {
        Tenant = "tenant",
        Class = "class",
        /// Label `stage`: only the duration is measured.
        Stage = "stage",
    }
}

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

    /// That of an ended request; none of one that no replica served.
    fn of(record: &Record) -> Option<Self> {
        record.served().map(|served| Self::new(&record.route, &record.model, &served.revision))
    }

    /// Labels of the series that models and revisions of the same route without a place share: what is read of the route is whole.
    fn rest(&self) -> Self {
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
    counts: [Counts; Measure::ALL.len()],
}

impl SeriesView {
    /// Reads the window that ends `now`.
    fn read(
        key: WindowKey,
        part: Option<Arc<str>>,
        series: &LatencySeries,
        (window, now): (Window, Stamp),
    ) -> Self {
        Self { key, part, counts: Measure::ALL.map(|measure| series.window(measure, window, now)) }
    }

    /// What was observed of one measure.
    pub fn of(&self, measure: Measure) -> &Counts {
        &self.counts[measure as usize]
    }
}

/// The series of all labels, and their parts.
#[derive(Default)]
pub struct Windows {
    series: SeriesMap<WindowKey, Series>,
    tenants: SeriesMap<(WindowKey, Arc<str>), LatencySeries>,
    /// Over all routes: a series for every route of every replica would be too many.
    replicas: SeriesMap<Arc<str>, LatencySeries>,
}

/// One series with the parts that every series has.
#[derive(Default)]
pub struct Series {
    /// All of it.
    pub whole: LatencySeries,
    classes: [LatencySeries; Class::ALL.len()],
    /// Under one lock: a request adds to each that it reached.
    stages: Mutex<ByStage<LatencySlots>>,
}

impl Newest for Series {
    fn newest(&self) -> i64 {
        self.whole.newest()
    }
}

impl Series {
    /// Adds the times in the stages of a request that ended `now`.
    pub fn add_stages(&self, stages: &[StageTime], now: Stamp) {
        let mut slots = self.stages.lock();
        for time in stages {
            slots[time.stage].add([(time.duration, 1)].into_iter(), now);
        }
    }

    /// Times in a stage in the slots from `oldest` to `newest`, both included.
    pub fn stage(&self, stage: Stage, step: Step, oldest: i64, newest: i64) -> Counts {
        self.stages.lock()[stage].counts(step, oldest, newest)
    }

    /// Its parts by their names, where every series has them; else the whole.
    fn views(&self, key: &WindowKey, by: Option<SplitBy>, at: (Window, Stamp)) -> Vec<SeriesView> {
        match by {
            Some(SplitBy::Class) => {
                let parts = Class::LABELS.iter().zip(&self.classes);
                parts.map(|(name, of)| SeriesView::read(key.clone(), Some((*name).into()), of, at)).collect()
            }
            Some(SplitBy::Stage) => {
                let (step, oldest, newest) = at.0.ending(at.1);
                let counts = |stage| {
                    Measure::ALL.map(|measure| match measure {
                        Measure::Duration => self.stage(stage, step, oldest, newest),
                        _ => Counts::default(),
                    })
                };
                let view = |stage: Stage| SeriesView {
                    key: key.clone(),
                    part: Some(stage.as_str().into()),
                    counts: counts(stage),
                };
                Stage::ALL.into_iter().map(view).collect()
            }
            Some(SplitBy::Tenant) | None => vec![SeriesView::read(key.clone(), None, &self.whole, at)],
        }
    }
}

impl Windows {
    /// The series of a key; past [`MAX_SERIES`], new models and revisions of a route share one labelled `other`.
    pub fn series(&self, key: &WindowKey) -> Arc<Series> {
        self.series.series(key, MAX_SERIES, || key.rest())
    }

    /// The series of a tenant; past [`MAX_TENANTS`] new ones share one named `other`.
    fn tenant(&self, of: &(WindowKey, Arc<str>)) -> Arc<LatencySeries> {
        self.tenants.series(of, MAX_TENANTS, || {
            let has_room = self.tenants.has_room(MAX_TENANTS + MAX_SERIES);
            (if has_room { of.0.clone() } else { of.0.rest() }, OTHER.into())
        })
    }

    /// The series of an ended request; none of one that no replica served.
    pub fn series_of(&self, record: &Record) -> Option<Arc<Series>> {
        Some(self.series(&WindowKey::of(record)?))
    }

    /// Adds an ended request to its series, its tenant, its class and its replica; its series, and whether it is beyond the p99 of it.
    pub fn record(&self, record: &Record) -> Option<(Arc<Series>, bool)> {
        let tenant = (WindowKey::of(record)?, Arc::clone(&record.tenant));
        let (now, ttft, tpot) = (record.at.end, record.ttft(), record.tpot());
        let duration = Some(record.duration()).filter(|_| !record.dialect.is_tunnel());
        let (series, tenant) = (self.series(&tenant.0), self.tenant(&tenant));
        let is_tail = duration.is_some_and(|duration| series.whole.is_beyond_p99(ttft, duration));
        let ended = |series: &LatencySeries| {
            series.observe(Measure::Tpot, tpot, now);
            series.observe(Measure::Duration, duration, now);
        };
        // Its TTFT was observed when it came.
        ended(&series.whole);
        for part in [&*tenant, &series.classes[record.class as usize]] {
            part.observe(Measure::Ttft, ttft, now);
            ended(part);
        }
        if let Some(begun) = record.begun_by() {
            let series =
                |made: &Attempt| self.replicas.series(&made.served.replica, MAX_REPLICAS, || OTHER.into());
            // Neither the time at another replica before, nor the pace of a stream that was continued is its own.
            if let Some(waited) = record.ttft_of(begun) {
                series(waited).observe(Measure::Ttft, ttft, now);
            }
            series(begun).observe(Measure::Tpot, tpot.filter(|_| record.migrations == 0), now);
        }
        Some((series, is_tail))
    }

    /// The series of a route, of all its models and revisions.
    pub fn all_of(&self, route: &str) -> Vec<Arc<Series>> {
        self.series.collect(|key| *key.route == *route).into_iter().map(|(_, series)| series).collect()
    }

    /// Values of a route, of all its models and revisions, in the slots from `oldest` to `newest`, both included; or of one
    /// revision, tenant or class of it. Those of a replica are over all routes.
    pub fn of(
        &self,
        route: &str,
        part: Option<(Dimension, &Arc<str>)>,
        measure: Measure,
        step: Step,
        (oldest, newest): (i64, i64),
    ) -> Counts {
        let read = |series: &LatencySeries| series.counts(measure, step, oldest, newest);
        let own = |revision: Option<&Arc<str>>, of: &dyn Fn(&Series) -> Counts| -> Vec<Counts> {
            let is_own = |key: &WindowKey| revision.is_none_or(|name| key.revision == *name);
            let own = self.series.collect(|key| *key.route == *route && is_own(key));
            own.iter().map(|(_, series)| of(series)).collect()
        };
        let counts = match part {
            None => own(None, &|series| read(&series.whole)),
            Some((Dimension::Revision, name)) => own(Some(name), &|series| read(&series.whole)),
            Some((Dimension::Class, name)) => {
                let class = Class::named(name);
                class
                    .map_or_else(Vec::new, |class| own(None, &|series| read(&series.classes[class as usize])))
            }
            Some((Dimension::Tenant, name)) => {
                let own = self.tenants.collect(|(key, tenant)| *key.route == *route && tenant == name);
                own.iter().map(|(_, series)| read(series)).collect()
            }
            Some((Dimension::Replica, name)) => {
                self.replicas.get(name).iter().map(|series| read(series)).collect()
            }
        };
        Counts::merged(&counts)
    }

    /// Updates the p99 of each series: over five minutes where there are enough values, else over an hour. Merges
    /// histograms, so not for the data path.
    pub fn update_p99(&self, now: Stamp) {
        for (_, series) in self.series.collect(|_| true) {
            series.whole.update_p99(now);
        }
    }

    /// Every series, or every part of one kind, with values in the window that ends `now`; ordered by key and name.
    pub fn read(&self, by: Option<SplitBy>, window: Window, now: Stamp) -> Vec<SeriesView> {
        let at = (window, now);
        let mut views: Vec<SeriesView> = if by == Some(SplitBy::Tenant) {
            let tenants = self.tenants.collect(|_| true).into_iter();
            tenants.map(|((key, name), series)| SeriesView::read(key, Some(name), &series, at)).collect()
        } else {
            let all = self.series.collect(|_| true);
            all.iter().flat_map(|(key, series)| series.views(key, by, at)).collect()
        };
        views.retain(|view| view.counts.iter().any(|counts| counts.count() > 0));
        views.sort_by(|a, b| (&a.key, &a.part).cmp(&(&b.key, &b.part)));
        views
    }
}

/// Series from which on new labels of a route share one.
const MAX_SERIES: usize = 64;
/// Series of tenants from which on new ones share one.
const MAX_TENANTS: usize = 192;
/// Replicas from which on new ones share a series.
const MAX_REPLICAS: usize = 512;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::seconds as second;
    use crate::observe::fixture;
    use crate::observe::stages::stages;
    use crate::record::{AttemptCause, Served};
    use crate::request::dialect::Dialect;

    fn key(route: &str) -> WindowKey {
        WindowKey { route: route.into(), model: "m".into(), revision: "v1".into() }
    }

    /// Values of a part of the record's route up to its end.
    fn count(windows: &Windows, record: &Record, part: (Dimension, &str), measure: Measure) -> u64 {
        let slots = (0, Step::Minute.slot(record.at.end));
        let (dimension, name) = (part.0, part.1.into());
        windows.of(&record.route, Some((dimension, &name)), measure, Step::Minute, slots).count()
    }

    fn observe(windows: &Windows, ms: impl Iterator<Item = u64>, now: Stamp) {
        windows.series(&key("r")).whole.observe(Measure::Ttft, ms.map(Duration::from_millis), now);
    }

    #[test]
    fn values_expire_from_each_window() {
        let windows = Windows::default();
        observe(&windows, 1..=10, second(0));
        let count = |window, at| {
            windows.read(None, window, second(at)).first().map_or(0, |view| view.of(Measure::Ttft).count())
        };
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
            |ttft| series.whole.is_beyond_p99(Some(Duration::from_millis(ttft)), Duration::from_millis(1));
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
            windows.series(&key).whole.observe(Measure::Duration, [Duration::from_secs(1)], second(1));
        }
        let views = windows.read(None, Window::Minute, second(1));
        assert_eq!(views.len(), MAX_SERIES + 1);
        let other = views.iter().find(|view| &*view.key.model == "other").unwrap();
        assert_eq!(other.of(Measure::Duration).count(), 136);
        let of_route = |route| windows.of(route, None, Measure::Duration, Step::Minute, (0, 0)).count();
        windows.series(&key("late")).whole.observe(Measure::Duration, [Duration::from_secs(1)], second(1));
        assert_eq!((of_route("r"), of_route("late")), (200, 1), "no route lacks or has what is another's");
    }

    #[test]
    fn a_request_counts_for_its_tenant_its_class_and_each_of_its_stages() {
        let (windows, record) = (Windows::default(), fixture::stream());
        let (series, _) = windows.record(&record).unwrap();
        series.add_stages(&stages(&record), record.at.end);
        let read = |by| windows.read(Some(by), Window::Minute, record.at.end);
        let [tenant] = &read(SplitBy::Tenant)[..] else { panic!("one tenant") };
        assert_eq!(
            (tenant.part.as_deref(), tenant.of(Measure::Ttft).count(), tenant.of(Measure::Tpot).count()),
            (Some("acme"), 1, 1)
        );
        assert!((tenant.of(Measure::Ttft).quantile(0.99).unwrap() / 0.2 - 1.0).abs() < 0.01, "{tenant:?}");
        assert_eq!(read(SplitBy::Class)[0].part.as_deref(), Some("short"));
        let of_stages = read(SplitBy::Stage);
        assert_eq!(of_stages.len(), 7);
        let prefill = of_stages.iter().find(|view| view.part.as_deref() == Some("prefill")).unwrap();
        assert!(
            (prefill.of(Measure::Duration).quantile(0.5).unwrap() / 0.195 - 1.0).abs() < 0.01,
            "{prefill:?}"
        );
        assert_eq!(prefill.of(Measure::Ttft).count(), 0);
        let of_part = |dimension, name| count(&windows, &record, (dimension, name), Measure::Ttft);
        assert_eq!((of_part(Dimension::Tenant, "acme"), of_part(Dimension::Tenant, "none")), (1, 0));
        assert_eq!((of_part(Dimension::Class, "short"), of_part(Dimension::Class, "long")), (1, 0));
        assert_eq!(of_part(Dimension::Replica, &record.attempts[0].served.replica), 1);
    }

    #[test]
    fn the_first_token_of_a_stream_that_was_continued_is_of_the_replica_that_gave_it() {
        let (windows, mut record) = (Windows::default(), fixture::stream());
        let broken = record.attempts[0].clone();
        record.attempts[0].error = Some("upstream_broken");
        let served = Served { replica: "next".into(), ..Served::clone(&broken.served) }.into();
        record.attempts.push(Attempt { served, cause: AttemptCause::Migration, ..broken });
        record.migrations = 1;
        windows.record(&record);
        let of = |name, measure| count(&windows, &record, (Dimension::Replica, name), measure);
        let first = &record.attempts[0].served.replica;
        assert_eq!((of(first, Measure::Ttft), of("next", Measure::Ttft)), (1, 0));
        assert_eq!((of(first, Measure::Tpot), of("next", Measure::Tpot)), (0, 0));
    }

    #[test]
    fn what_a_request_waited_for_at_another_replica_is_not_its_own_first_token() {
        let (windows, mut record) = (Windows::default(), fixture::stream());
        let own = record.attempts[0].clone();
        let served = Served { replica: "sick".into(), ..Served::clone(&own.served) }.into();
        record.attempts.insert(0, Attempt { served, start: record.at.head, error: Some("silent"), ..own });
        record.attempts[1].start = record.attempts[1].start.after(Duration::from_millis(900));
        windows.record(&record);
        let replica = (Dimension::Replica, &*record.attempts[1].served.replica);
        assert_eq!(count(&windows, &record, replica, Measure::Ttft), 0);
        assert_eq!(count(&windows, &record, replica, Measure::Tpot), 1);
    }

    #[test]
    fn tenants_past_the_limit_share_a_series() {
        let (windows, mut record) = (Windows::default(), fixture::stream());
        for i in 0..1000 {
            record.tenant = format!("t{i}").into();
            windows.record(&record);
        }
        let tenants = windows.read(Some(SplitBy::Tenant), Window::Minute, record.at.end);
        assert!(tenants.len() <= MAX_TENANTS + 1, "{}", tenants.len());
        let other = tenants.iter().find(|view| view.part.as_deref() == Some("other")).unwrap();
        assert!(other.of(Measure::Duration).count() > 800);
    }

    #[test]
    fn a_first_token_that_a_hedge_brought_is_late_at_the_replica_that_was_silent() {
        let (windows, record) = (Windows::default(), fixture::hedged());
        windows.record(&record);
        let of = |name, measure| count(&windows, &record, (Dimension::Replica, name), measure);
        assert_eq!((of("gpu-b:8000", Measure::Ttft), of("gpu-a:8000", Measure::Ttft)), (1, 0));
        assert_eq!((of("gpu-b:8000", Measure::Tpot), of("gpu-a:8000", Measure::Tpot)), (0, 1));
    }

    #[test]
    fn how_long_a_tunnel_was_open_is_no_latency() {
        let windows = Windows::default();
        let record = Record { dialect: Dialect::Realtime, ..fixture::stream() };
        windows.record(&record);
        assert_eq!(count(&windows, &record, (Dimension::Tenant, "acme"), Measure::Duration), 0);
    }
}
