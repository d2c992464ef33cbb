//! What is kept of rollouts over restarts: a file may be that of several routes.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::processes::Process;
use crate::rollout::judge::SavedEvidence;
use crate::rollout::plan::Plan;
use crate::state_file;

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
    /// Copies that the canary has answered.
    pub(super) shadowed: u64,
    /// Of the last breach.
    pub(super) report: Option<Json>,
    /// Earlier revisions that were rolled back, oldest first.
    pub(super) rolled_back: Vec<Former>,
    /// Replicas of the canary that were ready once.
    pub(super) warm: Vec<String>,
    /// Those of its pool when it was rolled back.
    #[serde(default)]
    pub(super) processes: Vec<Process>,
}

/// A revision that was rolled back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Former {
    /// As that of a rollout.
    pub(super) identity: String,
    /// As that of the plan by which it was.
    pub(super) acts: u64,
    /// That it had then.
    #[serde(default)]
    pub(super) processes: Vec<Process>,
}

impl Former {
    pub(super) fn of(saved: &Saved) -> Self {
        let (identity, processes) = (saved.identity.clone(), saved.processes.clone());
        Self { identity, acts: saved.plan.acts, processes }
    }

    /// Its name: the third line of the identity.
    pub(super) fn revision(&self) -> &str {
        self.identity.split('\n').nth(2).unwrap_or_default()
    }
}

#[derive(Default, Deserialize, Serialize)]
struct StateFile {
    routes: BTreeMap<String, Saved>,
}

/// Files of one look at a configuration, each read once: one that is broken is so for all its routes.
#[derive(Default)]
pub(super) struct StateFiles(HashMap<PathBuf, io::Result<BTreeMap<String, Saved>>>);

impl StateFiles {
    /// What a file has of a route.
    pub(super) fn read(&mut self, path: &Path, route: &str) -> Result<Option<Saved>, &io::Error> {
        let read = self.0.entry(path.to_owned()).or_insert_with(|| read_all(path));
        read.as_mut().map(|routes| routes.remove(route)).map_err(|error| &*error)
    }

    /// What was read of other routes.
    pub(super) fn others(&self) -> impl Iterator<Item = (&String, &Saved)> {
        self.0.values().flatten().flatten()
    }
}

/// What became of other routes in a file that was written.
#[derive(Debug, PartialEq)]
pub(super) enum Others {
    Kept,
    /// The file was broken, and is kept aside.
    Lost,
}

/// Writes the states of routes, beside those of others. Of two gateways with one file the later word of an operator or a breach stays.
///
/// # Errors
/// A file that cannot be read at this moment, or not be written: it stays as it is.
pub(super) fn write(path: &Path, states: Vec<(Arc<str>, Saved)>) -> io::Result<Others> {
    let (mut routes, others) = match read_all(path) {
        Ok(routes) => (routes, Others::Kept),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => (BTreeMap::new(), Others::Lost),
        Err(error) => return Err(error),
    };
    for (route, mut saved) in states {
        let there = routes.remove(&*route).filter(|there| there.identity == saved.identity);
        if let Some(there) = there.filter(|there| there.plan.acts > saved.plan.acts) {
            (saved.plan, saved.processes) = (there.plan, there.processes);
        }
        routes.insert(route.to_string(), saved);
    }
    state_file::write(path, &StateFile { routes }).map(|()| others)
}

fn read_all(path: &Path) -> io::Result<BTreeMap<String, Saved>> {
    Ok(state_file::read::<StateFile>(path)?.unwrap_or_default().routes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::plan::RolloutState;

    #[test]
    fn of_two_gateways_with_one_file_the_rollback_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("canary.json");
        let saved = |identity: &str, state, acts| Saved {
            identity: identity.to_owned(),
            plan: Plan { state, acts, ..Plan::default() },
            ..Saved::default()
        };
        let state = || read_all(&path).unwrap()["chat"].plan.state;
        write(&path, vec![("chat".into(), saved("r2", RolloutState::Running, 0))]).unwrap();
        write(&path, vec![("chat".into(), saved("r2", RolloutState::RolledBack, 5))]).unwrap();
        write(&path, vec![("chat".into(), saved("r2", RolloutState::Running, 0))]).unwrap();
        assert_eq!(state(), RolloutState::RolledBack, "the other gateway has not seen it");
        write(&path, vec![("chat".into(), saved("r2", RolloutState::Running, 6))]).unwrap();
        assert_eq!(state(), RolloutState::Running, "resumed by an operator");
        let written = write(&path, vec![("chat".into(), saved("r3", RolloutState::Running, 0))]).unwrap();
        assert_eq!(written, Others::Kept);
        assert_eq!(read_all(&path).unwrap()["chat"].identity, "r3", "another revision");
    }
}
