//! Loading a configuration again while the gateway runs.
//!
//! [`watch_file`] notices that the file's content changed; [`reload`] checks the new content whole and keeps the old
//! values of the few keys that only a restart can change. Applying the new configuration, and the triggers SIGHUP and admin
//! API, are the application's.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use notify::{RecursiveMode, Watcher as _};
use tokio::sync::watch;

use super::load::{ConfigError, Source, load};
use super::{Config, Overrides};

/// A configuration that replaces a running one.
#[derive(Clone, Debug)]
pub struct Reloaded {
    /// The new configuration, with old values where a restart is needed.
    pub config: Config,
    /// Keys that changed in the file and keep their old value until a restart, for the log.
    pub warnings: Vec<String>,
}

/// Loads the configuration again; nothing changes where it is wrong.
///
/// # Errors
/// As [`load`].
pub fn reload(
    source: &Source,
    overrides: &Overrides,
    env: &dyn Fn(&str) -> Option<String>,
    old: &Config,
) -> Result<Reloaded, ConfigError> {
    let mut config = load(source, overrides, env)?;
    let warnings = keep_fixed(&mut config, old);
    Ok(Reloaded { config, warnings })
}

/// Keeps the old value of each key that is read once, at start; a warning for each that changed.
fn keep_fixed(config: &mut Config, old: &Config) -> Vec<String> {
    let mut fixed = Fixed::default();
    let (server, telemetry) = (&mut config.server, &mut config.telemetry);
    fixed.keep("server.listen", &mut server.listen, &old.server.listen);
    // Other files are other certificates, which a running listener takes up; on or off is another listener.
    if server.tls.is_some() != old.server.tls.is_some() {
        fixed.keep("server.tls (on or off)", &mut server.tls, &old.server.tls);
    }
    fixed.keep("server.body_memory", &mut server.body_memory, &old.server.body_memory);
    // A body that is larger than the memory of all would wait for ever.
    server.body_limit = server.body_limit.min(server.body_memory);
    fixed.keep("server.header_timeout", &mut server.header_timeout, &old.server.header_timeout);
    fixed.keep("server.keep_alive", &mut server.keep_alive, &old.server.keep_alive);
    let handshake = "server.tls_handshake_timeout";
    fixed.keep(handshake, &mut server.tls_handshake_timeout, &old.server.tls_handshake_timeout);
    fixed.keep("server.max_connections", &mut server.max_connections, &old.server.max_connections);
    fixed.keep("admin.listen", &mut config.admin.listen, &old.admin.listen);
    // The prefix index is made of hashes under the old seed.
    fixed.keep("routing.seed", &mut config.seed, &old.seed);
    fixed.keep("telemetry.access_log", &mut telemetry.access_log, &old.telemetry.access_log);
    fixed.keep("[telemetry.otlp]", &mut telemetry.otlp, &old.telemetry.otlp);
    fixed.keep("[telemetry.engine_spans]", &mut telemetry.engine_spans, &old.telemetry.engine_spans);
    let by_tenant = &mut telemetry.stages_by_tenant;
    fixed.keep("telemetry.stages_by_tenant", by_tenant, &old.telemetry.stages_by_tenant);
    // Baselines are cut into blocks; other blocks are other baselines.
    fixed.keep("[drift]", &mut config.drift, &old.drift);
    fixed.warnings
}

/// Warnings about keys that only a restart changes.
#[derive(Default)]
struct Fixed {
    warnings: Vec<String>,
}

impl Fixed {
    fn keep<T: Clone + PartialEq>(&mut self, key: &str, new: &mut T, old: &T) {
        if new != old {
            new.clone_from(old);
            self.warnings.push(format!("{key} changed and needs a restart: the old value stays"));
        }
    }
}

/// Watches a file for as long as it lives.
#[derive(Debug)]
pub struct Watcher {
    /// Dropping it closes the channel, which ends the thread that compares contents.
    _events: Option<notify::RecommendedWatcher>,
    _stop: SyncSender<()>,
}

/// Watches the content of a file. The receiver's number grows with each change.
///
/// The directory is watched and not the file, because editors and Kubernetes replace files by renaming (a ConfigMap
/// swaps a symbolic link). Where the system cannot watch (too many watches, network file systems), the file is
/// read every five seconds instead.
///
/// # Errors
/// When no thread can be started.
pub fn watch_file(path: &Path) -> std::io::Result<(Watcher, watch::Receiver<u64>)> {
    let (stop, hints) = sync_channel(1);
    let (changes, receiver) = watch::channel(0);
    let known = content_hash(path);
    let events = watch_directories(path, stop.clone());
    let watch = FileWatch { path: path.to_owned(), known, changes };
    std::thread::Builder::new().name("config-watch".to_owned()).spawn(move || watch.run(&hints))?;
    Ok((Watcher { _events: events, _stop: stop }, receiver))
}

fn watch_directories(path: &Path, hints: SyncSender<()>) -> Option<notify::RecommendedWatcher> {
    let made = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Our own reading makes access events: taking them as hints would never end.
        if !event.is_ok_and(|event| event.kind.is_access()) {
            // A hint that waits already says the same.
            let _ = hints.try_send(());
        }
    });
    let mut watcher = match made {
        Ok(watcher) => watcher,
        Err(error) => {
            tracing::warn!(%error, "cannot watch the configuration: reading it every five seconds");
            return None;
        }
    };
    let beside = directory_of(path);
    // Where the path itself is a link, its target may be edited in place.
    let target = path.canonicalize().map(|target| directory_of(&target)).ok();
    for directory in std::iter::once(&beside).chain(target.iter().filter(|target| **target != beside)) {
        if let Err(error) = watcher.watch(directory, RecursiveMode::NonRecursive) {
            tracing::warn!(%error, directory = %directory.display(), "cannot watch: reading every five seconds");
        }
    }
    Some(watcher)
}

fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// State of the watcher thread: compares the content's hash on each hint and every [`POLL`].
struct FileWatch {
    path: PathBuf,
    known: Option<u64>,
    changes: watch::Sender<u64>,
}

impl FileWatch {
    fn run(mut self, hints: &Receiver<()>) {
        loop {
            match hints.recv_timeout(POLL) {
                Ok(()) => {
                    // Writers make several events; the last of them leaves the file whole. A directory that is never
                    // still (logs) does not hold the reading up for ever.
                    let _ = (0..MAX_ROUNDS).take_while(|_| hints.recv_timeout(DEBOUNCE).is_ok()).count();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = content_hash(&self.path);
            // A file that is away for a moment is being replaced.
            if now.is_some() && now != self.known {
                self.known = now;
                self.changes.send_modify(|count| *count += 1);
            }
        }
    }
}

fn content_hash(path: &Path) -> Option<u64> {
    std::fs::read(path).ok().map(|content| xxhash_rust::xxh3::xxh3_64(&content))
}

const DEBOUNCE: Duration = Duration::from_millis(200);
const MAX_ROUNDS: u32 = 10;
const POLL: Duration = Duration::from_secs(5);
