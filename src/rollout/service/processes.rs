//! The pods that a verdict was on: those that were rolled back are not the next revision because a file calls them so.
//!
//! A configuration reaches the gateway minutes before the pods that it means. Only a source that gives pods an identity keeps the
//! two apart: behind a plain URL engines are exchanged under one name. A container that is restarted in its pod has the image it had.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::fleet::status::{ReplicaState, ReplicaStatus};

/// The engine of one pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Process {
    /// Uid of the pod, as its source has it.
    instance: String,
}

impl Process {
    /// Those of a pool.
    pub(super) fn of_pool(pool: &str, fleet: &[ReplicaStatus]) -> Vec<Self> {
        let process =
            |replica: &ReplicaStatus| Some(Self { instance: replica.instance.as_ref()?.to_string() });
        fleet.iter().filter(|replica| *replica.pool == *pool).filter_map(process).collect()
    }
}

/// Pods of revisions that were rolled back, by uid: which revision it was.
#[derive(Default)]
pub(super) struct Earlier(HashMap<String, Arc<str>>);

impl Earlier {
    /// Those of each revision.
    pub(super) fn of<'p>(rolled_back: impl Iterator<Item = (&'p str, &'p [Process])>) -> Self {
        let of_revision = |(revision, processes): (&str, &'p [Process])| {
            let revision: Arc<str> = revision.into();
            processes.iter().map(move |process| (process.instance.clone(), Arc::clone(&revision)))
        };
        Self(rolled_back.flat_map(of_revision).collect())
    }

    /// As which revision a replica was rolled back.
    pub(super) fn revision(&self, replica: &ReplicaStatus) -> Option<&Arc<str>> {
        self.0.get(replica.instance.as_deref()?)
    }

    /// What a canary waits for: replicas of its pool that are such processes, out of all that could serve.
    pub(super) fn awaited(&self, pool: &str, fleet: &[ReplicaStatus]) -> Option<String> {
        let could_serve = |replica: &&ReplicaStatus| {
            *replica.pool == *pool && !replica.state.is_away() && replica.state != ReplicaState::Unreachable
        };
        let (mut all, mut old, mut revision) = (0, 0, None);
        for replica in fleet.iter().filter(could_serve) {
            let known = self.revision(replica);
            (all, old) = (all + 1, old + usize::from(known.is_some()));
            revision = known.or(revision);
        }
        let revision = revision?;
        Some(format!("{old} of {all} are the processes of {revision}, which was rolled back"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::status::EngineCounters;

    fn replica(uid: Option<&str>, started: f64) -> ReplicaStatus {
        ReplicaStatus {
            pool: "c".into(),
            instance: uid.map(Into::into),
            state: ReplicaState::Ready,
            counters: Some(EngineCounters { process_start: Some(started), ..EngineCounters::default() }),
            ..ReplicaStatus::default()
        }
    }

    #[test]
    fn a_pod_that_was_rolled_back_is_awaited_until_another_one_is_there_however_often_it_crashes() {
        let before = [replica(Some("u1"), 100.0), replica(Some("u2"), 100.0), replica(None, 100.0)];
        let processes = Process::of_pool("c", &before);
        assert_eq!(processes.len(), 2, "a URL without a uid is none");
        let kept: Vec<Process> = serde_json::from_str(&serde_json::to_string(&processes).unwrap()).unwrap();
        let earlier = Earlier::of([("r2", &*kept)].into_iter());
        let awaited = |fleet: &[ReplicaStatus]| earlier.awaited("c", fleet);
        let [one, other, plain] = before;
        let all = awaited(&[one.clone(), other.clone(), plain.clone()]);
        assert_eq!(all.unwrap(), "2 of 3 are the processes of r2, which was rolled back");
        for (replica, is_awaited) in [
            (plain, false),
            (replica(Some("u1"), 160.0), true),
            (replica(Some("u3"), 100.0), false),
            (ReplicaStatus { pool: "b".into(), ..one.clone() }, false),
            (ReplicaStatus { state: ReplicaState::NotServing, ..one.clone() }, false),
            (ReplicaStatus { state: ReplicaState::Ejected, ..one.clone() }, true),
        ] {
            assert_eq!(awaited(std::slice::from_ref(&replica)).is_some(), is_awaited, "{replica:?}");
        }
    }
}
