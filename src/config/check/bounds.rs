//! `[timeouts]`, `[retry]`, `[slo.*]` and `[classes]`: the numbers that requests are held to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use toml::de::DeValue;

use crate::config::schema;
use crate::config::{Classes, Retry, Slo, Timeouts, TtftBound};
use crate::units::Tokens;

use super::section::{Item, Section};
use super::unbuilt;
use super::values::{DURATION, POSITIVE_DURATION};

/// Reads `[timeouts]` or a route's overrides of it.
pub(super) fn timeouts(section: &Section<'_>, default: &Timeouts) -> Timeouts {
    let timer = |key, default| section.parse(key, &POSITIVE_DURATION).unwrap_or(default);
    Timeouts {
        connect: timer("connect", default.connect),
        first_token: timer("first_token", default.first_token),
        inter_token: timer("inter_token", default.inter_token),
        total: timer("total", default.total),
        client_stall: timer("client_stall", default.client_stall),
    }
}

/// Reads `[retry]`.
pub(super) fn retry(root: &Section<'_>) -> Retry {
    let section = root.section("retry", schema::RETRY);
    let count = |key, default| {
        section.integer(key, 0..=1_000_000).and_then(|number| u32::try_from(number).ok()).unwrap_or(default)
    };
    Retry {
        attempts: count("attempts", 2),
        budget: section.ratio("budget").unwrap_or(0.1),
        min_per_second: count("min_per_second", 3),
    }
}

/// Reads `[classes]`.
pub(super) fn classes(root: &Section<'_>) -> Classes {
    let section = root.section("classes", schema::CLASSES);
    let bound = |key, default: u64| {
        section.integer(key, 1..=i64::MAX).and_then(|number| u64::try_from(number).ok()).unwrap_or(default)
    };
    let classes = Classes { short: Tokens(bound("short", 1024)), medium: Tokens(bound("medium", 8192)) };
    if classes.short > classes.medium {
        let message =
            format!("classes.short ({}) is above classes.medium ({})", classes.short.0, classes.medium.0);
        if let Some(item) = section.get("short").or_else(|| section.get("medium")) {
            item.fault(message, "both are upper bounds in tokens: short, then medium; above medium is long");
        }
    }
    classes
}

/// Reads `[slo.*]`. A class that the file has is what the file says, none of its default bounds stays.
pub(super) fn slo(root: &Section<'_>) -> BTreeMap<Arc<str>, Slo> {
    let mut classes = default_slo();
    let Some(item) = root.get("slo") else { return classes };
    let DeValue::Table(_) = item.value else {
        item.wrong_type("a table of classes", "write one section for each class: [slo.interactive]");
        return classes;
    };
    for class in item.entries() {
        if class.key.is_empty() || class.key.chars().any(|c| !c.is_ascii_graphic()) {
            class.fault_at_key("a class needs a name of visible characters", "such as [slo.interactive]");
        }
        if let Some(section) = class.section(schema::SLO) {
            unbuilt::refuse(&section, unbuilt::SLO);
            let slo = Slo {
                ttft: section.get("ttft").and_then(|item| ttft(&item)),
                tpot: section.parse("tpot", &POSITIVE_DURATION),
                e2e: section.parse("e2e", &POSITIVE_DURATION),
            };
            classes.insert(class.key.into(), slo);
        }
    }
    classes
}

fn ttft(item: &Item<'_>) -> Option<TtftBound> {
    if !matches!(item.value, DeValue::Table(_)) {
        let base = item.parse(&POSITIVE_DURATION)?;
        return Some(TtftBound { base, per_prompt_token: Duration::ZERO });
    }
    let section = item.section(schema::TTFT)?;
    let per_prompt_token = section.parse("per_prompt_token", &DURATION).unwrap_or(Duration::ZERO);
    section.require("base", &POSITIVE_DURATION).map(|base| TtftBound { base, per_prompt_token })
}

fn default_slo() -> BTreeMap<Arc<str>, Slo> {
    let bound = |base, per_prompt_token_us| {
        Some(TtftBound {
            base: Duration::from_millis(base),
            per_prompt_token: Duration::from_micros(per_prompt_token_us),
        })
    };
    let interactive = Slo { ttft: bound(500, 100), tpot: Some(Duration::from_millis(40)), e2e: None };
    let standard = Slo { ttft: bound(2000, 150), tpot: Some(Duration::from_millis(100)), e2e: None };
    let batch = Slo { ttft: None, tpot: None, e2e: Some(Duration::from_secs(600)) };
    BTreeMap::from([
        ("interactive".into(), interactive),
        ("standard".into(), standard),
        ("batch".into(), batch),
    ])
}

/// `[timeouts]` of a file that has none.
pub(super) const DEFAULT_TIMEOUTS: Timeouts = Timeouts {
    connect: Duration::from_secs(1),
    first_token: Duration::from_secs(60),
    inter_token: Duration::from_secs(30),
    total: Duration::from_secs(30 * 60),
    client_stall: Duration::from_secs(60),
};
