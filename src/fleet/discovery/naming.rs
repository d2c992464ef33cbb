//! Names of replicas, of which a pool has each once. Pure.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::config::{Endpoint, ReplicaSpec};

/// Gives every replica a name of its own: one that serves under its name keeps it, and a newcomer with the same one is called
/// by its URL.
pub(super) fn uniquely_named(
    specs: &mut [&mut ReplicaSpec],
    given: &HashMap<Endpoint, Arc<str>>,
) -> HashMap<Endpoint, Arc<str>> {
    let keeps = |spec: &ReplicaSpec| given.get(&spec.endpoint) == Some(&spec.name);
    let mut names: HashSet<Arc<str>> =
        specs.iter().filter(|spec| keeps(spec)).map(|spec| Arc::clone(&spec.name)).collect();
    for spec in specs.iter_mut() {
        if !keeps(spec) && !names.insert(Arc::clone(&spec.name)) {
            spec.name = spec.endpoint.to_string().into();
            names.insert(Arc::clone(&spec.name));
        }
    }
    specs.iter().map(|spec| (spec.endpoint.clone(), Arc::clone(&spec.name))).collect()
}
