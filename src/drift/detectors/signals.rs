//! What else moved: signals of each replica, minute by minute, now against what they were.
//!
//! [`Signals`] is one plain value that live code and the study fill alike. The book keeps three hours of them for each
//! replica; now is the last minutes, ordinary is the median of those before. Ratios of medians need no units and no
//! thresholds of their own. Does not say what follows from them: that is `diagnose`.

use std::collections::VecDeque;
use std::sync::Arc;

use super::scale::median;

/// One replica in one minute; `None` is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Signals {
    /// Requests that were sent to it.
    pub requests: f64,
    /// Median time to first token, in seconds, as the gateway saw it.
    pub ttft: Option<f64>,
    /// Mean time to first token by the engine's own clock.
    pub engine_ttft: Option<f64>,
    /// Median time to a connection.
    pub connect: Option<f64>,
    /// Median inter-token latency.
    pub itl: Option<f64>,
    /// Its 99th percentile, or the nearest to it that a minute allows.
    pub itl_tail: Option<f64>,
    /// Share of prompt tokens that came from the prefix cache.
    pub hit_rate: Option<f64>,
    /// Requests that wait in the engine.
    pub waiting: Option<f64>,
    /// Requests that it runs.
    pub running: Option<f64>,
    /// Share of the KV cache in use.
    pub kv_cache_usage: Option<f64>,
    /// Sequences that lost their place in the KV cache.
    pub preemptions: Option<f64>,
    /// Requests that it runs at once, at most.
    pub batch_limit: Option<f64>,
    /// Whether it (re)started in this minute.
    pub has_started: bool,
}

/// Three hours of signals of all replicas of a series.
#[derive(Clone, Debug, Default)]
pub(super) struct Book {
    replicas: Vec<(Arc<str>, Past)>,
}

/// Minutes of one replica, by index.
type Past = VecDeque<(i64, Signals)>;

/// How one replica's signals moved. Ratios are of now to before.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Move {
    pub(super) requests: f64,
    pub(super) ttft: Option<f64>,
    pub(super) engine_ttft: Option<f64>,
    pub(super) itl: Option<f64>,
    pub(super) itl_tail: Option<f64>,
    pub(super) hit_rate: Option<f64>,
    pub(super) kv_cache_usage: Option<f64>,
    /// Seconds, now minus before.
    pub(super) connect: Option<f64>,
    /// Requests, now minus before.
    pub(super) waiting: Option<f64>,
    /// A minute, now minus before.
    pub(super) preemptions: Option<f64>,
    pub(super) batch_limit: Option<f64>,
    /// Minutes since it last (re)started, if that is not long ago.
    pub(super) started_ago: Option<i64>,
    /// TTFT now, in seconds, to weigh differences against.
    pub(super) ttft_now: Option<f64>,
    /// How much of the KV cache is in use now.
    pub(super) kv_now: Option<f64>,
}

impl Book {
    /// Takes one minute of one replica.
    pub(super) fn add(&mut self, minute: i64, replica: &str, signals: &Signals, most: usize) {
        let place = self.replicas.iter().position(|(name, _)| **name == *replica);
        let place = place.unwrap_or_else(|| {
            if self.replicas.len() >= most {
                // Replicas come and go: whoever was not heard of for longest makes room.
                let last = |at: &usize| self.replicas[*at].1.back().map_or(i64::MIN, |(minute, _)| *minute);
                let oldest = (0..self.replicas.len()).min_by_key(last).unwrap_or(0);
                self.replicas.remove(oldest);
            }
            self.replicas.push((replica.into(), VecDeque::new()));
            self.replicas.len() - 1
        });
        let Some((_, minutes)) = self.replicas.get_mut(place) else { return };
        minutes.push_back((minute, *signals));
        while minutes.front().is_some_and(|(at, _)| *at <= minute - KEPT) {
            minutes.pop_front();
        }
    }

    /// How each replica moved, by the last five minutes until `minute`.
    pub(super) fn moves(&self, minute: i64) -> Vec<(Arc<str>, Move)> {
        let moved = self.replicas.iter().filter_map(|(name, minutes)| {
            let now: Vec<&Signals> = within(minutes, minute - NOW, minute);
            let before: Vec<&Signals> = within(minutes, minute - KEPT, minute - NOW - APART);
            let is_known = !now.is_empty() && before.len() >= FEWEST;
            is_known.then(|| (Arc::clone(name), compare(&now, &before, started(minutes, minute))))
        });
        moved.collect()
    }
}

fn within(minutes: &Past, after: i64, until: i64) -> Vec<&Signals> {
    minutes.iter().filter(|(at, _)| *at > after && *at <= until).map(|(_, signals)| signals).collect()
}

fn started(minutes: &Past, minute: i64) -> Option<i64> {
    let started = minutes.iter().rev().find(|(at, signals)| *at <= minute && signals.has_started);
    started.map(|(at, _)| minute - at).filter(|ago| *ago < RECENTLY)
}

fn compare(now: &[&Signals], before: &[&Signals], started_ago: Option<i64>) -> Move {
    let of = |minutes: &[&Signals], pick: fn(&Signals) -> Option<f64>| {
        median(&minutes.iter().filter_map(|signals| pick(signals)).collect::<Vec<_>>())
    };
    let ratio = |pick: fn(&Signals) -> Option<f64>| {
        let (now, before) = (of(now, pick)?, of(before, pick)?);
        (before > 0.0).then(|| now / before)
    };
    let difference = |pick: fn(&Signals) -> Option<f64>| Some(of(now, pick)? - of(before, pick)?);
    Move {
        requests: ratio(|s| Some(s.requests)).unwrap_or(1.0),
        ttft: ratio(|s| s.ttft),
        engine_ttft: ratio(|s| s.engine_ttft),
        itl: ratio(|s| s.itl),
        itl_tail: ratio(|s| s.itl_tail),
        hit_rate: ratio(|s| s.hit_rate),
        kv_cache_usage: ratio(|s| s.kv_cache_usage),
        connect: difference(|s| s.connect),
        waiting: difference(|s| s.waiting),
        preemptions: difference(|s| s.preemptions),
        batch_limit: ratio(|s| s.batch_limit),
        started_ago,
        ttft_now: of(now, |s| s.ttft),
        kv_now: of(now, |s| s.kv_cache_usage),
    }
}

/// Minutes kept.
const KEPT: i64 = 180;
/// Minutes that are now.
const NOW: i64 = 5;
/// Minutes between now and before: what is being found has begun already.
const APART: i64 = 5;
const FEWEST: usize = 5;
/// A start in so many minutes explains cold caches.
const RECENTLY: i64 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn now_is_compared_with_before() {
        let mut book = Book::default();
        for minute in 0..60 {
            let slow = if minute >= 55 { 2.0 } else { 1.0 };
            let signals = Signals { requests: 10.0, ttft: Some(0.1 * slow), ..Signals::default() };
            book.add(minute, "a", &signals, 2);
        }
        let moves = book.moves(59);
        let (name, moved) = &moves[0];
        assert_eq!((&**name, moved.ttft, moved.requests, moved.hit_rate), ("a", Some(2.0), 1.0, None));
    }

    #[test]
    fn replicas_are_bounded() {
        let mut book = Book::default();
        for minute in 0..50 {
            book.add(minute, &format!("r{minute}"), &Signals::default(), 3);
        }
        assert_eq!(book.replicas.len(), 3);
        assert_eq!(book.moves(49).len(), 0);
    }
}
