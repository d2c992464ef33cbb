//! Gauges and engine-side counters of replicas, set on each scrape of our page.
//!
//! Outdated signals are absent, never stale: their label set is removed until the engine is scraped again. A replica that
//! left the fleet keeps its series for five minutes, in the state `gone`, so that Prometheus sees it end and no alert takes
//! it for a failure; then they are removed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::table::{GpuFamilies, ReplicaFamilies};
use crate::clock::Stamp;
use crate::fleet::status::{GpuFigures, ReplicaState, ReplicaStatus};
use crate::record::Outcome;
use crate::routing::EngineSignals;

/// Pool and replica.
pub(super) type ReplicaKey = (Arc<str>, Arc<str>);

/// Replicas that have series, and when they were last part of the fleet.
#[derive(Default)]
pub(super) struct KnownReplicas(HashMap<ReplicaKey, Known>);

/// What the page has of one replica.
#[derive(Default)]
struct Known {
    /// When it was last part of the fleet.
    last: Stamp,
    /// Cold starts that were observed.
    cold_starts: u64,
    /// Revision and zone as labels.
    info: Option<(Arc<str>, Arc<str>)>,
}

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
            let known = self.0.entry(key).or_default();
            known.last = now;
            known.observe(families, status);
        }
        let mut gone = Vec::new();
        self.0.retain(|key, known| {
            if known.last == now {
                return true;
            }
            if now.since(known.last) > KEPT_AFTER_LEAVING {
                remove(families, key);
                known.remove_info(families, key);
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
        self.0.entry(key).or_insert(Known { last: now, ..Known::default() });
    }
}

impl Known {
    /// Observes the cold starts since the last page, and sets the facts of the replica.
    fn observe(&mut self, families: &ReplicaFamilies, status: &ReplicaStatus) {
        let life = &status.life;
        // One whose name was another's before starts to count anew.
        let new = life.cold_starts.checked_sub(self.cold_starts).unwrap_or(life.cold_starts);
        self.cold_starts = life.cold_starts;
        let new = usize::try_from(new).unwrap_or(usize::MAX);
        for took in life.latest_cold_starts.iter().rev().take(new) {
            families.cold_start.get(&[&status.pool]).observe(took.as_secs_f64());
        }
        let zone = life.zone.clone().unwrap_or_else(|| "none".into());
        let info = (Arc::clone(&status.revision), zone);
        if self.info.as_ref() != Some(&info) {
            self.remove_info(families, &(Arc::clone(&status.pool), Arc::clone(&status.replica)));
            families.info.set(&[&status.pool, &status.replica, &info.0, &info.1], Some(1.0));
            self.info = Some(info);
        }
    }

    fn remove_info(&mut self, families: &ReplicaFamilies, (pool, replica): &ReplicaKey) {
        if let Some((revision, zone)) = self.info.take() {
            families.info.remove(&[pool, replica, &revision, &zone]);
        }
    }
}

/// Sets the gauges of one replica; outside of the fleet it has no status.
fn set(families: &ReplicaFamilies, (pool, replica): &ReplicaKey, status: Option<&ReplicaStatus>) {
    let labels: [&str; 2] = [pool, replica];
    families.inflight.set(&labels, Some(status.map_or(0.0, |status| status.inflight as f64)));
    families.traffic_share.set(&labels, status.map(|status| status.traffic_share));
    set_signals(families, &labels, status.and_then(|status| status.signals.as_ref()));
    set_gpu(&families.gpu, &labels, status.and_then(|status| status.gpu.as_ref()));
    if let Some(status) = status {
        // From the start at 0: of a series that begins with its first failure `increase()` does not see that one.
        for outcome in [Outcome::Ok, Outcome::Failed] {
            families.requests.get(&[pool, replica, outcome.as_str()]);
        }
        families.scrape_failures.set_total(&labels, status.failures.scrapes);
        families.probe_failures.set_total(&labels, status.failures.probes);
        if let Some(preemptions) = status.counters.and_then(|counters| counters.preemptions) {
            families.preemptions.set_total(&labels, preemptions as u64);
        }
    }
    let current = status.map_or(ReplicaState::Gone, |status| status.state);
    for (at, state) in ReplicaState::ALL.into_iter().enumerate() {
        let labels: [&str; 3] = [pool, replica, state.as_str()];
        families.state.set(&labels, Some(f64::from(u8::from(current == state))));
        if let Some(entered) = status.and_then(|status| status.life.entered.get(at)) {
            families.state_changes.set_total(&labels, *entered);
        }
    }
}

fn set_signals(families: &ReplicaFamilies, labels: &[&str; 2], signals: Option<&EngineSignals>) {
    families.queue_depth.set(labels, signals.and_then(|s| s.waiting));
    families.running.set(labels, signals.and_then(|s| s.running));
    families.kv_cache_usage.set(labels, signals.and_then(|s| s.kv_cache_usage));
    families.batch_limit.set(labels, signals.and_then(|s| s.batch_limit).map(|n| n as f64));
    families.scrape_age.set(labels, signals.map(|s| s.age.as_secs_f64()));
}

fn set_gpu(families: &GpuFamilies, labels: &[&str; 2], gpu: Option<&GpuFigures>) {
    families.utilization.set(labels, gpu.and_then(|gpu| gpu.utilization));
    families.memory_used.set(labels, gpu.and_then(|gpu| gpu.memory_used));
    families.memory_free.set(labels, gpu.and_then(|gpu| gpu.memory_free));
    families.xid.set(labels, gpu.and_then(|gpu| gpu.xid).map(f64::from));
    let throttling = gpu.and_then(|gpu| gpu.throttling);
    let [pool, replica] = *labels;
    for (reason, holds) in throttling.unwrap_or_default().each() {
        let value = throttling.map(|_| f64::from(u8::from(holds)));
        families.throttled.set(&[pool, replica, reason], value);
    }
}

fn remove(families: &ReplicaFamilies, (pool, replica): &ReplicaKey) {
    let labels: [&str; 2] = [pool, replica];
    set_signals(families, &labels, None);
    set_gpu(&families.gpu, &labels, None);
    families.inflight.remove(&labels);
    families.traffic_share.remove(&labels);
    families.preemptions.remove(&labels);
    families.scrape_failures.remove(&labels);
    families.probe_failures.remove(&labels);
    families.ttft.remove(&labels);
    families.itl.remove(&labels);
    for state in ReplicaState::ALL {
        families.state.remove(&[pool, replica, state.as_str()]);
        families.state_changes.remove(&[pool, replica, state.as_str()]);
    }
    for outcome in Outcome::ALL {
        families.requests.remove(&[pool, replica, outcome.as_str()]);
    }
}

const KEPT_AFTER_LEAVING: Duration = Duration::from_secs(300);
