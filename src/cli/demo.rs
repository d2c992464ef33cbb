//! `tokenway demo`: a simulated fleet, its traffic, and one table a second.
//!
//! Arguments, fleet and traffic; `showcase` starts the gateway between the two and feeds the table (`scoreboard`).

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::time::Duration;

use clap::Args;
use tokenway_sim::engine::{CostModel, EngineConfig};
use tokenway_sim::server::{SimConfig, SimReplica, start};
use tokenway_sim::traffic::TrafficConfig;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::replay::args::positive;
use crate::config::check::parse_span;

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
    mut table: impl FnMut() -> String + Send,
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
        if let Some(head) = head {
            write!(out, "{CLEAR}{head}\n\n")?;
        }
        writeln!(out, "{}", table())?;
        out.flush()?;
        if is_over {
            return Ok(());
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

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
