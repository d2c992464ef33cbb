//! What `top` shows, read from the gateway's JSON into rows.
//!
//! Pure. Anything that is missing, as from a gateway of another version, is an empty cell.

use serde_json::{Value, json};

use crate::cli::explain::text::time;

/// Answers of the gateway, taken together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Snapshot {
    /// `/api/v1/slo`
    pub(super) slo: Value,
    /// `/api/v1/fleet`
    pub(super) fleet: Value,
    /// `/api/v1/requests`
    pub(super) requests: Value,
    /// `/api/v1/drift`
    pub(super) drift: Value,
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
    pub(super) rows: Vec<Row>,
    /// What it says when it has no rows.
    pub(super) empty: &'static str,
}

impl Snapshot {
    /// The gateway's own words on how it stands.
    pub(super) fn sentence(&self) -> (Health, String) {
        let sentence = self.slo["sentence"].as_str().unwrap_or("this gateway gives no verdict").to_owned();
        (health(self.slo["status"].as_str()), sentence)
    }

    /// The gateway's version.
    pub(super) fn version(&self) -> &str {
        self.slo["version"].as_str().unwrap_or("unknown")
    }

    pub(super) fn routes(&self) -> Table {
        let rows = list(&self.slo["routes"]).iter().map(|route| {
            let missed = counts(&route["missed_in"]).or_else(|| counts(&route["missed"]));
            let requests = route["goodput"]["requests"].as_u64();
            let cells = vec![
                word(route, "route"),
                word(route, "status"),
                share(&route["goodput"]["share"]),
                cell(route["goodput"]["per_second"].as_f64(), |rate| format!("{rate:.1}")),
                cell(requests, |n| n.to_string()),
                seconds(&route["ttft"]["p50"]),
                seconds(&route["ttft"]["p99"]),
                seconds(&route["bound"]["ttft"]),
                seconds(&route["itl"]["p99"]),
                burn(&route["burn"]["5m"]),
                burn(&route["burn"]["1h"]),
                missed.unwrap_or_default(),
            ];
            Row { cells, health: health(route["status"].as_str()) }
        });
        Table { columns: ROUTES, rows: rows.collect(), empty: "no routes" }
    }

    pub(super) fn replicas(&self) -> Table {
        let rows = list(&self.fleet["replicas"]).iter().map(|replica| {
            let signals = &replica["signals"];
            let state = word(replica, "state");
            let is_on_trial = replica["on_trial"] == true;
            let age = signals["age"].as_f64();
            let health = match state.as_str() {
                "ready" if is_on_trial || age.is_some_and(|age| age > STALE) => Health::Doubtful,
                "ready" => Health::Good,
                "ejected" | "gone" => Health::Bad,
                _ => Health::Doubtful,
            };
            let cells = vec![
                word(replica, "replica"),
                word(replica, "pool"),
                state,
                since(replica),
                count(&signals["running"]),
                count(&signals["waiting"]),
                share(&signals["kv_cache_usage"]),
                count(&replica["inflight"]),
                cell(age, time),
                word(replica, "reason"),
            ];
            Row { cells, health }
        });
        Table { columns: REPLICAS, rows: rows.collect(), empty: "no replicas" }
    }

    pub(super) fn requests(&self) -> Table {
        let rows = list(&self.requests["requests"]).iter().map(|request| {
            let outcome = word(request, "outcome");
            let missed = request["slo_missed"].as_str();
            let health = match (outcome.as_str(), missed) {
                ("ok", None) => Health::Good,
                ("ok" | "canceled", _) => Health::Doubtful,
                _ => Health::Bad,
            };
            let clock = word(request, "time");
            let cells = vec![
                clock.get(11..19).map_or(clock.clone(), str::to_owned),
                word(request, "route"),
                word(request, "replica"),
                outcome,
                count(&request["status"]),
                seconds(&request["ttft"]),
                seconds(&request["duration"]),
                missed.unwrap_or_default().to_owned(),
                word(request, "slo_missed_in"),
                word(request, "request_id"),
            ];
            Row { cells, health }
        });
        Table {
            columns: REQUESTS,
            rows: rows.collect(),
            empty: "no request was slow or failed in the last hour",
        }
    }

    pub(super) fn findings(&self) -> Table {
        let rows = list(&self.drift["active"]).iter().map(|finding| {
            let series = &finding["series"];
            let facts = finding["evidence"].as_object().map(|facts| {
                let facts = facts.iter().map(|(name, fact)| format!("{name} {}", plain(fact)));
                Vec::from_iter(facts).join(", ")
            });
            let clock = word(finding, "time");
            let cells = vec![
                clock.get(5..16).map_or(clock.clone(), |time| time.replace('T', " ")),
                word(finding, "kind"),
                word(series, "route"),
                word(series, "replica"),
                word(finding, "diagnosis"),
                facts.unwrap_or_default(),
            ];
            Row { cells, health: Health::Bad }
        });
        Table { columns: FINDINGS, rows: rows.collect(), empty: "no drift was found" }
    }

    /// For `--json`.
    pub(super) fn json(&self, url: &str) -> Value {
        json!({ "url": url, "slo": self.slo, "fleet": self.fleet, "requests": self.requests, "drift": self.drift })
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn word(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

fn cell<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

fn seconds(value: &Value) -> String {
    cell(value.as_f64(), time)
}

fn share(value: &Value) -> String {
    cell(value.as_f64(), |share| match share * 100.0 {
        percent if percent > 99.0 && percent < 99.995 => format!("{percent:.2} %"),
        percent => format!("{percent:.0} %"),
    })
}

fn burn(value: &Value) -> String {
    cell(value.as_f64(), |burn| format!("{burn:.1}"))
}

fn count(value: &Value) -> String {
    cell(value.as_f64(), |count| format!("{count:.0}"))
}

/// "engine_queue 12, prefill 3", the most first.
fn counts(value: &Value) -> Option<String> {
    let mut all: Vec<_> =
        value.as_object()?.iter().filter_map(|(name, n)| Some((name, n.as_u64()?))).collect();
    all.retain(|(_, n)| *n > 0);
    all.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let said: Vec<_> = all.iter().take(3).map(|(name, n)| format!("{name} {n}")).collect();
    (!said.is_empty()).then(|| said.join(", "))
}

/// How long a replica is in its state, where the gateway says so.
fn since(replica: &Value) -> String {
    match (&replica["in_state"], &replica["since"]) {
        (Value::Number(_), _) => seconds(&replica["in_state"]),
        (_, Value::Number(_)) => seconds(&replica["since"]),
        (_, Value::String(at)) => at.get(11..19).unwrap_or(at).to_owned(),
        _ => String::new(),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.as_f64().map_or_else(String::new, |n| {
            let text = format!("{n:.3}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }),
        other => other.to_string(),
    }
}

fn health(status: Option<&str>) -> Health {
    match status {
        Some("green" | "ok" | "good") => Health::Good,
        Some("red" | "bad" | "missed") => Health::Bad,
        None | Some("grey" | "gray" | "idle" | "unknown" | "quiet") => Health::Idle,
        Some(_) => Health::Doubtful,
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
    ("running", 7),
    ("waiting", 7),
    ("kv", 6),
    ("in flight", 9),
    ("seen", 8),
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
