//! `[slo.*]`: what a class of requests is promised, and whether its bounds contradict each other.
//!
//! A class whose bounds cannot all matter is a mistake: a TTFT that may be longer than the whole request, a median that may be above
//! the 99th percentile. It is refused, because a bound that can never be missed looks like one that is always met.
//! [`crate::observe::slo`] judges by the bounds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};
use toml::de::DeValue;

use super::ENGINE_PRIORITIES;
use super::check::codec::Own;
use super::check::section::{Item, Section};
use super::check::shape::Kind;
use super::check::values::{DURATION, POSITIVE_DURATION};
use super::declare::{Declared, section};
use crate::units::Tokens;

section! {
    /// bounds of a class; those that are not given do not apply
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Slo for "[slo.*]", optional {
        /// time to first token; it may grow with the prompt
        ttft: Option<TtftBound> as TTFT, example { base = "500ms", per_prompt_token = "0.1ms" };
        /// mean time per output token
        tpot: Option<Duration> as POSITIVE_DURATION, example "40ms";
        /// the whole request
        e2e: Option<Duration> as POSITIVE_DURATION, example "60s";
        /// percentiles of one stream's own gaps, by token
        itl: ItlBounds as ITL, empty { p50 = "30ms", p90 = "60ms", p95 = "80ms", p99 = "100ms" };
        /// vLLM's priority (--scheduling-policy priority), lower is sooner; a tenant's goes before it
        engine_priority: Option<i32> as ENGINE_PRIORITIES, example 10;
    }
}

/// Bounds on percentiles of the inter-token latencies of one stream, in the order of [`ItlBounds::PERCENTILES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ItlBounds([Option<Duration>; 4]);

impl ItlBounds {
    /// The percentiles that may be bound, with their keys.
    pub const PERCENTILES: [(&str, u8); 4] = [("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99)];

    /// Bounds in the order of the percentiles.
    pub const fn new(bounds: [Option<Duration>; 4]) -> Self {
        Self(bounds)
    }

    /// Whether no bound is set.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// Percentile (in percent) and bound, of those that are bound, the lowest percentile first.
    pub fn iter(&self) -> impl Iterator<Item = (u8, Duration)> {
        let bound = |((_, percent), bound): ((&str, u8), &Option<Duration>)| bound.map(|b| (percent, b));
        Self::PERCENTILES.into_iter().zip(&self.0).filter_map(bound)
    }
}

/// A TTFT bound that may grow with the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TtftBound {
    /// For an empty prompt.
    pub base: Duration,
    /// For each prompt token.
    pub per_prompt_token: Duration,
}

impl TtftBound {
    /// The bound for a prompt of `prompt` tokens.
    pub fn for_prompt(&self, prompt: Tokens) -> Duration {
        let tokens = u32::try_from(prompt.0).unwrap_or(u32::MAX);
        self.base + self.per_prompt_token.saturating_mul(tokens)
    }
}

/// Reads `[slo.*]`. A class that the file has is what the file says, none of its default bounds stays.
pub(super) fn slo(root: &Section<'_>) -> BTreeMap<Arc<str>, Slo> {
    let mut classes = defaults();
    let Some(item) = root.get("slo") else { return classes };
    for class in item.entries("a table of classes", "write one section for each class: [slo.interactive]") {
        if class.key.is_empty() || class.key.chars().any(|c| !c.is_ascii_graphic()) {
            class.fault_at_key("a class needs a name of visible characters", "such as [slo.interactive]");
        }
        if let Some(section) = class.section("[slo.*]") {
            classes.insert(class.key.into(), bounds(&section));
        }
    }
    classes
}

fn bounds(section: &Section<'_>) -> Slo {
    let slo = Slo::read(section, &Slo::default());
    let Some(e2e) = slo.e2e else { return slo };
    let slowest_itl = slo.itl.iter().map(|(_, bound)| bound).max();
    for (key, bound) in [("ttft", slo.ttft.map(|bound| bound.base)), ("tpot", slo.tpot), ("itl", slowest_itl)]
    {
        if let (Some(bound), Some(item)) = (bound.filter(|bound| *bound > e2e), section.get(key)) {
            item.fault(
                format!("{key} ({bound:?}) is above e2e ({e2e:?}), the bound of the whole request"),
                "lower it below e2e, or raise e2e: as it is, this bound can never be the one that is missed",
            );
        }
    }
    slo
}

fn ttft(item: &Item<'_>) -> Option<TtftBound> {
    item.accepts([Kind::Text { hint: POSITIVE_DURATION.hint }, Kind::Section { header: "slo.*.ttft" }]);
    if !matches!(item.value, DeValue::Table(_)) {
        let base = item.parse(&POSITIVE_DURATION)?;
        return Some(TtftBound { base, per_prompt_token: Duration::ZERO });
    }
    let section = item.section("slo.*.ttft")?;
    let per_prompt_token = section.parse("per_prompt_token", &DURATION).unwrap_or(Duration::ZERO);
    section.require("base", &POSITIVE_DURATION).map(|base| TtftBound { base, per_prompt_token })
}

fn itl(item: &Item<'_>) -> Option<ItlBounds> {
    if !matches!(item.value, DeValue::Table(_)) {
        item.wrong_type("a table of percentiles", "say which percentile is bound: itl = { p99 = \"100ms\" }");
        return None;
    }
    let section = item.section("slo.*.itl")?;
    let bounds = ItlBounds::PERCENTILES.map(|(key, _)| section.parse(key, &POSITIVE_DURATION));
    if section.items().next().is_none() {
        item.fault("itl names no percentile", "say which one is bound: itl = { p99 = \"100ms\" }");
    }
    let mut lower: Option<(&str, Duration)> = None;
    for ((key, _), bound) in ItlBounds::PERCENTILES.into_iter().zip(bounds) {
        let Some(bound) = bound else { continue };
        if let (Some((below, higher)), Some(item)) =
            (lower.filter(|(_, higher)| *higher > bound), section.get(key))
        {
            item.fault(
                format!("itl.{key} ({bound:?}) is below itl.{below} ({higher:?})"),
                "a higher percentile is never faster: raise it, or remove the other",
            );
        }
        lower = Some((key, bound));
    }
    Some(ItlBounds::new(bounds))
}

fn defaults() -> BTreeMap<Arc<str>, Slo> {
    let ttft = |base, per_prompt_token_us| {
        Some(TtftBound {
            base: Duration::from_millis(base),
            per_prompt_token: Duration::from_micros(per_prompt_token_us),
        })
    };
    let tpot = |millis| Some(Duration::from_millis(millis));
    let interactive = Slo { ttft: ttft(500, 100), tpot: tpot(40), ..Slo::default() };
    // No bound on streams: what is within reach depends on model and GPU, so an operator has to write it.
    let standard = Slo { ttft: ttft(2000, 150), ..Slo::default() };
    let batch = Slo { e2e: Some(Duration::from_secs(600)), ..Slo::default() };
    BTreeMap::from([
        ("interactive".into(), interactive),
        ("standard".into(), standard),
        ("batch".into(), batch),
    ])
}

/// A duration, or a table where it grows with the prompt.
const TTFT: Own<TtftBound> = Own {
    read: ttft,
    show: |bound| json!({ "base": bound.base.as_secs_f64(), "per_prompt_token": bound.per_prompt_token.as_secs_f64() }),
};
const ITL: Own<ItlBounds> = Own {
    read: itl,
    show: |bounds| {
        let shown = bounds.iter().map(|(percent, bound)| (format!("p{percent}"), bound.as_secs_f64().into()));
        Json::Object(shown.collect())
    },
};
