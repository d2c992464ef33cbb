//! `tokenway replay TRACE`: what would the routing have done with this traffic?
//!
//! Reads a trace and configuration files, runs the product's routing (and yardsticks) on a simulated fleet in simulated
//! time, and prints one line for each contender and setting. The simulation itself is `crate::simulate::replay`.

mod args;
mod report;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::config::load::{ConfigError, Source, load};
use crate::config::{Config, ItlBounds, Overrides, PolicyName, Route, Slo, TtftBound};
use crate::simulate::engine::EngineConfig;
use crate::simulate::peers::Peer;
use crate::simulate::replay::{
    Admission, Contender, EngineFile, EngineFileError, Entrant, Fit, Race, Recording, Setting, Trace,
    TraceError, contest, fit, qwen_32b_on_two_h100,
};

pub use self::args::ReplayArgs;
use super::{EXIT_FAILED, EXIT_OK, EXIT_USAGE, replay_drift};

/// Why a replay cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The trace cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The trace is none.
    #[error("{}: {error}", path.display())]
    Trace {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        error: TraceError,
    },
    /// The engine file is none.
    #[error("{}: {error}", path.display())]
    Engine {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        error: EngineFileError,
    },
    /// A configuration file is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The file has no such route.
    #[error("{}: no route \"{route}\"; its routes: {known}", path.display())]
    NoRoute {
        /// Which file.
        path: PathBuf,
        /// The route asked for.
        route: String,
        /// Those that there are.
        known: String,
    },
    /// A slow replica that the fleet does not have.
    #[error("--slow {replica}=…: the smallest fleet has replicas 0 to {last}")]
    NoReplica {
        /// The replica asked for.
        replica: usize,
        /// The last one there is.
        last: usize,
    },
}

/// Runs the replay: the table or JSON goes to `out`, faults go to `err`. The result is the exit code.
///
/// # Errors
/// When `out` or `err` cannot be written.
pub fn run(
    args: &ReplayArgs,
    env: &dyn Fn(&str) -> Option<String>,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<u8> {
    if args.drift {
        return drift(args, out, err);
    }
    let done = if args.fit {
        fitted(args).map(|fit| report::fit(&fit, out, err))
    } else {
        prepare(args, env).map(|plan| replayed(args, &plan, out))
    };
    match done {
        Ok(written) => written.map(|()| EXIT_OK),
        Err(error) => {
            writeln!(err, "error: {error}")?;
            Ok(EXIT_FAILED)
        }
    }
}

/// `--drift`: records through the live detectors.
fn drift(args: &ReplayArgs, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    let [config] = args.config.as_slice() else {
        writeln!(err, "error: --drift takes one --config")?;
        return Ok(EXIT_USAGE);
    };
    let mut out = io::BufWriter::new(out);
    match replay_drift::run(&args.trace, config, &mut out) {
        Ok(()) => out.flush().map(|()| EXIT_OK),
        Err(error) => {
            out.flush()?;
            writeln!(err, "error: {error}")?;
            Ok(EXIT_FAILED)
        }
    }
}

fn replayed(args: &ReplayArgs, plan: &Plan, out: &mut dyn Write) -> io::Result<()> {
    let figures = contest(&plan.trace, (&plan.entrants, &plan.settings), &plan.races, args.threads());
    let lines = report::lines(plan, &figures);
    if args.json { report::json(&lines, out) } else { report::table(&lines, out) }
}

fn fitted(args: &ReplayArgs) -> Result<Fit, ReplayError> {
    let recording = Recording::read(&read(&args.trace)?);
    let recording = recording.map_err(|error| ReplayError::Trace { path: args.trace.clone(), error })?;
    Ok(fit(&recording, &engine(args)?))
}

/// All that is to be run.
struct Plan {
    trace: Trace,
    entrants: Vec<Entrant>,
    settings: Vec<Setting>,
    races: Vec<Race>,
}

fn prepare(args: &ReplayArgs, env: &dyn Fn(&str) -> Option<String>) -> Result<Plan, ReplayError> {
    let trace = Trace::read(&read(&args.trace)?)
        .map_err(|error| ReplayError::Trace { path: args.trace.clone(), error })?;
    let mut configs = Vec::new();
    for file in &args.config {
        configs.push((file, load(&Source::File(file.clone()), &Overrides::default(), env)?));
    }
    let entrants = entrants(args, &configs)?;
    let settings = settings(args, configs.first().map(|(_, config)| config))?;
    let races = races(args, entrants.len(), settings.len());
    Ok(Plan { trace, entrants, settings, races })
}

fn read(path: &Path) -> Result<String, ReplayError> {
    std::fs::read_to_string(path).map_err(|error| ReplayError::Read { path: path.to_owned(), error })
}

fn engine(args: &ReplayArgs) -> Result<EngineConfig, ReplayError> {
    let Some(path) = &args.engine else { return Ok(qwen_32b_on_two_h100()) };
    let file = EngineFile::read(&read(path)?);
    let file = file.map_err(|error| ReplayError::Engine { path: path.clone(), error })?;
    Ok(file.over(qwen_32b_on_two_h100()))
}

fn entrants(args: &ReplayArgs, configs: &[(&PathBuf, Config)]) -> Result<Vec<Entrant>, ReplayError> {
    let mut entrants = Vec::new();
    let mut slo_of_first = None;
    for (file, file_config) in configs {
        let route = route(args, file, file_config)?;
        let slo = file_config.slo.get(&route.slo).copied().unwrap_or_default();
        slo_of_first.get_or_insert(slo);
        let contender = Contender::Product(route.policy);
        let config = Some(file.display().to_string());
        let medium = file_config.classes.medium;
        let admission = route.queue.map(|queue| Admission { queue, medium });
        entrants.push(Entrant { contender, config, slo: args.slo_over(slo), admission });
    }
    let slo = args.slo_over(slo_of_first.unwrap_or(DEFAULT_SLO));
    let entrant =
        |contender: &Contender| Entrant { contender: *contender, config: None, slo, admission: None };
    let named = args.policies.iter().map(entrant);
    entrants.extend(named);
    Ok(entrants)
}

fn route<'a>(args: &ReplayArgs, file: &Path, config: &'a Config) -> Result<&'a Route, ReplayError> {
    let found = match &args.route {
        Some(name) => config.routes.iter().find(|route| *route.name == **name),
        None => config.routes.first(),
    };
    found.ok_or_else(|| {
        let known: Vec<&str> = config.routes.iter().map(|route| &*route.name).collect();
        let route = args.route.clone().unwrap_or_default();
        ReplayError::NoRoute { path: file.to_owned(), route, known: known.join(", ") }
    })
}

fn settings(args: &ReplayArgs, config: Option<&Config>) -> Result<Vec<Setting>, ReplayError> {
    let configured = config.map_or(DEFAULT_REPLICAS, |config| {
        config.pools.iter().map(|pool| pool.replicas.len()).sum::<usize>().max(1)
    });
    let fleets = if args.replicas.is_empty() { vec![configured] } else { args.replicas() };
    let smallest = fleets.iter().copied().min().unwrap_or(1);
    if let Some((replica, _)) = args.slow.iter().find(|(replica, _)| *replica >= smallest) {
        return Err(ReplayError::NoReplica { replica: *replica, last: smallest - 1 });
    }
    let engine = engine(args)?;
    let mut settings = Vec::new();
    for &replicas in &fleets {
        for &load in &args.load {
            for &scrape_interval in &args.signals_age {
                settings.push(Setting {
                    replicas,
                    load,
                    scrape_interval,
                    slow: args.slow.clone(),
                    engine: engine.clone(),
                });
            }
        }
    }
    Ok(settings)
}

/// Setting by setting, so that the lines to be compared stand together.
fn races(args: &ReplayArgs, entrants: usize, settings: usize) -> Vec<Race> {
    let mut races = Vec::new();
    for setting in 0..settings {
        for entrant in 0..entrants {
            races.extend(args.seeds.iter().map(|seed| Race { entrant, setting, seed: *seed }));
        }
    }
    races
}

/// Reads a contender's name: one of the product's policies or a yardstick.
fn contender(name: &str) -> Result<Contender, String> {
    let product = PolicyName::ALL.into_iter().find(|policy| policy.as_str() == name);
    let named = product.map(Contender::Product).or_else(|| Peer::named(name).map(Contender::Peer));
    named.ok_or_else(|| {
        let policies = PolicyName::ALL.into_iter().map(PolicyName::as_str);
        let known: Vec<&str> = policies.chain(Peer::ALL.into_iter().map(Peer::as_str)).collect();
        format!("unknown policy; there are {}", known.join(", "))
    })
}

/// Where no configuration says more: a bound that grows with the prompt, and a pace faster than people read.
const DEFAULT_SLO: Slo = Slo {
    ttft: Some(TtftBound {
        base: std::time::Duration::from_secs(1),
        per_prompt_token: std::time::Duration::from_micros(150),
    }),
    itl: ItlBounds::new([None; 4]),
    tpot: Some(std::time::Duration::from_millis(100)),
    e2e: None,
};
const DEFAULT_REPLICAS: usize = 8;
