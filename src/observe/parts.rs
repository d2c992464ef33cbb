//! The same windows split by tenant, by class of prompt and by stage; pure, time is an argument.
//!
//! One split at a time: a series for every combination of tenant, class and stage would be tenants × 27 of them. Series are
//! limited, so memory is bounded.

use std::sync::Arc;

use super::latency::{LatencySeries, Measure, Newest, Percentiles, SeriesMap, Window};
use super::stages::StageTime;
use super::windows::{MAX_SERIES, WindowKey};
use crate::clock::Stamp;
use crate::labels::labels;
use crate::record::Record;
use crate::request::class::Class;
use crate::stage::Stage;

labels! {
    /// What a series is split by.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum SplitBy {
        /// Label `tenant`.
        Tenant = "tenant",
        /// Label `class`.
        Class = "class",
        /// Label `stage`: only the duration is measured.
        Stage = "stage",
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
    tenants: SeriesMap<(WindowKey, Arc<str>)>,
    fixed: SeriesMap<WindowKey, FixedParts>,
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
    /// Adds an ended request to its tenant, its class and its stages.
    pub fn record(&self, key: &WindowKey, record: &Record, stages: &[StageTime]) {
        let now = record.at.end;
        let (tenant, fixed) = (self.tenant(key, &record.tenant), self.fixed(key));
        for series in [Some(&*tenant), fixed.classes.get(record.class as usize)].into_iter().flatten() {
            series.observe(Measure::Ttft, record.ttft(), now);
            series.observe(Measure::Tpot, record.tpot(), now);
            series.observe(Measure::Duration, [record.duration()], now);
        }
        for time in stages {
            if let Some(series) = fixed.stages.get(time.stage as usize) {
                series.observe(Measure::Duration, [time.duration], now);
            }
        }
    }

    /// Every part of one kind with values in the window that ends `now`, ordered by series and name.
    #[must_use]
    pub fn read(&self, by: SplitBy, window: Window, now: Stamp) -> Vec<PartView> {
        let view = |key: &WindowKey, name: Arc<str>, series: &LatencySeries| {
            let read = |measure| series.percentiles(measure, window, now);
            let (ttft, tpot, duration) = (read(Measure::Ttft), read(Measure::Tpot), read(Measure::Duration));
            PartView { key: key.clone(), name, ttft, tpot, duration }
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
        views.retain(|view| view.duration.count > 0);
        views.sort_by(|a, b| (&a.key, &a.name).cmp(&(&b.key, &b.name)));
        views
    }

    fn each_fixed(&self, views: impl Fn(&WindowKey, &FixedParts) -> Vec<PartView>) -> Vec<PartView> {
        self.fixed.collect(|_| true).iter().flat_map(|(key, fixed)| views(key, fixed)).collect()
    }

    /// The series of a tenant; past [`MAX_TENANTS`] new ones share one named `other`.
    fn tenant(&self, key: &WindowKey, tenant: &Arc<str>) -> Arc<LatencySeries> {
        let wanted = (key.clone(), Arc::clone(tenant));
        let new = || {
            let other = || Arc::<str>::from("other");
            if self.tenants.has_room(MAX_TENANTS) {
                self.tenants.get_or_insert(wanted.clone())
            } else if self.tenants.has_room(MAX_TENANTS + MAX_SERIES) {
                self.tenants.get_or_insert((key.clone(), other()))
            } else {
                self.tenants.get_or_insert((WindowKey::other(), other()))
            }
        };
        self.tenants.get(&wanted).unwrap_or_else(new)
    }

    fn fixed(&self, key: &WindowKey) -> Arc<FixedParts> {
        let new = || {
            let key = if self.fixed.has_room(MAX_SERIES) { key.clone() } else { WindowKey::other() };
            self.fixed.get_or_insert(key)
        };
        self.fixed.get(key).unwrap_or_else(new)
    }
}

/// Series of tenants from which on new ones share one.
const MAX_TENANTS: usize = 192;

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
