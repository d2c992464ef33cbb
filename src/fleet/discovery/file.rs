//! Replicas from a file in the form of Prometheus' `file_sd`, read again whenever its content changes.

use std::path::PathBuf;
use std::time::Duration;

use super::file_sd;
use super::report::{News, Report};
use crate::config::watch::Watched;
use crate::whole_file;

/// Reads until the task is dropped.
pub(super) async fn run(path: PathBuf, report: Report) {
    let mut file = Watched::of(std::slice::from_ref(&path), |error| {
        tracing::warn!(%error, path = %path.display(), "cannot watch: reading every five seconds");
    });
    loop {
        let failed = |why: &str| report.note(News::Failed(&format!("{}: {why}", path.display())));
        match whole_file::read_in_background(&path).await {
            Ok(text) => match file_sd::parse(&text) {
                Ok(targets) => report.answered(targets),
                Err(error) => failed(&error.to_string()),
            },
            Err(error) => failed(&format!("cannot read it: {error}")),
        }
        // A file that vanished makes no change of content: the poll says so.
        let _ = tokio::time::timeout(POLL, file.changed()).await;
    }
}

const POLL: Duration = Duration::from_secs(5);
