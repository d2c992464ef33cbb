//! Writes of state files beside the task that owns the state: a disk that hangs holds up no judgement.
//!
//! One write of a file at a time. What changes meanwhile its owner writes after that, so nothing queues here.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::{JoinSet, spawn_blocking};

use crate::clock::Stamp;

/// Running writes, each of which ends with a `T`.
#[derive(Debug)]
pub struct Writes<T> {
    running: JoinSet<(PathBuf, io::Result<T>)>,
    began: HashMap<PathBuf, Stamp>,
}

impl<T> Default for Writes<T> {
    fn default() -> Self {
        Self { running: JoinSet::new(), began: HashMap::new() }
    }
}

impl<T: Send + 'static> Writes<T> {
    /// Begins a write of a file that none [is running](Self::is_running) of.
    pub fn begin(
        &mut self,
        path: PathBuf,
        now: Stamp,
        write: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) {
        self.began.insert(path.clone(), now);
        self.running.spawn(async move {
            let file = path.clone();
            let written = spawn_blocking(move || write(&file)).await;
            (path, written.unwrap_or_else(|panicked| Err(io::Error::other(panicked))))
        });
    }

    /// Whether the file is being written.
    pub fn is_running(&self, path: &Path) -> bool {
        self.began.contains_key(path)
    }

    /// Whether that takes longer than [`WRITE_LIMIT`].
    pub fn is_overdue(&self, path: &Path, now: Stamp) -> bool {
        self.began.get(path).is_some_and(|began| now.since(*began) >= WRITE_LIMIT)
    }

    /// The next write that ends; `None` where none is running. Cancel-safe.
    pub async fn ended(&mut self) -> Option<(PathBuf, io::Result<T>)> {
        let (path, written) = self.running.join_next().await?.ok()?;
        self.began.remove(&path);
        Some((path, written))
    }
}

/// A disk that takes longer for a few kilobytes does not answer.
pub const WRITE_LIMIT: Duration = Duration::from_secs(3);
/// What is wrong with one.
pub const OVERDUE: &str = "the disk has not answered for 3 s";
