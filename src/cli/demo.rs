//! `tokenway demo`: a simulated fleet, its traffic, and one table a second.
//!
//! Arguments, fleet, traffic and table; `showcase` starts the gateway between fleet and traffic and feeds the table.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::time::Duration;

use clap::Args;
use tokenway_sim::engine::{CostModel, EngineConfig};
use tokenway_sim::server::{SimConfig, SimReplica, start};
use tokenway_sim::traffic::{TrafficConfig, TrafficSummary};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::replay::args::positive;
use crate::config::check::parse_span;
use crate::simulate::DemoRow;

/// Arguments of `tokenway demo`.
#[derive(Args, Clone, Debug)]
pub struct DemoArgs {
    /// Simulated replicas
    #[arg(long, env = "TOKENWAY_DEMO_REPLICAS", value_name = "N", default_value = "4")]
    pub replicas: NonZeroU16,
    /// Requests a second
    #[arg(long, env = "TOKENWAY_DEMO_RATE", value_name = "R", default_value_t = 8.0, value_parser = positive)]
    pub rate: f64,
    /// How long, such as 30s or 5m; without it, until Ctrl-C
    #[arg(long, env = "TOKENWAY_DEMO_DURATION", value_name = "TIME", value_parser = duration)]
    pub duration: Option<Duration>,
    /// Seed of fleet and traffic
    #[arg(long, env = "TOKENWAY_DEMO_SEED", value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Address of the gateway's data port (port 0: a free one)
    #[arg(long, env = "TOKENWAY_DEMO_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Address of the gateway's admin port (port 0: a free one)
    #[arg(long, env = "TOKENWAY_DEMO_ADMIN_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:9090")]
    pub admin_listen: SocketAddr,
    /// Half of the replicas compute prompts for the others; documents come among the chats
    #[arg(long, env = "TOKENWAY_DEMO_PD", conflicts_with_all = ["story", "script"])]
    pub pd: bool,
    /// Play the story first: another policy, a sick replica, drift, overload; on a terminal Enter starts it later
    #[arg(long, env = "TOKENWAY_DEMO_STORY", conflicts_with = "script")]
    pub story: bool,
    /// The story alone, in less than 90 s; exit code 1 if an act fails its check
    #[arg(long, env = "TOKENWAY_DEMO_SCRIPT", conflicts_with = "duration")]
    pub script: bool,
}

impl DemoArgs {
    /// The traffic for a gateway at `base_url`.
    pub fn traffic(&self, base_url: String) -> TrafficConfig {
        let documents = if self.pd { DOCUMENTS } else { 0.0 };
        TrafficConfig { base_url, rate: self.rate, seed: self.seed, documents, ..TrafficConfig::default() }
    }

    /// How many of the fleet's replicas, the first of them, compute prompts for the others.
    pub fn prefill_replicas(&self) -> usize {
        if self.pd { usize::from(self.replicas.get() / 2).max(1) } else { 0 }
    }

    /// A replica has to decode.
    fn replicas(&self) -> u64 {
        u64::from(self.replicas.get()).max(if self.pd { 2 } else { 1 })
    }

    /// Starts the fleet on free loopback ports. Caches are small enough that routing shows: the shared prompts
    /// and their sessions fit into the fleet, not into each replica.
    pub async fn start_fleet(
        &self,
        tracker: &TaskTracker,
        shutdown: &CancellationToken,
    ) -> io::Result<Vec<SimReplica>> {
        let mut fleet = Vec::new();
        for replica in 0..self.replicas() {
            let engine = EngineConfig {
                max_num_seqs: 8,
                cost: CostModel { prefill_tokens_per_second: 4_000.0, ..CostModel::default() },
                num_blocks: if self.pd { 4_096 } else { 1_024 },
                ..EngineConfig::default()
            };
            let config = SimConfig { engine, seed: self.seed.wrapping_add(replica), ..SimConfig::default() };
            let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            fleet.push(start(config, addr, tracker, shutdown.clone()).await?);
        }
        Ok(fleet)
    }
}

/// Writes a table a second until `shutdown`; with a head each on a cleared screen, below it.
pub async fn print_tables(
    out: &mut (dyn Write + Send),
    head: Option<&str>,
    mut rows: impl FnMut() -> (Vec<DemoRow>, TrafficSummary) + Send,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    seconds.tick().await;
    loop {
        // Both arms are cancel-safe.
        let is_over = tokio::select! {
            () = shutdown.cancelled() => true,
            _ = seconds.tick() => false,
        };
        let (rows, clients) = rows();
        if let Some(head) = head {
            write!(out, "{CLEAR}{head}\n\n")?;
        }
        writeln!(out, "{}", table(&rows, &clients))?;
        out.flush()?;
        if is_over {
            return Ok(());
        }
    }
}

/// The table: a header with units, a line for each replica, two of what the clients saw. At most 100 columns.
pub fn table(rows: &[DemoRow], clients: &TrafficSummary) -> String {
    let mut out = String::new();
    line(&mut out, ["", "", "", "", "", "TTFT ms", "", "last", "ITL ms", "", "", "in"]);
    line(
        &mut out,
        [
            "replica", "requests", "/s", "failed", "hit %", "p50", "p99", "second", "p50", "p99", "queue",
            "flight",
        ],
    );
    for row in rows {
        let cells = [
            row.replica.clone(),
            row.requests.to_string(),
            row.recent_requests.to_string(),
            row.failed.to_string(),
            row.hit_rate.map_or_else(|| "-".into(), |rate| format!("{:.0}", rate * 100.0)),
            milliseconds(row.ttft_p50, 0),
            milliseconds(row.ttft_p99, 0),
            milliseconds(row.recent_ttft_p50, 0),
            milliseconds(row.itl_p50, 1),
            milliseconds(row.itl_p99, 1),
            row.queue.map_or_else(|| "-".into(), |queue| queue.to_string()),
            row.inflight.to_string(),
        ];
        line(&mut out, cells.each_ref().map(String::as_str));
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

/// One line of the table: the name to the left, the figures to the right.
fn line(out: &mut String, cells: [&str; 12]) {
    let start = out.len();
    for (cell, width) in cells.iter().zip(WIDTHS) {
        let _ = match width {
            NAME => write!(out, "{cell:<NAME$.NAME$}"),
            width => write!(out, " {cell:>width$}"),
        };
    }
    let end = out[start..].trim_end().len();
    out.truncate(start + end);
    out.push('\n');
}

pub(super) fn milliseconds(span: Option<Duration>, decimals: usize) -> String {
    span.map_or_else(|| "-".into(), |span| format!("{:.decimals$}", span.as_secs_f64() * 1_000.0))
}

/// A number of seconds, or a number with `ms`, `s`, `m` or `h`.
fn duration(text: &str) -> Result<Duration, String> {
    let is_bare = text.ends_with(|c: char| c.is_ascii_digit());
    parse_span(&format!("{text}{}", if is_bare { "s" } else { "" }))
}

/// Share of the requests that bring a document.
const DOCUMENTS: f64 = 0.05;
/// Moves to the first line and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[J";
const NAME: usize = 21;

const WIDTHS: [usize; 12] = [NAME, 8, 4, 6, 5, 7, 6, 6, 6, 6, 5, 6];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_its_units_and_fits_a_terminal() {
        let ms = |n| Some(Duration::from_millis(n));
        let busy = DemoRow {
            replica: "127.0.0.1:34567".into(),
            requests: 1_234,
            recent_requests: 3,
            failed: 1,
            hit_rate: Some(0.734),
            ttft_p50: ms(84),
            ttft_p99: ms(1_203),
            recent_ttft_p50: ms(91),
            itl_p50: Some(Duration::from_micros(12_340)),
            itl_p99: ms(130),
            queue: Some(2),
            inflight: 9,
        };
        let idle = DemoRow { replica: "a-name-longer-than-its-column".into(), ..DemoRow::default() };
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
        let shown = table(&[busy, idle], &clients);
        assert_eq!(shown, SNAPSHOT);
        assert!(shown.is_ascii() && shown.lines().all(|line| line.len() <= 100));
    }

    const SNAPSHOT: &str = "\
\x20                                                TTFT ms          last ITL ms                  in
replica               requests   /s failed hit %     p50    p99 second    p50    p99 queue flight
127.0.0.1:34567           1234    3      1    73      84   1203     91   12.3  130.0     2      9
a-name-longer-than-it        0    0      0     -       -      -      -      -      -     -      0
clients: sent 1240 ok 1230 refused 9 failed 1 skipped 0
\x20        TTFT p50 85 p99 1210 ms; gap p50 12.0 p99 131.0 ms
";

    #[test]
    fn durations_have_units() {
        let cases = [("90", 90.0), ("1.5s", 1.5), ("2m", 120.0), ("1h", 3_600.0), ("250ms", 0.25)];
        for (text, seconds) in cases {
            assert_eq!(duration(text).map(|d| d.as_secs_f64()), Ok(seconds), "{text}");
        }
        for wrong in ["", "s", "0", "-1s", "3w", "1e400"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
