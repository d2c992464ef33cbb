//! Gauges of replicas, set on each scrape of our page.
//!
//! Outdated signals are absent, never stale: their label set is removed until the engine is scraped again. A replica that
//! left the fleet keeps its series at zero for five minutes, so that Prometheus sees it end; then they are removed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use prometheus::GaugeVec;

use super::family::Family;
use super::table::ReplicaFamilies;
use crate::clock::Stamp;
use crate::fleet::status::{ReplicaState, ReplicaStatus};
use crate::routing::EngineSignals;

/// Pool and replica.
pub(super) type ReplicaKey = (Arc<str>, Arc<str>);

/// Replicas that have series, and when they were last part of the fleet.
#[derive(Default)]
pub(super) struct KnownReplicas(HashMap<ReplicaKey, Stamp>);

impl KnownReplicas {
    /// Sets every gauge from `fleet`; returns the replicas whose other series are to be removed.
    pub(super) fn update(
        &mut self,
        families: &ReplicaFamilies,
        fleet: &[ReplicaStatus],
        now: Stamp,
    ) -> Vec<ReplicaKey> {
        for status in fleet {
            self.0.insert((Arc::clone(&status.pool), Arc::clone(&status.replica)), now);
            set(families, status);
        }
        let mut gone = Vec::new();
        self.0.retain(|key, last| {
            if *last == now {
                return true;
            }
            if now.since(*last) > KEPT_AFTER_LEAVING {
                remove(families, key);
                gone.push(key.clone());
                return false;
            }
            set_left(families, key);
            true
        });
        gone
    }

    /// Adds a replica that has series before the first scrape.
    pub(super) fn note(&mut self, key: ReplicaKey, now: Stamp) {
        self.0.entry(key).or_insert(now);
    }
}

fn set(families: &ReplicaFamilies, status: &ReplicaStatus) {
    let labels: [&str; 2] = [&status.pool, &status.replica];
    put(&families.inflight, &labels, Some(status.inflight as f64));
    signals(families, &labels, status.signals.as_ref());
    for state in ReplicaState::ALL {
        let is_in = if state == status.state { 1.0 } else { 0.0 };
        put(&families.state, &[labels[0], labels[1], state.as_str()], Some(is_in));
    }
}

fn set_left(families: &ReplicaFamilies, key: &ReplicaKey) {
    let labels: [&str; 2] = [&key.0, &key.1];
    put(&families.inflight, &labels, Some(0.0));
    signals(families, &labels, None);
    for state in ReplicaState::ALL {
        put(&families.state, &[labels[0], labels[1], state.as_str()], Some(0.0));
    }
}

fn signals(families: &ReplicaFamilies, labels: &[&str; 2], signals: Option<&EngineSignals>) {
    put(&families.queue_depth, labels, signals.map(|s| s.waiting));
    put(&families.running, labels, signals.map(|s| s.running));
    put(&families.kv_cache_usage, labels, signals.map(|s| s.kv_cache_usage));
    put(&families.batch_limit, labels, signals.and_then(|s| s.batch_limit).map(|n| n as f64));
    put(&families.scrape_age, labels, signals.map(|s| s.age.as_secs_f64()));
}

fn put(family: &Family<GaugeVec>, labels: &[&str], value: Option<f64>) {
    match value {
        Some(value) => {
            if let Some(gauge) = family.get_exact(labels) {
                gauge.set(value);
            }
        }
        None => family.remove(labels),
    }
}

fn remove(families: &ReplicaFamilies, key: &ReplicaKey) {
    let labels: [&str; 2] = [&key.0, &key.1];
    signals(families, &labels, None);
    families.inflight.remove(&labels);
    families.ttft.remove(&labels);
    families.itl.remove(&labels);
    for state in ReplicaState::ALL {
        families.state.remove(&[labels[0], labels[1], state.as_str()]);
    }
}

const KEPT_AFTER_LEAVING: Duration = Duration::from_secs(300);
