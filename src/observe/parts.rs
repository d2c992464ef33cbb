//! The same windows split by tenant, by class of prompt and by stage; pure, time is an argument.
//!
//! One part at a time: a series for every combination of tenant, class and stage would be tenants × 27 of them. Series are
//! limited, so memory is bounded.

use std::sync::Arc;

use super::latency::{LatencySeries, Measure, Percentiles, SeriesMap, Step, Window};
use super::stages::StageTime;
use super::windows::WindowKey;
use crate::clock::Stamp;
use crate::record::Record;
use crate::request::class::Class;
use crate::stage::Stage;
use crate::stats::Counts;

/// What a series is split by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SplitBy {
    /// Label `tenant`.
    Tenant,
    /// Label `class`.
    Class,
    /// Label `stage`: only the duration is measured.
    Stage,
}

impl SplitBy {
    /// Every split.
    pub const ALL: [Self; 3] = [Self::Tenant, Self::Class, Self::Stage];

    /// Name in the admin API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Class => "class",
            Self::Stage => "stage",
        }
    }
}

/// One tenant, class or stage.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Part {
    Tenant(Arc<str>),
    Class(Class),
    Stage(Stage),
}

impl Part {
    fn split(&self) -> SplitBy {
        match self {
            Self::Tenant(_) => SplitBy::Tenant,
            Self::Class(_) => SplitBy::Class,
            Self::Stage(_) => SplitBy::Stage,
        }
    }

    fn name(&self) -> Arc<str> {
        match self {
            Self::Tenant(name) => Arc::clone(name),
            Self::Class(class) => class.as_str().into(),
            Self::Stage(stage) => stage.as_str().into(),
        }
    }
}

/// Percentiles of one part in one window.
#[derive(Clone, Debug)]
pub struct PartView {
    /// Labels of the series that it is part of.
    pub key: WindowKey,
    /// The tenant, class or stage.
    pub name: Arc<str>,
    /// Time to first token; empty for a stage.
    pub ttft: Percentiles,
    /// Mean time per output token; empty for a stage.
    pub tpot: Percentiles,
    /// Of the request, or of the stage.
    pub duration: Percentiles,
}

/// The parts of all series.
#[derive(Default)]
pub struct Parts {
    split: SeriesMap<(WindowKey, Part)>,
    /// Over all routes: a series for every route of every replica would be too many.
    replicas: SeriesMap<Arc<str>>,
}

impl Parts {
    /// Adds an ended request to its tenant, its class and its stages.
    pub fn record(&self, key: &WindowKey, record: &Record, stages: &[StageTime]) {
        let now = record.at.end;
        for part in [Part::Tenant(Arc::clone(&record.tenant)), Part::Class(record.class)] {
            let series = self.series(key, part);
            series.observe(Measure::Ttft, record.ttft(), now);
            series.observe(Measure::Tpot, record.tpot(), now);
            series.observe(Measure::Duration, [record.duration()], now);
        }
        if let Some(answered) = record.answered() {
            let replica = &answered.served.replica;
            let series = self.replicas.get(replica).unwrap_or_else(|| {
                let has_room = self.replicas.has_room(MAX_REPLICAS);
                self.replicas.get_or_insert(if has_room { Arc::clone(replica) } else { "other".into() })
            });
            series.observe(Measure::Ttft, record.ttft(), now);
            series.observe(Measure::Tpot, record.tpot(), now);
        }
        for time in stages {
            self.series(key, Part::Stage(time.stage)).observe(Measure::Duration, [time.duration], now);
        }
    }

    /// Values of a replica in the slots from `oldest` to `newest`, both included.
    #[must_use]
    pub fn of_replica(&self, replica: &Arc<str>, measure: Measure, step: Step, slots: (i64, i64)) -> Counts {
        let series = self.replicas.get(replica);
        series.map_or_else(Counts::default, |series| series.counts(measure, step, slots.0, slots.1))
    }

    /// The same of a tenant or class of a route, over all its models and revisions.
    #[must_use]
    pub fn of_route(
        &self,
        (route, by, name): (&str, SplitBy, &str),
        measure: Measure,
        step: Step,
        slots: (i64, i64),
    ) -> Counts {
        let own = self
            .split
            .collect(|(key, part)| *key.route == *route && part.split() == by && *part.name() == *name);
        let counts: Vec<_> =
            own.iter().map(|(_, series)| series.counts(measure, step, slots.0, slots.1)).collect();
        Counts::merged(&counts)
    }

    /// Every part of one kind with values in the window that ends `now`, ordered by series and name.
    #[must_use]
    pub fn read(&self, by: SplitBy, window: Window, now: Stamp) -> Vec<PartView> {
        let mut views: Vec<_> = self
            .split
            .collect(|(_, part)| part.split() == by)
            .into_iter()
            .map(|((key, part), series)| {
                let read = |measure| series.percentiles(measure, window, now);
                let (ttft, tpot) = (read(Measure::Ttft), read(Measure::Tpot));
                PartView { key, name: part.name(), ttft, tpot, duration: read(Measure::Duration) }
            })
            .filter(|view| view.duration.count > 0)
            .collect();
        views.sort_by(|a, b| (&a.key, &a.name).cmp(&(&b.key, &b.name)));
        views
    }

    /// The series of a part; past [`MAX_TENANTS`] new tenants, and past [`MAX_SERIES`] new series, share one named `other`.
    fn series(&self, key: &WindowKey, part: Part) -> Arc<LatencySeries> {
        let wanted = (key.clone(), part);
        if let Some(series) = self.split.get(&wanted) {
            return series;
        }
        let (key, part) = wanted;
        let other = || Arc::<str>::from("other");
        let is_tenant = matches!(part, Part::Tenant(_));
        let wanted = if !self.split.has_room(MAX_SERIES) {
            (WindowKey::other(), if is_tenant { Part::Tenant(other()) } else { part })
        } else if is_tenant && !self.split.has_room(MAX_TENANTS) {
            (key, Part::Tenant(other()))
        } else {
            (key, part)
        };
        self.split.get_or_insert(wanted)
    }
}

/// Series from which on new tenants share one.
const MAX_TENANTS: usize = 192;
/// Replicas from which on new ones share a series.
const MAX_REPLICAS: usize = 512;
/// Series of all parts but those named `other`.
const MAX_SERIES: usize = 384;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::fixture;
    use crate::observe::stages::stages;

    #[test]
    fn a_request_counts_for_its_tenant_its_class_and_each_of_its_stages() {
        let (parts, record) = (Parts::default(), fixture::stream());
        let key = WindowKey::new(&record.route, &record.model, &"v1".into());
        parts.record(&key, &record, &stages(&record));
        let read = |by| parts.read(by, Window::Minute, record.at.end);
        let [tenant] = &read(SplitBy::Tenant)[..] else { panic!("one tenant") };
        assert_eq!((&*tenant.name, tenant.ttft.count, tenant.tpot.count), ("acme", 1, 1));
        assert!((tenant.ttft.p99 / 0.2 - 1.0).abs() < 0.01, "{tenant:?}");
        assert_eq!(&*read(SplitBy::Class)[0].name, "short");
        let of_stages = read(SplitBy::Stage);
        assert_eq!(of_stages.len(), 7);
        let prefill = of_stages.iter().find(|view| &*view.name == "prefill").unwrap();
        assert!((prefill.duration.p50 / 0.195 - 1.0).abs() < 0.01, "{prefill:?}");
        assert_eq!(prefill.ttft.count, 0);
        let slots = (0, Step::Minute.slot(record.at.end));
        let of_route = |name| {
            let tenant = (&*record.route, SplitBy::Tenant, name);
            parts.of_route(tenant, Measure::Ttft, Step::Minute, slots).count()
        };
        assert_eq!((of_route("acme"), of_route("none")), (1, 0));
        let replica = &record.attempts[0].served.replica;
        assert_eq!(parts.of_replica(replica, Measure::Ttft, Step::Minute, slots).count(), 1);
    }

    #[test]
    fn tenants_past_the_limit_share_a_series() {
        let (parts, mut record) = (Parts::default(), fixture::stream());
        let key = WindowKey::new(&record.route, &record.model, &"v1".into());
        for i in 0..1000 {
            record.tenant = format!("t{i}").into();
            parts.record(&key, &record, &[]);
        }
        let tenants = parts.read(SplitBy::Tenant, Window::Minute, record.at.end);
        assert!(tenants.len() <= MAX_TENANTS + 1, "{}", tenants.len());
        let other = tenants.iter().find(|view| &*view.name == "other").unwrap();
        assert!(other.duration.count > 800);
    }
}
