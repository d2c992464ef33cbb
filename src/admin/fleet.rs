//! `/api/fleet`: every replica, how well its pool's TTFT is predicted, and where replicas come from.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;

use super::AdminState;
use super::query::Admin;
use crate::api::fleet::{Fleet, FleetPool, Gpu, Life, Recent, Replica, Signals, Source, WarmUp};
use crate::fleet::discovery::SourceStatus;
use crate::fleet::status::{
    GpuFigures, LifeStatus, PoolCalibration, ReplicaState, ReplicaStatus, Throttling, WarmUpReport,
};
use crate::observe::history::{Dimension, Part};
use crate::observe::latency::{Measure, Step};
use crate::routing::EngineSignals;

pub(super) async fn fleet(State(admin): Admin) -> Json<Fleet> {
    let calibrations = admin.control.calibrations();
    let pool = |pool: &PoolCalibration| FleetPool { calibration: pool.whole, pool: pool.pool.to_string() };
    let (statuses, parts) = (admin.control.replicas(), parts(&admin));
    let mut of_pool = HashMap::<&str, u32>::new();
    for status in &statuses {
        *of_pool.entry(&status.pool).or_default() += parts.of.get(&status.replica).map_or(0, taken);
    }
    let recent = |status: &ReplicaStatus| {
        let all = of_pool.get(&*status.pool).copied().unwrap_or_default();
        let part = parts.of.get(&status.replica);
        part.map(|part| recent(part, all, parts.seconds, (&admin, &status.replica))).unwrap_or_default()
    };
    Json(Fleet {
        pools: calibrations.iter().map(pool).collect(),
        replicas: statuses.iter().map(|status| replica(status, &calibrations, recent(status))).collect(),
        sources: admin.control.sources().iter().map(source).collect(),
    })
}

/// What each replica answered lately, over all routes.
struct Parts {
    of: HashMap<Arc<str>, Part>,
    seconds: f64,
}

fn parts(admin: &AdminState) -> Parts {
    let now = admin.observer.clock.now();
    let mut of = HashMap::<Arc<str>, Part>::new();
    for (_, history) in admin.observer.history().routes() {
        for (_, slot) in history.slots(Step::TenSeconds, SLOTS, now) {
            for (name, part) in slot.parts_of(Dimension::Replica) {
                of.entry(Arc::clone(name)).or_default().merge(part);
            }
        }
    }
    let whole = SLOTS.cast_unsigned() * Step::TenSeconds.seconds();
    Parts { of, seconds: Step::TenSeconds.lasted(whole, now) }
}

/// Requests that a replica had, those of which it computed the prompt alone included.
fn taken(part: &Part) -> u32 {
    part.requests + part.prefills
}

fn recent(part: &Part, of_pool: u32, seconds: f64, (admin, replica): (&AdminState, &Arc<str>)) -> Recent {
    let requests = taken(part);
    let newest = Step::TenSeconds.slot(admin.observer.clock.now());
    let of = |measure| {
        let (part, slots) = (Some((Dimension::Replica, replica)), (newest - SLOTS, newest));
        admin.observer.windows.of("", part, measure, Step::TenSeconds, slots)
    };
    let (ttft, tpot) = (of(Measure::Ttft), of(Measure::Tpot));
    Recent {
        failed: part.failures,
        itl: part.itl.value(),
        missed: part.missed(),
        per_second: f64::from(requests) / seconds,
        requests,
        share: (of_pool > 0).then(|| f64::from(requests) / f64::from(of_pool)),
        tpot: tpot.quantile(0.5).zip(tpot.quantile(0.99)).map(|(p50, p99)| [p50, p99]),
        ttft: ttft.quantile(0.5),
        ttft_p99: ttft.quantile(0.99),
    }
}

fn replica(status: &ReplicaStatus, calibrations: &[PoolCalibration], recent: Recent) -> Replica {
    let pool = calibrations.iter().find(|pool| pool.pool == status.pool);
    let of_replica = pool.and_then(|pool| pool.replicas.iter().find(|(name, _)| *name == status.replica));
    Replica {
        absent_figures: status.absent.iter().map(|key| (*key).to_owned()).collect(),
        adapters: names(&status.adapters),
        calibration: of_replica.and_then(|(_, known)| *known),
        connections: status.connections,
        failure_ratio: status.failure_ratio,
        gpu: status.gpu.as_ref().map(gpu),
        inflight: status.inflight,
        inflight_prompt_tokens: status.inflight_prompt_tokens,
        life: life(&status.life),
        models: names(&status.models),
        on_trial: status.is_on_trial,
        pool: status.pool.to_string(),
        probe_failures: status.failures.probes,
        reason: status.reason.to_string(),
        recent,
        replica: status.replica.to_string(),
        revision: status.revision.to_string(),
        scrape_failures: status.failures.scrapes,
        signals: status.signals.as_ref().map(signals),
        since: Some(status.life.since.as_secs_f64()),
        state: status.state.as_str().to_owned(),
        traffic_share: status.traffic_share,
        url: status.url.to_string(),
        zone: status.life.zone.as_deref().map(str::to_owned),
    }
}

fn life(life: &LifeStatus) -> Life {
    let entered = ReplicaState::ALL.iter().zip(life.entered);
    Life {
        cold_starts: life.cold_starts.count,
        entered: entered.map(|(state, count)| (state.as_str().to_owned(), count)).collect(),
        in_slow_start: life.is_in_slow_start,
        lacks: names(&life.lacks),
        last_cold_start: life.cold_starts.latest.back().map(Duration::as_secs_f64),
        warm_up: life.warm_up.as_deref().map(warm_up),
    }
}

fn warm_up(report: &WarmUpReport) -> WarmUp {
    WarmUp {
        problems: report.problems.clone(),
        requests: report.requests,
        slowest: report.slowest.as_secs_f64(),
        took: report.took.as_secs_f64(),
    }
}

fn signals(EngineSignals { age, page, .. }: &EngineSignals) -> Signals {
    Signals {
        age: Some(age.as_secs_f64()),
        batch_limit: page.batch_limit,
        block_tokens: page.block_tokens,
        kv_cache_usage: page.kv_cache_usage,
        running: page.running,
        total_blocks: page.total_blocks,
        waiting: page.waiting,
    }
}

fn gpu(figures: &GpuFigures) -> Gpu {
    let reasons = |throttling: Throttling| {
        let holding = throttling.each().filter(|(_, holds)| *holds);
        holding.map(|(reason, _)| reason.to_owned()).collect()
    };
    Gpu {
        clocks_throttled: figures.throttling.map(reasons),
        gpus: figures.gpus,
        memory_free_bytes: figures.memory_free,
        memory_used_bytes: figures.memory_used,
        utilization: figures.utilization,
        xid: figures.xid,
    }
}

fn source(status: &SourceStatus) -> Source {
    let (failing_for, error) =
        status.failing.as_ref().map(|(span, error)| (span.as_secs_f64(), &**error)).unzip();
    Source {
        age: status.age.map(|age| age.as_secs_f64()),
        error: error.map(str::to_owned),
        failing_for,
        failures: status.failures,
        kept: status.kept,
        pool: status.pool.to_string(),
        source: status.source.to_owned(),
        targets: status.targets,
    }
}

fn names(names: &[Arc<str>]) -> Vec<String> {
    names.iter().map(|name| name.to_string()).collect()
}

/// Whole slots beside the current one.
const SLOTS: i64 = 6;
