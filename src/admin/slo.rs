//! `/api/slo` and `/api/history`: the verdict over each route, and its figures of the last hour.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::error::AdminError;
use super::verdict::{self, Outlier, RouteFigures, Verdict};
use super::{AdminState, assets};
use crate::clock::Stamp;
use crate::config::{Config, Route};
use crate::fleet::status::{ReplicaState, ReplicaStatus};
use crate::observe::history::{Dimension, REASONS, RouteHistory, Slot, heat, heat_edges};
use crate::observe::latency::{Measure, SLOTS, Step};
use crate::observe::rfc3339;
use crate::stage::Stage;
use crate::stats::Counts;

/// `/api/slo`
pub(super) async fn slo(State(admin): State<Arc<AdminState>>) -> Json<Value> {
    Json(summary(&admin))
}

/// The verdict over all routes, as `/api/slo` and the live events show it.
pub(super) fn summary(admin: &AdminState) -> Value {
    let (clock, config) = (admin.observer.clock(), admin.control.config());
    let (now, fleet) = (clock.now(), admin.control.replicas());
    let figures: Vec<RouteFigures> =
        config.routes.iter().map(|route| figures(admin, &config, route, &fleet, now)).collect();
    let verdicts: Vec<Verdict> = figures.iter().map(verdict::judge).collect();
    let (status, sentence) = verdict::overall(&verdicts);
    let not_ready = fleet.iter().filter(|status| status.state != ReplicaState::Ready).map(|status| {
        json!({
            "replica": &*status.replica,
            "pool": &*status.pool,
            "state": status.state.as_str(),
            "reason": &*status.reason,
        })
    });
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "page": assets::fingerprint(),
        "time": rfc3339::utc(clock.wall(now)),
        "status": status.as_str(),
        "sentence": sentence,
        "routes": figures.iter().zip(&verdicts).map(|(figures, verdict)| route(figures, verdict, now)).collect::<Vec<_>>(),
        "replicas": {
            "all": fleet.len(),
            "ready": fleet.iter().filter(|status| status.state == ReplicaState::Ready).count(),
            "not_ready": not_ready.take(MAX_NOT_READY).collect::<Vec<_>>(),
        },
    })
}

fn figures(
    admin: &AdminState,
    config: &Config,
    route: &Route,
    fleet: &[ReplicaStatus],
    now: Stamp,
) -> RouteFigures {
    let history = admin.observer.history().route(&route.name);
    let mut figures = RouteFigures { route: Arc::clone(&route.name), ..RouteFigures::default() };
    let newest = Step::TenSeconds.slot(now);
    for (number, slot) in history.slots(Step::TenSeconds, SLOTS - 1, now) {
        let age = newest - number;
        if age <= IN_MINUTE {
            figures.minute.slot.merge(&slot);
        } else {
            figures.before.0.merge(&slot);
            figures.before.1 += Step::TenSeconds.seconds() as f64;
        }
        if age <= IN_FIVE {
            figures.five.slot.merge(&slot);
        }
    }
    for (window, slots) in [(&mut figures.minute, IN_MINUTE), (&mut figures.five, IN_FIVE)] {
        let counts = |measure| {
            let windows = admin.observer.windows();
            windows.of_route(&route.name, measure, Step::TenSeconds, newest - slots, newest)
        };
        (window.ttft, window.itl) = (counts(Measure::Ttft), counts(Measure::Itl));
    }
    figures.uptime = now.since(Stamp::from_nanos(0));
    figures.hour = merged(&history, Step::Minute, now);
    let pools = route.pools.iter().filter_map(|weighted| config.pools.get(weighted.pool));
    let names: Vec<_> = pools.map(|pool| &pool.name).collect();
    figures.replicas = fleet.iter().filter(|status| names.contains(&&status.pool)).cloned().collect();
    figures
}

fn merged(history: &RouteHistory, step: Step, now: Stamp) -> Slot {
    let mut sum = Slot::default();
    for (_, slot) in history.slots(step, SLOTS - 1, now) {
        sum.merge(&slot);
    }
    sum
}

fn route(figures: &RouteFigures, verdict: &Verdict, now: Stamp) -> Value {
    let (of_window, _) = verdict::window(figures);
    let slot = &of_window.slot;
    // The window has its whole slots and the current one, and no more than this process has lived.
    let current = now.as_nanos() % (Step::TenSeconds.seconds() * 1_000_000_000);
    let seconds = (verdict.window as f64 + current as f64 / 1e9).min(now.as_nanos() as f64 / 1e9).max(1.0);
    let named = |names: &[&str], counts: &[u32]| -> Map<String, Value> {
        let all = names.iter().zip(counts).filter(|(_, count)| **count > 0);
        all.map(|(name, count)| ((*name).to_owned(), (*count).into())).collect()
    };
    json!({
        "route": &*figures.route,
        "status": verdict.status.as_str(),
        "sentence": verdict.sentence,
        "window": verdict.window,
        "goodput": {
            "share": verdict::missed_share(slot).map(|share| 1.0 - share),
            "per_second": f64::from(slot.good) / seconds,
            "requests": slot.requests,
            "judged": slot.judged(),
            "good": slot.good,
            "missed": slot.all_missed(),
        },
        "burn": {
            "1m": verdict::burn(&figures.minute.slot),
            "5m": verdict::burn(&figures.five.slot),
            "1h": verdict::burn(&figures.hour),
        },
        "ttft": quantiles(&of_window.ttft),
        "itl": quantiles(&of_window.itl),
        "bound": { "ttft": slot.mean_bound() },
        "missed": named(&REASONS, &slot.missed),
        "missed_in": named(&Stage::ALL.map(Stage::as_str), &slot.missed_in),
        "cause": verdict.cause.as_ref().map(|cause| json!({
            "stage": cause.stage.as_str(),
            "misses": cause.misses,
            "share": f64::from(cause.misses) / f64::from(slot.all_missed().max(1)),
            "reason": cause.reason,
            "by_scrape": cause.is_by_scrape,
            "replicas": verdict.outliers.iter().filter(|o| o.dimension == Dimension::Replica).map(outlier).collect::<Vec<_>>(),
        })),
        "standing_out": verdict.outliers.iter().map(outlier).collect::<Vec<_>>(),
    })
}

fn outlier(outlier: &Outlier) -> Value {
    json!({
        "dimension": outlier.dimension.as_str(),
        "name": &*outlier.name,
        "evidence": outlier.evidence,
    })
}

fn quantiles(values: &Counts) -> Value {
    json!({ "count": values.count(), "p50": values.quantile(0.5), "p95": values.quantile(0.95), "p99": values.quantile(0.99) })
}

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
) -> Result<Json<Value>, AdminError> {
    let Query(query) = query.map_err(|error| AdminError::InvalidQuery(error.body_text()))?;
    let step = Step::parse(query.step.as_deref().unwrap_or("1m"))
        .ok_or_else(|| AdminError::InvalidQuery("step is 10s or 1m".to_owned()))?;
    let (clock, config) = (admin.observer.clock(), admin.control.config());
    let now = clock.now();
    let newest = step.slot(now);
    // Slots before the start of this process are there too, and empty.
    let numbers: Vec<i64> = (newest - SLOTS + 1..=newest).collect();
    let start = Stamp::from_nanos(newest.cast_unsigned() * step.seconds() * 1_000_000_000);
    let start = clock.wall(start).duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let times = numbers.iter().map(|number| start - (newest - number) as f64 * step.seconds() as f64);
    let routes = admin.observer.history().routes();
    let wanted =
        routes.iter().filter(|(name, _)| query.route.as_deref().is_none_or(|route| route == &**name));
    let routes = wanted.map(|(name, history)| {
        let configured = config.routes.iter().find(|route| route.name == *name);
        let latency = |measure| -> Vec<Counts> {
            let windows = admin.observer.windows();
            numbers.iter().map(|number| windows.of_route(name, measure, step, *number, *number)).collect()
        };
        let columns = Columns {
            slots: by_number(history, step, &numbers, now),
            ttft: latency(Measure::Ttft),
            itl: latency(Measure::Itl),
            stages: stages(history, step, &numbers),
        };
        columns.json(name, configured)
    });
    Ok(Json(json!({
        "step": step.seconds(),
        "times": times.collect::<Vec<_>>(),
        "routes": routes.collect::<Vec<_>>(),
    })))
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

/// Mean, median, p95 and p99 of each stage that occurred, slot by slot.
fn stages(route: &RouteHistory, step: Step, numbers: &[i64]) -> Map<String, Value> {
    let stages = Stage::ALL.into_iter().filter_map(|stage| {
        let slots: Vec<Counts> =
            numbers.iter().map(|number| route.stage(stage, step, *number, *number)).collect();
        slots.iter().any(|counts| counts.count() > 0).then(|| {
            let figures = json!({
                "mean": slots.iter().map(Counts::mean).collect::<Vec<_>>(),
                "p50": quantile(&slots, 0.5),
                "p95": quantile(&slots, 0.95),
                "p99": quantile(&slots, 0.99),
            });
            (stage.as_str().to_owned(), figures)
        })
    });
    stages.collect()
}

fn quantile(slots: &[Counts], quantile: f64) -> Vec<Option<f64>> {
    slots.iter().map(|counts| counts.quantile(quantile)).collect()
}

/// A value for each slot of one route.
struct Columns {
    slots: Vec<Slot>,
    ttft: Vec<Counts>,
    itl: Vec<Counts>,
    stages: Map<String, Value>,
}

impl Columns {
    /// One list for each figure.
    fn json(self, name: &str, route: Option<&Route>) -> Value {
        let slots = &self.slots;
        let each = |figure: &dyn Fn(&Slot) -> Value| -> Value { slots.iter().map(figure).collect() };
        let counts = |at: usize, of: &dyn Fn(&Slot) -> &[u32]| each(&|slot| json!(of(slot).get(at)));
        let reasons: Map<String, Value> = REASONS
            .iter()
            .enumerate()
            .map(|(at, reason)| ((*reason).to_owned(), counts(at, &|slot| &slot.missed)))
            .collect();
        let missed_in: Map<String, Value> = Stage::ALL
            .iter()
            .enumerate()
            .filter(|(at, _)| slots.iter().any(|slot| slot.missed_in.get(*at).is_some_and(|n| *n > 0)))
            .map(|(at, stage)| (stage.as_str().to_owned(), counts(at, &|slot| &slot.missed_in)))
            .collect();
        let heat: Vec<_> = self.ttft.iter().map(heat).collect();
        json!({
            "route": name,
            "ttft_bound": each(&|slot| json!(slot.mean_bound())),
            "budget": budget(route),
            "requests": each(&|slot| slot.requests.into()),
            "judged": each(&|slot| slot.judged().into()),
            "good": each(&|slot| slot.good.into()),
            "ttft": {
                "p50": quantile(&self.ttft, 0.5),
                "p95": quantile(&self.ttft, 0.95),
                "p99": quantile(&self.ttft, 0.99),
            },
            "itl": { "p50": quantile(&self.itl, 0.5), "p99": quantile(&self.itl, 0.99) },
            "missed": reasons,
            "missed_in": missed_in,
            "stages": self.stages,
            "heat": { "edges": heat_edges(), "counts": heat },
        })
    }
}

/// Seconds by stage that the route allows.
fn budget(route: Option<&Route>) -> Map<String, Value> {
    let Some(budget) = route.and_then(|route| route.stage_budget.as_deref()) else { return Map::new() };
    let shares = Stage::ALL.into_iter().filter_map(|stage| Some((stage, budget.share(stage)?)));
    shares.map(|(stage, share)| (stage.as_str().to_owned(), share.as_secs_f64().into())).collect()
}

/// Slots of 10 s before the current one.
const IN_MINUTE: i64 = 6;
const IN_FIVE: i64 = 30;
const MAX_NOT_READY: usize = 50;
