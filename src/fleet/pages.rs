//! What an engine's counters did in the last seconds and minutes, by its pages.
//!
//! Its times to first token are compared with ours as sums over one span, never as means over two: it counts probes and other gateways'
//! requests too, which can only add to its sum.

use std::collections::VecDeque;
use std::time::Duration;

use super::status::{EngineCounters, KvCounters, Way};
use crate::clock::Stamp;
use crate::stats::Mean;

/// Counters of the last five minutes, one page every ten seconds, oldest first.
#[derive(Debug, Default)]
pub(super) struct Pages {
    kept: VecDeque<Page>,
    /// First tokens by the page that was read last: the engine's, and ours.
    last: (Option<Mean>, Mean),
}

#[derive(Clone, Copy, Debug)]
struct Page {
    at: Stamp,
    /// First tokens that this gateway had by then.
    ours: Mean,
    /// First tokens by the page before: what we have from this one on, the engine counted from that one on.
    counted_before: Option<Mean>,
    preemptions: Option<f64>,
    kv: Option<KvCounters>,
}

impl Pages {
    /// Takes note of a page; returns its counters with what they did lately, nothing where they have fallen since, with a restart.
    pub(super) fn read(&mut self, now: EngineCounters, ours: Mean, at: Stamp) -> EngineCounters {
        let (counted_before, ours_before) = std::mem::replace(&mut self.last, (now.ttft, ours));
        let minute = self.kept.get(self.kept.len().saturating_sub(IN_MINUTE)).copied();
        // Those of ours that came while this page was on its way may not be on it.
        let way = now.ttft.and_then(|counted| self.way(counted, ours_before, at));
        if self.kept.back().is_none_or(|last| at.since(last.at) >= KEPT_EVERY) {
            if self.kept.len() >= KEPT {
                self.kept.pop_front();
            }
            let EngineCounters { preemptions, kv, .. } = now;
            self.kept.push_back(Page { at, ours, counted_before, preemptions, kv });
        }
        let Some(minute) = minute else { return EngineCounters { way, ..now } };
        let preempted = now.preemptions.zip(minute.preemptions).map(|(now, before)| now - before);
        let seconds = at.since(minute.at).as_secs_f64();
        let recent_preemptions = preempted.filter(|n| *n >= 0.0 && seconds >= 1.0).map(|n| n / seconds);
        let recent_kv = now.kv.zip(minute.kv).and_then(|(now, before)| now.since(&before));
        EngineCounters { way, recent_preemptions, recent_kv, ..now }
    }

    /// Of the shortest span with enough of ours in which the engine counted as many.
    fn way(&self, counted: Mean, ours: Mean, at: Stamp) -> Option<Way> {
        let spans = self.kept.iter().rev().filter(|page| at.since(page.at) >= KEPT_EVERY);
        spans.filter_map(|page| Some((page.at, ours - page.ours, counted - page.counted_before?))).find_map(
            |(since, ours, counted)| {
                let is_covered = ours.count >= FEW && counted.count >= ours.count && counted.sum >= 0.0;
                is_covered.then(|| Way {
                    span: at.since(since),
                    seen: ours.sum / ours.count,
                    counted: counted.sum / counted.count,
                    in_engine: counted.sum / ours.count,
                })
            },
        )
    }
}

/// Between two pages that are kept, how many are, and how many of them are a minute.
const KEPT_EVERY: Duration = Duration::from_secs(10);
const KEPT: usize = 31;
const IN_MINUTE: usize = 6;
/// First tokens that make a mean.
const FEW: f64 = 3.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::seconds as at;

    /// Reads a page every second in which `ours` requests and three probes have their first tokens; a request takes the engine
    /// `engine` seconds, and until here `seen`.
    #[derive(Default)]
    struct Replica {
        pages: Pages,
        now: u64,
        counted: Mean,
        ours: Mean,
    }

    impl Replica {
        fn run(&mut self, seconds: u64, ours: f64, (engine, seen): (f64, f64)) -> Option<Way> {
            let mut way = None;
            for _ in 0..seconds {
                self.now += 1;
                self.counted.add_times(engine, ours);
                self.counted.add_times(PROBE, 3.0);
                self.ours.add_times(seen, ours);
                let counters = EngineCounters { ttft: Some(self.counted), ..EngineCounters::default() };
                way = self.pages.read(counters, self.ours, at(self.now)).way;
            }
            way
        }
    }

    const PROBE: f64 = 0.01;

    #[test]
    fn a_slow_engine_that_gets_probes_alone_now_is_not_far() {
        let mut replica = Replica::default();
        let way = replica.run(60, 1.0, (2.0, 2.1)).unwrap();
        assert!((way.seen - 2.1).abs() < 1e-9 && way.in_engine >= 2.0, "{way:?}");
        // Routing avoids it: of the minutes with requests the engine counted at least what they took there.
        for _ in 0..200 {
            let way = replica.run(1, 0.0, (2.0, 2.1)).unwrap();
            assert!(way.in_engine >= 2.0 && (way.seen - 2.1).abs() < 1e-9, "{way:?}");
        }
        assert_eq!(replica.run(150, 0.0, (2.0, 2.1)), None, "five minutes later");
    }

    #[test]
    fn what_comes_late_on_a_long_way_the_engine_does_not_have() {
        let mut replica = Replica::default();
        replica.run(60, 1.0, (0.2, 0.21));
        let way = replica.run(25, 1.0, (0.2, 2.2)).unwrap();
        assert!(way.span <= Duration::from_secs(20) && way.in_engine <= 0.3, "{way:?}");
        assert!((way.seen - 2.2).abs() < 1e-9 && way.counted <= way.in_engine, "{way:?}");
        // Few requests are compared over a longer span.
        let way = replica.run(120, 0.0, (0.2, 2.2)).unwrap();
        assert!(way.span >= Duration::from_secs(110) && way.in_engine < 2.0, "{way:?}");
    }

    #[test]
    fn an_engine_that_does_not_count_our_first_tokens_is_compared_with_none() {
        let mut replica = Replica::default();
        replica.run(30, 1.0, (0.2, 0.2));
        // Answers without a first token of the engine's own, as embeddings are.
        replica.ours.add_times(1.0, 1_000.0);
        assert_eq!(replica.run(5, 1.0, (0.2, 0.2)), None);
        // A new process counts from nothing.
        let mut replica = Replica::default();
        replica.run(60, 1.0, (0.2, 0.2));
        replica.counted = Mean::default();
        assert_eq!(replica.run(5, 1.0, (0.2, 0.2)), None, "restarted");
        assert!(replica.run(25, 1.0, (0.2, 0.2)).is_some());
    }

    #[test]
    fn preemptions_are_those_of_the_last_minute() {
        let mut pages = Pages::default();
        let mut read = |seconds, preemptions| {
            let counters = EngineCounters { preemptions: Some(preemptions), ..EngineCounters::default() };
            pages.read(counters, Mean::default(), at(seconds)).recent_preemptions
        };
        assert_eq!(read(0, 7.0), None);
        assert_eq!(read(10, 12.0), Some(0.5));
        (20..200).for_each(|seconds| assert!(read(seconds, 12.0).is_some()));
        assert_eq!(read(200, 12.0), Some(0.0));
        assert_eq!(read(201, 0.0), None, "restarted");
    }
}
