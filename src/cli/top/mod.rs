//! `tokenway top URL`: routes, replicas, slow requests and findings of a running gateway, on a terminal.
//!
//! One task asks the gateway every second, one thread reads keys, the main thread draws. Without a terminal, or with `--once`,
//! the same tables are written once as text. The terminal is restored however the program ends: key, signal or panic.

mod keys;
mod model;
mod view;

use std::io::{self, IsTerminal as _};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use clap::Args;
use ratatui::crossterm::event::{self, Event};
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::keys::{Looking, Tab};
use self::model::Snapshot;
use self::view::Known;
use super::admin_client::{AdminArgs, AdminClient, AskError};
use super::explain::text::explanation;
use super::style::Style;
use super::{EXIT_OK, Outputs, failed};
use crate::app::signals;
use crate::background::boxed;
use crate::config::segment;

/// Arguments of `tokenway top`.
#[derive(Args, Debug)]
pub struct TopArgs {
    #[command(flatten)]
    admin: AdminArgs,
    /// Write the tables once, as text; the default where stdout is no terminal
    #[arg(long)]
    once: bool,
    /// Write the data once, as JSON
    #[arg(long)]
    json: bool,
}

/// Shows the gateway until a key or a signal ends it. The result is the exit code.
///
/// # Errors
/// When there is no terminal to draw on, or output cannot be written.
pub fn run(args: &TopArgs, env: &dyn Fn(&str) -> Option<String>, (out, err): Outputs<'_>) -> io::Result<u8> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let client = match AdminClient::new(&args.admin.url, &args.admin.token, env) {
        Ok(client) => client,
        Err(error) => return failed(err, &error),
    };
    if args.json {
        return match runtime.block_on(answers(&client)) {
            Ok(answers) => writeln!(out, "{answers:#}").map(|()| EXIT_OK),
            Err(error) => failed(err, &error),
        };
    }
    // A wrong address, token or version is told at once, not on a screen that waits.
    let first = match runtime.block_on(ask(&client, None)) {
        Ok(first) => first,
        Err(error) => return failed(err, &error),
    };
    if args.once || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        write!(out, "{}", plain(&client.url(), &first))?;
        return Ok(EXIT_OK);
    }
    let is_colored = Style::for_terminal(true, env) == Style::Colored;
    let over = CancellationToken::new();
    let known = Known { url: client.url(), snapshot: Some(first.into()), trouble: None };
    let (sender, receiver) = watch::channel(known);
    let (want, wanted) = watch::channel(None);
    let asking = runtime.spawn(boxed(keep_asking(client, sender, wanted, over.clone())));
    let ending = runtime.spawn(boxed(end_on_signal(over.clone())));
    let shown = show((&receiver, &want), &over, is_colored);
    over.cancel();
    let _ = runtime.block_on(async { (asking.await, ending.await) });
    shown.map(|()| EXIT_OK)
}

/// Everything that is shown, with the explanation of the request `wanted`.
async fn ask(client: &AdminClient, wanted: Option<String>) -> Result<Snapshot, AskError> {
    let mut explained = None;
    if let Some(id) = wanted {
        let detail = client.get(&format!("/api/v1/requests/{}", segment(&id))).await;
        let text =
            detail.map_or_else(|e: AskError| e.to_string(), |detail| explanation(&detail, Style::Plain));
        explained = Some((id, text));
    }
    Ok(Snapshot {
        slo: client.get(SLO).await?,
        fleet: client.get(FLEET).await?,
        requests: client.get(REQUESTS).await?,
        drift: client.get(DRIFT).await?,
        explained,
    })
}

/// The answers as the gateway gives them, with what this version does not know.
async fn answers(client: &AdminClient) -> Result<Value, AskError> {
    let mut all = Map::from_iter([("url".to_owned(), client.url().into())]);
    for (name, path) in [("slo", SLO), ("fleet", FLEET), ("requests", REQUESTS), ("drift", DRIFT)] {
        all.insert(name.to_owned(), client.get(path).await?);
    }
    Ok(Value::Object(all))
}

async fn keep_asking(
    client: AdminClient,
    known: watch::Sender<Known>,
    mut wanted: watch::Receiver<Option<String>>,
    over: CancellationToken,
) {
    loop {
        // Both are cancel-safe: the interval is over, or another request is to be explained.
        let next = tokio::time::timeout(INTERVAL, wanted.changed());
        let Some(_) = over.run_until_cancelled(next).await else { return };
        let id = wanted.borrow_and_update().clone();
        // An answer that is not awaited is not needed.
        let Some(answer) = over.run_until_cancelled(ask(&client, id)).await else { return };
        known.send_modify(|known| match answer {
            Ok(snapshot) => {
                known.snapshot = Some(snapshot.into());
                known.trouble = None;
            }
            Err(error) => known.trouble = Some(error.to_string()),
        });
    }
}

async fn end_on_signal(over: CancellationToken) {
    if let Ok(mut signals) = signals::listen() {
        over.run_until_cancelled(signals.recv()).await;
    }
    over.cancel();
}

/// Draws until it is over. `try_init` also restores the terminal on a panic.
fn show(
    (known, want): (&watch::Receiver<Known>, &watch::Sender<Option<String>>),
    over: &CancellationToken,
    is_colored: bool,
) -> io::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let (sender, events) = sync_channel(MAX_EVENTS);
    // When the terminal is gone crossterm's read never returns: a thread of its own, which ends with the process.
    std::thread::Builder::new().name("keys".to_owned()).spawn(move || read_keys(&sender))?;
    let mut looking = Looking::default();
    let mut shown = known.borrow().clone();
    let result = loop {
        if over.is_cancelled() || looking.is_over {
            break Ok(());
        }
        if !looking.is_paused || looking.is_open {
            shown = known.borrow().clone();
        }
        let request = shown.snapshot.as_ref().and_then(|snapshot| looking.wanted(snapshot));
        want.send_if_modified(|known| {
            *known != request && {
                known.clone_from(&request);
                true
            }
        });
        let drawn = terminal.draw(|frame| view::draw(frame, &shown, &mut looking, is_colored));
        match drawn.and_then(|_| next_event(&events)) {
            Ok(Some(Event::Key(key))) => looking.press(key),
            // The next frame has the new size.
            Ok(_) => {}
            Err(error) => break Err(error),
        }
    };
    ratatui::try_restore()?;
    result
}

fn read_keys(events: &SyncSender<io::Result<Event>>) {
    loop {
        let read = event::read();
        let is_last = read.is_err();
        if events.send(read).is_err() || is_last {
            return;
        }
    }
}

/// The next event, if one comes before the screen is to be drawn again.
fn next_event(events: &Receiver<io::Result<Event>>) -> io::Result<Option<Event>> {
    match events.recv_timeout(FRAME) {
        Ok(read) => read.map(Some),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn plain(url: &str, snapshot: &Snapshot) -> String {
    let mut text = format!("tokenway {url} version {}\n{}\n", snapshot.version(), snapshot.sentence().1);
    for tab in Tab::ALL {
        let table = tab.table(snapshot);
        text.push_str(&format!("\n{} ({})\n", tab.as_str(), table.rows.len()));
        if table.rows.is_empty() {
            text.push_str(&format!("  {}\n", table.empty));
            continue;
        }
        let names: Vec<String> = table.columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        for cells in std::iter::once(&names).chain(table.rows.iter().map(|row| &row.cells)) {
            let padded = cells.iter().zip(&table.columns).map(|(cell, (_, width))| {
                let width = usize::from(*width);
                format!("{cell:<width$}")
            });
            let line = Vec::from_iter(padded).join("  ");
            text.push_str(&format!("  {}\n", line.trim_end()));
        }
    }
    text
}

const SLO: &str = "/api/v1/slo";
const FLEET: &str = "/api/v1/fleet";
const REQUESTS: &str = "/api/v1/requests?limit=100";
const DRIFT: &str = "/api/v1/drift";
const INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait for a key before the screen is drawn again.
const FRAME: Duration = Duration::from_millis(200);
/// Keys pressed since the last frame.
const MAX_EVENTS: usize = 64;

#[cfg(test)]
mod tests;
