//! Signals of each replica, minute by minute: from the requests of a minute and the engine's own figures at its end.
//!
//! Only what came in this minute is kept, and of that at most a few hundred values a replica: medians need no more.

use std::collections::HashMap;
use std::sync::Arc;

use super::feed::Sample;
use crate::drift::detectors::{SeriesName, Signals};
use crate::fleet::status::{EngineCounters, ReplicaState, ReplicaStatus};

/// The minute in progress.
#[derive(Debug, Default)]
pub(super) struct Minutes {
    index: i64,
    replicas: HashMap<SeriesName, Minute>,
    /// State of each replica at the end of the last minute, by revision and name, and its engine's counters.
    before: HashMap<Key, (ReplicaState, Option<EngineCounters>)>,
}

/// Revision and name of a replica.
type Key = (Arc<str>, Arc<str>);

#[derive(Debug, Default)]
struct Minute {
    requests: f64,
    ttft: Vec<f64>,
    itl: Vec<f64>,
    connect: Vec<f64>,
    prompt: f64,
    cached: f64,
}

impl Minutes {
    /// Takes a request.
    pub(super) fn add(&mut self, sample: &Sample) {
        let Some(name) = sample.series() else { return };
        if self.replicas.len() >= MOST_REPLICAS && !self.replicas.contains_key(&name) {
            return;
        }
        let minute = self.replicas.entry(name).or_default();
        minute.requests += 1.0;
        for (values, value) in [
            (&mut minute.ttft, sample.ttft()),
            (&mut minute.itl, sample.itl()),
            (&mut minute.connect, sample.connect()),
        ] {
            values.extend(value.filter(|_| values.len() < MOST_VALUES));
        }
        if let Some((prompt, cached)) = sample.prompt() {
            minute.prompt += prompt;
            minute.cached += cached;
        }
    }

    /// The signals of the minute that has ended by `at`, once.
    pub(super) fn close(&mut self, at: f64, fleet: &[ReplicaStatus]) -> Vec<(SeriesName, Signals)> {
        let index = (at / 60.0).floor() as i64;
        if index == self.index {
            return Vec::new();
        }
        self.index = index;
        let minutes = std::mem::take(&mut self.replicas);
        let signals = minutes.into_iter().map(|(name, minute)| {
            let status = fleet
                .iter()
                .find(|s| s.revision == name.revision && Some(&s.replica) == name.replica.as_ref());
            let signals = self.of(minute, status);
            (name, signals)
        });
        let signals: Vec<_> = signals.collect();
        let state = |s: &ReplicaStatus| ((s.revision.clone(), s.replica.clone()), (s.state, s.counters));
        self.before = fleet.iter().map(state).collect();
        signals
    }

    fn of(&self, minute: Minute, status: Option<&ReplicaStatus>) -> Signals {
        let engine = status.and_then(|status| status.signals);
        let key = status.map(|status| (status.revision.clone(), status.replica.clone()));
        let before = key.and_then(|key| self.before.get(&key));
        let counters =
            status.and_then(|status| status.counters).zip(before.and_then(|(_, counters)| *counters));
        let is_ready = status.is_some_and(|status| status.state == ReplicaState::Ready);
        Signals {
            requests: minute.requests,
            ttft: quantile(minute.ttft, 0.5),
            engine_ttft: counters.and_then(|(now, before)| mean_ttft(&now, &before)),
            connect: quantile(minute.connect, 0.5),
            itl_tail: quantile(minute.itl.clone(), 0.99),
            itl: quantile(minute.itl, 0.5),
            hit_rate: (minute.prompt > 0.0).then(|| minute.cached / minute.prompt),
            waiting: engine.map(|engine| engine.waiting),
            running: engine.map(|engine| engine.running),
            kv_cache_usage: engine.map(|engine| engine.kv_cache_usage),
            preemptions: counters
                .and_then(|(now, before)| Some(now.preemptions? - before.preemptions?))
                .filter(|n| *n >= 0.0),
            batch_limit: engine.and_then(|engine| engine.batch_limit).map(|limit| limit as f64),
            has_started: is_ready && before.is_some_and(|(state, _)| *state != ReplicaState::Ready),
        }
    }
}

/// The engine's own mean TTFT between two scrapes; `None` where it has restarted or nothing came.
fn mean_ttft(now: &EngineCounters, before: &EngineCounters) -> Option<f64> {
    let ((sum, count), (sum_before, count_before)) = (now.ttft?, before.ttft?);
    (count > count_before && sum >= sum_before).then(|| (sum - sum_before) / (count - count_before))
}

fn quantile(mut values: Vec<f64>, q: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get((values.len().saturating_sub(1) as f64 * q) as usize).copied()
}

const MOST_REPLICAS: usize = 512;
const MOST_VALUES: usize = 256;
