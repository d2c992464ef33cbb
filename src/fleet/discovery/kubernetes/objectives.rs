//! The InferenceObjectives (`inference.networking.x-k8s.io/v1alpha2`) of an InferencePool: names that stand for priorities.
//!
//! Optional: where the cluster has no such kind, or the account may not read it, replicas are found all the same and no objective is
//! known.

use std::sync::atomic::{AtomicBool, Ordering};

use serde::Deserialize;

use super::object::Objects;
use super::watching::{Collection, Watching};
use crate::config::KubernetesSource;
use crate::fleet::discovery::report::{News, Report};
use crate::fleet::objectives::Priorities;

/// Follows those of the pool until it is dropped.
pub(super) async fn run(source: &KubernetesSource, pool: &str, report: &Report) {
    let namespace = &source.namespace;
    let path =
        format!("/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/{namespace}/inferenceobjectives");
    let path = format!("{path}?fieldSelector=metadata.namespace%3D{namespace}");
    let objectives = Objectives { pool, known: 0, report, is_failing: AtomicBool::new(false) };
    Watching::new(source.api.as_ref(), path, &report.connector, objectives).run().await;
}

#[derive(Debug, Deserialize)]
struct InferenceObjective {
    spec: ObjectiveSpec,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ObjectiveSpec {
    /// Absent: 0.
    priority: Option<i64>,
    pool_ref: PoolRef,
}

/// Its group and kind are those of an InferencePool: the API has no others.
#[derive(Debug, Deserialize)]
struct PoolRef {
    name: String,
}

/// Those of one pool, out of its namespace.
struct Objectives<'r> {
    pool: &'r str,
    /// How many there are, for the log.
    known: usize,
    report: &'r Report,
    /// Logged once.
    is_failing: AtomicBool,
}

impl Collection for Objectives<'_> {
    type Object = InferenceObjective;

    fn changed(&mut self, objectives: &Objects<InferenceObjective>) {
        let own = objectives.iter().filter(|(_, objective)| objective.spec.pool_ref.name == self.pool);
        let priority = |spec: &ObjectiveSpec| {
            let priority = spec.priority.unwrap_or(0).clamp(i64::from(i32::MIN), i64::from(i32::MAX));
            i32::try_from(priority).unwrap_or(0)
        };
        let known = own.map(|(name, objective)| (name.as_str().into(), priority(&objective.spec)));
        let known: Priorities = known.collect();
        self.known = known.len();
        self.report.note(News::Objectives(Some(known)));
    }

    fn is_current(&self) {
        self.is_failing.store(false, Ordering::Relaxed);
    }

    fn failed(&self, error: &str) {
        if !self.is_failing.swap(true, Ordering::Relaxed) {
            let (pool, known) = (self.pool, self.known);
            tracing::warn!(pool, error, known, "cannot read InferenceObjectives: the last known ones stay");
        }
    }
}

impl Drop for Objectives<'_> {
    fn drop(&mut self) {
        self.report.note(News::Objectives(None));
    }
}
