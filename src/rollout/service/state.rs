//! What is kept of rollouts over restarts: a file may be that of several routes.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

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
    #[serde(default)]
    pub(super) shadowed: u64,
    /// Of the last breach.
    pub(super) report: Option<Json>,
    /// Earlier revisions that were rolled back, oldest first.
    #[serde(default)]
    pub(super) rolled_back: Vec<String>,
}

/// A file of states.
#[derive(Deserialize)]
#[serde(untagged)]
enum StateFile {
    ByRoute {
        routes: BTreeMap<String, Saved>,
    },
    /// Of a version whose files had one route.
    One(Box<Saved>),
}

#[derive(Serialize)]
struct Routes<'a> {
    routes: &'a BTreeMap<String, Saved>,
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
}

/// Writes the state of a route, beside those of others.
pub(super) fn write(path: &Path, route: &str, saved: Saved) -> io::Result<()> {
    let mut routes = read_all(path).unwrap_or_default();
    routes.insert(route.to_owned(), saved);
    state_file::write(path, &Routes { routes: &routes })
}

fn read_all(path: &Path) -> io::Result<BTreeMap<String, Saved>> {
    Ok(match state_file::read(path)? {
        Some(StateFile::ByRoute { routes }) => routes,
        Some(StateFile::One(saved)) => {
            let route = saved.identity.lines().next().unwrap_or_default().to_owned();
            BTreeMap::from([(route, *saved)])
        }
        None => BTreeMap::new(),
    })
}
