//! Keeps usage ([`crate::observe::usage`]) over restarts: days that are over in one file, the hours since in another, so that what
//! is written every half minute stays small.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::StatePlace;
use crate::gateway::Gateway;
use crate::observe::usage::{Payer, Span, Spans, Used};
use crate::state_file::{self, Version};

/// One file: spans by their first second since 1970, with rows of tenant, model, key and what was used.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Kept {
    version: Version<1>,
    /// How often hours had been folded into days when it was written.
    folds: u64,
    spans: BTreeMap<u64, Vec<Row>>,
}

/// Tenant, model, key, and what was used.
type Row = (Arc<str>, Arc<str>, Arc<str>, Used);

/// Continues from the previous process.
pub(super) fn restore(gateway: &Gateway) {
    let Some(place) = place(gateway) else { return };
    let (days, folds) = read(&place.file(DAYS));
    let (mut hours, folds_before) = read(&place.file(HOURS));
    // A process that ended between two writes has the hours in both files. Of hours alone it cannot be seen: a clock that was ahead
    // once has folded the hours of today.
    if folds_before < folds {
        let folded = days.last_key_value().map_or(0, |(day, _)| day + 24 * 3600);
        hours.retain(|hour, _| *hour >= folded);
    }
    gateway.observer.metrics.usage.restore(Spans::new(days, hours, folds));
}

/// Writes what changed; what cannot be written is tried again.
pub(super) fn keep(gateway: &Gateway) {
    let Some(place) = place(gateway) else { return };
    let now = gateway.clock.wall(gateway.clock.now());
    let usage = &gateway.observer.metrics.usage;
    let (hours, days) = usage.fold(now, |spans, hours_changed, days_changed| {
        let is_kept = !days_changed || write(&place.file(DAYS), &spans.days, spans.folds);
        // Hours that were folded stay in their file until they are in the other.
        let are_kept = is_kept && (!hours_changed || write(&place.file(HOURS), &spans.hours, spans.folds));
        (hours_changed && !are_kept, !is_kept)
    });
    usage.not_kept(hours, days);
}

fn place(gateway: &Gateway) -> Option<StatePlace> {
    gateway.table.load().config.state.clone()
}

fn read(path: &Path) -> (BTreeMap<u64, Span>, u64) {
    let kept: Option<Kept> = state_file::restore(path, "usage begins anew: what was counted cannot be read");
    let kept = kept.unwrap_or_default();
    let row = |(tenant, model, key, used): Row| (Payer { tenant, model, key }, used);
    let span = |rows: Vec<Row>| Span { rows: rows.into_iter().map(row).collect() };
    (kept.spans.into_iter().map(|(from, rows)| (from, span(rows))).collect(), kept.folds)
}

fn write(path: &Path, spans: &BTreeMap<u64, Span>, folds: u64) -> bool {
    let row = |(payer, used): (&Payer, &Used)| {
        let Payer { tenant, model, key } = payer.clone();
        (tenant, model, key, *used)
    };
    let spans = spans.iter().map(|(from, span)| (*from, span.rows.iter().map(row).collect()));
    let kept = Kept { version: Version, folds, spans: spans.collect() };
    state_file::keep(path, &kept, "usage cannot be kept over a restart")
}

const DAYS: &str = "usage-days";
const HOURS: &str = "usage";
pub(super) const KEEP_EVERY: Duration = Duration::from_secs(30);
