//! What a run says: the table of `replay`, JSON, or a page with plots.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Value as Json, json};
use tokenway_sim::replay::{Bounds, Figures, Measured};

use super::BenchArgs;
use super::client::Client;
use crate::cli::replay::{figure, grid};
use crate::stats::Counts;

pub(super) struct Report {
    bounds: Bounds,
    targets: Vec<Target>,
}

struct Target {
    url: String,
    model: String,
    measured: Vec<Measured>,
    failures: BTreeMap<String, u64>,
    /// From the times at which requests were due.
    due: Figures,
    /// From those at which they were sent.
    sent: Figures,
    itl: Counts,
}

impl Report {
    pub(super) fn new(args: &BenchArgs, clients: &[Arc<Client>]) -> Self {
        let bounds = args.bounds();
        let target = |client: &Arc<Client>| {
            let ended = client.ended.lock();
            let from_sent = |request: &Measured| Measured {
                arrived: request.sent.unwrap_or(request.arrived),
                ..request.clone()
            };
            let [measured, sent] =
                [ended.measured.clone(), ended.measured.iter().map(from_sent).collect()].map(in_order);
            Target {
                url: client.url.to_string(),
                model: client.model.clone(),
                failures: ended.failures.clone(),
                due: Figures::of(measured.clone(), &bounds),
                sent: Figures::of(sent, &bounds),
                measured,
                itl: ended.itl.counts(),
            }
        };
        Self { bounds, targets: clients.iter().map(target).collect() }
    }

    /// Whether every target has answered something.
    pub(super) fn has_answers(&self) -> bool {
        self.targets.iter().all(|target| target.due.failed < 1.0)
    }

    pub(super) fn text(&self) -> String {
        let mut rows = vec![COLUMNS.map(|(heading, _)| heading.to_owned()).to_vec()];
        for Target { url, due, sent, itl, .. } in &self.targets {
            for (name, figures) in [(url.as_str(), due), ("  from sending on", sent)] {
                let row = Row { name, figures, itl };
                rows.push(COLUMNS.map(|(_, cell)| cell(&row)).to_vec());
            }
        }
        let seconds = |bound: Option<std::time::Duration>| {
            bound.map_or("-".to_owned(), |bound| format!("{} s", bound.as_secs_f64()))
        };
        let per_token = self.bounds.ttft_per_prompt_token.as_secs_f64() * 1e3;
        let mut out = format!(
            "latencies in seconds, from when a request was due; SLO: ttft {} + {per_token} ms a prompt token, tpot {}\n",
            seconds(self.bounds.ttft),
            seconds(self.bounds.tpot)
        );
        out.push_str(&grid(&rows, 1));
        for target in &self.targets {
            for (why, times) in &target.failures {
                let _ = writeln!(out, "{}: failed {times} times: {why}", target.url);
            }
        }
        out
    }

    pub(super) fn json(&self) -> String {
        let target = |target: &Target| {
            json!({
                "url": target.url,
                "model": target.model,
                "figures": target.due,
                "from_sending": target.sent,
                "itl": {
                    "p50_s": target.itl.quantile(0.5),
                    "p90_s": target.itl.quantile(0.9),
                    "p99_s": target.itl.quantile(0.99),
                },
                "failures": target.failures,
            })
        };
        format!("{:#}\n", Json::from_iter(self.targets.iter().map(target)))
    }

    /// A page that needs nothing else.
    pub(super) fn html(&self) -> String {
        let target = |target: &Target| {
            let seconds = |span: std::time::Duration| (span.as_secs_f64() * 1e6).round() / 1e6;
            let point = |request: &Measured| {
                let [ttft, tpot] = [request.ttft(), request.tpot()].map(|span| span.map(seconds));
                json!([request.arrived.as_nanos() as f64 / 1e9, ttft, tpot, request.is_failed])
            };
            let itl = (1..100).filter_map(|percent| target.itl.quantile(f64::from(percent) / 100.0));
            json!({
                "url": target.url,
                "points": Json::from_iter(target.measured.iter().map(point)),
                "itl": Json::from_iter(itl),
            })
        };
        let data =
            json!({ "text": self.text(), "targets": Json::from_iter(self.targets.iter().map(target)) });
        // A script ends at the first `</`, wherever it stands.
        TEMPLATE.replace("__DATA__", &data.to_string().replace("</", "<\\/"))
    }
}

fn in_order(mut requests: Vec<Measured>) -> Vec<Measured> {
    requests.sort_unstable_by_key(|request| request.arrived);
    requests
}

/// A target's figures, from one of the two times on.
struct Row<'a> {
    name: &'a str,
    figures: &'a Figures,
    itl: &'a Counts,
}

impl Row<'_> {
    fn percent(&self, of: fn(&Figures) -> f64) -> String {
        figure(100.0 * of(self.figures), 2)
    }

    fn itl(&self, quantile: f64) -> String {
        figure(self.itl.quantile(quantile).unwrap_or(f64::NAN), 4)
    }
}

/// A heading, and what stands below it.
type Column = (&'static str, fn(&Row<'_>) -> String);

const COLUMNS: [Column; 15] = [
    ("target", |row| row.name.to_owned()),
    ("n", |row| row.figures.requests.to_string()),
    ("miss %", |row| row.percent(|f| f.violations)),
    ("ttft %", |row| row.percent(|f| f.ttft_violations)),
    ("tpot %", |row| row.percent(|f| f.tpot_violations)),
    ("good/s", |row| figure(row.figures.goodput_per_second, 2)),
    ("ttft p50", |row| figure(row.figures.ttft_p50_s, 3)),
    ("ttft p90", |row| figure(row.figures.ttft_p90_s, 3)),
    ("ttft p99", |row| figure(row.figures.ttft_p99_s, 3)),
    ("tpot p50", |row| figure(row.figures.tpot_p50_s, 4)),
    ("tpot p99", |row| figure(row.figures.tpot_p99_s, 4)),
    ("itl p50", |row| row.itl(0.5)),
    ("itl p99", |row| row.itl(0.99)),
    ("hit", |row| figure(row.figures.hit_rate, 3)),
    ("failed %", |row| row.percent(|f| f.failed)),
];
const TEMPLATE: &str = include_str!("report.html");
