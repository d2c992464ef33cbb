//! The demo's table of its fleet: per replica, what the gateway's own observers saw.
//!
//! Fed from first tokens, gaps and records; written once a second. Percentiles are over the whole run, with the
//! last second's median TTFT beside them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokenway_sim::traffic::TrafficSummary;

use crate::fleet::status::ReplicaStatus;
use crate::record::{AttemptCause, Gaps, Outcome, Record};
use crate::stats::Histogram;

/// Counters and histograms by replica name.
#[derive(Debug, Default)]
pub(super) struct Scoreboard(Mutex<BTreeMap<Arc<str>, Tally>>);

#[derive(Debug, Default)]
struct Tally {
    requests: u64,
    /// In the last second.
    recent_requests: u64,
    failed: u64,
    /// Prompt tokens of answers that reported them, ...
    input: u64,
    /// ... and those of them that came from the prefix cache.
    cached: u64,
    ttft: Histogram,
    recent_ttft: Histogram,
    itl: Histogram,
}

/// What stands above a column's name, the name, its width, and a replica's cell.
type Column = (&'static str, &'static str, usize, fn(&ReplicaStatus, &Tally) -> String);

impl Scoreboard {
    /// A request got its first token from `replica`.
    pub(super) fn record_first_token(&self, replica: &Arc<str>, ttft: Duration) {
        self.with(replica, |tally| {
            tally.ttft.add(ttft, 1);
            tally.recent_ttft.add(ttft, 1);
        });
    }

    /// A stream of `replica` moved on.
    pub(super) fn record_gaps(&self, replica: &Arc<str>, gaps: &Gaps<'_>) {
        self.with(replica, |tally| {
            for (itl, tokens) in gaps.itl() {
                tally.itl.add(itl, tokens);
            }
        });
    }

    /// A request ended. A prompt that was computed for another replica is one where it was computed.
    pub(super) fn record_end(&self, record: &Record) {
        for leg in record.attempts.iter().filter(|attempt| attempt.cause == AttemptCause::Prefill) {
            self.with(&leg.served.replica, |tally| tally.ended(leg.error.is_some()));
        }
        let Some(served) = record.served() else { return };
        self.with(&served.replica, |tally| {
            tally.ended(record.outcome == Outcome::Failed);
            if let Some(input) = record.tokens.input {
                tally.input += input.0;
                tally.cached += record.tokens.cached.map_or(0, |cached| cached.0);
            }
        });
    }

    /// The table, at most 100 columns wide: a header with units, a line for each replica of the fleet, two of what the clients saw.
    /// Begins a new second.
    pub(super) fn table(&self, fleet: &[ReplicaStatus], clients: &TrafficSummary) -> String {
        let mut out = String::new();
        line(&mut out, COLUMNS.map(|(above, ..)| above.to_owned()));
        line(&mut out, COLUMNS.map(|(_, name, ..)| name.to_owned()));
        let mut tallies = self.0.lock();
        for status in fleet {
            let tally = tallies.entry(Arc::clone(&status.replica)).or_default();
            line(&mut out, COLUMNS.map(|(.., cell)| cell(status, tally)));
            (tally.recent_requests, tally.recent_ttft) = (0, Histogram::default());
        }
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "clients: sent {} ok {} refused {} failed {} skipped {}\n         TTFT p50 {} p99 {} ms; gap p50 {} p99 {} ms",
            clients.sent,
            clients.ok,
            clients.refused,
            clients.failed,
            clients.skipped,
            milliseconds(clients.ttft_p50, 0),
            milliseconds(clients.ttft_p99, 0),
            milliseconds(clients.gap_p50, 1),
            milliseconds(clients.gap_p99, 1),
        );
        out
    }

    fn with(&self, replica: &Arc<str>, add: impl FnOnce(&mut Tally)) {
        add(self.0.lock().entry(replica.clone()).or_default());
    }
}

impl Tally {
    fn ended(&mut self, has_failed: bool) {
        self.requests += 1;
        self.recent_requests += 1;
        self.failed += u64::from(has_failed);
    }

    fn hit_percent(&self) -> Option<String> {
        (self.input > 0).then(|| format!("{:.0}", self.cached as f64 / self.input as f64 * 100.0))
    }
}

/// One line of the table: the name to the left, the figures to the right.
fn line(out: &mut String, cells: [String; 12]) {
    let start = out.len();
    for (cell, (_, _, width, _)) in cells.iter().zip(COLUMNS) {
        let _ = match width {
            NAME => write!(out, "{cell:<NAME$.NAME$}"),
            width => write!(out, " {cell:>width$}"),
        };
    }
    let end = out[start..].trim_end().len();
    out.truncate(start + end);
    out.push('\n');
}

/// A quantile in milliseconds.
fn quantile(times: &Histogram, q: f64, decimals: usize) -> String {
    milliseconds(times.counts().quantile(q).map(Duration::from_secs_f64), decimals)
}

pub(super) fn milliseconds(span: Option<Duration>, decimals: usize) -> String {
    or_dash(span.map(|span| format!("{:.decimals$}", span.as_secs_f64() * 1_000.0)))
}

/// Waiting requests as last scraped.
fn queue(status: &ReplicaStatus) -> Option<String> {
    Some((status.signals?.page.waiting? as u64).to_string())
}

fn or_dash(cell: Option<String>) -> String {
    cell.unwrap_or_else(|| "-".to_owned())
}

const NAME: usize = 21;
const COLUMNS: [Column; 12] = [
    ("", "replica", NAME, |status, _| status.replica.to_string()),
    ("", "requests", 8, |_, tally| tally.requests.to_string()),
    ("", "/s", 4, |_, tally| tally.recent_requests.to_string()),
    ("", "failed", 6, |_, tally| tally.failed.to_string()),
    ("", "hit %", 5, |_, tally| or_dash(tally.hit_percent())),
    ("TTFT ms", "p50", 7, |_, tally| quantile(&tally.ttft, 0.5, 0)),
    ("", "p99", 6, |_, tally| quantile(&tally.ttft, 0.99, 0)),
    ("last", "second", 6, |_, tally| quantile(&tally.recent_ttft, 0.5, 0)),
    ("ITL ms", "p50", 6, |_, tally| quantile(&tally.itl, 0.5, 1)),
    ("", "p99", 6, |_, tally| quantile(&tally.itl, 0.99, 1)),
    ("", "queue", 5, |status, _| or_dash(queue(status))),
    ("in", "flight", 6, |status, _| status.inflight.to_string()),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::fixture;
    use crate::record::Gap;
    use crate::routing::{EnginePage, EngineSignals};

    fn status(name: &str) -> ReplicaStatus {
        ReplicaStatus { replica: name.into(), ..ReplicaStatus::default() }
    }

    /// The cells of each replica.
    fn cells(scores: &Scoreboard, fleet: &[ReplicaStatus]) -> Vec<Vec<String>> {
        let table = scores.table(fleet, &TrafficSummary::default());
        let of = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        table.lines().skip(2).take(fleet.len()).map(of).collect()
    }

    #[test]
    fn percentiles_are_of_the_run_and_the_recent_one_of_the_last_second() {
        let scores = Scoreboard::default();
        scores.record_first_token(&"a".into(), Duration::from_millis(10));
        let _first_second = cells(&scores, &[status("a")]);
        scores.record_first_token(&"a".into(), Duration::from_millis(100));
        let rows = cells(&scores, &[status("a"), status("b")]);
        assert_eq!(rows[0][5..8], ["10", "100", "100"]);
        assert_eq!(rows[1][5..], ["-", "-", "-", "-", "-", "-", "0"]);
    }

    #[test]
    fn a_prompt_counts_where_it_is_computed() {
        let (scores, mut record) = (Scoreboard::default(), fixture::stream());
        let mut leg = record.attempts[0].clone();
        leg.cause = AttemptCause::Prefill;
        Arc::make_mut(&mut leg.served).replica = "p".into();
        record.attempts.insert(0, leg);
        scores.record_end(&record);
        let rows = cells(&scores, &[status("p"), status(&record.served().unwrap().replica)]);
        assert_eq!(rows.iter().map(|row| &*row[1]).collect::<Vec<_>>(), ["1", "1"]);
    }

    #[test]
    fn a_gap_counts_once_for_each_token_it_brought() {
        let scores = Scoreboard::default();
        let gap = |ms, tokens| Gap { length: Duration::from_millis(ms), tokens };
        let gaps = [gap(90, Some(9)), gap(50, Some(1)), gap(900, None)];
        scores.record_gaps(&"a".into(), &Gaps { gaps: &gaps, late_itl: &[], is_filling: false });
        assert_eq!(cells(&scores, &[status("a")])[0][8..10], ["10.0", "50.0"]);
    }

    #[test]
    fn the_table_names_its_units_and_fits_a_terminal() {
        let ms = |n| Some(Duration::from_millis(n));
        let scores = Scoreboard::default();
        let name: Arc<str> = "127.0.0.1:34567".into();
        for (ttft, count) in [(84, 99), (1_203, 2)] {
            (0..count).for_each(|_| scores.record_first_token(&name, Duration::from_millis(ttft)));
        }
        scores.with(&name, |tally| {
            (tally.requests, tally.recent_requests, tally.failed) = (1_234, 3, 1);
            (tally.input, tally.cached) = (1_000, 734);
            tally.itl.add(Duration::from_micros(12_340), 98);
            tally.itl.add(Duration::from_millis(130), 2);
        });
        let page = EnginePage { waiting: Some(2.0), ..EnginePage::default() };
        let signals = Some(EngineSignals { page, ..EngineSignals::default() });
        let busy = ReplicaStatus { replica: name, signals, inflight: 9, ..ReplicaStatus::default() };
        let clients = TrafficSummary {
            sent: 1_240,
            ok: 1_230,
            refused: 9,
            failed: 1,
            skipped: 0,
            ttft_p50: ms(85),
            ttft_p99: ms(1_210),
            gap_p50: ms(12),
            gap_p99: ms(131),
        };
        let shown = scores.table(&[busy, status("a-name-longer-than-its-column")], &clients);
        assert_eq!(shown, SNAPSHOT);
        assert!(shown.is_ascii() && shown.lines().all(|line| line.len() <= 100));
    }

    const SNAPSHOT: &str = "\
\x20                                                TTFT ms          last ITL ms                  in
replica               requests   /s failed hit %     p50    p99 second    p50    p99 queue flight
127.0.0.1:34567           1234    3      1    73      84   1200     84   12.3  129.8     2      9
a-name-longer-than-it        0    0      0     -       -      -      -      -      -     -      0
clients: sent 1240 ok 1230 refused 9 failed 1 skipped 0
\x20        TTFT p50 85 p99 1210 ms; gap p50 12.0 p99 131.0 ms
";
}
