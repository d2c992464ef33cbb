//! `tokenway replay`: recorded traffic in simulated time.
//!
//! With `--drift` the trace goes through the drift detectors. What-if runs of routing policies are not here yet.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;

use super::replay_drift::{self, ReplayDriftError};
use super::{EXIT_OK, refuse_unbuilt};

/// Arguments of `tokenway replay`.
#[derive(Args, Debug)]
pub struct ReplayArgs {
    /// Recorded requests, one JSON object a line
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// Configuration file
    #[arg(long, value_name = "FILE", env = "TOKENWAY_CONFIG")]
    config: PathBuf,
    /// Look for drift and print what is found, one JSON object a line
    #[arg(long)]
    drift: bool,
}

/// Replays the trace; findings go to `out`.
///
/// # Errors
/// What is wrong with configuration or trace, with its place.
pub fn run(args: &ReplayArgs, out: &mut dyn Write, err: &mut dyn Write) -> Result<u8, ReplayDriftError> {
    if args.drift {
        replay_drift::run(&args.trace, &args.config, out).map(|()| EXIT_OK)
    } else {
        unbuilt(err).map_err(ReplayDriftError::Write)
    }
}

fn unbuilt(err: &mut dyn Write) -> io::Result<u8> {
    refuse_unbuilt("replay` without `--drift", err)
}
