//! `tokenway sim`: simulated vLLM replicas on consecutive ports.
//!
//! One line for each replica as it listens, then `ready n=N`; SIGINT or SIGTERM ends them. The
//! replicas are `tokenway_sim::server`; `POST /sim/fault` on a replica's port injects faults.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::{NonZeroU16, NonZeroU64, NonZeroUsize};
use std::time::Duration;

use clap::Args;
use tokenway_sim::engine::{CostModel, EngineConfig};
use tokenway_sim::server::{SimConfig, SimReplica, start};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::replay::args::positive;
use crate::app::signals;
use crate::config::Secret;

/// Arguments of `tokenway sim`.
#[derive(Args, Clone, Debug)]
pub struct SimArgs {
    /// How many replicas
    #[arg(long, env = "TOKENWAY_SIM_REPLICAS", value_name = "N", default_value = "2")]
    replicas: NonZeroU16,
    /// Address to listen on
    #[arg(long, env = "TOKENWAY_SIM_HOST", value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// Port of the first replica; the others take the next ones (0: free ports)
    #[arg(long, env = "TOKENWAY_SIM_PORT", value_name = "PORT", default_value_t = 8001)]
    port: u16,
    /// Seed of texts and step times
    #[arg(long, env = "TOKENWAY_SIM_SEED", value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Served model name
    #[arg(long, env = "TOKENWAY_SIM_MODEL", value_name = "NAME", default_value = "sim")]
    model: String,
    /// LoRA adapters served beside it
    #[arg(long, env = "TOKENWAY_SIM_ADAPTERS", value_name = "NAME", value_delimiter = ',')]
    adapters: Vec<String>,
    /// Sequences in a batch
    #[arg(long, env = "TOKENWAY_SIM_MAX_NUM_SEQS", value_name = "N", default_value = "32")]
    max_num_seqs: NonZeroUsize,
    /// Prompt tokens computed in a second
    #[arg(long, env = "TOKENWAY_SIM_PREFILL_RATE", value_name = "TOKENS", default_value_t = 8000.0, value_parser = positive)]
    prefill_rate: f64,
    /// Tokens of one step, over all sequences
    #[arg(long, env = "TOKENWAY_SIM_MAX_BATCHED_TOKENS", value_name = "N", default_value = "2048")]
    max_batched_tokens: NonZeroU64,
    /// Milliseconds of an empty step
    #[arg(long, env = "TOKENWAY_SIM_STEP_MS", value_name = "MS", default_value_t = 12.0, value_parser = step_ms)]
    step_ms: f64,
    /// Tokens in a KV block
    #[arg(long, env = "TOKENWAY_SIM_BLOCK_SIZE", value_name = "TOKENS", default_value = "16")]
    block_size: NonZeroU64,
    /// KV blocks
    #[arg(long, env = "TOKENWAY_SIM_BLOCKS", value_name = "N", default_value = "4096")]
    blocks: NonZeroU64,
    /// Longest context in tokens
    #[arg(long, env = "TOKENWAY_SIM_MAX_MODEL_LEN", value_name = "TOKENS", default_value = "32768")]
    max_model_len: NonZeroU64,
    /// Running and waiting requests above which new ones get 503
    #[arg(long, env = "TOKENWAY_SIM_MAX_NUM_QUEUED_REQS", value_name = "N")]
    max_num_queued_reqs: Option<usize>,
    /// Bearer key wanted on /v1 paths
    #[arg(long, env = "TOKENWAY_SIM_API_KEY", value_name = "KEY", hide_env_values = true)]
    api_key: Option<Secret>,
}

impl SimArgs {
    fn config(&self) -> SimConfig {
        let engine = EngineConfig {
            max_num_seqs: self.max_num_seqs.get(),
            // A step must fit one token of every running sequence.
            max_batched_tokens: self.max_batched_tokens.get().max(self.max_num_seqs.get() as u64),
            cost: CostModel {
                prefill_tokens_per_second: self.prefill_rate,
                step: Duration::from_secs_f64(self.step_ms / 1_000.0),
                ..CostModel::default()
            },
            block_size: self.block_size.get(),
            num_blocks: self.blocks.get(),
            ..EngineConfig::default()
        };
        SimConfig {
            model: self.model.clone(),
            adapters: self.adapters.clone(),
            seed: self.seed,
            engine,
            max_model_len: self.max_model_len.get(),
            max_queued_requests: self.max_num_queued_reqs,
            api_key: self.api_key.as_ref().map(|key| key.reveal().to_owned()),
            ..SimConfig::default()
        }
    }

    fn addr(&self, replica: u16) -> Result<SocketAddr, SimError> {
        let port = if self.port == 0 { Some(0) } else { self.port.checked_add(replica) };
        let port = port.ok_or(SimError::NoPort { first: self.port, replicas: self.replicas.get() })?;
        Ok(SocketAddr::new(self.host, port))
    }
}

fn step_ms(text: &str) -> Result<f64, String> {
    let step = positive(text)?;
    if step <= 3_600_000.0 { Ok(step) } else { Err("must be at most an hour".into()) }
}

/// Why the replicas could not be started.
#[expect(missing_docs, reason = "the messages are it")]
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    #[error("{replicas} replicas from port {first} on do not fit below port 65536; take a lower --port")]
    NoPort { first: u16, replicas: u16 },
    #[error("cannot listen on {addr}: {source}; take another --port or --host")]
    Listen { addr: SocketAddr, source: io::Error },
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Runs the replicas until SIGINT or SIGTERM.
///
/// # Errors
/// When a replica cannot listen, or nothing can be printed.
pub async fn run(args: &SimArgs, out: &mut (dyn Write + Send)) -> Result<(), SimError> {
    // Handlers are installed before the first line is printed: its reader may send a signal.
    let mut signals = signals::listen()?;
    let shutdown = CancellationToken::new();
    let tracker = TaskTracker::new();
    let _end = shutdown.clone().drop_guard();
    let mut replicas: Vec<SimReplica> = Vec::new();
    for index in 0..args.replicas.get() {
        let addr = args.addr(index)?;
        let replica = start(args.config(), addr, &tracker, shutdown.clone())
            .await
            .map_err(|source| SimError::Listen { addr, source })?;
        print(out, &format!("replica={index} url={}", replica.url()))?;
        replicas.push(replica);
    }
    print(out, &format!("ready n={}", replicas.len()))?;
    // A hangup ends them too: there is nothing to reload.
    signals.recv().await;
    Ok(())
}

/// Prints a line; a reader that has what it wanted ends no replica.
fn print(out: &mut (dyn Write + Send), line: &str) -> io::Result<()> {
    let printed = writeln!(out, "{line}").and_then(|()| out.flush());
    printed.or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};

    fn args(flags: &[&str]) -> Result<SimArgs, clap::Error> {
        match Cli::read(["tokenway", "sim"].iter().chain(flags))?.command {
            Command::Sim(args) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_become_a_configuration_and_consecutive_ports() {
        let args =
            args(&["--replicas", "3", "--port", "9000", "--blocks", "10", "--step-ms", "2.5"]).unwrap();
        let config = args.config();
        assert_eq!((config.model.as_str(), config.context_length()), ("sim", 160));
        assert_eq!(config.engine.cost.step, Duration::from_micros(2_500));
        assert_eq!(args.addr(2).unwrap().to_string(), "127.0.0.1:9002");
    }

    #[test]
    fn a_step_has_room_for_the_whole_batch() {
        let args = args(&["--max-num-seqs", "64", "--max-batched-tokens", "8"]).unwrap();
        assert_eq!(args.config().engine.max_batched_tokens, 64);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for wrong in [
            ["--replicas", "0"],
            ["--step-ms", "0"],
            ["--step-ms", "1e30"],
            ["--prefill-rate", "nan"],
            ["--blocks", "0"],
        ] {
            assert!(args(&wrong).is_err(), "{wrong:?}");
        }
        let error = args(&["--port", "65535"]).unwrap().addr(1).unwrap_err().to_string();
        assert!(error.contains("65535") && error.contains("--port"), "{error}");
    }

    #[test]
    fn a_key_does_not_show_in_debug() {
        let args = args(&["--api-key", "hush"]).unwrap();
        assert!(!format!("{args:?}").contains("hush"));
    }

    #[test]
    fn a_reader_that_left_ends_no_replica() {
        struct Full(io::ErrorKind);
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(self.0.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        assert!(print(&mut Full(io::ErrorKind::BrokenPipe), "ready").is_ok());
        assert!(print(&mut Full(io::ErrorKind::StorageFull), "ready").is_err());
    }

    #[tokio::test]
    async fn a_port_in_use_is_said_plainly() {
        let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = taken.local_addr().unwrap().port().to_string();
        let args = args(&["--replicas", "1", "--port", &port]).unwrap();
        let error = run(&args, &mut Vec::new()).await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot listen on 127.0.0.1:{port}: ")), "{error}");
    }
}
