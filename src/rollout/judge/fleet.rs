//! What replicas show beside the requests: cold starts that take too long, and a standing queue. Pure.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::Arm;
use crate::config::Canary;

/// One replica at one moment.
#[derive(Clone, Debug)]
pub struct ReplicaSeen {
    /// Whose it is.
    pub arm: Arm,
    /// Its name.
    pub name: Arc<str>,
    /// It takes requests.
    pub is_ready: bool,
    /// Requests in its engine's queue, where that is known.
    pub waiting: Option<f64>,
}

/// Watches the replicas of both arms.
#[derive(Clone, Debug, Default)]
pub struct FleetWatch {
    /// Since when replicas of the canary are waited for; `None` once one was ready.
    cold: HashMap<Arc<str>, Option<f64>>,
    /// Time and mean queue per replica of both arms.
    queues: VecDeque<(f64, [f64; 2])>,
}

impl FleetWatch {
    /// Goes on where these replicas of the canary were ready before.
    pub fn resumed(warm: impl IntoIterator<Item = String>) -> Self {
        Self { cold: warm.into_iter().map(|name| (name.into(), None)).collect(), ..Self::default() }
    }

    /// Replicas of the canary that were ready once.
    pub fn warm(&self) -> impl Iterator<Item = &str> {
        self.cold.iter().filter(|(_, since)| since.is_none()).map(|(name, _)| &**name)
    }

    /// Takes a look, at `now` (seconds); says what breaks a bound.
    pub fn look(&mut self, now: f64, canary: &Canary, replicas: &[ReplicaSeen]) -> Option<String> {
        self.cold_start(now, canary, replicas).or_else(|| self.queue(now, canary, replicas))
    }

    fn cold_start(&mut self, now: f64, canary: &Canary, replicas: &[ReplicaSeen]) -> Option<String> {
        // A fleet that is not discovered yet has none.
        if !replicas.is_empty() {
            self.cold.retain(|name, _| replicas.iter().any(|replica| replica.name == *name));
        }
        for replica in replicas.iter().filter(|replica| replica.arm == Arm::Canary) {
            let since = self.cold.entry(Arc::clone(&replica.name)).or_insert(Some(now));
            if replica.is_ready {
                *since = None;
            }
            let limit = canary.max_cold_start.map(|limit| limit.as_secs_f64());
            if let (Some(since), Some(limit)) = (*since, limit)
                && now - since > limit
            {
                return Some(format!(
                    "cold_start: replica {} is not ready after {:.0} s, over max_cold_start",
                    replica.name,
                    now - since
                ));
            }
        }
        None
    }

    /// A queue that never became shorter than its bound for a whole window: the minimum tells it from bursts (RFC 8289).
    fn queue(&mut self, now: f64, canary: &Canary, replicas: &[ReplicaSeen]) -> Option<String> {
        let mean = |arm| {
            let known: Vec<f64> =
                replicas.iter().filter(|r| r.arm == arm && r.is_ready).filter_map(|r| r.waiting).collect();
            (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
        };
        let (Some(baseline), Some(of_canary)) = (mean(Arm::Baseline), mean(Arm::Canary)) else {
            self.queues.clear();
            return None;
        };
        self.queues.push_back((now, [baseline, of_canary]));
        while self.queues.front().is_some_and(|(at, _)| now - at > WINDOW) || self.queues.len() > MAX_LOOKS {
            self.queues.pop_front();
        }
        let (first, _) = self.queues.front()?;
        if now - first < WINDOW * 0.9 {
            return None;
        }
        let standing = self.queues.iter().map(|(_, [_, canary])| *canary).fold(f64::INFINITY, f64::min);
        let beside =
            self.queues.iter().map(|(_, [baseline, _])| *baseline).sum::<f64>() / self.queues.len() as f64;
        (standing > canary.max_queue_ratio * beside + MIN_QUEUE).then(|| {
            format!("queue: {standing:.1} requests stand at each replica of the canary, {beside:.1} at the baseline's")
        })
    }
}

/// Seconds over which a queue has to stand.
const WINDOW: f64 = 60.0;
const MAX_LOOKS: usize = 600;
/// Requests per replica that are no queue.
const MIN_QUEUE: f64 = 1.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rollout::fixture;

    fn seen(arm: Arm, is_ready: bool, waiting: f64) -> ReplicaSeen {
        ReplicaSeen { arm, name: format!("{arm:?}").into(), is_ready, waiting: Some(waiting) }
    }

    #[test]
    fn a_cold_start_counts_once_and_only_of_the_canary() {
        let (canary, mut watch) = (fixture::canary("max_cold_start = \"30s\"\n"), FleetWatch::default());
        let cold = [seen(Arm::Baseline, false, 0.0), seen(Arm::Canary, false, 0.0)];
        assert_eq!(watch.look(0.0, &canary, &cold), None);
        assert_eq!(watch.look(29.0, &canary, &cold), None);
        assert!(watch.look(31.0, &canary, &cold).unwrap().starts_with("cold_start: "));
        assert_eq!(watch.look(32.0, &canary, &[seen(Arm::Canary, true, 0.0)]), None);
        let down = [seen(Arm::Canary, false, 0.0)];
        assert_eq!(watch.look(90.0, &canary, &down), None, "it was warm before");
        let mut restarted = FleetWatch::resumed(watch.warm().map(str::to_owned));
        assert_eq!(restarted.look(0.0, &canary, &down), None);
        assert_eq!(restarted.look(90.0, &canary, &down), None, "before the gateway's restart");
    }

    #[test]
    fn a_standing_queue_is_told_from_a_burst_and_from_load_on_both() {
        for (canary_queue, baseline, breaks) in [(9.0, 1.0, true), (9.0, 8.0, false), (2.5, 1.0, false)] {
            let (canary, mut watch) = (fixture::canary("max_cold_start = \"30s\"\n"), FleetWatch::default());
            let found = (0..70).find_map(|t| {
                let both = [seen(Arm::Baseline, true, baseline), seen(Arm::Canary, true, canary_queue)];
                watch.look(f64::from(t), &canary, &both)
            });
            assert_eq!(found.is_some(), breaks, "{canary_queue} {baseline}");
        }
        let (canary, mut watch) = (fixture::canary("max_cold_start = \"30s\"\n"), FleetWatch::default());
        for t in 0..300 {
            let queue = if t % 50 == 0 { 0.0 } else { 20.0 };
            let both = [seen(Arm::Baseline, true, 0.0), seen(Arm::Canary, true, queue)];
            assert_eq!(watch.look(f64::from(t), &canary, &both), None);
        }
    }
}
