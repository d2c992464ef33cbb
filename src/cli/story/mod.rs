//! The story of `tokenway demo --story`: four things that happen to a fleet, with the figures before and after.
//!
//! Each act says what happens and where to look, waits until it shows, and judges whether it did what it says; with
//! `--script` the judgement is the exit code. The whole takes less than ninety seconds.

mod acts;
mod meter;

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::de::IgnoredAny;
use tokenway_sim::server::SimReplica;
use tokenway_sim::traffic::TrafficConfig;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub(super) use self::meter::Meter;
use super::admin_client::{AdminClient, AdminToken, AskError};
use super::style::{Paint, Style};
use crate::config::Endpoint;

/// What the acts act on.
pub(super) struct Stage {
    pub(super) fleet: Vec<SimReplica>,
    pub(super) meter: Arc<Meter>,
    /// Ordinary traffic of the demo; overload adds to it.
    pub(super) traffic: TrafficConfig,
    /// Where the simulation runs.
    pub(super) simulation: Handle,
    pub(super) tracker: TaskTracker,
    pub(super) over: CancellationToken,
    pub(super) file: ConfigFile,
    pub(super) admin: Endpoint,
    pub(super) page: String,
    pub(super) style: Style,
}

/// One judged statement of an act.
#[derive(Debug, PartialEq)]
struct Verdict {
    is_true: bool,
    text: String,
}

impl Stage {
    /// Plays all acts. Whether every one did what it says; `None` when the demo was ended before.
    ///
    /// # Errors
    /// When `out` cannot be written, or the gateway does not take a configuration.
    pub(super) async fn play(&self, out: &mut (dyn Write + Send)) -> io::Result<Option<bool>> {
        let mut all_true = true;
        for (at, act) in acts::ALL.iter().enumerate() {
            let title = format!("── {} of {}: {} ", at + 1, acts::ALL.len(), act.title);
            writeln!(out, "\n{}", self.style.paint(Paint::Bold, &format!("{title:─<90}")))?;
            writeln!(out, "{}", act.happens)?;
            writeln!(out, "look at  {}; the page is {}", act.look_at, self.page)?;
            out.flush()?;
            let Some(played) = self.over.run_until_cancelled((act.play)(self)).await else {
                return Ok(None);
            };
            let (before, after, verdicts) = played?;
            writeln!(out, "before   {before}\nafter    {after}")?;
            for Verdict { is_true, text } in verdicts {
                all_true &= is_true;
                let (paint, word) = if is_true { (Paint::Good, "ok") } else { (Paint::Error, "NOT SO") };
                writeln!(out, "{:<8} {text}", self.style.paint(paint, word))?;
            }
            out.flush()?;
        }
        let (paint, text) = match all_true {
            true => (Paint::Good, "Each act did what it says."),
            false => (Paint::Error, "Not every act did what it says: is this machine busy?"),
        };
        writeln!(out, "\n{}", self.style.paint(paint, text))?;
        Ok(Some(all_true))
    }

    /// Writes another policy into the file and has the gateway load it, as an operator would.
    async fn switch_policy(&self, policy: &str) -> io::Result<()> {
        std::fs::write(self.file.path(), routed_by(policy, &self.fleet))?;
        let client = AdminClient::new(&self.admin, &AdminToken::default(), &|_| None);
        let reloading = async { client?.post("/api/v1/reload").await };
        let reloaded: Result<IgnoredAny, AskError> = reloading.await;
        reloaded.map(drop).map_err(|error| io::Error::other(format!("the gateway did not reload: {error}")))
    }
}

/// The demo's configuration; removed with this value.
#[derive(Debug)]
pub(super) struct ConfigFile(PathBuf);

impl ConfigFile {
    /// A file in the system's directory for such, readable by nobody else.
    pub(super) fn create(text: &str) -> io::Result<Self> {
        let name = format!("tokenway-demo-{}-{:08x}.toml", std::process::id(), fastrand::u32(..));
        let path = std::env::temp_dir().join(name);
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let why = |error: io::Error| {
            let shown = path.display();
            io::Error::new(
                error.kind(),
                format!("{shown}: {error}; set TMPDIR to a directory that can be written"),
            )
        };
        let mut opened = opened.map_err(why)?;
        let file = Self(path);
        opened.write_all(text.as_bytes())?;
        Ok(file)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ConfigFile {
    fn drop(&mut self) {
        // Left behind it does no harm.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What stands in the file for a fleet that is routed by a policy.
pub(super) fn routed_by(policy: &str, fleet: &[SimReplica]) -> String {
    // Admission is by prediction, which the other policies do not have.
    let queue = if policy == "latency" { "[route.queue]\n" } else { "" };
    format!(
        "[slo.demo]\nttft = \"{}ms\"\n[[pool]]\nname = \"default\"\nreplicas = {:?}\n\
         [[route]]\nmodel = \"sim\"\npolicy = \"{policy}\"\nslo = \"demo\"\n{queue}",
        TTFT_BOUND.as_millis(),
        urls(fleet)
    )
}

/// What stands in it for one in which some compute prompts for the others.
pub(super) fn apart(prefill: &[SimReplica], decode: &[SimReplica]) -> String {
    let pool = |name: &str, replicas: &[SimReplica]| {
        let urls = urls(replicas);
        format!("[[pool]]\nname = \"{name}\"\nrole = \"{name}\"\nrevision = \"demo\"\nreplicas = {urls:?}\n")
    };
    format!(
        "[slo.demo]\nttft = {{ base = \"{}ms\", per_prompt_token = \"0.5ms\" }}\ntpot = \"40ms\"\n{}{}\
         [[route]]\nmodel = \"sim\"\npools = [\"decode\"]\nslo = \"demo\"\n\
         [route.prefill]\npool = \"prefill\"\n",
        TTFT_BOUND.as_millis(),
        pool("prefill", prefill),
        pool("decode", decode),
    )
}

fn urls(replicas: &[SimReplica]) -> Vec<String> {
    replicas.iter().map(SimReplica::url).collect()
}

/// Bound on TTFT in the demo: what a loaded fleet keeps with a warm cache, and misses without.
const TTFT_BOUND: Duration = Duration::from_millis(1000);
