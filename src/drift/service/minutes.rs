//! Signals of each replica, minute by minute: from the requests of a minute and the engine's metrics at its end.
//!
//! Only the minute in progress is kept.

use std::collections::HashMap;
use std::sync::Arc;

use super::feed::{EndedRequest, STAGES};
use crate::config::MAX_REPLICAS;
use crate::diagnosis::Signals;
use crate::drift::detectors::SeriesName;
use crate::fleet::status::{EngineCounters, ReplicaState, ReplicaStatus};
use crate::observe::lag::Lateness;
use crate::stats::{Histogram, Mean};

/// The minute in progress.
#[derive(Debug, Default)]
pub(super) struct MinuteSignals {
    /// Minutes since the epoch.
    index: i64,
    replicas: HashMap<SeriesName, ReplicaMinute>,
    /// At the end of the last minute, by revision and replica.
    before: HashMap<(Arc<str>, Arc<str>), EngineState>,
}

#[derive(Debug)]
struct EngineState {
    is_ready: bool,
    counters: Option<EngineCounters>,
}

#[derive(Debug, Default)]
struct ReplicaMinute {
    requests: f64,
    ttft: Histogram,
    itl: Histogram,
    stages: [Mean; STAGES.len()],
    prompt: Mean,
    output: Mean,
    /// Cached prompt tokens, of those where the engine told how many were.
    hit_rate: Mean,
}

impl MinuteSignals {
    pub(super) fn add(&mut self, request: &EndedRequest) {
        let Some(name) = request.series() else { return };
        if self.replicas.len() >= MAX_REPLICAS && !self.replicas.contains_key(&name) {
            return;
        }
        let minute = self.replicas.entry(name).or_default();
        minute.requests += 1.0;
        for (values, value) in [(&mut minute.ttft, request.ttft), (&mut minute.itl, request.itl)] {
            value.into_iter().for_each(|value| values.add_seconds(value));
        }
        minute.stages.iter_mut().zip(request.stages).for_each(|(mean, time)| mean.add(time));
        minute.prompt.add(request.prompt());
        minute.output.add(request.output);
        if let Some((prompt, cached)) = request.cached() {
            minute.hit_rate += Mean { sum: cached, count: prompt };
        }
    }

    /// The signals of the minute that has ended by `at`, once, of a gateway that ran this late in it.
    pub(super) fn close(
        &mut self,
        at: f64,
        lateness: Lateness,
        fleet: &[ReplicaStatus],
    ) -> Vec<(SeriesName, Signals)> {
        let index = (at / 60.0).floor() as i64;
        if index == self.index {
            return Vec::new();
        }
        self.index = index;
        let minutes = std::mem::take(&mut self.replicas);
        let by_name: HashMap<_, _> = fleet.iter().map(|s| ((&s.revision, &s.replica), s)).collect();
        let signals = minutes.into_iter().map(|(name, minute)| {
            let status =
                name.replica.as_ref().and_then(|replica| by_name.get(&(&name.revision, replica)).copied());
            let signals = Signals { gateway_late: Some(lateness.late), ..self.signals(minute, status) };
            (name, signals)
        });
        let signals: Vec<_> = signals.collect();
        let state = |s: &ReplicaStatus| {
            let is_ready = s.state == ReplicaState::Ready;
            ((s.revision.clone(), s.replica.clone()), EngineState { is_ready, counters: s.counters })
        };
        self.before = fleet.iter().map(state).collect();
        signals
    }

    fn signals(&self, minute: ReplicaMinute, status: Option<&ReplicaStatus>) -> Signals {
        let engine = status.and_then(|status| status.signals);
        let key = status.map(|status| (status.revision.clone(), status.replica.clone()));
        let before = key.and_then(|key| self.before.get(&key));
        let counters = status.and_then(|status| status.counters).zip(before.and_then(|b| b.counters));
        let is_ready = status.is_some_and(|status| status.state == ReplicaState::Ready);
        let [held, connect, queue, prefill, other] = minute.stages.map(Mean::value);
        Signals {
            requests: minute.requests,
            held,
            connect,
            queue,
            prefill,
            other,
            prompt: minute.prompt.value(),
            output: minute.output.value(),
            ttft: minute.ttft.counts().quantile(0.5),
            engine_ttft: counters.and_then(|(now, before)| mean_ttft(&now, &before)),
            itl: minute.itl.counts().quantile(0.5),
            hit_rate: minute.hit_rate.value(),
            waiting: engine.and_then(|engine| engine.page.waiting),
            kv_cache_usage: engine.and_then(|engine| engine.page.kv_cache_usage),
            preemptions: counters
                .and_then(|(now, before)| Some(now.preemptions? - before.preemptions?))
                .filter(|n| *n >= 0.0),
            batch_limit: engine.and_then(|engine| engine.set_batch_limit).map(|limit| limit as f64),
            gpu_throttled: status
                .and_then(|status| status.gpu?.throttling)
                .map(|throttling| f64::from(u8::from(throttling.is_any()))),
            gateway_late: None,
            has_started: is_ready && before.is_some_and(|before| !before.is_ready),
        }
    }
}

/// The engine's mean TTFT between two scrapes; `None` where it has restarted or nothing came.
fn mean_ttft(now: &EngineCounters, before: &EngineCounters) -> Option<f64> {
    let since = now.ttft? - before.ttft?;
    since.value().filter(|_| since.sum >= 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::observe::{Judgement, fixture};

    #[test]
    fn a_busy_minute_has_the_medians_of_all_of_it() {
        let record = Arc::new(fixture::stream());
        let mut request = EndedRequest::of(&record, &Judgement::of(&record), Clock::start());
        let mut minutes = MinuteSignals::default();
        for (requests, ttft, itl) in [(2100, 0.1, 0.01), (2400, 0.3, 0.03)] {
            (request.ttft, request.itl) = (Some(ttft), Some(itl));
            (0..requests).for_each(|_| minutes.add(&request));
        }
        let signals = minutes.close(60.0, Lateness { late: 0.0, worst: Default::default() }, &[]);
        let of = |median: Option<f64>| median.map(|seconds| (seconds * 100.0).round());
        assert_eq!(
            signals.iter().map(|(_, s)| (of(s.ttft), of(s.itl))).collect::<Vec<_>>(),
            [(Some(30.0), Some(3.0))]
        );
    }
}
