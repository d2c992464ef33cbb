//! Series by their labels, bounded: those without values for an hour make room for new ones, because revisions come and go.

use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;

use crate::labels::LabelHasher;

/// One or several series under one key.
pub(in crate::observe) trait Newest: Default {
    /// Number of the newest slot of 10 s with values.
    fn newest(&self) -> i64;
}

pub(in crate::observe) struct SeriesMap<K, V> {
    all: DashMap<K, Arc<V>, LabelHasher>,
    /// Calls of [`SeriesMap::has_room`] that found the map full.
    full: AtomicU64,
}

impl<K: Eq + Hash, V> Default for SeriesMap<K, V> {
    fn default() -> Self {
        Self { all: DashMap::default(), full: AtomicU64::new(0) }
    }
}

impl<K: Clone + Eq + Hash, V: Newest> SeriesMap<K, V> {
    /// The series of a key that is known.
    pub(in crate::observe) fn get(&self, key: &K) -> Option<Arc<V>> {
        self.all.get(key).map(|series| Arc::clone(&series))
    }

    /// The series of a key; a new one beyond `max` series is counted under the key `rest`.
    pub(in crate::observe) fn series(&self, key: &K, max: usize, rest: impl FnOnce() -> K) -> Arc<V> {
        let new = || if self.has_room(max) { key.clone() } else { rest() };
        self.get(key).unwrap_or_else(|| Arc::clone(&self.all.entry(new()).or_default()))
    }

    /// Whether fewer than `max` series are there.
    pub(in crate::observe) fn has_room(&self, max: usize) -> bool {
        // On the data path: a map that stays full is looked through now and then only.
        if self.all.len() >= max && self.full.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOK_EVERY) {
            let newest = self.all.iter().map(|series| series.newest()).max().unwrap_or(0);
            self.all.retain(|_, series| series.newest() + IN_HOUR >= newest);
        }
        self.all.len() < max
    }

    /// Series with keys that are `wanted`, collected: merging histograms must not keep a shard of the map locked.
    pub(in crate::observe) fn collect(&self, wanted: impl Fn(&K) -> bool) -> Vec<(K, Arc<V>)> {
        let wanted = self.all.iter().filter(|entry| wanted(entry.key()));
        wanted.map(|entry| (entry.key().clone(), Arc::clone(entry.value()))).collect()
    }
}

/// Slots of 10 s, with the partly filled minutes at either end.
const IN_HOUR: i64 = 372;
const LOOK_EVERY: u64 = 256;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::Stamp;
    use crate::observe::latency::{LatencySeries, Measure};

    #[test]
    fn what_is_idle_for_an_hour_makes_room() {
        let map: SeriesMap<&str, LatencySeries> = SeriesMap::default();
        for (key, minute) in [("old", 0), ("young", 50), ("current", 100)] {
            let now = Stamp::from_nanos(minute * 60_000_000_000);
            map.series(&key, 3, || "").observe(Measure::Ttft, [Duration::from_millis(1)], now);
        }
        assert!(map.has_room(3) && map.get(&"old").is_none() && map.collect(|_| true).len() == 2);
        assert!((0..1000).all(|_| !map.has_room(2)), "both are in use");
        assert_eq!(map.collect(|key| *key == "young").len(), 1);
    }
}
