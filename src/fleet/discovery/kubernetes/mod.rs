//! Replicas from a Kubernetes API: the EndpointSlices of a Service, or the pods of an InferencePool (`inference_pool`), whose
//! `objectives` are followed as well.
//!
//! `watching` follows a list of objects over any of its failures. GETs in all, which is why this is no client library
//! ([0012](../../../../docs/decisions/0012-own-endpointslice-watch.md)). What stands in the slices is `slices`' affair, in pods
//! `pods`'; the cluster's address and credentials are `api`'s.

mod api;
mod error;
mod events;
mod inference_pool;
mod object;
mod objectives;
mod pods;
mod reported;
mod slices;
mod watching;

use std::sync::atomic::AtomicBool;

use self::reported::{Part, Reported};
use self::slices::Slices;
use self::watching::Watching;
use super::report::Report;
use crate::config::{KubernetesObject, KubernetesSource};

/// Follows the source until the task is dropped.
pub(super) async fn run(source: KubernetesSource, report: Report) {
    match &source.object {
        KubernetesObject::Service { name, port } => {
            let replicas = Slices::new(port, source.is_tls);
            let path = format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices", source.namespace);
            let path = format!("{path}?labelSelector=kubernetes.io%2Fservice-name%3D{name}");
            let watches = [AtomicBool::new(false)];
            let [own] = &watches;
            let targets = Box::new(move |slices: &_| replicas.targets(slices));
            let service = Reported::new(targets, Part { report: &report, own, all: &watches });
            Watching::new(source.api.as_ref(), path, &report.connector, service).run().await;
        }
        KubernetesObject::InferencePool { name } => inference_pool::run(&source, name, &report).await,
    }
}
