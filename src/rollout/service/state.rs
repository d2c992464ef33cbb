//! The file that keeps a rollout over restarts: whole or not at all, as it is written beside its place and renamed.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::rollout::judge::SavedEvidence;
use crate::rollout::plan::Plan;

/// A rollout as it is kept.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Saved {
    /// Which rollout: route, pool, revision and its description.
    pub(super) identity: String,
    /// Where it is.
    pub(super) plan: Plan,
    /// What was found so far.
    pub(super) evidence: SavedEvidence,
    /// Requests of baseline and canary.
    pub(super) requests: [u64; 2],
    /// Of the last breach.
    pub(super) report: Option<Json>,
}

/// Reads a file; `None` where there is none.
pub(super) fn read(path: &Path) -> io::Result<Option<Saved>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut text)?;
    Ok(Some(serde_json::from_slice(&text)?))
}

/// Writes a file.
pub(super) fn write(path: &Path, saved: &Saved) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = Path::new(&beside);
    let mut file = File::create(beside)?;
    file.write_all(&serde_json::to_vec(saved)?)?;
    file.sync_all()?;
    fs::rename(beside, path)
}

const MAX_BYTES: u64 = 4 << 20;
