//! `/api/history`: the figures of each route over the last hour, a list for each and a value for each slot; `null` where nothing
//! was measured.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::AdminError;
use super::query::{Admin, Answer, Asked};
use crate::clock::{Stamp, since_epoch};
use crate::observe::history::{Dimension, RouteHistory, Slot, heat, heat_edges};
use crate::observe::latency::{Measure, SLOTS, Step};
use crate::observe::slo::Missed;
use crate::observe::windows::Series;
use crate::stage::{Stage, StageBudget};
use crate::stats::Counts;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HistoryQuery {
    step: Option<String>,
    route: Option<String>,
}

pub(super) async fn history(State(admin): Admin, Asked(query): Asked<HistoryQuery>) -> Answer<Value> {
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
        let slots = by_number(history, step, &numbers, now);
        let (ttft, itl) = (latency(Measure::Ttft), latency(Measure::Itl));
        let of_part = |part: (Dimension, &Arc<str>), measure| {
            let slots = (newest - SLOTS + 1, newest);
            let counts = admin.observer.windows.of(name, Some(part), measure, step, slots);
            counts.quantile(0.5).zip(counts.quantile(0.99)).map(|(p50, p99)| [p50, p99])
        };
        let column = |of: &dyn Fn(&Slot) -> Value| slots.iter().map(of).collect::<Value>();
        let missed = Missed::LABELS.iter().enumerate();
        let missed = missed.map(|(at, why)| (*why, column(&|slot| slot.missed[at].into())));
        let budget = config.routes.iter().find(|route| route.name == *name);
        let budget = budget.and_then(|route| route.stage_budget.as_deref()).into_iter();
        let budget =
            budget.flat_map(StageBudget::shares).map(|(stage, share)| (stage.as_str(), share.as_secs_f64()));
        json!({
            // The route's share for each stage, in seconds.
            "budget": budget.collect::<Value>(),
            "good": column(&|slot| slot.good.into()),
            // Requests by slot, then by row of TTFT; the lower edge of each row.
            "heat": { "counts": ttft.iter().map(heat).collect::<Value>(), "edges": heat_edges() },
            "itl": quantiles(&itl, &[P50, P99]),
            "judged": column(&|slot| slot.judged().into()),
            "missed": missed.collect::<Value>(),
            "missed_in": missed_in(&slots),
            "parts": parts(&slots, of_part),
            "requests": column(&|slot| slot.requests.into()),
            "route": &**name,
            "stages": stages(history, &admin.observer.windows.all_of(name), step, &numbers),
            "ttft": quantiles(&ttft, &[P50, P95, P99]),
            "ttft_bound": column(&|slot| slot.bound.value().into()),
        })
    });
    // Slots of `step` seconds, and the start of each since 1970.
    let (routes, times) = (routes.collect::<Value>(), times.collect::<Value>());
    Ok(Json(json!({ "routes": routes, "step": step.seconds(), "times": times })))
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

fn quantiles(slots: &[Counts], wanted: &[(&str, f64)]) -> Value {
    let column = |at| slots.iter().map(|counts| counts.quantile(at)).collect::<Value>();
    wanted.iter().map(|(name, at)| (*name, column(*at))).collect()
}

/// The revisions, tenants and classes of all slots with p50 and p99, the most requests first.
fn parts(
    slots: &[Slot],
    quantiles: impl Fn((Dimension, &Arc<str>), Measure) -> Option<[f64; 2]>,
) -> Vec<Value> {
    let mut sum = Slot::default();
    slots.iter().for_each(|slot| sum.merge(slot));
    let mut shown = Vec::new();
    for dimension in [Dimension::Revision, Dimension::Tenant, Dimension::Class] {
        let mut own: Vec<_> = sum.parts_of(dimension).collect();
        own.sort_by(|(a, x), (b, y)| y.requests.cmp(&x.requests).then_with(|| a.cmp(b)));
        shown.extend(own.into_iter().take(MAX_PARTS).map(|(name, part)| {
            let quantiles = |measure| quantiles((dimension, name), measure);
            json!({
                "dimension": dimension.as_str(),
                "itl": quantiles(Measure::Itl).filter(|_| dimension == Dimension::Revision),
                "judged": part.judged,
                "missed": part.missed(),
                "name": &**name,
                "requests": part.requests,
                "tpot": quantiles(Measure::Tpot),
                "ttft": quantiles(Measure::Ttft).map(Vec::from).unwrap_or_default(),
            })
        }));
    }
    shown
}

/// Misses by stage, of each stage that was blamed.
fn missed_in(slots: &[Slot]) -> Value {
    let missed = |stage: Stage| slots.iter().map(|slot| slot.missed_in[stage]).collect();
    let by_stage = Stage::ALL.into_iter().map(|stage| (stage.as_str(), missed(stage)));
    by_stage.filter(|(_, counts): &(_, Vec<u32>)| counts.iter().any(|count| *count > 0)).collect()
}

/// Mean, median, p95 and p99 of each stage that occurred.
fn stages(route: &RouteHistory, served: &[Arc<Series>], step: Step, numbers: &[i64]) -> Value {
    let read = |stage, number: &i64| {
        let all = served.iter().map(|series| series.stage(stage, step, *number, *number));
        Counts::merged(&all.chain([route.stage(stage, step, *number, *number)]).collect::<Vec<_>>())
    };
    let stages = Stage::ALL.into_iter().filter_map(|stage| {
        let slots: Vec<Counts> = numbers.iter().map(|number| read(stage, number)).collect();
        let mut columns = quantiles(&slots, &[P50, P95, P99]);
        columns["mean"] = slots.iter().map(Counts::mean).collect();
        slots.iter().any(|counts| counts.count() > 0).then(|| (stage.as_str(), columns))
    });
    stages.collect()
}

const P50: (&str, f64) = ("p50", 0.5);
const P95: (&str, f64) = ("p95", 0.95);
const P99: (&str, f64) = ("p99", 0.99);
/// Of each dimension.
const MAX_PARTS: usize = 12;
