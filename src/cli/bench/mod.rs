//! `tokenway bench URL`: an open-loop load generator with the figures of `replay`.
//!
//! Each request has a time at which it is due, whatever became of those before it, and its latency counts from that time: a
//! server that stalls, or a generator that falls behind, cannot hide what its clients would have waited (coordinated
//! omission). The figures from the moment of sending are shown beside them.

mod args;
mod client;
mod report;
mod schedule;

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio_util::task::TaskTracker;

pub use self::args::BenchArgs;
use self::client::{Client, Due};
use self::report::Report;
use self::schedule::Schedule;
use super::admin_client::{AskError, read_token};
use super::replay::ReplayError;
use super::{EXIT_FAILED, EXIT_OK, Outputs, failed};
use crate::app::open_files::raise_limit;
use crate::background::boxed;
use crate::clock::Clock;
use crate::upstream::call::CallError;

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
enum BenchError {
    #[error(transparent)]
    Trace(#[from] ReplayError),
    #[error(transparent)]
    Key(#[from] AskError),
    #[error(
        "{url} does not answer: {error}\nhint: give the base URL before /v1: a gateway's data port, or an engine"
    )]
    Unreachable { url: String, error: CallError },
    #[error("{url} lists no model (status {status}): give --model NAME")]
    NoModel { url: String, status: u16 },
    #[error("{url} refuses to list its models (status {status}): give a key it knows with --key")]
    Refused { url: String, status: u16 },
    #[error("--duration leaves no request to send")]
    Nothing,
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("cannot write {file}: {error}")]
    Html { file: String, error: io::Error },
}

/// Sends and reports: tables or JSON go to `out`, progress and faults to `err`. SIGINT ends the sending, not the report. The
/// result is the exit code: 1 also where a target has answered nothing, or where the run was interrupted.
pub fn run(
    args: &BenchArgs,
    env: &dyn Fn(&str) -> Option<String>,
    (out, err): Outputs<'_>,
    shows_progress: bool,
) -> io::Result<u8> {
    let done = measure(args, env, err, shows_progress).and_then(|(report, is_whole)| {
        write!(out, "{}", if args.json { report.json() } else { report.text() })?;
        if let Some(file) = &args.html {
            let failed = |error| BenchError::Html { file: file.display().to_string(), error };
            std::fs::write(file, report.html()).map_err(failed)?;
        }
        Ok(if report.has_answers() && is_whole { EXIT_OK } else { EXIT_FAILED })
    });
    done.or_else(|error| match error {
        BenchError::Io(error) => Err(error),
        error => failed(err, &error),
    })
}

/// The report, and whether every request was sent and has ended.
fn measure(
    args: &BenchArgs,
    env: &dyn Fn(&str) -> Option<String>,
    err: &mut dyn Write,
    shows_progress: bool,
) -> Result<(Report, bool), BenchError> {
    let schedule = Schedule::read(args)?;
    let key = args.key.as_deref().map(|key| read_token(key, env)).transpose()?;
    // A request holds a connection; the soft limit of most systems is 1,024.
    raise_limit();
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let (clock, tasks) = (Clock::start(), TaskTracker::new());
        let mut clients = Vec::new();
        for url in std::iter::once(&args.url).chain(&args.against) {
            clients.push(Arc::new(Client::new(url, args, key.clone(), clock).await?));
        }
        let sending = send(&schedule, &clients, clock, &tasks);
        let interrupted = tokio::signal::ctrl_c();
        tokio::pin!(sending, interrupted);
        let all = schedule.requests.len() * clients.len();
        let is_whole = loop {
            // Every arm is cancel-safe: sending goes on where it was.
            let over = tokio::select! {
                () = &mut sending => Some(true),
                _ = &mut interrupted => Some(false),
                () = tokio::time::sleep(PROGRESS_EVERY) => None,
            };
            if shows_progress {
                progress(&clients, all, err)?;
            }
            if let Some(is_whole) = over {
                break is_whole;
            }
        };
        if shows_progress {
            writeln!(err)?;
        }
        if !is_whole {
            let (done, _) = ended(&clients);
            writeln!(err, "interrupted: figures of the {done} requests of {all} that had ended")?;
        }
        Ok((Report::new(args, &clients), is_whole))
    })
}

/// Sends every request when it is due, and waits for the answers.
async fn send(schedule: &Schedule, clients: &[Arc<Client>], clock: Clock, tasks: &TaskTracker) {
    let start = clock.now().after(HEAD_START);
    for (serial, request) in schedule.requests.iter().enumerate() {
        // Written before it is due.
        let prompt: Arc<str> = schedule.prompt(serial, request).into();
        let at = start.after(request.at);
        let left = at.since(clock.now());
        if left > TIMER_TICK {
            tokio::time::sleep(left - TIMER_TICK).await;
        }
        while clock.now() < at {
            tokio::task::yield_now().await;
        }
        let due = Due { at, start, output: request.output, prompt_tokens: request.prompt };
        // Who is first takes turns, so that neither always meets the machine as the other left it.
        for turn in 0..clients.len() {
            let client = Arc::clone(&clients[(serial + turn) % clients.len()]);
            let prompt = Arc::clone(&prompt);
            tasks.spawn(boxed(async move { client.ask(&prompt, due).await }));
        }
    }
    tasks.close();
    tasks.wait().await;
}

fn progress(clients: &[Arc<Client>], all: usize, err: &mut dyn Write) -> io::Result<()> {
    let (done, failed) = ended(clients);
    let filled = BAR * done / all.max(1);
    write!(
        err,
        "\r[{}{}] {done}/{all} answered, {failed} failed ",
        "#".repeat(filled),
        "·".repeat(BAR - filled)
    )?;
    err.flush()
}

/// Requests that have ended, and those of them without a complete answer.
fn ended(clients: &[Arc<Client>]) -> (usize, u64) {
    clients.iter().fold((0, 0), |(done, failed), client| {
        let ended = client.ended.lock();
        (done + ended.measured.len(), failed + ended.failures.values().sum::<u64>())
    })
}

const BAR: usize = 30;
const PROGRESS_EVERY: Duration = Duration::from_millis(200);
const HEAD_START: Duration = Duration::from_millis(50);
/// The runtime's timers are exact to a millisecond and late by up to one.
const TIMER_TICK: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests;
