//! `/api/history`: the figures of each route over the last hour, slot by slot.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;

use super::AdminState;
use super::error::AdminError;
use crate::api::history::{Heat, History, ItlColumns, PartFigures, RouteColumns, StageColumns, TtftColumns};
use crate::clock::{Stamp, since_epoch};
use crate::config::Route;
use crate::observe::history::{Dimension, RouteHistory, Slot, heat, heat_edges};
use crate::observe::latency::{Measure, SLOTS, Step};
use crate::observe::slo::Missed;
use crate::stage::Stage;
use crate::stats::Counts;

/// Query of `/api/history`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HistoryQuery {
    step: Option<String>,
    route: Option<String>,
}

/// `/api/history`
pub(super) async fn history(
    State(admin): State<Arc<AdminState>>,
    query: Result<Query<HistoryQuery>, QueryRejection>,
) -> Result<Json<History>, AdminError> {
    let Query(query) = query.map_err(|error| AdminError::InvalidQuery(error.body_text()))?;
    let step = Step::named(query.step.as_deref().unwrap_or("1m"))
        .ok_or_else(|| AdminError::InvalidQuery("step is 10s or 1m".to_owned()))?;
    let (clock, config) = (admin.observer.clock, admin.control.config());
    let now = clock.now();
    let newest = step.slot(now);
    // Slots before the start of this process are there too, and empty.
    let numbers: Vec<i64> = (newest - SLOTS + 1..=newest).collect();
    let start = Stamp::from_nanos(newest.cast_unsigned() * step.seconds() * 1_000_000_000);
    let start = since_epoch(clock.wall(start)).as_secs_f64();
    let times = numbers.iter().map(|number| start - (newest - number) as f64 * step.seconds() as f64);
    let routes = admin.observer.history().routes();
    let wanted =
        routes.iter().filter(|(name, _)| query.route.as_deref().is_none_or(|route| route == &**name));
    let routes = wanted.map(|(name, history)| {
        let latency = |measure| -> Vec<Counts> {
            let windows = &admin.observer.windows;
            numbers.iter().map(|number| windows.of(name, None, measure, step, (*number, *number))).collect()
        };
        let figures = Figures {
            slots: by_number(history, step, &numbers, now),
            ttft: latency(Measure::Ttft),
            itl: latency(Measure::Itl),
            stages: stages(history, step, &numbers),
        };
        let of_part = |part: (Dimension, &Arc<str>), measure| {
            let slots = (newest - SLOTS + 1, newest);
            let counts = admin.observer.windows.of(name, Some(part), measure, step, slots);
            counts.quantile(0.5).zip(counts.quantile(0.99)).map(|(p50, p99)| [p50, p99])
        };
        let parts = parts(&figures.slots, of_part);
        let columns = figures.columns(name, config.routes.iter().find(|route| route.name == *name));
        RouteColumns { parts, ..columns }
    });
    Ok(Json(History { routes: routes.collect(), step: step.seconds(), times: times.collect() }))
}

/// The slots of these numbers; empty where nothing was counted.
fn by_number(route: &RouteHistory, step: Step, numbers: &[i64], now: Stamp) -> Vec<Slot> {
    let mut kept = route.slots(step, SLOTS - 1, now).into_iter().peekable();
    let slot_of = |number: &i64| {
        while kept.peek().is_some_and(|(at, _)| at < number) {
            kept.next();
        }
        kept.next_if(|(at, _)| at == number).map(|(_, slot)| slot).unwrap_or_default()
    };
    numbers.iter().map(slot_of).collect()
}

/// What one route counted, slot by slot.
struct Figures {
    slots: Vec<Slot>,
    ttft: Vec<Counts>,
    itl: Vec<Counts>,
    stages: BTreeMap<String, StageColumns>,
}

impl Figures {
    /// One list for each figure, with a value for each slot.
    fn columns(self, name: &str, route: Option<&Route>) -> RouteColumns {
        let slots = &self.slots;
        let missed = Missed::LABELS.iter().enumerate();
        RouteColumns {
            budget: budget(route),
            good: slots.iter().map(|slot| slot.good).collect(),
            heat: Heat { counts: self.ttft.iter().map(heat).collect(), edges: heat_edges() },
            itl: ItlColumns { p50: quantile(&self.itl, 0.5), p99: quantile(&self.itl, 0.99) },
            judged: slots.iter().map(Slot::judged).collect(),
            missed: missed
                .map(|(at, reason)| {
                    ((*reason).to_owned(), slots.iter().map(|slot| slot.missed[at]).collect())
                })
                .collect(),
            missed_in: missed_in(slots),
            parts: Vec::new(),
            requests: slots.iter().map(|slot| slot.requests).collect(),
            route: name.to_owned(),
            stages: self.stages,
            ttft: TtftColumns {
                p50: quantile(&self.ttft, 0.5),
                p95: quantile(&self.ttft, 0.95),
                p99: quantile(&self.ttft, 0.99),
            },
            ttft_bound: slots.iter().map(|slot| slot.bound.value()).collect(),
        }
    }
}

fn quantile(slots: &[Counts], quantile: f64) -> Vec<Option<f64>> {
    slots.iter().map(|counts| counts.quantile(quantile)).collect()
}

fn budget(route: Option<&Route>) -> BTreeMap<String, f64> {
    let Some(budget) = route.and_then(|route| route.stage_budget.as_deref()) else { return BTreeMap::new() };
    budget.shares().map(|(stage, share)| (stage.as_str().to_owned(), share.as_secs_f64())).collect()
}

/// Revisions, tenants and classes, with their quantiles.
fn parts(
    slots: &[Slot],
    quantiles: impl Fn((Dimension, &Arc<str>), Measure) -> Option<[f64; 2]>,
) -> Vec<PartFigures> {
    let mut sum = Slot::default();
    slots.iter().for_each(|slot| sum.merge(slot));
    let mut shown = Vec::new();
    for dimension in [Dimension::Revision, Dimension::Tenant, Dimension::Class] {
        let mut own: Vec<_> = sum.parts_of(dimension).collect();
        own.sort_by(|(a, x), (b, y)| y.requests.cmp(&x.requests).then_with(|| a.cmp(b)));
        shown.extend(own.into_iter().take(MAX_PARTS).map(|(name, part)| {
            let quantiles = |measure| quantiles((dimension, name), measure);
            PartFigures {
                dimension: dimension.as_str().to_owned(),
                itl: quantiles(Measure::Itl).filter(|_| dimension == Dimension::Revision),
                judged: part.judged,
                missed: part.missed(),
                name: name.to_string(),
                requests: part.requests,
                tpot: quantiles(Measure::Tpot),
                ttft: quantiles(Measure::Ttft).map(|both| both.to_vec()).unwrap_or_default(),
            }
        }));
    }
    shown
}

/// Misses by stage, of each stage that was blamed.
fn missed_in(slots: &[Slot]) -> BTreeMap<String, Vec<u32>> {
    let missed = |stage: Stage| slots.iter().map(|slot| slot.missed_in[stage]).collect();
    let by_stage = Stage::ALL.into_iter().map(|stage| (stage.as_str().to_owned(), missed(stage)));
    by_stage.filter(|(_, counts): &(_, Vec<u32>)| counts.iter().any(|count| *count > 0)).collect()
}

/// Mean, median, p95 and p99 of each stage that occurred.
fn stages(route: &RouteHistory, step: Step, numbers: &[i64]) -> BTreeMap<String, StageColumns> {
    let stages = Stage::ALL.into_iter().filter_map(|stage| {
        let slots: Vec<Counts> =
            numbers.iter().map(|number| route.stage(stage, step, *number, *number)).collect();
        slots.iter().any(|counts| counts.count() > 0).then(|| {
            let columns = StageColumns {
                mean: slots.iter().map(Counts::mean).collect(),
                p50: quantile(&slots, 0.5),
                p95: quantile(&slots, 0.95),
                p99: quantile(&slots, 0.99),
            };
            (stage.as_str().to_owned(), columns)
        })
    });
    stages.collect()
}

/// Of each dimension.
const MAX_PARTS: usize = 12;
