//! EndpointSlices and what they mean for replicas. Pure.
//!
//! A Service has several slices, an endpoint may for a moment stand in two of them, and a pod with two families of addresses
//! stands in slices of both: it is one replica, by its IPv4 address. One that is `terminating` leaves: its streams run to
//! their end. Absent conditions mean `ready` (the API's rule). The name is the pod's, and its uid tells a new pod at an old
//! address. Labels of the Service stand at each of its slices: one of them gives the role.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use serde::Deserialize;

use super::object::{Event, Metadata, ROLE, or_null};
use super::reported::Replicas;
use crate::config::{Endpoint, ReplicaSpec, Role, ServicePort, parse_name};
use crate::fleet::discovery::roster::Found;

/// An EndpointSlice, as far as it is read.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Slice {
    metadata: Metadata,
    #[serde(default)]
    address_type: String,
    #[serde(default, deserialize_with = "or_null")]
    endpoints: Vec<SliceEndpoint>,
    #[serde(default, deserialize_with = "or_null")]
    ports: Vec<SlicePort>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SliceEndpoint {
    #[serde(default, deserialize_with = "or_null")]
    addresses: Vec<String>,
    #[serde(default, deserialize_with = "or_null")]
    conditions: Conditions,
    target_ref: Option<TargetRef>,
    zone: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Conditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct TargetRef {
    name: Option<String>,
    uid: Option<String>,
}

#[derive(Debug, Deserialize)]
struct SlicePort {
    name: Option<String>,
    port: Option<u16>,
}

/// The slices of one Service.
#[derive(Debug)]
pub(super) struct Slices {
    port: ServicePort,
    is_tls: bool,
    by_name: BTreeMap<String, Entries>,
}

/// What one slice stands for.
#[derive(Debug)]
enum Entries {
    At(Vec<Entry>),
    /// It has endpoints, and only these ports instead of the configured one.
    NoPort(Vec<String>),
}

#[derive(Debug, PartialEq)]
struct Entry {
    found: Found,
    /// Kept, because its entry in one slice wins over an older one in another.
    is_terminating: bool,
    is_v4: bool,
}

impl Slices {
    /// None yet.
    pub(super) fn new(port: ServicePort, is_tls: bool) -> Self {
        Self { port, is_tls, by_name: BTreeMap::new() }
    }

    fn entries(&self, slice: Slice) -> (String, Entries) {
        let is_v4 = slice.address_type != "IPv6";
        let port = match &self.port {
            ServicePort::Number(port) => Some(*port),
            ServicePort::Named(name) => {
                let is_it = |port: &&SlicePort| port.name.as_deref() == Some(name);
                slice.ports.iter().find(is_it).and_then(|port| port.port)
            }
            ServicePort::Only => match slice.ports.as_slice() {
                [port] => port.port,
                _ => None,
            },
        };
        let role = slice.metadata.labels.get(ROLE).and_then(|text| Role::of_label(text));
        // Names of hosts (addressType FQDN) are not addresses of pods.
        let is_usable = slice.address_type != "FQDN" && !slice.endpoints.is_empty();
        let entries = match port {
            _ if !is_usable => Entries::At(Vec::new()),
            None => Entries::NoPort(slice.ports.into_iter().filter_map(SlicePort::shown).collect()),
            Some(port) => {
                let entry = |endpoint: SliceEndpoint| self.entry(endpoint, port, is_v4, role);
                Entries::At(slice.endpoints.into_iter().filter_map(entry).collect())
            }
        };
        (slice.metadata.name, entries)
    }

    fn all(&self) -> impl Iterator<Item = &Entry> {
        self.by_name.values().flat_map(|entries| match entries {
            Entries::At(entries) => entries.as_slice(),
            Entries::NoPort(_) => &[],
        })
    }

    fn entry(&self, endpoint: SliceEndpoint, port: u16, is_v4: bool, role: Option<Role>) -> Option<Entry> {
        let address: IpAddr = endpoint.addresses.into_iter().next()?.parse().ok()?;
        let host: Arc<str> = address.to_string().into();
        let conditions = endpoint.conditions;
        let is_terminating = conditions.terminating.unwrap_or(false);
        let is_serving = conditions.serving.or(conditions.ready).unwrap_or(true);
        let place = Endpoint { is_tls: self.is_tls, host, port, base_path: "".into() };
        let (name, uid) = endpoint.target_ref.map_or((None, None), |pod| (pod.name, pod.uid));
        let name = name.and_then(|name| parse_name(&name).ok()).unwrap_or_else(|| place.authority().into());
        let zone = endpoint.zone.filter(|zone| !zone.is_empty()).map(Into::into);
        let spec = ReplicaSpec { name, endpoint: place, zone };
        Some(Entry {
            found: Found { spec, instance: uid.map(Into::into), is_serving, role },
            is_terminating,
            is_v4,
        })
    }
}

impl Replicas for Slices {
    type Object = Slice;

    fn replace(&mut self, slices: Vec<Slice>) {
        self.by_name = slices.into_iter().map(|slice| self.entries(slice)).collect();
    }

    fn apply(&mut self, event: Event<Slice>) {
        match event {
            Event::Changed(slice) => {
                let (name, entries) = self.entries(slice);
                self.by_name.insert(name, entries);
            }
            Event::Deleted(slice) => {
                self.by_name.remove(&slice.metadata.name);
            }
        }
    }

    fn targets(&self) -> Vec<Found> {
        let mut by_pod: HashMap<&str, &Entry> = HashMap::new();
        let mut alone: HashMap<&Endpoint, &Entry> = HashMap::new();
        for entry in self.all() {
            match entry.found.instance.as_deref() {
                Some(pod) => {
                    by_pod.entry(pod).and_modify(|known| *known = preferred(known, entry)).or_insert(entry);
                }
                None => {
                    let endpoint = &entry.found.spec.endpoint;
                    alone
                        .entry(endpoint)
                        .and_modify(|known| *known = preferred(known, entry))
                        .or_insert(entry);
                }
            }
        }
        let stays = by_pod.into_values().chain(alone.into_values()).filter(|entry| !entry.is_terminating);
        let mut targets: Vec<Found> = stays.map(|entry| entry.found.clone()).collect();
        // By URL as well: an address goes to another pod before the slice of the first one is updated.
        targets.sort_by(|a, b| {
            (&a.spec.name, &*a.spec.endpoint.host).cmp(&(&b.spec.name, &*b.spec.endpoint.host))
        });
        targets
    }

    /// Endpoints, and none of them has the port.
    fn fault(&self) -> Option<String> {
        let others = self.by_name.values().filter_map(|entries| match entries {
            Entries::NoPort(ports) => Some(ports),
            Entries::At(_) => None,
        });
        let others: Vec<&Vec<String>> = others.collect();
        if others.is_empty() || self.all().next().is_some() {
            return None;
        }
        let missing = match &self.port {
            ServicePort::Named(name) => format!("no endpoint has a port named {name:?}"),
            _ => "no port is configured and no slice has just one".to_owned(),
        };
        let ports: BTreeSet<&str> = others.into_iter().flatten().map(String::as_str).collect();
        let ports = ports.into_iter().collect::<Vec<_>>().join(", ");
        Some(format!("{missing}; there are {}", if ports.is_empty() { "none" } else { &ports }))
    }
}

impl SlicePort {
    /// As it may be configured.
    fn shown(self) -> Option<String> {
        self.name.filter(|name| !name.is_empty()).or_else(|| Some(self.port?.to_string()))
    }
}

/// Of two entries of one endpoint: what leaves is leaving whatever an older entry says, and IPv4 before IPv6.
fn preferred<'e>(one: &'e Entry, other: &'e Entry) -> &'e Entry {
    let rank = |entry: &Entry| (entry.is_terminating, entry.is_v4, entry.found.is_serving);
    if rank(other) > rank(one) { other } else { one }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn source(port: ServicePort) -> Slices {
        Slices::new(port, false)
    }

    fn slice(name: &str, family: &str, endpoints: &[Value]) -> Slice {
        serde_json::from_value(json!({
            "metadata": { "name": name, "resourceVersion": "5" },
            "addressType": family,
            "ports": [{ "name": "http", "port": 8000 }, { "name": "metrics", "port": 9000 }],
            "endpoints": endpoints,
        }))
        .unwrap()
    }

    fn pod(name: &str, address: &str, conditions: Value) -> Value {
        json!({
            "addresses": [address],
            "conditions": conditions,
            "targetRef": { "kind": "Pod", "name": name, "uid": format!("uid-{name}") },
            "zone": "eu-1a",
        })
    }

    fn shown(slices: &Slices) -> Vec<String> {
        let mark = |found: &Found| if found.is_serving { "" } else { "!" };
        let show = |f: &Found| format!("{} {}{}", f.spec.name, f.spec.endpoint.authority(), mark(f));
        slices.targets().iter().map(show).collect()
    }

    #[test]
    fn slices_are_merged_and_conditions_count() {
        let mut slices = source(ServicePort::Named("http".into()));
        slices.replace(vec![
            slice(
                "s1",
                "IPv4",
                &[
                    pod("a", "10.0.0.1", json!({ "ready": true, "serving": true, "terminating": false })),
                    pod("b", "10.0.0.2", json!({ "ready": false, "serving": false })),
                    pod("c", "10.0.0.3", json!({ "ready": false, "serving": true, "terminating": true })),
                ],
            ),
            slice("s2", "IPv4", &[pod("d", "10.0.0.4", json!({})), pod("a", "10.0.0.1", json!({}))]),
            slice("s6", "IPv6", &[pod("a", "fd00::1", json!({})), pod("e", "fd00::2", json!({}))]),
        ]);
        let all = ["a 10.0.0.1:8000", "b 10.0.0.2:8000!", "d 10.0.0.4:8000", "e [fd00::2]:8000"];
        assert_eq!(shown(&slices), all);
        slices.apply(Event::Deleted(slice("s2", "IPv4", &[])));
        assert_eq!(shown(&slices), ["a 10.0.0.1:8000", "b 10.0.0.2:8000!", "e [fd00::2]:8000"]);
        let leaving = pod("a", "10.0.0.1", json!({ "terminating": true, "serving": true }));
        slices.apply(Event::Changed(slice("s1", "IPv4", &[leaving])));
        assert_eq!(shown(&slices), ["e [fd00::2]:8000"], "its IPv6 address does not bring it back");
        slices.replace(vec![]);
        assert!(shown(&slices).is_empty());
    }

    #[test]
    fn the_port_is_a_number_a_name_or_the_only_one() {
        for (port, expected) in [
            (ServicePort::Number(7), Some(7)),
            (ServicePort::Named("metrics".into()), Some(9000)),
            (ServicePort::Named("grpc".into()), None),
            (ServicePort::Only, None),
        ] {
            let mut slices = source(port.clone());
            slices.replace(vec![slice("s", "IPv4", &[pod("a", "10.0.0.1", Value::Null)])]);
            assert_eq!(slices.targets().first().map(|f| f.spec.endpoint.port), expected, "{port:?}");
            assert_eq!(slices.fault().is_some(), expected.is_none(), "{port:?}");
            slices.replace(vec![slice("s", "IPv4", &[])]);
            assert_eq!(slices.fault(), None, "no endpoint lacks it");
        }
    }

    #[test]
    fn the_role_is_the_service_s_label() {
        for (labels, expected) in [
            (json!({ "llm-d.ai/role": "prefill", "app": "vllm" }), Some(Role::Prefill)),
            (json!({ "llm-d.ai/role": "something" }), None),
            (Value::Null, None),
        ] {
            let mut slices = source(ServicePort::Only);
            slices.replace(vec![
                serde_json::from_value(json!({
                    "metadata": { "name": "s", "labels": labels },
                    "ports": [{ "port": 8000 }],
                    "endpoints": [{ "addresses": ["10.0.0.1"] }],
                }))
                .unwrap(),
            ]);
            assert_eq!(slices.targets()[0].role, expected);
        }
    }

    #[test]
    fn an_endpoint_without_a_pod_is_named_by_its_address() {
        let mut slices = source(ServicePort::Number(80));
        let bare = json!({ "addresses": ["10.1.1.1"], "conditions": null });
        slices.replace(vec![slice("s", "IPv4", std::slice::from_ref(&bare)), slice("t", "IPv4", &[bare])]);
        assert_eq!(shown(&slices), ["10.1.1.1:80 10.1.1.1:80"]);
        assert_eq!((&slices.targets()[0].instance, &slices.targets()[0].spec.zone), (&None, &None));
        slices.replace(vec![slice("s", "IPv4", &[pod("a", "10.0.0.1", Value::Null)])]);
        assert_eq!(slices.targets()[0].spec.zone.as_deref(), Some("eu-1a"));
    }
}
