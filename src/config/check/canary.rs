//! `[route.canary]`: steps, bounds and what becomes of a breach.

use std::time::Duration;

use crate::config::{
    Canary, CanaryShadow, CanaryStep, Declared, OnBreach, Pool, QuantileRatios, WeightedPool,
};

use super::codec::Word;
use super::section::{Item, Section};
use super::values::{ENDPOINT, NAME, POSITIVE_DURATION};

/// Reads `[route.canary]`. The canary's pool becomes one of the route's `pools`, if it is not yet.
pub(super) fn canary(route: &Section<'_>, known: &[Pool], pools: &mut Vec<WeightedPool>) -> Option<Canary> {
    let section = route.section("canary", "[route.canary]");
    if !section.is_present() {
        return None;
    }
    let steps = steps(&section);
    let bounds = |key, header, default| {
        if section.get(key).is_some() { ratios(&section.section(key, header)) } else { default }
    };
    let one = |p99| QuantileRatios { p50: None, p99 };
    let max_ttft_ratio = bounds(
        "max_ttft_ratio",
        "route.canary.max_ttft_ratio",
        QuantileRatios { p50: Some(1.1), p99: Some(1.2) },
    );
    let max_itl_ratio = bounds("max_itl_ratio", "route.canary.max_itl_ratio", one(Some(1.2)));
    let max_tpot_ratio = bounds("max_tpot_ratio", "route.canary.max_tpot_ratio", one(None));
    let canary = Canary {
        pool: 0,
        shadow: shadow(&section),
        steps,
        max_cold_start: section.parse("max_cold_start", &POSITIVE_DURATION),
        max_ttft_ratio,
        max_itl_ratio,
        max_tpot_ratio,
        max_error_ratio_increase: section.ratio("max_error_ratio_increase").unwrap_or(0.01),
        max_goodput_decrease: section.ratio("max_goodput_decrease").unwrap_or(0.05),
        max_queue_ratio: section.get("max_queue_ratio").and_then(|item| ratio(&item)).unwrap_or(2.0),
        false_rollback_rate: false_rollback_rate(&section),
        on_breach: section.value("on_breach", &Word("action")).unwrap_or(OnBreach::Rollback),
        min_requests: section.integer("min_requests", 0..=1_000_000_000).unwrap_or(1),
        webhook: section.parse("webhook", &ENDPOINT),
        state: section.get("state").and_then(|item| Some(item.checking.directory.join(item.text()?))),
    };
    let pool = pool(&section, known)?;
    if !pools.iter().any(|other| other.pool != pool && other.weight > 0) {
        section.fault(
            "the canary has no baseline: the route has no other pool with a weight",
            "name the pool that serves the route now: pools = [\"…\"]",
        );
    }
    if !pools.iter().any(|other| other.pool == pool) {
        pools.push(WeightedPool { pool, weight: 0 });
    }
    Some(Canary { pool, ..canary })
}

fn pool(section: &Section<'_>, known: &[Pool]) -> Option<usize> {
    section.require("pool", &NAME)?;
    let item = section.get("pool")?;
    let names: Vec<_> = known.iter().map(|pool| &*pool.name).collect();
    item.place_of("pool", item.text()?, &names)
}

fn steps(section: &Section<'_>) -> Vec<CanaryStep> {
    let Some(list) = section.get("steps") else {
        section.fault("[route.canary] has no steps", STEPS_HINT);
        return Vec::new();
    };
    let mut steps: Vec<CanaryStep> = Vec::new();
    let items = list.list();
    if list.value.as_array().is_some() && items.is_empty() {
        list.fault("a canary needs at least one step", STEPS_HINT);
    }
    for item in &items {
        let Some(inner) = item.section("route.canary.steps") else { continue };
        let weight = inner.integer::<u32>("weight", 1..=100);
        if inner.get("weight").is_none() {
            inner.fault("the step has no weight", STEPS_HINT);
        }
        let soak = inner.require("soak", &POSITIVE_DURATION);
        let (Some(weight), Some(soak)) = (weight, soak) else { continue };
        if let Some(item) =
            inner.get("weight").filter(|_| steps.last().is_some_and(|last| weight <= last.weight))
        {
            item.fault("weights of canary steps must increase", STEPS_HINT);
        }
        steps.push(CanaryStep { weight, soak: soak.max(Duration::from_millis(1)) });
    }
    steps
}

fn shadow(section: &Section<'_>) -> Option<CanaryShadow> {
    section.get("shadow")?;
    let inner = CanaryShadow::open(section);
    let shadow = CanaryShadow::read(&inner, &CanaryShadow::default());
    if inner.is_present() && inner.get("weight").is_none() {
        inner.fault("the shadow step has no weight", SHADOW_HINT);
    }
    inner.expect("soak", POSITIVE_DURATION.hint);
    Some(shadow)
}

fn ratios(section: &Section<'_>) -> QuantileRatios {
    let of = |key| section.get(key).and_then(|item| ratio(&item));
    QuantileRatios { p50: of("p50"), p99: of("p99") }
}

fn ratio(item: &Item<'_>) -> Option<f64> {
    let number = item.number("a number of at least 1", "write a multiple without quotes: 1.2")?;
    let valid = Some(number).filter(|n| (1.0..=100.0).contains(n));
    if valid.is_none() {
        item.fault(
            format!("{} must be from 1 to 100: it is a multiple of the baseline", item.key),
            "1.2 allows a fifth more than the baseline",
        );
    }
    valid
}

fn false_rollback_rate(section: &Section<'_>) -> f64 {
    let rate = section.ratio("false_rollback_rate").unwrap_or(DEFAULT_RATE);
    let is_valid = (MIN_RATE..=0.5).contains(&rate);
    if let Some(item) = section.get("false_rollback_rate").filter(|_| !is_valid) {
        item.fault(
            "false_rollback_rate must be from 0.000001 to 0.5",
            "0.01 rolls back one good revision in a hundred at most",
        );
    }
    if is_valid { rate } else { DEFAULT_RATE }
}

const STEPS_HINT: &str = "write increasing weights in percent: steps = [{ weight = 10, soak = \"10m\" }, { weight = 50, soak = \"24h\" }]";
const SHADOW_HINT: &str = "write how many percent of the requests are copied, and for how long: shadow = { weight = 5, soak = \"10m\" }";
const DEFAULT_RATE: f64 = 0.01;
const MIN_RATE: f64 = 1e-6;
