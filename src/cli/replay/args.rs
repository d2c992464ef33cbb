//! The command line of `tokenway replay`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tokenway_sim::engine::EngineConfig;
use tokenway_sim::replay::{qwen_32b_on_two_a100, qwen_32b_on_two_h100};
use tokenway_sim::rivals::Rival;

use crate::config::check::parse_span;
use crate::config::{PolicyName, Slo, TtftBound};

/// Arguments of `tokenway replay`.
#[derive(Args, Clone, Debug)]
pub struct ReplayArgs {
    /// Read TRACE as records (t, route, revision, replica, ttft, itl, outcome) and print the drift found in them
    #[arg(long, env = "TOKENWAY_REPLAY_DRIFT", requires = "config", conflicts_with_all = ["fit", "policies"])]
    pub(super) drift: bool,
    /// Fit the engine model to TRACE, a recorded run against one replica; print its engine file and, on stderr, its error
    #[arg(long, env = "TOKENWAY_REPLAY_FIT", conflicts_with_all = ["config", "policies"])]
    pub(super) fit: bool,
    /// Requests: Mooncake's JSON lines (timestamp, input_length, output_length, hash_ids) or Azure's CSV
    #[arg(value_name = "TRACE")]
    pub(super) trace: PathBuf,
    /// Configuration file, any number of times: its route's policy and SLO are run
    #[arg(
        long,
        env = "TOKENWAY_REPLAY_CONFIG",
        value_name = "FILE",
        value_delimiter = ',',
        required_unless_present_any = ["policies", "fit"]
    )]
    pub(super) config: Vec<PathBuf>,
    /// The route of each file [default: its first]
    #[arg(long, env = "TOKENWAY_REPLAY_ROUTE", value_name = "NAME", requires = "config")]
    pub(super) route: Option<String>,
    /// More contenders by name: policies of the product, and rivals re-implemented from other projects
    #[arg(long, env = "TOKENWAY_REPLAY_POLICIES", value_name = "NAME", value_delimiter = ',', value_parser = Contender::parse)]
    pub(super) policies: Vec<Contender>,
    /// Sizes of the fleet [default: the replicas of the first file]
    #[arg(long, env = "TOKENWAY_REPLAY_REPLICAS", value_name = "N", value_delimiter = ',', value_parser = at_most::<MAX_REPLICAS>)]
    pub(super) replicas: Vec<NonZeroUsize>,
    /// Gateways of the product before the fleet, each with a random part of the requests, in one [cluster]
    #[arg(long, env = "TOKENWAY_REPLAY_GATEWAYS", value_name = "N", value_delimiter = ',', default_value = "1", value_parser = at_most::<MAX_GATEWAYS>)]
    pub(super) gateways: Vec<NonZeroUsize>,
    /// They share nothing
    #[arg(long, env = "TOKENWAY_REPLAY_GATEWAYS_ALONE", requires = "gateways")]
    pub(super) gateways_alone: bool,
    /// The trace is the fleet's whole traffic, however many replicas there are: what they need for it
    #[arg(long, env = "TOKENWAY_REPLAY_AS_RECORDED")]
    pub(super) as_recorded: bool,
    /// Speeds of the trace: 1 is its own pace, one copy of it for every four replicas (with --as-recorded: one copy)
    #[arg(long, env = "TOKENWAY_REPLAY_LOAD", value_name = "X", value_delimiter = ',', default_value = "1", value_parser = positive)]
    pub(super) load: Vec<f64>,
    /// Times between two scrapes of a replica
    #[arg(long, env = "TOKENWAY_REPLAY_SIGNALS_AGE", value_name = "TIME", value_delimiter = ',', default_value = "1s", value_parser = parse_span)]
    pub(super) signals_age: Vec<Duration>,
    /// A replica, counted from 0, whose steps take FACTOR times as long; any number of times
    #[arg(long, env = "TOKENWAY_REPLAY_SLOW", value_name = "N=FACTOR", value_delimiter = ',', value_parser = slow)]
    pub(super) slow: Vec<(usize, f64)>,
    /// Of each fleet, replicas that compute prompts, where the route has [route.prefill] [default: the file's share]
    #[arg(long, env = "TOKENWAY_REPLAY_PREFILL_REPLICAS", value_name = "N", requires = "config")]
    pub(super) prefill_replicas: Option<NonZeroUsize>,
    /// Time of a KV transfer
    #[arg(long, env = "TOKENWAY_REPLAY_KV_TRANSFER", value_name = "TIME", default_value = "10ms", value_parser = parse_span)]
    pub(super) kv_transfer: Duration,
    /// More for each token
    #[arg(long, env = "TOKENWAY_REPLAY_KV_TRANSFER_PER_TOKEN", value_name = "TIME", default_value = "0.01ms", value_parser = parse_span)]
    pub(super) kv_transfer_per_token: Duration,
    /// More for the first between two replicas
    #[arg(long, env = "TOKENWAY_REPLAY_KV_HANDSHAKE", value_name = "TIME", default_value = "1s", value_parser = parse_span)]
    pub(super) kv_handshake: Duration,
    /// Share of transfers lost, known after 5 s
    #[arg(long, env = "TOKENWAY_REPLAY_KV_LOST", value_name = "SHARE", default_value = "0", value_parser = share)]
    pub(super) kv_lost: f64,
    /// Seeds: one run each, the table shows means
    #[arg(long, env = "TOKENWAY_REPLAY_SEEDS", value_name = "N", value_delimiter = ',', default_value = "1")]
    pub(super) seeds: Vec<u64>,
    /// Bound on TTFT for an empty prompt, instead of the configuration's
    #[arg(long, env = "TOKENWAY_REPLAY_TTFT", value_name = "TIME", value_parser = parse_span)]
    pub(super) ttft: Option<Duration>,
    /// Increase of the bound per prompt token
    #[arg(long, env = "TOKENWAY_REPLAY_TTFT_PER_TOKEN", value_name = "TIME", value_parser = parse_span, requires = "ttft")]
    pub(super) ttft_per_token: Option<Duration>,
    /// Bound on TPOT, instead of the configuration's
    #[arg(long, env = "TOKENWAY_REPLAY_TPOT", value_name = "TIME", value_parser = parse_span)]
    pub(super) tpot: Option<Duration>,
    /// Hardware of every replica, with vLLM's prefill chunks there: h100 8,192 tokens, a100 2,048
    #[arg(long, env = "TOKENWAY_REPLAY_HARDWARE", value_name = "NAME", default_value = "h100")]
    pub(super) hardware: Hardware,
    /// Share by which step times vary; 0: a noiseless engine
    #[arg(long, env = "TOKENWAY_REPLAY_JITTER", value_name = "SHARE", value_parser = share)]
    pub(super) jitter: Option<f64>,
    /// The engine of every replica, as `--fit` writes it [default: a 32B model on two of --hardware]
    #[arg(long, env = "TOKENWAY_REPLAY_ENGINE", value_name = "FILE")]
    pub(super) engine: Option<PathBuf>,
    /// Runs at a time [default: the number of cores]
    #[arg(long, env = "TOKENWAY_REPLAY_THREADS", value_name = "N")]
    pub(super) threads: Option<NonZeroUsize>,
    /// JSON instead of a table: every run by itself
    #[arg(long, env = "TOKENWAY_REPLAY_JSON")]
    pub(super) json: bool,
}

/// A stock engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Hardware {
    H100,
    A100,
}

impl Hardware {
    /// The engine, as noisy as real ones are.
    pub(super) fn engine(self) -> EngineConfig {
        let mut engine = match self {
            Self::H100 => qwen_32b_on_two_h100(),
            Self::A100 => qwen_32b_on_two_a100(),
        };
        engine.cost.jitter = JITTER;
        engine
    }
}

/// Whose routing is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contender {
    Product(PolicyName),
    Rival(Rival),
}

impl Contender {
    /// Reads a contender's name: one of the product's policies or a rival.
    pub(super) fn parse(name: &str) -> Result<Self, String> {
        let named =
            PolicyName::named(name).map(Self::Product).or_else(|| Rival::named(name).map(Self::Rival));
        named.ok_or_else(|| {
            let policies = PolicyName::LABELS.iter().copied();
            let known: Vec<&str> = policies.chain(Rival::all().map(Rival::as_str)).collect();
            format!("unknown policy; there are {}", known.join(", "))
        })
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Product(policy) => policy.as_str(),
            Self::Rival(rival) => rival.as_str(),
        }
    }
}

impl ReplayArgs {
    pub(super) fn threads(&self) -> usize {
        self.threads.or_else(|| std::thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get)
    }

    pub(super) fn replicas(&self) -> Vec<usize> {
        self.replicas.iter().map(|n| n.get()).collect()
    }

    /// The bounds given here instead of those of `slo`.
    pub(super) fn slo_over(&self, slo: Slo) -> Slo {
        stated(slo, self.ttft, self.ttft_per_token, self.tpot)
    }
}

/// Bounds of a command line instead of those of `slo`.
pub(in crate::cli) fn stated(
    slo: Slo,
    ttft: Option<Duration>,
    ttft_per_token: Option<Duration>,
    tpot: Option<Duration>,
) -> Slo {
    let per_prompt_token = ttft_per_token.unwrap_or_default();
    let ttft = ttft.map(|base| TtftBound { base, per_prompt_token });
    Slo { ttft: ttft.or(slo.ttft), tpot: tpot.or(slo.tpot), ..slo }
}

fn at_most<const MOST: usize>(text: &str) -> Result<NonZeroUsize, String> {
    let number = text.parse::<NonZeroUsize>().map_err(|error| error.to_string())?;
    if number.get() > MOST { Err(format!("at most {MOST}")) } else { Ok(number) }
}

pub(in crate::cli) fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().map_err(|error| error.to_string())?;
    if number.is_finite() && number > 0.0 { Ok(number) } else { Err("must be above zero".into()) }
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().map_err(|error| error.to_string())?;
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err("must be between 0 and 1".into()) }
}

fn slow(text: &str) -> Result<(usize, f64), String> {
    let (replica, factor) = text.split_once('=').ok_or("write N=FACTOR, such as 7=2")?;
    let replica = replica.parse().map_err(|_| format!("\"{replica}\" is no replica's number"))?;
    Ok((replica, positive(factor)?))
}

/// Steps of real engines vary by about as much with what else the machine does.
const JITTER: f64 = 0.3;
/// Of a simulated fleet.
const MAX_REPLICAS: usize = 1_024;
/// As many as follow each other.
const MAX_GATEWAYS: usize = 256;
