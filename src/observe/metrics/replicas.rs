//! Gauges and engine-side counters of replicas, set on each scrape of our page.
//!
//! Outdated signals are absent, never stale: their label set is removed until the engine is scraped again. A replica that
//! left the fleet keeps its series for five minutes, in the state `gone`, so that Prometheus sees it end and no alert takes
//! it for a failure; then they are removed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::table::ReplicaFamilies;
use crate::clock::Stamp;
use crate::fleet::status::{ReplicaState, ReplicaStatus};
use crate::record::Outcome;
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
            let key = (Arc::clone(&status.pool), Arc::clone(&status.replica));
            set(families, &key, Some(status));
            self.0.insert(key, now);
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
            set(families, key, None);
            true
        });
        gone
    }

    /// Adds a replica that has series before the first scrape.
    pub(super) fn note(&mut self, key: ReplicaKey, now: Stamp) {
        self.0.entry(key).or_insert(now);
    }
}

/// Sets the gauges of one replica; outside of the fleet it has no status.
fn set(families: &ReplicaFamilies, (pool, replica): &ReplicaKey, status: Option<&ReplicaStatus>) {
    let labels: [&str; 2] = [pool, replica];
    families.inflight.set(&labels, Some(status.map_or(0.0, |status| status.inflight as f64)));
    set_signals(families, &labels, status.and_then(|status| status.signals.as_ref()));
    if let Some(status) = status {
        families.scrape_failures.set_total(&labels, status.failures.scrapes);
        families.probe_failures.set_total(&labels, status.failures.probes);
        if let Some(preemptions) = status.counters.and_then(|counters| counters.preemptions) {
            families.preemptions.set_total(&labels, preemptions as u64);
        }
    }
    for state in ReplicaState::ALL {
        let is_in = status.is_some_and(|status| status.state == state);
        families.state.set(&[pool, replica, state.as_str()], Some(f64::from(u8::from(is_in))));
    }
    families.state.set(&[pool, replica, GONE], Some(f64::from(u8::from(status.is_none()))));
}

fn set_signals(families: &ReplicaFamilies, labels: &[&str; 2], signals: Option<&EngineSignals>) {
    families.queue_depth.set(labels, signals.and_then(|s| s.waiting));
    families.running.set(labels, signals.and_then(|s| s.running));
    families.kv_cache_usage.set(labels, signals.and_then(|s| s.kv_cache_usage));
    families.batch_limit.set(labels, signals.and_then(|s| s.batch_limit).map(|n| n as f64));
    families.scrape_age.set(labels, signals.map(|s| s.age.as_secs_f64()));
}

fn remove(families: &ReplicaFamilies, (pool, replica): &ReplicaKey) {
    let labels: [&str; 2] = [pool, replica];
    set_signals(families, &labels, None);
    families.inflight.remove(&labels);
    families.preemptions.remove(&labels);
    families.scrape_failures.remove(&labels);
    families.probe_failures.remove(&labels);
    families.ttft.remove(&labels);
    families.itl.remove(&labels);
    for state in ReplicaState::ALL {
        families.state.remove(&[pool, replica, state.as_str()]);
    }
    families.state.remove(&[pool, replica, GONE]);
    for outcome in Outcome::ALL {
        families.requests.remove(&[pool, replica, outcome.as_str()]);
    }
}

/// State of a replica that left the fleet.
const GONE: &str = "gone";
const KEPT_AFTER_LEAVING: Duration = Duration::from_secs(300);
