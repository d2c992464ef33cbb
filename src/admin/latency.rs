//! `/api/latency`: percentiles of the last minute, five minutes or hour, by series and by tenant, class or stage.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::AdminError;
use super::query::{Admin, Answer, Asked};
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

pub(super) async fn latency(State(admin): Admin, Asked(query): Asked<LatencyQuery>) -> Answer<Value> {
    let window = Window::named(query.window.as_deref().unwrap_or("5m")).ok_or(AdminError::InvalidWindow)?;
    let split = query.split()?;
    let (observer, now) = (&admin.observer, admin.observer.clock.now());
    let all = observer.windows.read(split, window, now);
    let series = all.iter().filter(|view| query.wants(view)).map(|view| shown(split, view));
    Ok(Json(json!({ "series": series.collect::<Value>(), "window": window.as_str() })))
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

/// Of stages only the duration is measured, and gaps only of the whole.
fn shown(by: Option<SplitBy>, view: &SeriesView) -> Value {
    let key = &view.key;
    let mut shown = json!({ "model": &*key.model, "revision": &*key.revision, "route": &*key.route });
    if let (Some(by), Some(part)) = (by, &view.part) {
        shown[by.as_str()] = (**part).into();
    }
    let measures = match by {
        None => &Measure::ALL[..],
        Some(SplitBy::Stage) => &[Measure::Duration],
        Some(_) => &[Measure::Duration, Measure::Tpot, Measure::Ttft],
    };
    for measure in measures {
        shown[measure.as_str()] = percentiles(view.of(*measure));
    }
    shown
}

/// A number of values and, where there are any, their percentiles.
fn percentiles(counts: &Counts) -> Value {
    let known = |(name, quantile)| Some((name, Value::from(counts.quantile(quantile)?)));
    let count = [("count", counts.count().into())];
    PERCENTILES.into_iter().filter_map(known).chain(count).collect()
}

const PERCENTILES: [(&str, f64); 6] =
    [("max", 1.0), ("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999)];
