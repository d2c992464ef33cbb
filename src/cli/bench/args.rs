//! The command line of `tokenway bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tokenway_sim::replay::Bounds;

use crate::cli::admin_client::endpoint;
use crate::cli::replay::args::{positive, stated};
use crate::cli::replay::{DEFAULT_SLO, bounds};
use crate::config::Endpoint;
use crate::config::check::parse_span;

/// Arguments of `tokenway bench`.
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    /// Base URL: a gateway's data port, or an engine
    #[arg(value_name = "URL", value_parser = endpoint)]
    pub(super) url: Endpoint,
    /// A second one, which gets every request too
    #[arg(long, value_name = "URL", value_parser = endpoint)]
    pub(super) against: Option<Endpoint>,
    /// Requests: Mooncake's JSON lines (timestamp, input_length, output_length, hash_ids) or Azure's CSV
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "input_tokens", "output_tokens"])]
    pub(super) trace: Option<PathBuf>,
    /// Speed of the trace
    #[arg(long, value_name = "X", default_value = "1", value_parser = positive, requires = "trace")]
    pub(super) load: f64,
    /// Without a trace: requests a second, at random (exponential) gaps
    #[arg(long, value_name = "R", default_value = "1", value_parser = positive)]
    pub(super) rate: f64,
    /// How long requests are sent [default: 30s, or the whole trace]
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    pub(super) duration: Option<Duration>,
    /// Without a trace: words of each prompt, which no other prompt of any run begins with
    #[arg(long, value_name = "N", default_value = "512", value_parser = clap::value_parser!(u64).range(1..1_000_000))]
    pub(super) input_tokens: u64,
    /// Without a trace: tokens of each answer
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u64).range(1..1_000_000))]
    pub(super) output_tokens: u64,
    /// Model to ask for [default: the first that is listed]
    #[arg(long, value_name = "NAME")]
    pub(super) model: Option<String>,
    /// API key: env:NAME, file:PATH or the key itself
    #[arg(long, value_name = "KEY")]
    pub(super) key: Option<String>,
    /// Bound on TTFT for an empty prompt [default: 1s, and 150us per prompt token]
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    ttft: Option<Duration>,
    /// Increase of the bound per prompt token
    #[arg(long, value_name = "TIME", value_parser = parse_span, requires = "ttft")]
    ttft_per_token: Option<Duration>,
    /// Bound on TPOT [default: 100ms]
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    tpot: Option<Duration>,
    /// Longest wait for an answer
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_span)]
    pub(super) timeout: Duration,
    /// Seed of gaps, and of a trace's words
    #[arg(long, value_name = "N", default_value = "1")]
    pub(super) seed: u64,
    /// Also write a page with plots
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// JSON instead of a table
    #[arg(long)]
    pub(super) json: bool,
}

impl BenchArgs {
    /// What goodput counts against.
    pub(super) fn bounds(&self) -> Bounds {
        bounds(&stated(DEFAULT_SLO, self.ttft, self.ttft_per_token, self.tpot))
    }
}
