//! Pods and what they mean for replicas. Pure.
//!
//! A pod with an address is as many replicas as its pool has target ports: ranks of data parallelism listen on one each. One that is
//! being deleted leaves: its streams run to their end. One that is not ready gets no new requests. Its uid marks a new pod at an old
//! address.

use std::net::IpAddr;
use std::sync::Arc;

use serde::Deserialize;

use super::object::{Metadata, Objects, ROLE, or_null};
use crate::config::{Endpoint, ReplicaSpec, Role, parse_name};
use crate::fleet::discovery::roster::Found;

/// A pod, as far as it is read.
#[derive(Debug, Deserialize)]
pub(super) struct Pod {
    metadata: Metadata,
    #[serde(default, deserialize_with = "or_null")]
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    phase: Option<String>,
    #[serde(default, deserialize_with = "or_null")]
    conditions: Vec<Condition>,
}

#[derive(Debug, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

/// The pods of one pool: each is a replica on every one of its ports.
#[derive(Debug)]
pub(super) struct Pods {
    pub(super) ports: Vec<u16>,
    pub(super) is_tls: bool,
}

impl Pods {
    /// `None` of one that has no address, is being deleted or has ended.
    fn replicas(&self, pod: &Pod) -> Option<Vec<Found>> {
        let Pod { metadata, status } = pod;
        let has_ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        if metadata.deletion_timestamp.is_some() || has_ended {
            return None;
        }
        let address: IpAddr = status.pod_ip.as_deref()?.parse().ok()?;
        let host: Arc<str> = address.to_string().into();
        let zone = metadata.labels.get(ZONE).filter(|zone| !zone.is_empty());
        let role = metadata.labels.get(ROLE).and_then(|text| Role::of_label(text));
        let is_ready = |condition: &Condition| condition.kind == "Ready" && condition.status == "True";
        let found = |port: &u16| {
            let endpoint =
                Endpoint { is_tls: self.is_tls, host: Arc::clone(&host), port: *port, base_path: "".into() };
            let name = match self.ports.as_slice() {
                [_] => metadata.name.clone(),
                _ => format!("{}:{port}", metadata.name),
            };
            let name = parse_name(&name).unwrap_or_else(|_| endpoint.authority().into());
            let spec = ReplicaSpec { name, endpoint, zone: zone.map(|zone| zone.as_str().into()) };
            let instance = metadata.uid.as_deref().map(Into::into);
            Found { spec, instance, is_serving: status.conditions.iter().any(is_ready), role }
        };
        Some(self.ports.iter().map(found).collect())
    }

    pub(super) fn targets(&self, pods: &Objects<Pod>) -> Vec<Found> {
        pods.values().filter_map(|pod| self.replicas(pod)).flatten().collect()
    }
}

/// Where the cluster copies it from the node.
const ZONE: &str = "topology.kubernetes.io/zone";

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, status: Value, deleted: bool) -> Pod {
        let metadata = json!({
            "name": name,
            "uid": format!("uid-{name}"),
            "labels": { "llm-d.ai/role": "decode", "topology.kubernetes.io/zone": "eu-1a" },
            "deletionTimestamp": deleted.then_some("2026-01-01T00:00:00Z"),
        });
        serde_json::from_value(
            json!({ "metadata": metadata, "spec": { "containers": [] }, "status": status }),
        )
        .unwrap()
    }

    fn status(address: &str, ready: &str) -> Value {
        json!({ "phase": "Running", "podIP": address, "conditions": [{ "type": "Ready", "status": ready }] })
    }

    #[test]
    fn each_port_of_a_pod_is_a_replica_while_the_pod_lives() {
        let mut pods: Objects<Pod> = [
            pod("b", status("10.0.0.2", "False"), false),
            pod("a", status("10.0.0.1", "True"), false),
            pod("leaving", status("10.0.0.3", "True"), true),
            pod("starting", Value::Null, false),
            pod("over", json!({ "phase": "Failed", "podIP": "10.0.0.4" }), false),
        ]
        .map(|pod| (pod.metadata.name.clone(), pod))
        .into();
        let targets = |pods: &Objects<Pod>| Pods { ports: vec![8000, 8001], is_tls: false }.targets(pods);
        let shown = |pods: &Objects<Pod>| -> Vec<String> {
            let mark = |found: &Found| if found.is_serving { "" } else { "!" };
            let show = |f: &Found| format!("{} {}{}", f.spec.name, f.spec.endpoint.authority(), mark(f));
            targets(pods).iter().map(show).collect()
        };
        let a = ["a:8000 10.0.0.1:8000", "a:8001 10.0.0.1:8001"];
        let b = ["b:8000 10.0.0.2:8000!", "b:8001 10.0.0.2:8001!"];
        assert_eq!(shown(&pods), [a, b].concat());
        let first = &targets(&pods)[0];
        assert_eq!((first.instance.as_deref(), first.role), (Some("uid-a"), Some(Role::Decode)));
        assert_eq!(first.spec.zone.as_deref(), Some("eu-1a"));
        pods.remove("b");
        assert_eq!(shown(&pods), a);
        pods.insert("a".to_owned(), pod("a", status("10.0.0.1", "True"), true));
        assert!(shown(&pods).is_empty());
    }
}
