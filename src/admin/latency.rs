//! `/api/latency`: percentiles of the last minute, five minutes or hour, by series and by tenant, class or stage.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;

use super::AdminState;
use super::error::AdminError;
use crate::api::latency::{Latency, LatencySeries, PercentileSeconds, Percentiles};
use crate::observe::latency::{Measure, Window};
use crate::observe::windows::{SeriesView, SplitBy};
use crate::stats::Counts;

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

pub(super) async fn latency(
    State(admin): State<Arc<AdminState>>,
    query: Result<Query<LatencyQuery>, QueryRejection>,
) -> Result<Json<Latency>, AdminError> {
    let Query(query) = query.map_err(|error| AdminError::InvalidQuery(error.body_text()))?;
    let window = Window::named(query.window.as_deref().unwrap_or("5m")).ok_or(AdminError::InvalidWindow)?;
    let split = query.split()?;
    let (observer, now) = (&admin.observer, admin.observer.clock.now());
    let all = observer.windows.read(split, window, now);
    let series = all.iter().filter(|view| query.wants(view)).map(|view| shown(split, view)).collect();
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

    fn wants(&self, view: &SeriesView) -> bool {
        let is =
            |wanted: &Option<String>, label: &str| wanted.as_deref().is_none_or(|wanted| wanted == label);
        // A filter on a part is what series are split by.
        let part = [&self.tenant, &self.class, &self.stage].into_iter().find_map(Option::as_deref);
        let key = &view.key;
        is(&self.route, &key.route)
            && is(&self.model, &key.model)
            && is(&self.revision, &key.revision)
            && part.is_none_or(|part| view.part.as_deref() == Some(part))
    }
}

fn shown(by: Option<SplitBy>, view: &SeriesView) -> LatencySeries {
    let part = |split| view.part.as_deref().filter(|_| by == Some(split)).map(str::to_owned);
    let of = |is_kept: bool, counts: &Counts| is_kept.then(|| percentiles(counts));
    let (is_whole, has_tokens) = (by.is_none(), by != Some(SplitBy::Stage));
    LatencySeries {
        class: part(SplitBy::Class),
        duration: percentiles(view.of(Measure::Duration)),
        icl: of(is_whole, view.of(Measure::Icl)),
        itl: of(is_whole, view.of(Measure::Itl)),
        model: view.key.model.to_string(),
        revision: view.key.revision.to_string(),
        route: view.key.route.to_string(),
        stage: part(SplitBy::Stage),
        tenant: part(SplitBy::Tenant),
        tpot: of(has_tokens, view.of(Measure::Tpot)),
        ttft: of(has_tokens, view.of(Measure::Ttft)),
    }
}

fn percentiles(counts: &Counts) -> Percentiles {
    let at = |quantile| counts.quantile(quantile).unwrap_or_default();
    let of = PercentileSeconds {
        max: at(1.0),
        p50: at(0.5),
        p90: at(0.9),
        p95: at(0.95),
        p99: at(0.99),
        p999: at(0.999),
    };
    Percentiles { count: counts.count(), of: Some(of).filter(|_| counts.count() > 0) }
}
