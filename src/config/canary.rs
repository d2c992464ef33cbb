//! `[route.canary]`: steps, bounds and what becomes of a breach.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::check::codec::{Codec, Own, SHARE, STATE_FILE, WEBHOOK, Word};
use super::check::section::{Item, Section};
use super::check::values::{NAME, POSITIVE_DURATION, SIZE};
use super::declare::{Declared, section};
use super::{Endpoint, Pool, WeightedPool};
use crate::labels::labels;

section! {
    #[derive(Clone, Debug, PartialEq)]
    pub struct Canary for "[route.canary]", optional {
        /// the new revision; need not be among pools, which are the baseline
        pool_name @ "pool": Arc<str> as NAME, required "llama-8b-r2";
        /// percent of new requests, increasing; then all
        steps: Vec<CanaryStep> as STEPS, required [{ weight = 10, soak = "10m" }, { weight = 20, soak = "1h" }, { weight = 50, soak = "24h" }];
        /// before the steps copies of 5 percent of the requests go to the canary, and clients see nothing of it; what is over max_concurrent at
        /// a time, or over max_bytes of bodies, is not copied; it ends as a step does, and after min_requests answered copies; default: no copies
        shadow: Option<CanaryShadow> as SHADOW, example { weight = 5, soak = "10m", min_requests = 200, max_concurrent = 32, max_bytes = "32MiB" };
        /// of each of its replicas, until it is ready; default: any
        max_cold_start: Option<Duration> as POSITIVE_DURATION, example "5m";
        /// multiples of the baseline's at the same time; an absent quantile (p50, p99) is not judged
        max_ttft_ratio: QuantileRatios as Ratios("route.canary.max_ttft_ratio"), default { p50 = 1.1, p99 = 1.2 };
        /// likewise
        max_itl_ratio: QuantileRatios as Ratios("route.canary.max_itl_ratio"), default { p99 = 1.2 };
        /// likewise
        max_tpot_ratio: QuantileRatios as Ratios("route.canary.max_tpot_ratio"), default { p50 = 1.2 };
        /// share of failed attempts above the baseline's
        max_error_ratio_increase: f64 as SHARE, default 0.01;
        /// share of requests within their SLO below the baseline's
        max_goodput_decrease: f64 as SHARE, default 0.05;
        /// standing queue per replica over a minute, as a multiple of the baseline's
        max_queue_ratio: f64 as MULTIPLE, default 2.0;
        /// probability that a revision as good as the baseline is stopped; one that is worse, but within all these bounds, ten times that
        false_rollback_rate: f64 as RATE, default 0.01;
        /// rollback | pause: new traffic goes back in both cases; a paused one can be resumed
        on_breach: OnBreach as Word("action"), default "rollback";
        /// answers of the canary without which no step ends; nor does one end before a breach would have been seen (docs/rollouts.md)
        min_requests: u64 as 0..=1_000_000_000, default 1;
        /// gets the report as JSON when a canary is stopped or promoted
        webhook: Option<Endpoint> as WEBHOOK, example "http://127.0.0.1:9000/canaries";
        /// in `$STATE_DIRECTORY`, else beside this file; keeps step, soak, evidence and verdicts over restarts; may be that of several routes
        state: Option<PathBuf> as STATE_FILE, example "canary.json";
    } with {
        /// Index into [`Config::pools`](super::Config::pools) of the new revision; one of the route's pools.
        pool: usize,
    }
}

/// One step of a canary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CanaryStep {
    /// The canary's share of the route's requests in percent, 1 to 100.
    pub weight: u32,
    /// How long it keeps it.
    pub soak: Duration,
}

section! {
    /// copies of requests, of whose answers clients see nothing
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CanaryShadow for "route.canary.shadow", optional {
        /// percent of the baseline's requests that are copied
        weight: u32 as 1..=100, required 5;
        /// how long
        soak: Duration as POSITIVE_DURATION, required "10m";
        /// answered copies without which it does not end
        min_requests: u64 as 0..=1_000_000_000, default 200;
        /// copies under way at a time
        max_concurrent: usize as 1..=10_000, default 32;
        /// of their bodies together
        max_bytes: usize as SIZE, default "32MiB";
    }
}

/// Bounds by quantile; `None` is not judged.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QuantileRatios {
    /// Of the median.
    pub p50: Option<f64>,
    /// Of the 99th percentile.
    pub p99: Option<f64>,
}

labels! {
    /// `route.canary.on_breach`
    pub enum OnBreach {
        /// Traffic goes back, for good.
        Rollback = "rollback",
        /// Traffic goes back until somebody resumes, promotes or rolls back.
        Pause = "pause",
    }
}

/// Reads `[route.canary]`. The canary's pool becomes one of the route's `pools`, if it is not yet.
pub(super) fn canary(route: &Section<'_>, known: &[Pool], pools: &mut Vec<WeightedPool>) -> Option<Canary> {
    let (section, canary) = Canary::opened(route)?;
    if section.get("steps").is_none() {
        section.fault("[route.canary] has no steps", STEPS_HINT);
    }
    section.expect("pool", NAME.hint);
    let pool = section.get("pool")?.pool_of(known)?;
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

const STEPS: Own<Vec<CanaryStep>> =
    Own { read: |item| Some(steps(item)), show: |steps| steps.iter().map(show_step).collect() };

fn steps(list: &Item<'_>) -> Vec<CanaryStep> {
    let mut steps: Vec<CanaryStep> = Vec::new();
    let items = list.list();
    if list.is_empty_list() {
        list.fault("a canary needs at least one step", STEPS_HINT);
    }
    for item in &items {
        let Some(inner) = item.section("route.canary.steps") else { continue };
        let weight = inner.value::<u32>("weight", &(1..=100));
        if inner.get("weight").is_none() {
            inner.fault("the step has no weight", STEPS_HINT);
        }
        let soak = inner.require("soak", &POSITIVE_DURATION);
        let (Some(weight), Some(soak)) = (weight, soak) else { continue };
        let falls = steps.last().is_some_and(|last| weight <= last.weight);
        inner.fault_if(falls, &["weight"], "weights of canary steps must increase", STEPS_HINT);
        let message = "a step of 100 leaves no baseline to judge the canary by";
        inner.fault_if(weight == 100, &["weight"], message, ALL_HINT);
        steps.push(CanaryStep { weight, soak: soak.max(Duration::from_millis(1)) });
    }
    steps
}

fn show_step(step: &CanaryStep) -> Json {
    json!({ "weight": step.weight, "soak": step.soak.as_secs_f64() })
}

const SHADOW: Own<CanaryShadow> = Own { read: shadow, show: Declared::view };

fn shadow(item: &Item<'_>) -> Option<CanaryShadow> {
    let inner = item.section(CanaryShadow::DECLARATION.header)?;
    if inner.get("weight").is_none() {
        inner.fault("the shadow step has no weight", SHADOW_HINT);
    }
    inner.expect("soak", POSITIVE_DURATION.hint);
    Some(CanaryShadow::read(&inner, &CanaryShadow::default()))
}

/// Bounds by quantile, in a section of this name.
struct Ratios(&'static str);

impl Codec<QuantileRatios> for Ratios {
    fn read(&self, item: &Item<'_>) -> Option<QuantileRatios> {
        let section = item.section(self.0)?;
        Some(QuantileRatios { p50: section.value("p50", &MULTIPLE), p99: section.value("p99", &MULTIPLE) })
    }

    fn show(&self, ratios: &QuantileRatios) -> Json {
        json!({ "p50": ratios.p50, "p99": ratios.p99 })
    }
}

const MULTIPLE: Own<f64> = Own { read: multiple, ..SHARE };

fn multiple(item: &Item<'_>) -> Option<f64> {
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

const RATE: Own<f64> = Own { read: false_rollback_rate, ..SHARE };

fn false_rollback_rate(item: &Item<'_>) -> Option<f64> {
    let rate = item.ratio()?;
    let is_valid = (1e-6..=0.5).contains(&rate);
    if !is_valid {
        item.fault(
            "false_rollback_rate must be from 0.000001 to 0.5",
            "0.01 rolls back one good revision in a hundred at most",
        );
    }
    is_valid.then_some(rate)
}

const ALL_HINT: &str = "leave it out: after its last step the canary gets everything";
const STEPS_HINT: &str = "write increasing weights in percent: steps = [{ weight = 10, soak = \"10m\" }, { weight = 50, soak = \"24h\" }]";
const SHADOW_HINT: &str = "write how many percent of the requests are copied, and for how long: shadow = { weight = 5, soak = \"10m\" }";
