//! `/api/latency`: percentiles of the last minute, five minutes or hour, by series and by tenant, class or stage.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;

use super::AdminState;
use super::error::AdminError;
use crate::api::latency::{Latency, LatencySeries, PercentileSeconds, Percentiles};
use crate::observe::latency::{self as observed, Window};
use crate::observe::parts::{PartView, SplitBy};
use crate::observe::windows::{SeriesView, WindowKey};

/// Query of `/api/latency`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LatencyQuery {
    window: Option<String>,
    by: Option<String>,
    route: Option<String>,
    model: Option<String>,
    revision: Option<String>,
    tenant: Option<String>,
    class: Option<String>,
    stage: Option<String>,
}

/// `/api/latency`
pub(super) async fn latency(
    State(admin): State<Arc<AdminState>>,
    query: Result<Query<LatencyQuery>, QueryRejection>,
) -> Result<Json<Latency>, AdminError> {
    let Query(query) = query.map_err(|error| AdminError::InvalidQuery(error.body_text()))?;
    let window = Window::named(query.window.as_deref().unwrap_or("5m")).ok_or(AdminError::InvalidWindow)?;
    let split = query.split()?;
    let (observer, now) = (&admin.observer, admin.observer.clock().now());
    let series = match split {
        None => {
            let all = observer.windows().read(window, now);
            all.iter().filter(|view| query.wants(&view.key)).map(whole).collect()
        }
        Some(by) => {
            let all = observer.parts().read(by, window, now);
            let wanted = all.iter().filter(|view| query.wants(&view.key) && query.wants_part(by, &view.name));
            wanted.map(|view| part(by, view)).collect()
        }
    };
    Ok(Json(Latency { series, window: window.as_str().to_owned() }))
}

impl LatencyQuery {
    /// What the series are split by: `by`, or the filter that is given.
    fn split(&self) -> Result<Option<SplitBy>, AdminError> {
        let invalid = |text: &str| AdminError::InvalidQuery(text.to_owned());
        let by = self
            .by
            .as_deref()
            .map(|by| SplitBy::named(by).ok_or_else(|| invalid("by is tenant, class or stage")));
        let filters =
            [(SplitBy::Tenant, &self.tenant), (SplitBy::Class, &self.class), (SplitBy::Stage, &self.stage)];
        let mut asked: Vec<SplitBy> = by.transpose()?.into_iter().collect();
        asked.extend(filters.iter().filter(|(_, value)| value.is_some()).map(|(split, _)| *split));
        asked.dedup();
        match asked[..] {
            [] => Ok(None),
            [one] => Ok(Some(one)),
            _ => Err(invalid("series are split by one of tenant, class and stage, not by two at once")),
        }
    }

    fn wants(&self, key: &WindowKey) -> bool {
        let is =
            |wanted: &Option<String>, label: &str| wanted.as_deref().is_none_or(|wanted| wanted == label);
        is(&self.route, &key.route) && is(&self.model, &key.model) && is(&self.revision, &key.revision)
    }

    fn wants_part(&self, by: SplitBy, name: &str) -> bool {
        let wanted = match by {
            SplitBy::Tenant => &self.tenant,
            SplitBy::Class => &self.class,
            SplitBy::Stage => &self.stage,
        };
        wanted.as_deref().is_none_or(|wanted| wanted == name)
    }
}

fn whole(view: &SeriesView) -> LatencySeries {
    LatencySeries {
        icl: Some(percentiles(&view.icl)),
        itl: Some(percentiles(&view.itl)),
        tpot: Some(percentiles(&view.tpot)),
        ttft: Some(percentiles(&view.ttft)),
        ..series(&view.key, &view.duration)
    }
}

fn part(by: SplitBy, view: &PartView) -> LatencySeries {
    let (series, name) = (series(&view.key, &view.duration), Some(view.name.to_string()));
    let (tpot, ttft) = (Some(percentiles(&view.tpot)), Some(percentiles(&view.ttft)));
    match by {
        SplitBy::Class => LatencySeries { class: name, tpot, ttft, ..series },
        SplitBy::Stage => LatencySeries { stage: name, ..series },
        SplitBy::Tenant => LatencySeries { tenant: name, tpot, ttft, ..series },
    }
}

fn series(key: &WindowKey, duration: &observed::Percentiles) -> LatencySeries {
    LatencySeries {
        duration: percentiles(duration),
        model: key.model.to_string(),
        revision: key.revision.to_string(),
        route: key.route.to_string(),
        ..LatencySeries::default()
    }
}

fn percentiles(values: &observed::Percentiles) -> Percentiles {
    let &observed::Percentiles { count, p50, p90, p95, p99, p999, max } = values;
    let of = (count > 0).then_some(PercentileSeconds { max, p50, p90, p95, p99, p999 });
    Percentiles { count, of }
}
