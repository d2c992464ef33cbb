//! `/api/latency`: percentiles of the last minute, five minutes or hour, by series and by tenant, class or stage.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::AdminState;
use super::error::AdminError;
use crate::observe::latency::{Percentiles, Window};
use crate::observe::parts::SplitBy;
use crate::observe::windows::WindowKey;

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
) -> Result<Json<Value>, AdminError> {
    let Query(query) = query.map_err(|error| AdminError::InvalidQuery(error.body_text()))?;
    let window = Window::parse(query.window.as_deref().unwrap_or("5m")).ok_or(AdminError::InvalidWindow)?;
    let split = query.split()?;
    let (observer, now) = (&admin.observer, admin.observer.clock().now());
    let series: Vec<Value> = match split {
        None => {
            let all = observer.windows().read(window, now);
            let wanted = all.iter().filter(|view| query.wants(&view.key));
            let shown = wanted.map(|view| {
                let measures = [
                    ("ttft", &view.ttft),
                    ("icl", &view.icl),
                    ("itl", &view.itl),
                    ("tpot", &view.tpot),
                    ("duration", &view.duration),
                ];
                series(&view.key, &measures)
            });
            shown.collect()
        }
        Some(by) => {
            let all = observer.parts().read(by, window, now);
            let wanted = all.iter().filter(|view| query.wants(&view.key) && query.wants_part(by, &view.name));
            let shown = wanted.map(|view| {
                let measures = [("ttft", &view.ttft), ("tpot", &view.tpot), ("duration", &view.duration)];
                let measures = if by == SplitBy::Stage { &measures[2..] } else { &measures[..] };
                let mut json = series(&view.key, measures);
                json[by.as_str()] = (*view.name).into();
                json
            });
            shown.collect()
        }
    };
    Ok(Json(json!({ "window": window.as_str(), "series": series })))
}

impl LatencyQuery {
    /// What the series are split by: `by`, or the filter that is given.
    fn split(&self) -> Result<Option<SplitBy>, AdminError> {
        let invalid = |text: &str| AdminError::InvalidQuery(text.to_owned());
        let by = self.by.as_deref().map(|by| {
            let known = SplitBy::ALL.into_iter().find(|split| split.as_str() == by);
            known.ok_or_else(|| invalid("by is tenant, class or stage"))
        });
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

fn series(key: &WindowKey, measures: &[(&str, &Percentiles)]) -> Value {
    let mut json = json!({ "route": &*key.route, "model": &*key.model, "revision": &*key.revision });
    let shown: Map<String, Value> =
        measures.iter().map(|(name, values)| ((*name).to_owned(), percentiles(values))).collect();
    if let Some(object) = json.as_object_mut() {
        object.extend(shown);
    }
    json
}

fn percentiles(values: &Percentiles) -> Value {
    if values.count == 0 {
        return json!({ "count": 0 });
    }
    json!({
        "count": values.count,
        "p50": values.p50,
        "p90": values.p90,
        "p95": values.p95,
        "p99": values.p99,
        "p99.9": values.p999,
        "max": values.max,
    })
}
