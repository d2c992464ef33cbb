//! `[timeouts]`, `[retry]` and `[classes]`: the numbers that requests are held to.

use std::time::Duration;

use crate::config::{Classes, Retry, Timeouts};
use crate::units::Tokens;

use super::section::Section;
use super::values::POSITIVE_DURATION;

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
    let section = root.section("retry", "[retry]");
    let count = |key, default| section.integer(key, 0..=1_000_000).unwrap_or(default);
    Retry {
        attempts: count("attempts", 2),
        budget: section.ratio("budget").unwrap_or(0.1),
        min_per_second: count("min_per_second", 3),
    }
}

/// Reads `[classes]`.
pub(super) fn classes(root: &Section<'_>) -> Classes {
    let section = root.section("classes", "[classes]");
    let bound = |key, default| Tokens(section.integer(key, 1..=i64::MAX).unwrap_or(default));
    let classes = Classes { short: bound("short", 1024), medium: bound("medium", 8192) };
    if classes.short > classes.medium {
        let message =
            format!("classes.short ({}) is above classes.medium ({})", classes.short.0, classes.medium.0);
        if let Some(item) = section.get("short").or_else(|| section.get("medium")) {
            item.fault(message, "both are upper bounds in tokens: short, then medium; above medium is long");
        }
    }
    classes
}

/// `[timeouts]` of a file that has none.
pub(super) const DEFAULT_TIMEOUTS: Timeouts = Timeouts {
    connect: Duration::from_secs(1),
    first_token: Duration::from_secs(60),
    inter_token: Duration::from_secs(30),
    total: Duration::from_secs(30 * 60),
    client_stall: Duration::from_secs(60),
};
