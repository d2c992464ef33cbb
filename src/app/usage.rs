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
    spans: BTreeMap<u64, Vec<Row>>,
}

/// Tenant, model, key, and what was used.
type Row = (Box<str>, Box<str>, Box<str>, Used);

/// Continues from the previous process.
pub(super) fn restore(gateway: &Gateway) {
    let Some(place) = place(gateway) else { return };
    let days = read(&place.file(DAYS));
    let mut hours = read(&place.file(HOURS));
    // A process that ended between the two writes has the hours of its last day in both.
    let folded = days.last_key_value().map_or(0, |(day, _)| day + 24 * 3600);
    hours.retain(|hour, _| *hour >= folded);
    gateway.observer.metrics().usage.restore(Spans::new(days, hours));
}

/// Writes what changed.
pub(super) fn keep(gateway: &Gateway) {
    let Some(place) = place(gateway) else { return };
    let now = gateway.clock.wall(gateway.clock.now());
    gateway.observer.metrics().usage.fold(now, |spans, hours_changed, days_changed| {
        if days_changed {
            write(&place.file(DAYS), &spans.days);
        }
        if hours_changed {
            write(&place.file(HOURS), &spans.hours);
        }
    });
}

fn place(gateway: &Gateway) -> Option<StatePlace> {
    gateway.table.load().config.state.clone()
}

fn read(path: &Path) -> BTreeMap<u64, Span> {
    let kept: Kept = state_file::read(path).map(Option::unwrap_or_default).unwrap_or_else(|error| {
        tracing::warn!(path = %path.display(), %error, "usage begins anew: what was counted cannot be read");
        Kept::default()
    });
    let row = |(tenant, model, key, used): Row| {
        (Payer { tenant: tenant.into(), model: model.into(), key: key.into() }, used)
    };
    let span = |rows: Vec<Row>| Span { rows: rows.into_iter().map(row).collect() };
    kept.spans.into_iter().map(|(from, rows)| (from, span(rows))).collect()
}

fn write(path: &Path, spans: &BTreeMap<u64, Span>) {
    let text = |name: &Arc<str>| Box::from(&**name);
    let row =
        |(payer, used): (&Payer, &Used)| (text(&payer.tenant), text(&payer.model), text(&payer.key), *used);
    let spans = spans.iter().map(|(from, span)| (*from, span.rows.iter().map(row).collect()));
    let kept = Kept { version: Version, spans: spans.collect() };
    if let Err(error) = state_file::write(path, &kept) {
        tracing::warn!(path = %path.display(), %error, "usage cannot be kept over a restart");
    }
}

const DAYS: &str = "usage-days";
const HOURS: &str = "usage";
pub(super) const KEEP_EVERY: Duration = Duration::from_secs(30);
