//! `tokenway replay TRACE`: evaluates routing policies on recorded traffic.
//!
//! Reads a trace and configuration files, runs the product's routing and its rivals on a simulated fleet in simulated
//! time, and prints one line for each contender and setting. The simulation itself is the crate `tokenway-sim`.

pub(super) mod args;
mod plan;
mod report;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tokenway_sim::engine::EngineConfig;
use tokenway_sim::replay::{EngineFile, EngineFileError, Fit, Recording, TraceError, fit, run_grid};

pub use self::args::ReplayArgs;
use self::plan::Plan;
pub(super) use self::plan::{DEFAULT_SLO, bounds};
pub(super) use self::report::{figure, grid};
use crate::config::load::ConfigError;

use super::{EXIT_OK, EXIT_USAGE, failed, replay_drift};

/// Why a replay cannot be run.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplayError {
    #[error("cannot read {path}: {1}", path = .0.display())]
    Read(PathBuf, io::Error),
    /// A file, as given on the command line, has a fault.
    #[error("{path}: {1}", path = .0.display())]
    In(PathBuf, Fault),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(
        "--prefill-replicas {prefill}: the smallest fleet has {smallest} replicas, and one has to decode"
    )]
    NoDecoder { prefill: usize, smallest: usize },
    #[error("--slow {replica}=…: the smallest fleet has replicas 0 to {last}")]
    NoReplica { replica: usize, last: usize },
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// It would be simulated for ever.
    #[error(
        "the trace lasts {days:.0} days at --load {load}, more than {most}; timestamps of JSON lines are milliseconds"
    )]
    TooLong { load: String, days: f64, most: f64 },
    #[error(transparent)]
    Engine(#[from] EngineFileError),
    #[error("no route \"{route}\"; its routes: {known}")]
    NoRoute { route: String, known: String },
}

/// Runs the replay: the table or JSON goes to `out`, faults go to `err`. The result is the exit code.
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
        fitted(args).map(|fit| report::fit(&fit, &args.hardware.engine(), out, err))
    } else {
        Plan::read(args, env).map(|plan| {
            plan.notes.iter().try_for_each(|note| writeln!(err, "note: {note}"))?;
            replayed(args, &plan, out)
        })
    };
    match done {
        Ok(written) => written.map(|()| EXIT_OK),
        Err(error) => failed(err, &error),
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
            failed(err, &error)
        }
    }
}

fn replayed(args: &ReplayArgs, plan: &Plan, out: &mut dyn Write) -> io::Result<()> {
    let figures = run_grid(&plan.cells, args.threads(), |cell| plan.run(cell));
    let lines = report::lines(plan, &figures);
    if args.json { report::json(&lines, out) } else { report::table(&plan.header(), &lines, out) }
}

/// The limits are those of `--engine`, or absent: a recording does not show them.
fn fitted(args: &ReplayArgs) -> Result<Fit, ReplayError> {
    let mut fit = fit(&read(&args.trace, Recording::read)?, &engine(args)?);
    let EngineFile { max_num_seqs, max_batched_tokens, kv_tokens, .. } =
        engine_file(args)?.unwrap_or_default();
    fit.engine = EngineFile { max_num_seqs, max_batched_tokens, kv_tokens, ..fit.engine };
    Ok(fit)
}

/// Reads a file as `parse` does its text.
pub(super) fn read<T, E: Into<Fault>>(
    path: &Path,
    parse: fn(&str) -> Result<T, E>,
) -> Result<T, ReplayError> {
    let text = std::fs::read_to_string(path).map_err(|error| ReplayError::Read(path.to_owned(), error))?;
    parse(&text).map_err(|error| ReplayError::In(path.to_owned(), error.into()))
}

/// `--engine`
fn engine_file(args: &ReplayArgs) -> Result<Option<EngineFile>, ReplayError> {
    args.engine.as_ref().map(|path| read(path, EngineFile::read)).transpose()
}

fn engine(args: &ReplayArgs) -> Result<EngineConfig, ReplayError> {
    let mut engine = args.hardware.engine();
    if let Some(file) = engine_file(args)? {
        engine = file.over(engine);
    }
    engine.cost.jitter = args.jitter.unwrap_or(engine.cost.jitter);
    Ok(engine)
}
