//! `[drift]`: what latency and availability are held against.
//!
//! The bounds here are those of the statistics: a baseline shorter than three blocks teaches no scale, and one of more
//! than a hundred would be kept in memory for nothing.

use std::time::Duration;

use crate::config::{Drift, DriftState};

use super::section::{Item, Section};
use super::values::{ENDPOINT, POSITIVE_DURATION};

/// Reads `[drift]`.
pub(super) fn drift(root: &Section<'_>) -> Drift {
    let section = root.section("drift", "[drift]");
    let default = Drift::default();
    let block = section.parse("block", &POSITIVE_DURATION).unwrap_or(default.block);
    if let Some(item) = section.get("block").filter(|_| block < MIN_BLOCK) {
        item.fault("drift.block is under a minute", "a day is what load repeats by: block = \"24h\"");
    }
    let baseline = section.section("baseline", "drift.baseline");
    let bound = |key, default| baseline.parse(key, &POSITIVE_DURATION).unwrap_or(default);
    let (from, to) = (bound("from", default.from), bound("to", default.to));
    if let Some(message) = contradiction(block, from, to) {
        let item = section.get("baseline").or_else(|| section.get("block"));
        if let Some(item) = item {
            item.fault(message, "write how long ago it begins and ends: { from = \"35d\", to = \"7d\" }");
        }
    }
    let availability = section.ratio("availability").unwrap_or(default.availability);
    if let Some(item) = section.get("availability").filter(|_| !TARGETS.contains(&availability)) {
        item.fault("drift.availability must be from 0.5 to 0.999999", "three nines are 0.999");
    }
    Drift {
        block,
        from,
        to,
        availability,
        webhook: section.parse("webhook", &ENDPOINT),
        state: section.get("state").map_or(DriftState::Default, state),
    }
}

/// A path, or `false` for none.
fn state(item: Item<'_>) -> DriftState {
    if item.value.as_bool() == Some(false) {
        return DriftState::Off;
    }
    item.text().map_or(DriftState::Default, |path| DriftState::At(item.checking.directory.join(path)))
}

fn contradiction(block: Duration, from: Duration, to: Duration) -> Option<String> {
    let blocks = |span: Duration| span.as_secs_f64() / block.as_secs_f64();
    if blocks(to) < MIN_BLOCKS {
        Some("drift.baseline.to is under three blocks: a drift would be part of its own baseline".to_owned())
    } else if blocks(from) < blocks(to) + MIN_BLOCKS {
        Some("drift.baseline.from must be at least three blocks before drift.baseline.to".to_owned())
    } else if blocks(from) > MAX_BLOCKS {
        Some("drift.baseline.from is more than a hundred blocks ago".to_owned())
    } else {
        None
    }
}

const TARGETS: std::ops::RangeInclusive<f64> = 0.5..=0.999_999;
const MIN_BLOCK: Duration = Duration::from_secs(60);
const MIN_BLOCKS: f64 = 3.0;
const MAX_BLOCKS: f64 = 100.0;
