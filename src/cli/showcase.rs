//! Runs `tokenway demo`: puts a gateway between the simulated fleet and its traffic, and prints what it saw.
//!
//! The gateway is the same that `serve` runs, started from the same kind of configuration. The fleet and its
//! clients have a runtime of their own, so that their work is not mistaken for the gateway's.

use std::io::{self, IsTerminal as _, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokenway_sim::server::SimReplica;
use tokenway_sim::traffic::{TrafficStats, run_traffic};
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::demo::{DemoArgs, print_tables};
use super::scoreboard::Scoreboard;
use super::story::{self, ConfigFile, Meter, Stage};
use super::style::Style;
use super::{EXIT_FAILED, EXIT_OK};
use crate::app::logging::LogFilter;
use crate::app::process::{Front, Launch, RunError, Running, Runtimes, Shutdown};
use crate::app::signals;
use crate::background::{boxed, until};
use crate::config::load::{Source, load};
use crate::config::{Overrides, parse_endpoint};
use crate::observe::metrics::StreamKey;
use crate::observe::{Judgement, Tap};
use crate::record::{FirstToken, Gaps, Record};

/// Runs the demo until its duration or its script is over or a signal comes. The result is the exit code.
///
/// # Errors
/// When ports cannot be had or standard output cannot be written.
pub fn run(args: &DemoArgs, log: LogFilter) -> Result<u8, RunError> {
    let runtimes = Runtimes::start()?;
    let sim_runtime =
        Builder::new_multi_thread().worker_threads(1).thread_name("simulation").enable_all().build()?;
    let (tracker, over) = (TaskTracker::new(), CancellationToken::new());
    let fleet = sim_runtime.block_on(args.start_fleet(&tracker, &over))?;
    let scores = Arc::new(Scores::default());
    let result = runtimes.data.block_on(async {
        let (prefill, decode) = fleet.split_at(args.prefill_replicas().min(fleet.len()));
        let text = if args.pd { story::apart(prefill, decode) } else { story::routed_by("latency", &fleet) };
        let file = ConfigFile::create(&text)?;
        let source = Source::File(file.path().to_owned());
        let overrides = overrides(args);
        let config = Arc::new(load(&source, &overrides, &|name| std::env::var(name).ok())?);
        let launch = Launch { source, overrides, log, front: Front::OpenAi };
        let tap: Arc<dyn Tap> = Arc::clone(&scores) as _;
        let running = Running::start(launch, config, &runtimes, Some(tap))?;
        announce(&running, &fleet, args)?;
        let clients = Arc::new(TrafficStats::default());
        // No demo begins with refusals.
        let is_ready = || running.app.gateway.table.load().routes.iter().all(|route| route.is_ready());
        until(READY_WITHIN, CHECK_INTERVAL, is_ready).await;
        let traffic = args.traffic(format!("http://{}", running.app.data));
        let sending = run_traffic(traffic.clone(), Arc::clone(&clients), tracker.clone(), over.clone());
        tracker.spawn_on(boxed(sending), sim_runtime.handle());
        watch_for_end(args.duration, &over, &tracker)?;
        let stage = Stage {
            fleet,
            meter: Arc::clone(&scores.meter),
            traffic,
            simulation: sim_runtime.handle().clone(),
            tracker: tracker.clone(),
            over: over.clone(),
            file,
            admin: parse_endpoint(&format!("http://{}", running.admin)).map_err(io::Error::other)?,
            page: format!("http://{}/", running.admin),
            style: Style::of(&io::stdout(), &|name| std::env::var(name).ok()),
        };
        let table = || scores.rows.table(&running.app.fleet.statuses(), &clients.summary());
        let code = show(args, &stage, table).await?;
        running.shutdown(Shutdown::interrupt(), std::future::pending()).await;
        Ok(code)
    });
    over.cancel();
    sim_runtime.shutdown_timeout(Duration::from_secs(1));
    runtimes.end();
    result
}

/// As `serve` would have it; but standard output belongs to the tables, and a gateway that comes later on these ports is another one.
fn overrides(args: &DemoArgs) -> Overrides {
    Overrides {
        listen: Some(args.listen),
        admin_listen: Some(args.admin_listen),
        leaves_nothing: true,
        ..Overrides::default()
    }
}

/// Tables, the story, or one after the other, until the demo is over.
async fn show(args: &DemoArgs, stage: &Stage, mut table: impl FnMut() -> String + Send) -> io::Result<u8> {
    let mut out = io::stdout();
    if args.script {
        let played = stage.play(&mut out).await?;
        stage.over.cancel();
        return Ok(if played == Some(true) { EXIT_OK } else { EXIT_FAILED });
    }
    let is_screen = io::stdin().is_terminal() && io::stdout().is_terminal();
    let mut enter = enter_key(&stage.over, !args.pd)?;
    let mut tells_story = args.story;
    while !stage.over.is_cancelled() {
        if std::mem::take(&mut tells_story) {
            stage.play(&mut out).await?;
        }
        let tables_end = stage.over.child_token();
        let head = is_screen.then(|| {
            let story = if args.pd { "" } else { "   Enter: the story" };
            format!("page  {}{story}   Ctrl-C: the end", stage.page)
        });
        let tables = print_tables(&mut out, head.as_deref(), &mut table, tables_end.clone());
        tokio::pin!(tables);
        // Both arms are cancel-safe: the tables go on below.
        let wants_story = tokio::select! {
            done = &mut tables => { done?; false }
            Some(()) = enter.recv() => true,
        };
        if wants_story {
            tables_end.cancel();
            tables.await?;
            tells_story = true;
        }
    }
    Ok(EXIT_OK)
}

/// Reads every line that is entered, on a terminal, where there is a story.
fn enter_key(over: &CancellationToken, has_story: bool) -> io::Result<mpsc::Receiver<()>> {
    let (sender, receiver) = mpsc::channel(1);
    let over = over.clone();
    if has_story && io::stdin().is_terminal() && io::stdout().is_terminal() {
        // A read of a terminal cannot be canceled: the thread ends with the process.
        std::thread::Builder::new().name("enter".to_owned()).spawn(move || {
            let mut line = String::new();
            while !over.is_cancelled() && io::stdin().read_line(&mut line).is_ok_and(|read| read > 0) {
                // A second Enter while the story is told is one too many.
                let _ = sender.try_send(());
            }
        })?;
    }
    Ok(receiver)
}

fn announce(running: &Running, fleet: &[SimReplica], args: &DemoArgs) -> io::Result<()> {
    let mut out = io::stdout();
    let admin: SocketAddr = running.admin;
    writeln!(out, "page      http://{admin}/   (open it in a browser; or: tokenway top http://{admin})")?;
    writeln!(out, "gateway   http://{}   (OpenAI API)", running.app.data)?;
    writeln!(out, "admin     http://{admin}   (/metrics, /readyz, /api/fleet, /api/latency?window=1m)")?;
    for (n, replica) in fleet.iter().enumerate() {
        let role = match args.pd {
            true if n < args.prefill_replicas() => ", computes prompts",
            true => ", decodes",
            false => "",
        };
        writeln!(out, "replica {n} {}   (simulated{role})", replica.url())?;
    }
    writeln!(out, "try       curl -N http://{}/v1/chat/completions \\", running.app.data)?;
    writeln!(out, "            -H 'content-type: application/json' \\")?;
    writeln!(
        out,
        "            -d '{{\"model\":\"sim\",\"stream\":true,\"messages\":[{{\"role\":\"user\",\"content\":\"hello\"}}]}}'\n"
    )?;
    if !args.pd && !args.script && io::stdin().is_terminal() && io::stdout().is_terminal() {
        writeln!(
            out,
            "Enter starts a story: another policy, a sick replica, drift, overload. Ctrl-C ends.\n"
        )?;
    }
    out.flush()
}

fn watch_for_end(limit: Option<Duration>, over: &CancellationToken, tracker: &TaskTracker) -> io::Result<()> {
    let mut signals = signals::listen()?;
    let over = over.clone();
    tracker.spawn(boxed(async move {
        // A signal or the time that is over, either ends the demo.
        let _ = tokio::time::timeout(limit.unwrap_or(Duration::MAX), signals.recv()).await;
        over.cancel();
    }));
    Ok(())
}

/// Lets table and story see what the gateway's observers see.
#[derive(Default)]
struct Scores {
    rows: Scoreboard,
    meter: Arc<Meter>,
}

impl Tap for Scores {
    fn first_token(&self, first: &FirstToken<'_>) {
        self.rows.record_first_token(&first.served.replica, first.ttft);
    }

    fn gaps(&self, stream: &StreamKey, gaps: &Gaps<'_>) {
        self.rows.record_gaps(&stream.replica, gaps);
    }

    fn record(&self, record: &Arc<Record>, judgement: &Judgement) {
        self.rows.record_end(record);
        self.meter.record(record, judgement);
    }
}

const READY_WITHIN: Duration = Duration::from_secs(5);
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
