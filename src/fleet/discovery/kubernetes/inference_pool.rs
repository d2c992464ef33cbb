//! An InferencePool of the Gateway API Inference Extension (`inference.networking.k8s.io/v1`) and the pods that it selects.
//!
//! Three watches: one of the pool, one of the pods by its selector, begun anew when that changes, and one of its [`objectives`]. A pool that is gone is a failure
//! like any other: its last replicas stay.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use serde::Deserialize;
use tokio::sync::watch;

use super::object::Objects;
use super::objectives;
use super::pods::Pods;
use super::reported::{Part, Reported};
use super::watching::{Collection, Watching};
use crate::config::{KubernetesSource, segment};
use crate::fleet::discovery::report::Report;

/// Follows the pool and its pods until it is dropped.
pub(super) async fn run(source: &KubernetesSource, name: &str, report: &Report) {
    let (specs, changes) = watch::channel(None);
    let place = format!("{}/{name}", source.namespace);
    let path = format!("/apis/inference.networking.k8s.io/v1/namespaces/{}/inferencepools", source.namespace);
    let path = format!("{path}?fieldSelector=metadata.name%3D{name}");
    let watches = [AtomicBool::new(false), AtomicBool::new(false)];
    let [of_pool, of_pods] = &watches;
    let part = |own| Part { report, own, all: &watches };
    let pool = Pool { place, specs, part: part(of_pool) };
    let pool = Watching::new(source.api.as_ref(), path, &report.connector, pool);
    tokio::join!(
        pool.run(),
        follow_pods(source, changes, || part(of_pods)),
        Box::pin(objectives::run(source, name, report))
    );
}

async fn follow_pods<'r>(
    source: &KubernetesSource,
    mut specs: watch::Receiver<Option<PoolSpec>>,
    part: impl Fn() -> Part<'r>,
) {
    loop {
        let part = part();
        part.begins();
        let Some(spec) = specs.borrow_and_update().clone() else {
            if specs.changed().await.is_err() {
                return;
            }
            continue;
        };
        let path = format!("/api/v1/namespaces/{}/pods?labelSelector={}", source.namespace, spec.selector());
        let ports = spec.target_ports.iter().map(|port| port.number).collect();
        let connector = &part.report.connector;
        let members = Pods { ports, is_tls: source.is_tls };
        let members = Reported::new(Box::new(move |pods: &_| Ok(members.targets(pods))), part);
        let watching = Watching::new(source.api.as_ref(), path, connector, members);
        // Cancel-safe: the watch of another selector begins anew.
        let is_over = tokio::select! {
            () = watching.run() => false,
            changed = specs.changed() => changed.is_err(),
        };
        if is_over {
            return;
        }
    }
}

#[derive(Debug, Deserialize)]
struct InferencePool {
    spec: PoolSpec,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct PoolSpec {
    selector: Selector,
    target_ports: Vec<TargetPort>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct Selector {
    match_labels: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
struct TargetPort {
    number: u16,
}

impl PoolSpec {
    /// As the value of a query.
    fn selector(&self) -> String {
        let labels = self.selector.match_labels.iter().map(|(key, value)| format!("{key}={value}"));
        segment(&labels.collect::<Vec<_>>().join(","))
    }
}

/// The pool, as a list of one.
struct Pool<'r> {
    /// `namespace/name`
    place: String,
    specs: watch::Sender<Option<PoolSpec>>,
    part: Part<'r>,
}

impl Collection for Pool<'_> {
    type Object = InferencePool;

    fn changed(&mut self, pools: &Objects<InferencePool>) {
        // All pods of a namespace are no pool.
        let is_usable =
            |spec: &&PoolSpec| !spec.selector.match_labels.is_empty() && !spec.target_ports.is_empty();
        let spec = pools.values().next().map(|pool| &pool.spec).filter(is_usable);
        if spec.is_none() {
            let Self { place, part, .. } = self;
            part.failed(&format!("there is no InferencePool {place} with a selector and target ports"));
        }
        self.specs.send_if_modified(|known| {
            let is_new = known.as_ref() != spec;
            *known = spec.cloned();
            is_new
        });
    }

    fn is_current(&self) {
        if self.specs.borrow().is_some() {
            self.part.is_current();
        }
    }

    fn failed(&self, error: &str) {
        self.part.failed(error);
    }
}
