//! A proxy under test: a child process on its own CPU, and what the kernel says that it burnt.
//!
//! CPU time is read in nanoseconds from each thread's `schedstat` (`stat` counts in steps of 10 ms). A thread that
//! ends takes its time along; both proxies keep theirs. Linux only.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokenway::clock::Clock;

use crate::engine::Engine;
use crate::load::{self, Plan};
use crate::{Failure, floor};

/// A running proxy; killed when dropped.
pub(crate) struct Proxy {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    child: Child,
}

/// Nanoseconds on a CPU, by thread.
pub(crate) struct CpuTime(BTreeMap<String, u64>);

impl CpuTime {
    /// What was burnt since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Duration {
        let nanos = |(thread, now): (&String, &u64)| {
            now.saturating_sub(earlier.0.get(thread).copied().unwrap_or_default())
        };
        Duration::from_nanos(self.0.iter().map(nanos).sum())
    }
}

impl Proxy {
    /// The minimal hyper proxy: this binary in its other role.
    pub(crate) fn floor(engine: &Engine, pinned: bool) -> Result<Self, Failure> {
        let address = free_address()?;
        let mut command = command(&std::env::current_exe()?, pinned);
        command.arg(floor::ROLE).arg(address.to_string());
        command.args(engine.addresses.iter().map(ToString::to_string));
        Ok(Self { name: "floor", address, child: command.spawn()? })
    }

    /// The gateway as a user starts it, except for quieter logs; access log lines are written, to nowhere.
    pub(crate) fn gateway(binary: &Path, engine: &Engine, pinned: bool) -> Result<Self, Failure> {
        let address = free_address()?;
        let mut command = command(binary, pinned);
        command.args(["serve", "--log-level", "warn", "--listen", &address.to_string()]);
        command.args(["--admin-listen", &free_address()?.to_string()]);
        for upstream in &engine.addresses {
            command.arg("--upstream").arg(format!("http://{upstream}"));
        }
        for (key, _) in std::env::vars().filter(|(key, _)| is_setting(key)) {
            command.env_remove(key);
        }
        Ok(Self { name: "gateway", address, child: command.spawn()? })
    }

    /// Waits until it answers a request.
    pub(crate) async fn ready(&mut self, clock: Clock) -> Result<(), Failure> {
        let one = Plan { connections: 1, requests: 1, ramp: Duration::ZERO, stream_tokens: None };
        for _ in 0..300 {
            if let Some(status) = self.child.try_wait()? {
                return Err(format!("{} ended before it answered: {status}", self.name).into());
            }
            if load::run(self.address, one, clock).await?.errors == 0 {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Err(format!("{} does not answer on {}", self.name, self.address).into())
    }

    /// CPU time of all its threads so far.
    pub(crate) fn cpu_time(&self) -> Result<CpuTime, Failure> {
        let mut by_thread = BTreeMap::new();
        for entry in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let entry = entry?;
            // A thread may end between the listing and the read.
            let Ok(text) = std::fs::read_to_string(entry.path().join("schedstat")) else { continue };
            let nanos = text.split(' ').next().unwrap_or_default().parse()?;
            by_thread.insert(entry.file_name().to_string_lossy().into_owned(), nanos);
        }
        Ok(CpuTime(by_thread))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // It may have ended by itself: then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Builds the gateway as a user does: the one that Cargo builds for benches has the features of the tests (a clock that can be
/// paused).
pub(crate) fn build() -> Result<PathBuf, Failure> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = root.join("target/gateway");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--release", "--locked", "--bin", "tokenway", "--target-dir"]).arg(&target);
    let status = cargo.current_dir(root).status()?;
    if !status.success() {
        return Err(format!("the gateway could not be built: {status}").into());
    }
    Ok(target.join("release/tokenway"))
}

/// Puts this process on CPU 1, leaving CPU 0 to the proxies; false without `taskset` or a second CPU.
/// Called before any thread is started, so that all inherit it.
pub(crate) fn pin_self() -> bool {
    let mut command = Command::new("taskset");
    command.args(["-pc", "1", &std::process::id().to_string()]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn command(program: &Path, pinned: bool) -> Command {
    let mut command = if pinned {
        let mut command = Command::new("taskset");
        // taskset replaces itself by the program: the process id is the proxy's.
        command.args(["-c", "0"]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Settings of the caller's shell that would change what is measured.
fn is_setting(key: &str) -> bool {
    key.starts_with("TOKENWAY_") || key.starts_with("OTEL_") || key == "RUST_LOG"
}

fn free_address() -> Result<SocketAddr, Failure> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
