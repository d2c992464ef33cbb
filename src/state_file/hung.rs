//! A disk that hangs, for tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A file that everyone waits for who opens it, until this is dropped.
pub(crate) struct Hung(PathBuf);

impl Hung {
    pub(crate) fn at(path: &Path) -> Self {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
        Self(path.to_owned())
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        // Opens at once, as its own reader, and wakes who waits. Who comes later finds no file.
        let both = fs::OpenOptions::new().read(true).write(true).open(&self.0);
        let _ = fs::remove_file(&self.0);
        drop(both);
    }
}

/// Lets paused time pass in steps of `every`: it does not pass by itself while a write hangs.
pub(crate) async fn passes(time: Duration, every: Duration) {
    for _ in 0..time.as_nanos() / every.as_nanos() {
        tokio::time::advance(every).await;
        for _ in 0..16 {
            tokio::task::yield_now().await;
        }
    }
}
