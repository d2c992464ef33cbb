//! Notices that a file's content changed.
//!
//! Shared by the configuration and the files that it names: what a change means is its reader's affair.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use notify::{RecursiveMode, Watcher as _};
use tokio::sync::watch;

use crate::whole_file;

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
    std::thread::Builder::new().name("file-watch".to_owned()).spawn(move || watch.run(&hints))?;
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
            tracing::warn!(%error, "cannot watch files: reading them every five seconds");
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
    whole_file::read(path).ok().map(|content| xxhash_rust::xxh3::xxh3_64(&content))
}

const DEBOUNCE: Duration = Duration::from_millis(200);
const MAX_ROUNDS: u32 = 10;
const POLL: Duration = Duration::from_secs(5);
