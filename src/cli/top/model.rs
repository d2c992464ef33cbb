//! What `top` shows: the gateway's answers as rows. Pure.

use std::collections::BTreeMap;

use crate::api::drift::{Drift, Finding};
use crate::api::fleet::{Fleet, Replica, Signals};
use crate::api::requests::{Request, Requests};
use crate::api::slo::{RouteVerdict, Slo};
use crate::cli::explain::text::time;

/// Answers of the gateway, taken together.
#[derive(Debug, Default, PartialEq)]
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

/// A column of a table of `T`s: name, width, its turn to go where a terminal is too narrow (0 stays), cell.
type Column<T> = (&'static str, u16, u8, fn(&T) -> String);

/// A table: its columns with their widths, its rows.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Table {
    pub(super) columns: Vec<(&'static str, u16)>,
    /// Columns that a narrow terminal goes without, the least needed first.
    pub(super) spare: Vec<usize>,
    pub(super) rows: Vec<Row>,
    /// What it says when it has no rows.
    pub(super) empty: &'static str,
}

impl Table {
    fn of<T>(columns: &[Column<T>], all: &[T], health: fn(&T) -> Health, empty: &'static str) -> Self {
        let row = |one: &T| Row {
            cells: columns.iter().map(|(.., cell)| cell(one)).collect(),
            health: health(one),
        };
        let turn = |at: &usize| columns.get(*at).map_or(0, |(_, _, goes, _)| *goes);
        let mut spare: Vec<usize> = (0..columns.len()).filter(|at| turn(at) > 0).collect();
        spare.sort_unstable_by_key(|at| (turn(at), *at));
        let named = columns.iter().map(|(name, width, ..)| (*name, *width));
        Self { columns: named.collect(), spare, rows: all.iter().map(row).collect(), empty }
    }
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

    /// What is known of a row, a line each, and of a route its verdict; of a request the gateway is asked.
    pub(super) fn details(&self, table: &Table, row: &Row, is_route: bool) -> Vec<String> {
        let name = row.cells.first().map(String::as_str).unwrap_or_default();
        let cells = table.columns.iter().zip(&row.cells).filter(|(_, cell)| !cell.is_empty());
        let mut lines = Vec::from_iter(cells.map(|((name, _), cell)| format!("{name:<12} {cell}")));
        for route in self.slo.routes.iter().filter(|route| is_route && route.route == name) {
            lines.insert(0, route.sentence.clone());
            let out = route.standing_out.iter();
            lines.extend(out.map(|who| format!("{:<12} {}: {}", who.dimension, who.name, who.evidence)));
        }
        lines
    }

    pub(super) fn version(&self) -> &str {
        if self.slo.version.is_empty() { "unknown" } else { &self.slo.version }
    }

    pub(super) fn routes(&self) -> Table {
        Table::of(ROUTES, &self.slo.routes, |route| health(&route.status), "no routes")
    }

    pub(super) fn replicas(&self) -> Table {
        Table::of(REPLICAS, &self.fleet.replicas, of_replica, "no replicas")
    }

    pub(super) fn requests(&self) -> Table {
        let none = "no request was slow or failed in the last hour";
        Table::of(REQUESTS, &self.requests.requests, of_request, none)
    }

    pub(super) fn findings(&self) -> Table {
        Table::of(FINDINGS, &self.drift.active, |_| Health::Bad, "no drift was found")
    }
}

fn of_replica(replica: &Replica) -> Health {
    let age = replica.signals.as_ref().and_then(|signals| signals.age);
    match &*replica.state {
        "ready" if replica.on_trial || age.is_some_and(|age| age > STALE) => Health::Doubtful,
        "ready" => Health::Good,
        "ejected" | "gone" => Health::Bad,
        _ => Health::Doubtful,
    }
}

fn of_request(request: &Request) -> Health {
    match (&*request.outcome, &request.slo_missed) {
        ("ok", None) => Health::Good,
        ("ok" | "canceled", _) => Health::Doubtful,
        _ => Health::Bad,
    }
}

/// A figure of the engine.
fn signal<T>(replica: &Replica, figure: impl FnOnce(&Signals) -> Option<T>) -> Option<T> {
    replica.signals.as_ref().and_then(figure)
}

fn word(word: &Option<String>) -> String {
    word.clone().unwrap_or_default()
}

fn count(count: Option<f64>) -> String {
    cell(count, |count| format!("{count:.0}"))
}

fn burn(burn: Option<f64>) -> String {
    cell(burn, |burn| format!("{burn:.1}"))
}

fn date(finding: &Finding) -> String {
    let date = finding.time.as_deref().unwrap_or_default();
    date.get(5..16).unwrap_or(date).replace('T', " ")
}

fn evidence(finding: &Finding) -> String {
    let facts = finding.evidence.iter().map(|(name, fact)| format!("{name} {fact}"));
    Vec::from_iter(facts).join(", ")
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

/// As the verdict has it.
fn health(status: &str) -> Health {
    match status {
        "ok" => Health::Good,
        "bad" => Health::Bad,
        "" | "unknown" => Health::Idle,
        _ => Health::Doubtful,
    }
}

const ROUTES: &[Column<RouteVerdict>] = &[
    ("route", 18, 0, |route| route.route.clone()),
    ("slo", 7, 4, |route| route.status.clone()),
    ("goodput", 8, 0, |route| share(route.goodput.share)),
    ("good/s", 7, 7, |route| format!("{:.1}", route.goodput.per_second)),
    ("requests", 8, 1, |route| route.goodput.requests.to_string()),
    ("ttft p50", 9, 8, |route| cell(route.ttft.p50, time)),
    ("ttft p99", 9, 0, |route| cell(route.ttft.p99, time)),
    ("bound", 8, 6, |route| cell(route.bound.ttft, time)),
    ("itl p99", 8, 3, |route| cell(route.itl.p99, time)),
    ("burn 5m", 7, 5, |route| burn(route.burn.five_minutes)),
    ("burn 1h", 7, 2, |route| burn(route.burn.hour)),
    ("missed in", 30, 0, |route| {
        counts(&route.missed_in).or_else(|| counts(&route.missed)).unwrap_or_default()
    }),
];
const REPLICAS: &[Column<Replica>] = &[
    ("replica", 22, 0, |replica| replica.replica.clone()),
    ("pool", 14, 2, |replica| replica.pool.clone()),
    ("state", 9, 0, |replica| replica.state.clone()),
    ("since", 9, 1, |replica| replica.since.map_or_else(String::new, time)),
    ("req/s", 6, 0, |replica| format!("{:.1}", replica.recent.per_second)),
    ("share", 6, 7, |replica| share(replica.recent.share)),
    ("ttft", 8, 0, |replica| cell(replica.recent.ttft, time)),
    ("itl", 8, 0, |replica| cell(replica.recent.itl, time)),
    ("running", 7, 5, |replica| count(signal(replica, |signals| signals.running))),
    ("waiting", 7, 6, |replica| count(signal(replica, |signals| signals.waiting))),
    ("kv", 6, 4, |replica| share(signal(replica, |signals| signals.kv_cache_usage))),
    ("in flight", 9, 8, |replica| replica.inflight.to_string()),
    ("failed", 6, 3, |replica| replica.recent.failed.to_string()),
    ("reason", 40, 0, |replica| replica.reason.clone()),
];
const REQUESTS: &[Column<Request>] = &[
    ("at", 8, 5, |request| request.time.get(11..19).unwrap_or(&request.time).to_owned()),
    ("route", 16, 2, |request| request.route.clone()),
    ("replica", 20, 7, |request| word(&request.replica)),
    ("outcome", 12, 0, |request| request.outcome.clone()),
    ("status", 6, 1, |request| request.status.to_string()),
    ("ttft", 8, 0, |request| cell(request.ttft, time)),
    ("whole", 8, 4, |request| time(request.duration)),
    ("missed", 7, 6, |request| word(&request.slo_missed)),
    ("in", 13, 3, |request| word(&request.slo_missed_in)),
    ("id", 40, 0, |request| request.request_id.clone()),
];
const FINDINGS: &[Column<Finding>] = &[
    ("since", 11, 1, date),
    ("kind", 20, 0, |finding| finding.kind.clone()),
    ("route", 16, 3, |finding| finding.series.route.clone()),
    ("replica", 18, 2, |finding| word(&finding.series.replica)),
    ("diagnosis", 20, 4, |finding| finding.diagnosis.clone()),
    ("evidence", 60, 0, evidence),
];
/// Seconds; figures of an engine that are older say little.
const STALE: f64 = 5.0;
