//! What `top` shows: the gateway's answers as rows. Pure.

use std::collections::BTreeMap;

use crate::api::drift::{Drift, Finding};
use crate::api::fleet::{Fleet, Replica, Signals};
use crate::api::requests::{Request, Requests};
use crate::api::slo::{RouteVerdict, Slo};
use crate::cli::explain::text::time;

/// Answers of the gateway, taken together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Snapshot {
    pub(super) slo: Slo,
    pub(super) fleet: Fleet,
    pub(super) requests: Requests,
    pub(super) drift: Drift,
    /// The request that was asked for, and its explanation.
    pub(super) explained: Option<(String, String)>,
}

/// One row: its cells, and how it stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) cells: Vec<String>,
    pub(super) health: Health,
}

/// How a row stands, by colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    Good,
    Doubtful,
    Bad,
    /// Nothing to judge.
    Idle,
}

/// A table: its title, its columns with their widths, its rows.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Table {
    pub(super) columns: &'static [(&'static str, u16)],
    /// Columns that a narrow terminal goes without, the least needed first.
    pub(super) spare: &'static [usize],
    pub(super) rows: Vec<Row>,
    /// What it says when it has no rows.
    pub(super) empty: &'static str,
}

impl Snapshot {
    /// The gateway's own words on how it stands.
    pub(super) fn sentence(&self) -> (Health, String) {
        let sentence = match &*self.slo.sentence {
            "" => "this gateway gives no verdict",
            sentence => sentence,
        };
        (health(&self.slo.status), sentence.to_owned())
    }

    /// What is known of a row, a line each; of a request the gateway is asked.
    pub(super) fn details(&self, table: &Table, row: &Row) -> Vec<String> {
        let name = row.cells.first().map(String::as_str).unwrap_or_default();
        let cells = table.columns.iter().zip(&row.cells).filter(|(_, cell)| !cell.is_empty());
        let mut lines = Vec::from_iter(cells.map(|((name, _), cell)| format!("{name:<12} {cell}")));
        let is_route = table.columns == ROUTES;
        for route in self.slo.routes.iter().filter(|route| is_route && route.route == name) {
            lines.insert(0, route.sentence.clone());
            let out = route.standing_out.iter();
            lines.extend(out.map(|who| format!("{:<12} {}: {}", who.dimension, who.name, who.evidence)));
        }
        lines
    }

    /// The gateway's version.
    pub(super) fn version(&self) -> &str {
        if self.slo.version.is_empty() { "unknown" } else { &self.slo.version }
    }

    pub(super) fn routes(&self) -> Table {
        let rows = self.slo.routes.iter().map(route).collect();
        Table { columns: ROUTES, spare: &[4, 10, 8, 1, 9, 7, 3, 5], rows, empty: "no routes" }
    }

    pub(super) fn replicas(&self) -> Table {
        let rows = self.fleet.replicas.iter().map(replica).collect();
        Table { columns: REPLICAS, spare: &[3, 1, 12, 10, 8, 9, 5, 11], rows, empty: "no replicas" }
    }

    pub(super) fn requests(&self) -> Table {
        let rows = self.requests.requests.iter().map(request).collect();
        Table {
            columns: REQUESTS,
            spare: &[4, 1, 8, 6, 0, 7, 2],
            rows,
            empty: "no request was slow or failed in the last hour",
        }
    }

    pub(super) fn findings(&self) -> Table {
        let rows = self.drift.active.iter().map(finding).collect();
        Table { columns: FINDINGS, spare: &[0, 3, 2, 4], rows, empty: "no drift was found" }
    }
}

fn route(route: &RouteVerdict) -> Row {
    let missed = counts(&route.missed_in).or_else(|| counts(&route.missed));
    let burn = |burn: Option<f64>| cell(burn, |burn| format!("{burn:.1}"));
    let cells = vec![
        route.route.clone(),
        route.status.clone(),
        share(route.goodput.share),
        format!("{:.1}", route.goodput.per_second),
        route.goodput.requests.to_string(),
        cell(route.ttft.p50, time),
        cell(route.ttft.p99, time),
        cell(route.bound.ttft, time),
        cell(route.itl.p99, time),
        burn(route.burn.five_minutes),
        burn(route.burn.hour),
        missed.unwrap_or_default(),
    ];
    Row { cells, health: health(&route.status) }
}

fn replica(replica: &Replica) -> Row {
    let none = Signals::default();
    let signals = replica.signals.as_ref().unwrap_or(&none);
    let count = |count: Option<f64>| cell(count, |count| format!("{count:.0}"));
    let health = match &*replica.state {
        "ready" if replica.on_trial || signals.age.is_some_and(|age| age > STALE) => Health::Doubtful,
        "ready" => Health::Good,
        "ejected" | "gone" => Health::Bad,
        _ => Health::Doubtful,
    };
    let cells = vec![
        replica.replica.clone(),
        replica.pool.clone(),
        replica.state.clone(),
        replica.since.map_or_else(String::new, time),
        format!("{:.1}", replica.recent.per_second),
        share(replica.recent.share),
        cell(replica.recent.ttft, time),
        cell(replica.recent.itl, time),
        count(signals.running),
        count(signals.waiting),
        share(signals.kv_cache_usage),
        replica.inflight.to_string(),
        replica.recent.failed.to_string(),
        replica.reason.clone(),
    ];
    Row { cells, health }
}

fn request(request: &Request) -> Row {
    let health = match (&*request.outcome, &request.slo_missed) {
        ("ok", None) => Health::Good,
        ("ok" | "canceled", _) => Health::Doubtful,
        _ => Health::Bad,
    };
    let word = |word: &Option<String>| word.clone().unwrap_or_default();
    let cells = vec![
        request.time.get(11..19).unwrap_or(&request.time).to_owned(),
        request.route.clone(),
        word(&request.replica),
        request.outcome.clone(),
        request.status.to_string(),
        cell(request.ttft, time),
        time(request.duration),
        word(&request.slo_missed),
        word(&request.slo_missed_in),
        request.request_id.clone(),
    ];
    Row { cells, health }
}

fn finding(finding: &Finding) -> Row {
    let facts = finding.evidence.iter().map(|(name, fact)| format!("{name} {fact}"));
    let date = finding.time.as_deref().unwrap_or_default();
    let cells = vec![
        date.get(5..16).unwrap_or(date).replace('T', " "),
        finding.kind.clone(),
        finding.series.route.clone(),
        finding.series.replica.clone().unwrap_or_default(),
        finding.diagnosis.clone(),
        Vec::from_iter(facts).join(", "),
    ];
    Row { cells, health: Health::Bad }
}

fn cell<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

fn share(share: Option<f64>) -> String {
    cell(share, |share| match share * 100.0 {
        percent if percent > 99.0 && percent < 99.995 => format!("{percent:.2} %"),
        percent => format!("{percent:.0} %"),
    })
}

/// "engine_queue 12, prefill 3", the most first.
fn counts(counts: &BTreeMap<String, u32>) -> Option<String> {
    let mut all: Vec<_> = counts.iter().filter(|(_, n)| **n > 0).collect();
    all.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
    let shown: Vec<_> = all.iter().take(3).map(|(name, n)| format!("{name} {n}")).collect();
    (!shown.is_empty()).then(|| shown.join(", "))
}

fn health(status: &str) -> Health {
    match status {
        "green" | "ok" | "good" => Health::Good,
        "red" | "bad" | "missed" => Health::Bad,
        "" | "grey" | "gray" | "idle" | "unknown" | "quiet" => Health::Idle,
        _ => Health::Doubtful,
    }
}

const ROUTES: &[(&str, u16)] = &[
    ("route", 18),
    ("slo", 7),
    ("goodput", 8),
    ("good/s", 7),
    ("requests", 8),
    ("ttft p50", 9),
    ("ttft p99", 9),
    ("bound", 8),
    ("itl p99", 8),
    ("burn 5m", 7),
    ("burn 1h", 7),
    ("missed in", 30),
];
const REPLICAS: &[(&str, u16)] = &[
    ("replica", 22),
    ("pool", 14),
    ("state", 9),
    ("since", 9),
    ("req/s", 6),
    ("share", 6),
    ("ttft", 8),
    ("itl", 8),
    ("running", 7),
    ("waiting", 7),
    ("kv", 6),
    ("in flight", 9),
    ("failed", 6),
    ("reason", 40),
];
const REQUESTS: &[(&str, u16)] = &[
    ("at", 8),
    ("route", 16),
    ("replica", 20),
    ("outcome", 12),
    ("status", 6),
    ("ttft", 8),
    ("whole", 8),
    ("missed", 7),
    ("in", 13),
    ("id", 40),
];
const FINDINGS: &[(&str, u16)] =
    &[("since", 11), ("kind", 20), ("route", 16), ("replica", 18), ("diagnosis", 20), ("evidence", 60)];
/// Seconds; figures of an engine that are older say little.
const STALE: f64 = 5.0;
