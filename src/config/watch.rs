//! Notices that a file's content changed.
//!
//! Shared by the configuration and the files that it names: what a change means is its reader's affair.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use notify::{RecursiveMode, Watcher as _};
use tokio::sync::watch;

use crate::whole_file;

/// Watches files for as long as it lives.
#[derive(Debug)]
pub struct Watcher {
    /// Dropping it closes the channel, which ends the thread that compares contents.
    _events: Option<notify::RecommendedWatcher>,
    _stop: SyncSender<()>,
}

/// Watches the contents of files. The receiver's number grows with each change.
///
/// The directories are watched and not the files, because editors and Kubernetes replace files by renaming (a ConfigMap
/// swaps a symbolic link). Where the system cannot watch (too many watches, network file systems), the files are
/// read every five seconds instead. What is no file (a pipe) is not watched: what is read of it would be gone.
pub fn watch_files(paths: &[PathBuf]) -> std::io::Result<(Watcher, watch::Receiver<u64>)> {
    let (stop, hints) = sync_channel(1);
    let (changes, receiver) = watch::channel(0);
    let files = paths.iter().map(|path| (path.clone(), content_hash(path))).collect();
    let events = watch_directories(paths, stop.clone());
    let watch = FileWatch { files, changes };
    std::thread::Builder::new().name("file-watch".to_owned()).spawn(move || watch.run(&hints))?;
    Ok((Watcher { _events: events, _stop: stop }, receiver))
}

/// Files that are watched where there are any and where that is possible.
pub(crate) struct Watched(Option<(Watcher, watch::Receiver<u64>)>);

impl Watched {
    pub(crate) fn of(files: &[PathBuf], warn: impl FnOnce(&std::io::Error)) -> Self {
        Self((!files.is_empty()).then(|| watch_files(files).inspect_err(warn).ok()).flatten())
    }

    /// Waits until one of them has changed; for ever where none can. Cancel-safe.
    pub(crate) async fn changed(&mut self) {
        let has_changed = match &mut self.0 {
            Some((_, changes)) => changes.changed().await.is_ok(),
            None => false,
        };
        if !has_changed {
            std::future::pending::<()>().await;
        }
    }
}

fn watch_directories(paths: &[PathBuf], hints: SyncSender<()>) -> Option<notify::RecommendedWatcher> {
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
    // Where a path itself is a link, its target may be edited in place.
    let targets =
        paths.iter().filter_map(|path| path.canonicalize().ok()).map(|target| directory_of(&target));
    let directories: BTreeSet<_> = paths.iter().map(|path| directory_of(path)).chain(targets).collect();
    for directory in &directories {
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

/// State of the watcher thread: compares the hashes of contents on each hint and every [`POLL`].
struct FileWatch {
    files: Vec<(PathBuf, Option<u64>)>,
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
            let mut has_changed = false;
            for (path, known) in &mut self.files {
                let now = content_hash(path);
                // A file that is away for a moment is being replaced: what matters is that it is back, with whatever content.
                has_changed |= now.is_some() && now != *known;
                *known = now;
            }
            if has_changed {
                self.changes.send_modify(|count| *count += 1);
            }
        }
    }
}

fn content_hash(path: &Path) -> Option<u64> {
    let is_file = std::fs::metadata(path).is_ok_and(|file| file.is_file());
    let content = is_file.then(|| whole_file::read(path).ok()).flatten();
    content.map(|content| xxhash_rust::xxh3::xxh3_64(&content))
}

const DEBOUNCE: Duration = Duration::from_millis(200);
const MAX_ROUNDS: u32 = 10;
const POLL: Duration = Duration::from_secs(5);
