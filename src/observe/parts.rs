//! The same windows split by tenant, by class of prompt and by stage; pure, time is an argument.
//!
//! One split at a time: a series for every combination of tenant, class and stage would be tenants × 27 of them. Series are
//! limited, so memory is bounded.

use std::sync::Arc;

use super::latency::{LatencySeries, Measure, Newest, SeriesMap, Step, Window};
use super::stages::StageTime;
use super::windows::{MAX_SERIES, SeriesView, WindowKey};
use crate::clock::Stamp;
use crate::labels::{OTHER, labels};
use crate::record::Record;
use crate::request::class::Class;
use crate::stage::Stage;
use crate::stats::Counts;

labels! {
    /// What a series is split by.
    pub enum SplitBy {
        /// Label `tenant`.
        Tenant = "tenant",
        /// Label `class`.
        Class = "class",
        /// Label `stage`: only the duration is measured.
        Stage = "stage",
    }
}

/// The parts of all series.
#[derive(Default)]
pub struct Parts {
    tenants: SeriesMap<(WindowKey, Arc<str>)>,
    fixed: SeriesMap<WindowKey, FixedParts>,
    /// Over all routes: a series for every route of every replica would be too many.
    replicas: SeriesMap<Arc<str>>,
}

/// The parts that every series has.
#[derive(Default)]
struct FixedParts {
    classes: [LatencySeries; Class::ALL.len()],
    stages: [LatencySeries; Stage::ALL.len()],
}

impl Newest for FixedParts {
    fn newest(&self) -> i64 {
        self.classes.iter().map(LatencySeries::newest).max().unwrap_or(0)
    }
}

impl Parts {
    /// Adds an ended request to its tenant, its class and its replica.
    pub fn record(&self, key: &WindowKey, record: &Record) {
        let (now, ttft, tpot) = (record.at.end, record.ttft(), record.tpot());
        let (tenant, fixed) = (self.tenant(key, &record.tenant), self.fixed(key));
        for series in [Some(&*tenant), fixed.classes.get(record.class as usize)].into_iter().flatten() {
            series.observe(Measure::Ttft, ttft, now);
            series.observe(Measure::Tpot, tpot, now);
            series.observe(Measure::Duration, [record.duration()], now);
        }
        if let Some(begun) = record.begun_by() {
            let series = self.replica(&begun.served.replica);
            // Neither the time at another replica before, nor the pace of a stream that was continued is its own.
            series.observe(Measure::Ttft, ttft.filter(|_| record.is_first(begun)), now);
            series.observe(Measure::Tpot, tpot.filter(|_| record.migrations == 0), now);
        }
    }

    /// Adds the times in the stages of a request that ended then.
    pub fn stages(&self, key: &WindowKey, stages: &[StageTime], end: Stamp) {
        let fixed = self.fixed(key);
        for time in stages {
            if let Some(series) = fixed.stages.get(time.stage as usize) {
                series.observe(Measure::Duration, [time.duration], end);
            }
        }
    }

    /// Values of a replica in the slots from `oldest` to `newest`, both included.
    pub fn of_replica(&self, replica: &Arc<str>, measure: Measure, step: Step, slots: (i64, i64)) -> Counts {
        let series = self.replicas.get(replica);
        series.map_or_else(Counts::default, |series| series.counts(measure, step, slots.0, slots.1))
    }

    /// The same of a tenant or class of a route, over all its models and revisions.
    pub fn of_route(
        &self,
        (route, by, name): (&str, SplitBy, &str),
        measure: Measure,
        step: Step,
        slots: (i64, i64),
    ) -> Counts {
        let read = |series: &LatencySeries| series.counts(measure, step, slots.0, slots.1);
        let counts: Vec<Counts> = match by {
            SplitBy::Tenant => {
                let own = self.tenants.collect(|(key, tenant)| *key.route == *route && **tenant == *name);
                own.iter().map(|(_, series)| read(series)).collect()
            }
            SplitBy::Class => {
                let place = Class::ALL.iter().position(|class| class.as_str() == name);
                let own = self.fixed.collect(|key| *key.route == *route);
                own.iter().filter_map(|(_, fixed)| fixed.classes.get(place?).map(read)).collect()
            }
            SplitBy::Stage => Vec::new(),
        };
        Counts::merged(&counts)
    }

    /// Every part of one kind with values in the window that ends `now`, ordered by series and name.
    pub fn read(&self, by: SplitBy, window: Window, now: Stamp) -> Vec<SeriesView> {
        let view = |key: &WindowKey, name: Arc<str>, series: &LatencySeries| {
            SeriesView::read(key.clone(), Some(name), series, (window, now))
        };
        let mut views: Vec<_> = match by {
            SplitBy::Tenant => {
                let tenants = self.tenants.collect(|_| true);
                tenants.into_iter().map(|((key, name), series)| view(&key, name, &series)).collect()
            }
            SplitBy::Class => self.each_fixed(|key, fixed| {
                let classes = Class::ALL.iter().zip(&fixed.classes);
                classes.map(|(class, series)| view(key, class.as_str().into(), series)).collect()
            }),
            SplitBy::Stage => self.each_fixed(|key, fixed| {
                let stages = Stage::ALL.iter().zip(&fixed.stages);
                stages.map(|(stage, series)| view(key, stage.as_str().into(), series)).collect()
            }),
        };
        views.retain(|view| view.duration.count() > 0);
        views.sort_by(|a, b| (&a.key, &a.part).cmp(&(&b.key, &b.part)));
        views
    }

    fn each_fixed(&self, views: impl Fn(&WindowKey, &FixedParts) -> Vec<SeriesView>) -> Vec<SeriesView> {
        self.fixed.collect(|_| true).iter().flat_map(|(key, fixed)| views(key, fixed)).collect()
    }

    /// The series of a tenant; past [`MAX_TENANTS`] new ones share one named `other`.
    fn tenant(&self, key: &WindowKey, tenant: &Arc<str>) -> Arc<LatencySeries> {
        self.tenants.series(&(key.clone(), Arc::clone(tenant)), MAX_TENANTS, || {
            let has_room = self.tenants.has_room(MAX_TENANTS + MAX_SERIES);
            (if has_room { key.clone() } else { key.rest() }, OTHER.into())
        })
    }

    fn replica(&self, replica: &Arc<str>) -> Arc<LatencySeries> {
        self.replicas.series(replica, MAX_REPLICAS, || OTHER.into())
    }

    fn fixed(&self, key: &WindowKey) -> Arc<FixedParts> {
        self.fixed.series(key, MAX_SERIES, || key.rest())
    }
}

/// Series of tenants from which on new ones share one.
const MAX_TENANTS: usize = 192;
/// Replicas from which on new ones share a series.
const MAX_REPLICAS: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::fixture;
    use crate::observe::stages::stages;
    use crate::record::{Attempt, AttemptCause, Served};

    #[test]
    fn a_request_counts_for_its_tenant_its_class_and_each_of_its_stages() {
        let (parts, record) = (Parts::default(), fixture::stream());
        let key = WindowKey::new(&record.route, &record.model, &"v1".into());
        parts.record(&key, &record);
        parts.stages(&key, &stages(&record), record.at.end);
        let read = |by| parts.read(by, Window::Minute, record.at.end);
        let [tenant] = &read(SplitBy::Tenant)[..] else { panic!("one tenant") };
        assert_eq!((tenant.part.as_deref(), tenant.ttft.count(), tenant.tpot.count()), (Some("acme"), 1, 1));
        assert!((tenant.ttft.quantile(0.99).unwrap() / 0.2 - 1.0).abs() < 0.01, "{tenant:?}");
        assert_eq!(read(SplitBy::Class)[0].part.as_deref(), Some("short"));
        let of_stages = read(SplitBy::Stage);
        assert_eq!(of_stages.len(), 7);
        let prefill = of_stages.iter().find(|view| view.part.as_deref() == Some("prefill")).unwrap();
        assert!((prefill.duration.quantile(0.5).unwrap() / 0.195 - 1.0).abs() < 0.01, "{prefill:?}");
        assert_eq!(prefill.ttft.count(), 0);
        let slots = (0, Step::Minute.slot(record.at.end));
        let of_route =
            |by, name| parts.of_route((&record.route, by, name), Measure::Ttft, Step::Minute, slots).count();
        assert_eq!((of_route(SplitBy::Tenant, "acme"), of_route(SplitBy::Tenant, "none")), (1, 0));
        assert_eq!((of_route(SplitBy::Class, "short"), of_route(SplitBy::Class, "long")), (1, 0));
        let replica = &record.attempts[0].served.replica;
        assert_eq!(parts.of_replica(replica, Measure::Ttft, Step::Minute, slots).count(), 1);
    }

    #[test]
    fn the_first_token_of_a_stream_that_was_continued_is_of_the_replica_that_gave_it() {
        let (parts, mut record) = (Parts::default(), fixture::stream());
        let broken = record.attempts[0].clone();
        record.attempts[0].error = Some("upstream_broken");
        let served = Served { replica: "next".into(), ..broken.served.clone() };
        record.attempts.push(Attempt { served, cause: AttemptCause::Migration, ..broken });
        record.migrations = 1;
        parts.record(&WindowKey::new(&record.route, &record.model, &"v1".into()), &record);
        let slots = (0, Step::Minute.slot(record.at.end));
        let of = |name: &Arc<str>, measure| parts.of_replica(name, measure, Step::Minute, slots).count();
        let first = &record.attempts[0].served.replica;
        assert_eq!((of(first, Measure::Ttft), of(&"next".into(), Measure::Ttft)), (1, 0));
        assert_eq!((of(first, Measure::Tpot), of(&"next".into(), Measure::Tpot)), (0, 0));
    }

    #[test]
    fn what_a_request_waited_for_at_another_replica_is_not_its_own_first_token() {
        let (parts, mut record) = (Parts::default(), fixture::stream());
        let own = record.attempts[0].clone();
        let served = Served { replica: "sick".into(), ..own.served.clone() };
        record.attempts.insert(0, Attempt { served, start: record.at.head, error: Some("silent"), ..own });
        record.attempts[1].start = record.attempts[1].start.after(std::time::Duration::from_millis(900));
        parts.record(&WindowKey::new(&record.route, &record.model, &"v1".into()), &record);
        let slots = (0, Step::Minute.slot(record.at.end));
        let replica = &record.attempts[1].served.replica;
        assert_eq!(parts.of_replica(replica, Measure::Ttft, Step::Minute, slots).count(), 0);
        assert_eq!(parts.of_replica(replica, Measure::Tpot, Step::Minute, slots).count(), 1);
    }

    #[test]
    fn tenants_past_the_limit_share_a_series() {
        let (parts, mut record) = (Parts::default(), fixture::stream());
        let key = WindowKey::new(&record.route, &record.model, &"v1".into());
        for i in 0..1000 {
            record.tenant = format!("t{i}").into();
            parts.record(&key, &record);
        }
        let tenants = parts.read(SplitBy::Tenant, Window::Minute, record.at.end);
        assert!(tenants.len() <= MAX_TENANTS + 1, "{}", tenants.len());
        let other = tenants.iter().find(|view| view.part.as_deref() == Some("other")).unwrap();
        assert!(other.duration.count() > 800);
    }
}
