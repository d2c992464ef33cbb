//! Gauges and engine-side counters of replicas, set on each scrape of our page.
//!
//! Outdated signals are absent, never stale: their label set is removed until the engine is scraped again. A replica that
//! left the fleet keeps its series for five minutes, in the state `gone`, so that Prometheus sees it end and no alert takes
//! it for a failure; then they are removed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::declare::{Group as _, Handle as _};
use super::family::MAX_VALUES;
use super::foreseen::Foreseen;
use super::table::{Families, Pools, Replicas};
use crate::clock::Stamp;
use crate::fleet::status::{EngineCounters, GpuFigures, ReplicaState, ReplicaStatus};
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
    /// Its state then; of one that is gone, that.
    state: ReplicaState,
    /// Cold starts that were observed.
    cold_starts: u64,
    /// Revision and zone as labels.
    info: Option<(Arc<str>, Arc<str>)>,
}

impl KnownReplicas {
    /// Sets every gauge from `fleet`; returns the replicas whose other series are to be removed.
    pub(super) fn update(
        &mut self,
        families: &Families,
        fleet: &[ReplicaStatus],
        now: Stamp,
    ) -> Vec<ReplicaKey> {
        let key_of = |status: &ReplicaStatus| (Arc::clone(&status.pool), Arc::clone(&status.replica));
        for status in fleet {
            self.0.entry(key_of(status)).or_default().last = now;
        }
        let gone = self.outdated(fleet.len(), now);
        for key in &gone {
            self.0.remove(key);
            families.replicas.forget(&[&key.0, &key.1]);
        }
        if !gone.is_empty() {
            let names: HashSet<&str> = self.0.keys().map(|(_, replica)| &**replica).collect();
            let is_gone =
                |name: &str| gone.iter().any(|(_, replica)| **replica == *name) && !names.contains(name);
            for label in ["prefill", "decode"] {
                families.requests.forget_values(label, &|name| !is_gone(name));
            }
        }
        for status in fleet {
            let key = key_of(status);
            set(&families.replicas, &key, Some(status));
            if let Some(known) = self.0.get_mut(&key) {
                known.state = status.state;
                known.observe(families, status);
            }
        }
        for (key, known) in self.0.iter_mut().filter(|(_, known)| known.last < now) {
            set(&families.replicas, key, None);
            known.leave(&families.replicas, key);
        }
        self.count(&families.pools);
        gone
    }

    /// Counts the replicas of each pool by state: a fleet may have more than their own series have room for.
    fn count(&self, families: &Pools) {
        let mut counts: HashMap<(&str, &str), f64> = HashMap::new();
        for ((pool, _), known) in &self.0 {
            *counts.entry((pool, known.state.as_str())).or_default() += 1.0;
        }
        families.replicas.set_all(|[pool, state]| counts.get(&(pool, state)).copied().unwrap_or_default());
    }

    /// Those that left long ago, and the earliest of the others where their series leave too few to the fleet.
    fn outdated(&self, in_fleet: usize, now: Stamp) -> Vec<ReplicaKey> {
        let mut absent: Vec<_> = self.0.iter().filter(|(_, known)| known.last < now).collect();
        absent.sort_by_key(|(_, known)| std::cmp::Reverse(known.last));
        let room = MAX_VALUES.saturating_sub(in_fleet);
        let is_outdated = |(at, (_, known)): &(usize, (&ReplicaKey, &Known))| {
            *at >= room || now.since(known.last) > KEPT_AFTER_LEAVING
        };
        absent.into_iter().enumerate().filter(is_outdated).map(|(_, (key, _))| key.clone()).collect()
    }

    /// Adds a replica that has series before the first scrape.
    pub(super) fn note(&mut self, key: ReplicaKey, now: Stamp) {
        self.0.entry(key).or_insert(Known { last: now, ..Known::default() });
    }
}

impl Known {
    /// Counts once that it is gone; one without streams was not seen to drain.
    fn leave(&mut self, families: &Replicas, (pool, replica): &ReplicaKey) {
        let passed = match self.state {
            ReplicaState::Gone => return,
            ReplicaState::Draining => &[ReplicaState::Gone][..],
            _ => &[ReplicaState::Draining, ReplicaState::Gone],
        };
        passed.iter().for_each(|state| families.state_changes.inc([pool, replica, state.as_str()]));
        self.state = ReplicaState::Gone;
    }

    /// Observes the cold starts since the last page, and sets the facts of the replica.
    fn observe(&mut self, families: &Families, status: &ReplicaStatus) {
        let (life, pool, replica) = (&status.life, &*status.pool, &*status.replica);
        for took in life.cold_starts.since(std::mem::replace(&mut self.cold_starts, life.cold_starts.count)) {
            families.pools.cold_start.get([pool]).observe(took.as_secs_f64());
        }
        let zone = life.zone.clone().unwrap_or_else(|| "none".into());
        let info = (Arc::clone(&status.revision), zone);
        if self.info.as_ref() != Some(&info) {
            let family = &families.replicas.info;
            family.forget(&[pool, replica]);
            family.set([pool, replica, &info.0, &info.1], Some(1.0));
            self.info = Some(info);
        }
    }
}

/// Sets the gauges of one replica; outside of the fleet it has no status.
fn set(families: &Replicas, (pool, replica): &ReplicaKey, status: Option<&ReplicaStatus>) {
    let key: [&str; 2] = [pool, replica];
    families.inflight.set(key, Some(status.map_or(0.0, |status| status.inflight as f64)));
    // Those that have some are set after this.
    families.overdue.set(key, status.map(|_| 0.0));
    // One request at a time is no share.
    let share = status.map(|status| if status.is_on_trial { 0.0 } else { status.traffic_share });
    families.traffic_share.set(key, share);
    set_signals(families, key, status.and_then(|status| status.signals.as_ref()));
    set_gpu(families, key, status.and_then(|status| status.gpu.as_ref()));
    if let Some(status) = status {
        // From the start at 0: of a series that begins with its first failure `increase()` does not see that one.
        families.requests.start(&key, &Foreseen::default());
        families.empty_answers.start(&key, &Foreseen::default());
        families.scrape_failures.set_total(key, status.failures.scrapes);
        families.probe_failures.set_total(key, status.failures.probes);
        if let Some(preemptions) = status.counters.and_then(|counters| counters.preemptions) {
            families.preemptions.set_total(key, preemptions as u64);
        }
        set_kv(families, key, status.counters.as_ref());
    }
    let current = status.map_or(ReplicaState::Gone, |status| status.state);
    for (at, state) in ReplicaState::ALL.into_iter().enumerate() {
        let labels: [&str; 3] = [pool, replica, state.as_str()];
        families.state.set(labels, Some(f64::from(u8::from(current == state))));
        if let Some(entered) = status.and_then(|status| status.life.entered.get(at)) {
            families.state_changes.set_total(labels, *entered);
        }
    }
}

fn set_kv(families: &Replicas, key: [&str; 2], counters: Option<&EngineCounters>) {
    let Some(kv) = counters.and_then(|counters| counters.kv) else { return };
    families.kv_fetched.set_total(key, kv.transfers as u64);
    families.kv_bytes.set_total(key, kv.bytes as u64);
    families.kv_failed.set_total(key, kv.failed as u64);
    families.kv_expired.set_total(key, kv.expired as u64);
    let recent = counters.and_then(|counters| counters.recent_kv);
    families.kv_seconds.set(key, recent.and_then(|recent| recent.mean_seconds()));
}

fn set_signals(families: &Replicas, key: [&str; 2], signals: Option<&EngineSignals>) {
    let page = signals.map(|signals| &signals.page);
    families.queue_depth.set(key, page.and_then(|page| page.waiting));
    families.running.set(key, page.and_then(|page| page.running));
    families.kv_cache_usage.set(key, page.and_then(|page| page.kv_cache_usage));
    families.batch_limit.set(key, page.and_then(|page| page.batch_limit).map(|n| n as f64));
    families.scrape_age.set(key, signals.map(|s| s.age.as_secs_f64()));
}

fn set_gpu(families: &Replicas, key: [&str; 2], gpu: Option<&GpuFigures>) {
    families.gpu_utilization.set(key, gpu.and_then(|gpu| gpu.utilization));
    families.gpu_memory_used.set(key, gpu.and_then(|gpu| gpu.memory_used));
    families.gpu_memory_free.set(key, gpu.and_then(|gpu| gpu.memory_free));
    families.gpu_xid.set(key, gpu.and_then(|gpu| gpu.xid).map(f64::from));
    let throttling = gpu.and_then(|gpu| gpu.throttling);
    let [pool, replica] = key;
    for (reason, holds) in throttling.unwrap_or_default().each() {
        let value = throttling.map(|_| f64::from(u8::from(holds)));
        families.gpu_throttled.set([pool, replica, reason], value);
    }
}

const KEPT_AFTER_LEAVING: Duration = Duration::from_secs(300);
