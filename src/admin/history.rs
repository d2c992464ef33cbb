//! `/api/history`: the figures of each route over the last hour, slot by slot.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;

use super::AdminState;
use super::error::AdminError;
use crate::api::history::{Heat, History, ItlColumns, RouteColumns, StageColumns, TtftColumns};
use crate::clock::Stamp;
use crate::config::Route;
use crate::observe::history::{LogHistogram, REASONS, RouteHistory, SLOTS, Slot, Step, heat_edges};
use crate::stage::Stage;

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
    let step = Step::parse(query.step.as_deref().unwrap_or("1m"))
        .ok_or_else(|| AdminError::InvalidQuery("step is 10s or 1m".to_owned()))?;
    let (clock, config) = (admin.observer.clock(), admin.control.config());
    let now = clock.now();
    let newest = step.slot(now);
    // Slots before the start of this process are there too, and empty.
    let ages = (0..SLOTS as u64).rev();
    let numbers: Vec<Option<u64>> = ages.clone().map(|age| newest.checked_sub(age)).collect();
    let start = Stamp::from_nanos(newest * step.seconds() * 1_000_000_000);
    let start = clock.wall(start).duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let times = ages.map(|age| start - (age * step.seconds()) as f64);
    let routes = admin.observer.history().routes();
    let wanted =
        routes.iter().filter(|(name, _)| query.route.as_deref().is_none_or(|route| route == &**name));
    let routes = wanted.map(|(name, route)| {
        let slots = by_number(route, step, &numbers, now);
        let configured = config.routes.iter().find(|route| route.name == *name);
        columns(name, configured, &slots)
    });
    Ok(Json(History { routes: routes.collect(), step: step.seconds(), times: times.collect() }))
}

/// The slots of these numbers; empty where nothing was counted.
fn by_number(route: &RouteHistory, step: Step, numbers: &[Option<u64>], now: Stamp) -> Vec<Slot> {
    let mut kept = route.slots(step, numbers.len(), now).into_iter().peekable();
    let slot_of = |number: &Option<u64>| {
        while kept.peek().is_some_and(|(at, _)| Some(*at) < *number) {
            kept.next();
        }
        kept.next_if(|(at, _)| Some(*at) == *number).map(|(_, slot)| slot).unwrap_or_default()
    };
    numbers.iter().map(slot_of).collect()
}

/// One list for each figure, with a value for each slot.
fn columns(name: &str, route: Option<&Route>, slots: &[Slot]) -> RouteColumns {
    let figures = |figure: &dyn Fn(&Slot) -> Option<f64>| slots.iter().map(figure).collect::<Vec<_>>();
    let ttft = |quantile| figures(&|slot| slot.ttft.quantile(quantile));
    let itl = |quantile| figures(&|slot| slot.itl.quantile(quantile));
    let missed = REASONS.iter().enumerate();
    RouteColumns {
        budget: budget(route),
        good: slots.iter().map(|slot| slot.good).collect(),
        heat: Heat { counts: slots.iter().map(|slot| slot.ttft.heat()).collect(), edges: heat_edges() },
        itl: ItlColumns { p50: itl(0.5), p99: itl(0.99) },
        judged: slots.iter().map(Slot::judged).collect(),
        missed: missed
            .map(|(at, reason)| ((*reason).to_owned(), counts(slots, |slot| slot.missed.get(at))))
            .collect(),
        missed_in: missed_in(slots),
        requests: slots.iter().map(|slot| slot.requests).collect(),
        route: name.to_owned(),
        stages: stages(slots),
        ttft: TtftColumns { p50: ttft(0.5), p95: ttft(0.95), p99: ttft(0.99) },
        ttft_bound: figures(&|slot| slot.bound.mean()),
    }
}

fn counts(slots: &[Slot], count: impl Fn(&Slot) -> Option<&u32>) -> Vec<u32> {
    slots.iter().map(|slot| count(slot).copied().unwrap_or_default()).collect()
}

fn budget(route: Option<&Route>) -> BTreeMap<String, f64> {
    let Some(budget) = route.and_then(|route| route.stage_budget.as_deref()) else { return BTreeMap::new() };
    let shares = Stage::ALL.into_iter().filter_map(|stage| Some((stage, budget.share(stage)?)));
    shares.map(|(stage, share)| (stage.as_str().to_owned(), share.as_secs_f64())).collect()
}

/// Misses by stage, of each stage that was blamed.
fn missed_in(slots: &[Slot]) -> BTreeMap<String, Vec<u32>> {
    let by_stage = Stage::ALL.iter().enumerate();
    let by_stage =
        by_stage.map(|(at, stage)| (stage.as_str().to_owned(), counts(slots, |slot| slot.missed_in.get(at))));
    by_stage.filter(|(_, counts)| counts.iter().any(|count| *count > 0)).collect()
}

/// Mean, median, p95 and p99 of each stage that occurred.
fn stages(slots: &[Slot]) -> BTreeMap<String, StageColumns> {
    let of = |at: usize, figure: &dyn Fn(&LogHistogram) -> Option<f64>| {
        slots.iter().map(|slot| slot.stages.get(at).and_then(figure)).collect()
    };
    let occurred = |at: usize| slots.iter().any(|slot| slot.stages.get(at).is_some_and(|s| s.count() > 0));
    let stages = Stage::ALL.iter().enumerate().filter(|(at, _)| occurred(*at));
    let columns = |at| StageColumns {
        mean: of(at, &LogHistogram::mean),
        p50: of(at, &|values| values.quantile(0.5)),
        p95: of(at, &|values| values.quantile(0.95)),
        p99: of(at, &|values| values.quantile(0.99)),
    };
    stages.map(|(at, stage)| (stage.as_str().to_owned(), columns(at))).collect()
}
