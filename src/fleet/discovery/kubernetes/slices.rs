//! EndpointSlices and what they mean for replicas. Pure.
//!
//! A Service has several slices, an endpoint may for a moment stand in two of them, and a pod with two families of addresses
//! stands in slices of both: it is one replica, by its IPv4 address. One that is `terminating` leaves: its streams run to
//! their end. Absent conditions mean `ready` (the API's rule). The name is the pod's, and its uid tells a new pod at an old
//! address. Labels of the Service stand at each of its slices: one of them gives the role.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Deserialize;

use super::object::{Metadata, Objects, ROLE, or_null};
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
    /// Uids of the pods that were named last.
    named: Mutex<BTreeSet<Arc<str>>>,
}

#[derive(Debug)]
struct Entry {
    found: Found,
    /// Kept, because its entry in one slice wins over an older one in another.
    is_terminating: bool,
    is_v4: bool,
}

impl Slices {
    pub(super) fn new(port: &ServicePort, is_tls: bool) -> Self {
        Self { port: port.clone(), is_tls, named: Mutex::default() }
    }

    /// Where the endpoints of a slice listen.
    fn port(&self, slice: &Slice) -> Option<u16> {
        match &self.port {
            // A slice without ports has all of them.
            ServicePort::Number(port) => {
                let has = |listed: &SlicePort| listed.port.is_none_or(|listed| listed == *port);
                (slice.ports.is_empty() || slice.ports.iter().any(has)).then_some(*port)
            }
            ServicePort::Named(name) => {
                slice.ports.iter().find(|port| port.name.as_deref() == Some(name)).and_then(|port| port.port)
            }
            ServicePort::Only => match slice.ports.as_slice() {
                [port] => port.port,
                _ => None,
            },
        }
    }

    fn entry(&self, slice: &Slice, endpoint: &SliceEndpoint, port: u16) -> Option<Entry> {
        let address: IpAddr = endpoint.addresses.first()?.parse().ok()?;
        let host: Arc<str> = address.to_string().into();
        let conditions = &endpoint.conditions;
        let is_serving = conditions.serving.or(conditions.ready).unwrap_or(true);
        let place = Endpoint { is_tls: self.is_tls, host, port, base_path: "".into() };
        let pod = endpoint.target_ref.as_ref();
        let name = pod.and_then(|pod| parse_name(pod.name.as_deref()?).ok());
        let name = name.unwrap_or_else(|| place.authority().into());
        let zone = endpoint.zone.as_deref().filter(|zone| !zone.is_empty()).map(Into::into);
        let spec = ReplicaSpec { name, endpoint: place, zone };
        let instance = pod.and_then(|pod| Some(pod.uid.as_deref()?.into()));
        let role = slice.metadata.labels.get(ROLE).and_then(|text| Role::of_label(text));
        Some(Entry {
            found: Found { spec, instance, is_serving, role },
            is_terminating: conditions.terminating.unwrap_or(false),
            is_v4: slice.address_type != "IPv6",
        })
    }

    /// Of endpoints that have other ports: all, or some that had the port before.
    fn missing(&self, others: &BTreeSet<String>, are_all: bool) -> String {
        let missing = match (&self.port, are_all) {
            (ServicePort::Number(port), true) => {
                format!("no endpoint has port {port}: it is the pods' port, not the Service's")
            }
            (ServicePort::Number(port), false) => format!("some endpoints no longer have port {port}"),
            (ServicePort::Named(name), true) => format!("no endpoint has a port named {name:?}"),
            (ServicePort::Named(name), false) => {
                format!("some endpoints no longer have a port named {name:?}")
            }
            (ServicePort::Only, true) => "no port is configured and no slice has just one".to_owned(),
            (ServicePort::Only, false) => {
                "no port is configured and some slices no longer have just one".to_owned()
            }
        };
        let others: Vec<&str> = others.iter().map(String::as_str).collect();
        format!("{missing}; there are {}", if others.is_empty() { "none".into() } else { others.join(", ") })
    }

    /// The replicas. A port that changes leaves one slice after the other: while pods that were named stand in none that has it, it
    /// is a fault.
    pub(super) fn targets(&self, slices: &Objects<Slice>) -> Result<Vec<Found>, String> {
        let (mut entries, mut without, mut others) = (Vec::new(), Vec::new(), BTreeSet::new());
        // Names of hosts (addressType FQDN) are not addresses of pods.
        let is_usable = |slice: &&Slice| slice.address_type != "FQDN" && !slice.endpoints.is_empty();
        for slice in slices.values().filter(is_usable) {
            if let Some(port) = self.port(slice) {
                entries.extend(slice.endpoints.iter().filter_map(|one| self.entry(slice, one, port)));
            } else {
                without.extend(&slice.endpoints);
                others.extend(slice.ports.iter().filter_map(|port| port.shown(&self.port)));
            }
        }
        let mut named = self.named.lock();
        let has_lost_it = without.iter().filter_map(|one| one.staying()).any(|pod| named.contains(pod));
        if has_lost_it || !without.is_empty() && entries.is_empty() {
            return Err(self.missing(&others, entries.is_empty()));
        }
        let mut by_pod: HashMap<&str, &Entry> = HashMap::new();
        let mut alone: HashMap<&Endpoint, &Entry> = HashMap::new();
        for entry in &entries {
            let known = match entry.found.instance.as_deref() {
                Some(pod) => by_pod.entry(pod).or_insert(entry),
                None => alone.entry(&entry.found.spec.endpoint).or_insert(entry),
            };
            *known = preferred(known, entry);
        }
        let stays = by_pod.into_values().chain(alone.into_values()).filter(|entry| !entry.is_terminating);
        let mut targets: Vec<Found> = stays.map(|entry| entry.found.clone()).collect();
        // By URL as well: an address goes to another pod before the slice of the first one is updated.
        targets.sort_by(|a, b| {
            (&a.spec.name, &*a.spec.endpoint.host).cmp(&(&b.spec.name, &*b.spec.endpoint.host))
        });
        *named = targets.iter().filter_map(|found| found.instance.clone()).collect();
        Ok(targets)
    }
}

impl SliceEndpoint {
    /// The uid of its pod, unless that leaves.
    fn staying(&self) -> Option<&str> {
        let is_leaving = self.conditions.terminating.unwrap_or(false);
        self.target_ref.as_ref().filter(|_| !is_leaving)?.uid.as_deref()
    }
}

impl SlicePort {
    /// As it may be configured: by number where that is asked for.
    fn shown(&self, by: &ServicePort) -> Option<String> {
        let name = self.name.clone().filter(|name| !name.is_empty());
        let name = name.filter(|_| !matches!(by, ServicePort::Number(_)));
        name.or_else(|| Some(self.port?.to_string()))
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

    fn targets(port: &ServicePort, slices: &[Value]) -> Result<Vec<Found>, String> {
        Slices::new(port, false).targets(&objects(slices))
    }

    fn objects(slices: &[Value]) -> Objects<Slice> {
        let read = |slice: &Value| serde_json::from_value(slice.clone()).unwrap();
        slices.iter().enumerate().map(|(at, slice)| (at.to_string(), read(slice))).collect()
    }

    fn slice(family: &str, endpoints: &[Value]) -> Value {
        json!({
            "metadata": { "name": "s", "resourceVersion": "5" },
            "addressType": family,
            "ports": [{ "name": "http", "port": 8000 }, { "name": "metrics", "port": 9000 }],
            "endpoints": endpoints,
        })
    }

    fn pod(name: &str, address: &str, conditions: Value) -> Value {
        json!({
            "addresses": [address],
            "conditions": conditions,
            "targetRef": { "kind": "Pod", "name": name, "uid": format!("uid-{name}") },
            "zone": "eu-1a",
        })
    }

    fn shown(slices: &[Value]) -> Vec<String> {
        let mark = |found: &Found| if found.is_serving { "" } else { "!" };
        let show = |f: &Found| format!("{} {}{}", f.spec.name, f.spec.endpoint.authority(), mark(f));
        targets(&ServicePort::Named("http".into()), slices).unwrap().iter().map(show).collect()
    }

    #[test]
    fn slices_are_merged_and_conditions_count() {
        let mut slices = vec![
            slice(
                "IPv4",
                &[
                    pod("a", "10.0.0.1", json!({ "ready": true, "serving": true, "terminating": false })),
                    pod("b", "10.0.0.2", json!({ "ready": false, "serving": false })),
                    pod("c", "10.0.0.3", json!({ "ready": false, "serving": true, "terminating": true })),
                ],
            ),
            slice("IPv6", &[pod("a", "fd00::1", json!({})), pod("e", "fd00::2", json!({}))]),
            slice("IPv4", &[pod("d", "10.0.0.4", json!({})), pod("a", "10.0.0.1", json!({}))]),
        ];
        let all = ["a 10.0.0.1:8000", "b 10.0.0.2:8000!", "d 10.0.0.4:8000", "e [fd00::2]:8000"];
        assert_eq!(shown(&slices), all);
        slices.pop();
        assert_eq!(shown(&slices), ["a 10.0.0.1:8000", "b 10.0.0.2:8000!", "e [fd00::2]:8000"]);
        let leaving = pod("a", "10.0.0.1", json!({ "terminating": true, "serving": true }));
        slices[0] = slice("IPv4", &[leaving]);
        assert_eq!(shown(&slices), ["e [fd00::2]:8000"], "its IPv6 address does not bring it back");
        assert!(shown(&[]).is_empty());
    }

    #[test]
    fn pods_whose_port_changes_slice_by_slice_stay() {
        let pods = |names: &[&str]| -> Vec<Value> {
            names.iter().enumerate().map(|(at, name)| pod(name, &format!("10.0.0.{at}"), json!({}))).collect()
        };
        let of = |port: &str, names: &[&str]| json!({ "metadata": { "name": "s" }, "ports": [{ "name": port, "port": 8000 }], "endpoints": pods(names) });
        let service = Slices::new(&ServicePort::Named("http".into()), false);
        let named = |slices: &[Value]| service.targets(&objects(slices)).map(|found| found.len());
        assert_eq!(named(&[of("http", &["a", "b"]), of("http", &["c"]), of("grpc", &["d"])]), Ok(3));
        let fault = "some endpoints no longer have a port named \"http\"; there are grpc, web";
        let changing = [of("web", &["a", "b"]), of("http", &["c"]), of("grpc", &["d"])];
        assert_eq!(named(&changing), Err(fault.to_owned()));
        assert_eq!(
            named(&[of("web", &["e"]), of("http", &["a", "b", "c"])]),
            Ok(3),
            "a pod moves with its port"
        );
        let leaving = pod("c", "10.0.0.9", json!({ "terminating": true, "serving": true }));
        let gone = json!({ "metadata": { "name": "s" }, "ports": [], "endpoints": [leaving] });
        assert_eq!(named(&[of("http", &["a", "b"]), gone]), Ok(2));
    }

    #[test]
    fn the_port_is_a_number_a_name_or_the_only_one() {
        for (port, expected) in [
            (ServicePort::Number(8000), Some(8000)),
            (ServicePort::Number(80), None),
            (ServicePort::Named("metrics".into()), Some(9000)),
            (ServicePort::Named("grpc".into()), None),
            (ServicePort::Only, None),
        ] {
            let found = targets(&port, &[slice("IPv4", &[pod("a", "10.0.0.1", Value::Null)])]);
            assert_eq!(found.ok().map(|found| found[0].spec.endpoint.port), expected, "{port:?}");
            assert!(targets(&port, &[slice("IPv4", &[])]).unwrap().is_empty(), "no endpoint lacks it");
        }
    }

    #[test]
    fn a_service_s_port_in_place_of_the_pods_is_named() {
        let found = targets(&ServicePort::Number(80), &[slice("IPv4", &[pod("a", "10.0.0.1", Value::Null)])]);
        let expected =
            "no endpoint has port 80: it is the pods' port, not the Service's; there are 8000, 9000";
        assert_eq!(found.unwrap_err(), expected);
        let all = json!({ "metadata": { "name": "s" }, "ports": null, "endpoints": [{ "addresses": ["10.0.0.1"] }] });
        assert_eq!(targets(&ServicePort::Number(80), &[all]).unwrap()[0].spec.endpoint.port, 80);
    }

    #[test]
    fn the_role_is_the_service_s_label() {
        for (labels, expected) in [
            (json!({ "llm-d.ai/role": "prefill", "app": "vllm" }), Some(Role::Prefill)),
            (json!({ "llm-d.ai/role": "something" }), None),
            (Value::Null, None),
        ] {
            let slice = json!({
                "metadata": { "name": "s", "labels": labels },
                "ports": [{ "port": 8000 }],
                "endpoints": [{ "addresses": ["10.0.0.1"] }],
            });
            let found = targets(&ServicePort::Only, &[slice]).unwrap();
            assert_eq!(found[0].role, expected);
        }
    }

    #[test]
    fn an_endpoint_without_a_pod_is_named_by_its_address() {
        let bare = json!({ "addresses": ["10.1.1.1"], "conditions": null });
        let twice = [slice("IPv4", std::slice::from_ref(&bare)), slice("IPv4", &[bare])];
        assert_eq!(shown(&twice), ["10.1.1.1:8000 10.1.1.1:8000"]);
        let of = |slices: &[Value]| targets(&ServicePort::Number(8000), slices).unwrap().remove(0);
        assert_eq!((of(&twice).instance, of(&twice).spec.zone), (None, None));
        let of_pod = of(&[slice("IPv4", &[pod("a", "10.0.0.1", Value::Null)])]);
        assert_eq!(of_pod.spec.zone.as_deref(), Some("eu-1a"));
    }
}
