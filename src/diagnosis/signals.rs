//! Signals of each replica, minute by minute, and how they changed: now against the hours before.
//!
//! [`Signals`] is filled by the service live and by the bench from simulated engines. Now is the last minutes, before is
//! the median of up to three hours ahead of them; ratios of medians need no thresholds per fleet.
//! Conclusions are drawn in `changes`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::table::UNMOVED;
use crate::stats::{Mean, Ring, median};

/// One replica in one minute; `None` is unknown, durations are in seconds.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Signals {
    /// Requests that it answered.
    pub requests: f64,
    /// Median time to first token, as the gateway saw it.
    pub ttft: Option<f64>,
    /// Mean time to first token by the engine's own histogram.
    pub engine_ttft: Option<f64>,
    /// Means of the stages before the first token: held in the gateway, connecting, ...
    pub held: Option<f64>,
    /// To connect.
    pub connect: Option<f64>,
    /// In the engine's queue.
    pub queue: Option<f64>,
    /// Computing the prompt.
    pub prefill: Option<f64>,
    /// ... at the engine and in none of its own figures.
    pub other: Option<f64>,
    /// Mean length of prompts, in tokens.
    pub prompt: Option<f64>,
    /// Mean length of answers, in tokens.
    pub output: Option<f64>,
    /// Median inter-token latency.
    pub itl: Option<f64>,
    /// Share of prompt tokens that came from the prefix cache.
    pub hit_rate: Option<f64>,
    /// Requests that wait in the engine.
    pub waiting: Option<f64>,
    /// Share of the KV cache in use.
    pub kv_cache_usage: Option<f64>,
    /// Sequences preempted.
    pub preemptions: Option<f64>,
    /// Most requests that it runs at once.
    pub batch_limit: Option<f64>,
    /// Whether clocks of its GPUs were lowered, 1 or 0, where a DCGM exporter is scraped.
    pub gpu_throttled: Option<f64>,
    /// Share of the minute in which the gateway itself was late: the same of every replica.
    pub gateway_late: Option<f64>,
    /// Whether it (re)started.
    pub has_started: bool,
}

/// Three hours of signals of all replicas of a series.
#[derive(Clone, Debug, Default)]
pub struct SignalHistory {
    replicas: Vec<(Arc<str>, Minutes)>,
}

/// Minutes of one replica.
type Minutes = Ring<Signals>;

/// Medians of each replica before something began.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Snapshot(Vec<(String, Signals)>);

/// How one replica's signals changed, by their medians.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SignalChange {
    pub(crate) before: Signals,
    pub(crate) now: Signals,
    /// Minutes since the last (re)start, if that is remembered.
    pub(crate) started_ago: Option<i64>,
    /// And since the first of several.
    pub(crate) first_started_ago: Option<i64>,
}

impl SignalChange {
    /// Now over before.
    pub(super) fn ratio(&self, signal: fn(&Signals) -> Option<f64>) -> Option<f64> {
        let (now, before) = (signal(&self.now)?, signal(&self.before)?);
        (before > 0.0).then(|| now / before)
    }

    /// Now minus before.
    pub(super) fn difference(&self, signal: fn(&Signals) -> Option<f64>) -> Option<f64> {
        Some(signal(&self.now)? - signal(&self.before)?)
    }
}

impl SignalHistory {
    /// Takes one minute of one replica; beyond `max_replicas` the one unseen for longest is forgotten.
    pub fn add(&mut self, minute: i64, replica: &str, signals: &Signals, max_replicas: usize) {
        let known = self.replicas.iter().position(|(name, _)| **name == *replica);
        let index = known.unwrap_or_else(|| {
            if self.replicas.len() >= max_replicas {
                let last = |at: &usize| self.replicas[*at].1.newest().unwrap_or(i64::MIN);
                let oldest = (0..self.replicas.len()).min_by_key(last).unwrap_or(0);
                self.replicas.remove(oldest);
            }
            self.replicas.push((replica.into(), Ring::default()));
            self.replicas.len() - 1
        });
        if let Some((_, minutes)) = self.replicas.get_mut(index) {
            minutes.push(minute, *signals, MAX_MINUTES);
        }
    }

    /// How each replica's last five minutes, up to `minute`, differ from those before.
    pub(crate) fn changes(&self, minute: i64) -> Vec<SignalChange> {
        self.changes_from(&self.before(minute - NOW - GAP), minute)
    }

    /// How they differ from `before`; replicas that are not in it cannot be compared.
    pub(crate) fn changes_from(&self, before: &Snapshot, minute: i64) -> Vec<SignalChange> {
        let change = |(name, minutes): &(Arc<str>, Minutes)| {
            let (_, before) = before.0.iter().find(|(known, _)| **known == **name)?;
            let now = between(minutes, minute - NOW, minute);
            let mut starts = starts_ago(minutes, minute);
            let (first_started_ago, last) = (starts.next(), starts.last());
            let started_ago = last.or(first_started_ago);
            let now = (!now.is_empty()).then(|| medians(&now))?;
            Some(SignalChange { before: *before, now, started_ago, first_started_ago })
        };
        self.replicas.iter().filter_map(change).collect()
    }

    /// Since when a signal has been above the middle of before and now, by the minute; `None` where it has hardly risen.
    pub(crate) fn onset(&self, minute: i64, signal: fn(&Signals) -> Option<f64>) -> Option<i64> {
        let of_minute = |at: i64| {
            let values: Vec<f64> = self
                .replicas
                .iter()
                .filter_map(|(_, minutes)| minutes.range(at, at).next().and_then(|(_, s)| signal(s)))
                .collect();
            median(&values)
        };
        let all: Vec<(i64, f64)> =
            (minute - MAX_MINUTES..=minute).filter_map(|at| Some((at, of_minute(at)?))).collect();
        let middle = |part: &[(i64, f64)]| median(&part.iter().map(|(_, value)| *value).collect::<Vec<_>>());
        let now = middle(all.get(all.len().saturating_sub(NOW as usize)..)?)?;
        let before = middle(all.get(..all.len() / 3)?)?;
        if before <= 0.0 || now < UNMOVED * before {
            return None;
        }
        let between = (now * before).sqrt();
        // One quiet minute does not end it.
        let is_up = |pair: &[(i64, f64)]| pair.iter().any(|(_, value)| *value > between);
        let up = all.windows(2).rev().take_while(|pair| is_up(pair)).last()?;
        up.iter().find(|(_, value)| *value > between).map(|(at, _)| *at)
    }

    /// Whether clocks of a replica's GPUs are lowered in the minutes up to `minute`.
    pub(crate) fn gpu_throttled(&self, replica: &str, minute: i64) -> Option<f64> {
        let (_, minutes) = self.replicas.iter().find(|(name, _)| **name == *replica)?;
        medians(&between(minutes, minute - NOW, minute)).gpu_throttled
    }

    /// Share of the minutes up to `minute` in which the gateway itself was late.
    pub(crate) fn gateway_late(&self, minute: i64) -> Option<f64> {
        let mut late = Mean::default();
        for (_, minutes) in &self.replicas {
            between(minutes, minute - NOW, minute).iter().for_each(|signals| late.add(signals.gateway_late));
        }
        late.value()
    }

    /// What was usual up to `minute`, as far as it is remembered.
    pub fn before(&self, minute: i64) -> Snapshot {
        let usual = |(name, minutes): &(Arc<str>, Minutes)| {
            let before = between(minutes, i64::MIN, minute);
            (before.len() >= MIN_MINUTES_BEFORE).then(|| (name.to_string(), medians(&before)))
        };
        Snapshot(self.replicas.iter().filter_map(usual).collect())
    }
}

fn between(minutes: &Minutes, after: i64, until: i64) -> Vec<&Signals> {
    minutes.range(after.saturating_add(1), until).map(|(_, signals)| signals).collect()
}

/// Minutes since each remembered start, the first one first.
fn starts_ago(minutes: &Minutes, minute: i64) -> impl Iterator<Item = i64> {
    let starts =
        minutes.range(minute - MAX_STARTED_AGO + 1, minute).filter(|(_, signals)| signals.has_started);
    starts.map(move |(at, _)| minute - at)
}

fn medians(minutes: &[&Signals]) -> Signals {
    let of = |signal: fn(&Signals) -> Option<f64>| {
        median(&minutes.iter().filter_map(|signals| signal(signals)).collect::<Vec<_>>())
    };
    Signals {
        requests: of(|s| Some(s.requests)).unwrap_or_default(),
        ttft: of(|s| s.ttft),
        engine_ttft: of(|s| s.engine_ttft),
        held: of(|s| s.held),
        connect: of(|s| s.connect),
        queue: of(|s| s.queue),
        prefill: of(|s| s.prefill),
        other: of(|s| s.other),
        prompt: of(|s| s.prompt),
        output: of(|s| s.output),
        itl: of(|s| s.itl),
        hit_rate: of(|s| s.hit_rate),
        waiting: of(|s| s.waiting),
        kv_cache_usage: of(|s| s.kv_cache_usage),
        preemptions: of(|s| s.preemptions),
        batch_limit: of(|s| s.batch_limit),
        gpu_throttled: of(|s| s.gpu_throttled),
        gateway_late: of(|s| s.gateway_late),
        has_started: false,
    }
}

/// Minutes kept: three hours.
const MAX_MINUTES: i64 = 180;
/// Minutes that are now.
const NOW: i64 = 5;
/// Minutes between now and before: what is being diagnosed has begun already.
const GAP: i64 = 5;
const MIN_MINUTES_BEFORE: usize = 5;
/// Minutes for which a start explains cold caches.
const MAX_STARTED_AGO: i64 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn now_is_compared_with_before() {
        let mut history = SignalHistory::default();
        for minute in 0..60 {
            let slow = if minute >= 55 { 2.0 } else { 1.0 };
            let signals = Signals { requests: 10.0, ttft: Some(0.1 * slow), ..Signals::default() };
            history.add(minute, "a", &signals, 2);
        }
        let changes = history.changes(59);
        assert_eq!(&*history.replicas[0].0, "a");
        let ratio = |signal| changes[0].ratio(signal);
        assert_eq!(
            (ratio(|s| s.ttft), ratio(|s| Some(s.requests)), ratio(|s| s.hit_rate)),
            (Some(2.0), Some(1.0), None)
        );
    }

    #[test]
    fn the_onset_is_the_minute_since_which_a_signal_is_up() {
        let onset = |up: &dyn Fn(i64) -> bool| {
            let mut history = SignalHistory::default();
            for minute in 0..120 {
                let ttft = if up(minute) { 0.2 } else { 0.1 + 0.01 * (minute % 3) as f64 };
                for replica in ["a", "b"] {
                    history.add(minute, replica, &Signals { ttft: Some(ttft), ..Signals::default() }, 2);
                }
            }
            history.onset(119, |signals| signals.ttft)
        };
        assert_eq!(onset(&|minute| minute >= 95), Some(95));
        assert_eq!(onset(&|minute| minute >= 95 && minute != 110), Some(95), "but for a minute");
        assert_eq!(onset(&|minute| (40..60).contains(&minute)), None, "over");
    }

    #[test]
    fn replicas_are_bounded() {
        let mut history = SignalHistory::default();
        for minute in 0..50 {
            history.add(minute, &format!("r{minute}"), &Signals::default(), 3);
        }
        assert_eq!(history.replicas.len(), 3);
        assert_eq!(history.changes(49).len(), 0);
    }
}
