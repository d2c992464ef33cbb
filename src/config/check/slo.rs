//! `[slo.*]`: the bounds of each class, and whether they contradict each other.
//!
//! A class whose bounds cannot all matter is a mistake: a TTFT that may be longer than the whole
//! request, a median that may be above the 99th percentile. It is refused, because a bound that can
//! never be missed looks like one that is always met.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use toml::de::DeValue;

use crate::config::{ItlBounds, Slo, TtftBound};

use super::section::{Item, Section};
use super::shape::Kind;
use super::values::{DURATION, POSITIVE_DURATION};

/// Reads `[slo.*]`. A class that the file has is what the file says, none of its default bounds stays.
pub(super) fn slo(root: &Section<'_>) -> BTreeMap<Arc<str>, Slo> {
    let mut classes = defaults();
    let Some(item) = root.get("slo") else { return classes };
    let DeValue::Table(_) = item.value else {
        item.wrong_type("a table of classes", "write one section for each class: [slo.interactive]");
        return classes;
    };
    for class in item.entries() {
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
    let slo = Slo {
        ttft: section.get("ttft").and_then(|item| ttft(&item)),
        itl: section.get("itl").map(|item| itl(&item)).unwrap_or_default(),
        tpot: section.parse("tpot", &POSITIVE_DURATION),
        e2e: section.parse("e2e", &POSITIVE_DURATION),
    };
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

fn itl(item: &Item<'_>) -> ItlBounds {
    if !matches!(item.value, DeValue::Table(_)) {
        item.wrong_type("a table of percentiles", "say which percentile is bound: itl = { p99 = \"100ms\" }");
        return ItlBounds::default();
    }
    let Some(section) = item.section("slo.*.itl") else { return ItlBounds::default() };
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
    ItlBounds::new(bounds)
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
