//! One replica against its peers, on the same work.
//!
//! Compared is TTFT over what the prediction expects of this work at the pool's speed: affinity sends one replica the colder
//! prompts, and that is not its fault. Where nothing is predicted, TTFT itself is compared, and only with the replica's own
//! usual difference from the others. What moves all (load, a new revision) cancels. Needs two replicas.

use std::collections::VecDeque;
use std::sync::Arc;

use super::blocks::BlockHistory;
use super::burn::{BadRequests, FINE};
use super::table::{
    HOUR, HOURLY_NOISE, MOST, QUARTERS, REPEATED, REPLICA, REPLICA_REQUESTS, StepRow, USUAL_HOURS, WEEK,
};
use crate::diagnosis::figures::Count;
use crate::diagnosis::table::{DIFFERS, DIFFERS_FROM_USUAL, UNMOVED};
use crate::stats::{Counts, Histogram, MEDIAN_ERROR, Ring, median, robust};

/// What is kept of one replica.
#[derive(Clone, Debug)]
pub(super) struct ReplicaHistory {
    pub(super) name: Arc<str>,
    /// TTFT of the quarter of an hour in progress, and of those of the last hour.
    ttft: Quarters,
    /// The same over its prediction.
    residual: Quarters,
    /// Once an hour: own median and its difference from the others' (logarithms).
    pub(super) usual: VecDeque<(f64, f64)>,
    /// Whether those are of TTFT over its prediction.
    pub(super) is_usual_by_work: bool,
    /// Quarters in a row in which it was slow.
    slow_quarters: usize,
    /// Whether that is a finding, which holds until an hour with enough requests shows it well.
    pub(super) is_slow: bool,
    /// TTFT by days, for a tail that drifts at this replica alone.
    pub(super) blocks: BlockHistory,
    /// Attempts, and those that failed: fine enough to keep them apart from what was well before it began, and by hour for a trickle.
    failed: BadRequests<10>,
    failed_by_hour: BadRequests<3600>,
    /// Requests with a bound on TTFT, and the late ones.
    pub(super) late: BadRequests<10>,
    /// When it served a request last.
    pub(super) last_seen: f64,
}

/// A histogram of the quarter of an hour in progress, and those of the last hour.
#[derive(Clone, Debug, Default)]
struct Quarters {
    current: Histogram,
    past: Ring<Counts>,
}

impl Quarters {
    fn close(&mut self, quarter: i64) {
        let part = self.current.take();
        self.past.push(quarter, part, QUARTERS);
    }

    fn hour(&self) -> Counts {
        Counts::merged(self.past.iter().map(|(_, part)| part))
    }
}

/// A replica that is slower than its peers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SlowReplica {
    pub(super) replica: usize,
    /// Its median of the last hour, in seconds.
    pub(super) now: f64,
    /// Median of the others, in seconds.
    pub(super) others: f64,
    /// How many times slower than usual, compared with the others.
    pub(super) ratio: f64,
    /// Whether the same work was compared.
    pub(super) is_by_work: bool,
}

/// The median of an hour (logarithm).
#[derive(Clone, Copy)]
struct HourMedian {
    ln: f64,
    /// Of the estimate.
    variance: f64,
}

impl ReplicaHistory {
    pub(super) fn new(name: Arc<str>, blocks: BlockHistory) -> Self {
        Self {
            name,
            ttft: Quarters::default(),
            residual: Quarters::default(),
            usual: VecDeque::new(),
            is_usual_by_work: false,
            slow_quarters: 0,
            is_slow: false,
            blocks,
            failed: BadRequests::default(),
            failed_by_hour: BadRequests::default(),
            late: BadRequests::default(),
            last_seen: f64::NEG_INFINITY,
        }
    }

    /// Takes a TTFT, and the ratio to its prediction where that is known.
    pub(super) fn add(&mut self, at: f64, ttft: f64, residual: Option<f64>) {
        self.ttft.current.add_seconds(ttft);
        self.blocks.add(at, ttft);
        if let Some(residual) = residual {
            self.residual.current.add_seconds(residual);
        }
    }

    pub(super) fn attempt(&mut self, at: f64, has_failed: bool) {
        self.failed.add(at, has_failed);
        self.failed_by_hour.add(at, has_failed);
    }

    /// Attempts since `onset`, as of now, by slot: by the hour where that is long ago.
    pub(super) fn failures_since(&self, onset: f64, at: f64) -> Vec<(i64, Count)> {
        if at - onset <= FINE {
            self.failed.since(onset).collect()
        } else {
            self.failed_by_hour.since(onset).collect()
        }
    }

    /// Median of its last day (logarithm).
    pub(super) fn usual_median(&self) -> Option<f64> {
        let day: Vec<&Counts> =
            self.blocks.aged().filter(|(age, _)| *age == 0).map(|(_, part)| part).collect();
        Counts::merged(day).ln_quantile(0.5)
    }

    /// What it is like now is usual.
    pub(super) fn reset(&mut self) {
        self.usual.clear();
        (self.slow_quarters, self.is_slow) = (0, false);
    }

    /// The last hour, where it had enough requests: of the same work, or of TTFT.
    fn last_hour(&self, is_by_work: bool) -> Option<HourMedian> {
        let hour = if is_by_work { self.residual.hour() } else { self.ttft.hour() };
        if hour.count() < REPLICA_REQUESTS {
            return None;
        }
        let error = MEDIAN_ERROR * hour.ln_spread()?;
        Some(HourMedian { ln: hour.ln_quantile(0.5)?, variance: error.powi(2) / hour.count() as f64 })
    }

    /// By how much (logarithm) it is slower than usual compared with the others, where that exceeds the threshold.
    fn excess(&self, own: HourMedian, others: f64) -> Option<f64> {
        let differences: Vec<f64> = self.usual.iter().map(|(_, difference)| *difference).collect();
        let is_known = differences.len() >= USUAL_HOURS;
        if !is_known && !self.is_usual_by_work {
            return None;
        }
        let usual = robust(&differences, HOURLY_NOISE);
        let (center, ratio) = if is_known { (usual.center, REPLICA.ratio) } else { (0.0, DIFFERS) };
        let row = StepRow { ratio, ..REPLICA };
        let excess = own.ln - others - center;
        if self.is_slow {
            return (excess >= row.clear().ln()).then_some(excess);
        }
        // Differences of hours contain the error of their medians; fewer requests than usual add to it, and the others'
        // median is an estimate as well.
        let noise = usual.scale.powi(2).max(2.0 * own.variance).sqrt();
        let now = self.ttft.hour().quantile(0.5)?;
        // Peers that got faster do not make this one slow.
        let medians: Vec<f64> = self.usual.iter().map(|(own, _)| *own).collect();
        let own_rise = median(&medians).filter(|_| is_known).map_or(excess, |before| own.ln - before);
        let is_slow = row.is_exceeded(excess, noise, now - now / excess.exp()) && own_rise >= excess / 2.0;
        is_slow.then_some(excess)
    }

    fn learn(&mut self, own: HourMedian, others: f64) {
        self.usual.push_back((own.ln, own.ln - others));
        self.usual.drain(..self.usual.len().saturating_sub(MAX_USUAL_HOURS));
    }
}

/// Closes a quarter of an hour and judges the hour that ends with it; every replica that is slow now.
pub(super) fn judge(replicas: &mut [ReplicaHistory], quarter: i64) -> Vec<SlowReplica> {
    for replica in replicas.iter_mut() {
        replica.ttft.close(quarter);
        replica.residual.close(quarter);
    }
    let count = |of: fn(&ReplicaHistory) -> u64| replicas.iter().map(of).sum::<u64>() as f64;
    let all = count(|r| r.ttft.hour().count());
    if all == 0.0 {
        return Vec::new();
    }
    let is_by_work = count(|r| r.residual.hour().count()) >= MOST * all;
    for replica in replicas.iter_mut().filter(|replica| replica.is_usual_by_work != is_by_work) {
        replica.reset();
        replica.is_usual_by_work = is_by_work;
    }
    let hours: Vec<Option<HourMedian>> = replicas.iter().map(|r| r.last_hour(is_by_work)).collect();
    let medians: Vec<Option<f64>> = replicas.iter().map(|r| r.ttft.hour().quantile(0.5)).collect();
    let ln_medians: Vec<Option<f64>> = hours.iter().map(|hour| Some(hour.as_ref()?.ln)).collect();
    let mut slow = Vec::new();
    for (index, replica) in replicas.iter_mut().enumerate() {
        let others = of_others(&ln_medians, index);
        let (Some(own), Some(others)) = (hours.get(index).copied().flatten(), others) else {
            replica.slow_quarters = 0;
            continue;
        };
        let excess = replica.excess(own, others);
        replica.slow_quarters = if excess.is_some() { replica.slow_quarters + 1 } else { 0 };
        replica.is_slow &= excess.is_some();
        if let Some(excess) = excess.filter(|_| replica.slow_quarters >= REPEATED) {
            replica.is_slow = true;
            slow.push(SlowReplica {
                replica: index,
                now: medians.get(index).copied().flatten().unwrap_or_default(),
                others: of_others(&medians, index).unwrap_or_default(),
                ratio: excess.exp(),
                is_by_work,
            });
        } else if replica.slow_quarters == 0 && quarter.rem_euclid(QUARTERS) == 0 {
            replica.learn(own, others);
        }
    }
    slow
}

/// 90th percentile of the last hour's TTFT, in seconds, without replicas that are slower than usual only because their prompts
/// take more work; `None` where none is. `usual`: the series' median (logarithm), for replicas without a past of their own.
pub(super) fn tail_without_colder(replicas: &[ReplicaHistory], usual: Option<f64>) -> Option<f64> {
    let over_work: Vec<Option<f64>> = replicas.iter().map(|r| Some(r.last_hour(true)?.ln)).collect();
    let is_colder = |index: usize, replica: &ReplicaHistory| -> Option<bool> {
        let others = of_others(&over_work, index)?;
        let own_rise = replica.last_hour(false)?.ln - replica.usual_median().or(usual)?;
        let over_others = over_work.get(index).copied().flatten()? - others;
        Some(own_rise >= DIFFERS_FROM_USUAL.ln() && over_others < UNMOVED.ln())
    };
    let (colder, rest): (Vec<_>, Vec<_>) =
        replicas.iter().enumerate().partition(|(index, replica)| is_colder(*index, replica) == Some(true));
    let hours: Vec<Counts> = rest.iter().map(|(_, replica)| replica.ttft.hour()).collect();
    Counts::merged(&hours).quantile(0.9).filter(|_| !colder.is_empty())
}

/// Median of the other replicas' figures, as far as they are known.
fn of_others(figures: &[Option<f64>], own: usize) -> Option<f64> {
    let others = figures.iter().enumerate().filter(|(other, _)| *other != own);
    median(&others.filter_map(|(_, figure)| *figure).collect::<Vec<_>>())
}

/// The quarter of an hour of a moment, since the epoch.
pub(super) fn quarter_index(at: f64) -> i64 {
    (at * QUARTERS as f64 / HOUR).floor() as i64
}

/// The newest hours of a week.
const MAX_USUAL_HOURS: usize = WEEK as usize * 24;

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh(count: usize) -> Vec<ReplicaHistory> {
        vec![ReplicaHistory::new("r".into(), BlockHistory::new(86_400.0, 86_400.0)); count]
    }

    /// Four replicas for a day, load doubling everyone's TTFT at noon; from 20:00 on replica 2 has TTFT `longer` times as long,
    /// for work that is `colder` times as much, where anything is predicted.
    fn slow(longer: f64, colder: Option<f64>) -> Vec<usize> {
        let mut random = fastrand::Rng::with_seed(5);
        let mut replicas = fresh(4);
        let mut found = Vec::new();
        for quarter in 0..96_i64 {
            for request in 0..80_u32 {
                let at = quarter as f64 * 900.0 + f64::from(request) * 11.0;
                let load = if quarter < 48 { 1.0 } else { 2.0 };
                for (i, replica) in replicas.iter_mut().enumerate() {
                    let is_it = i == 2 && quarter >= 80;
                    let own = if is_it { longer } else { 1.0 + 0.1 * i as f64 };
                    let ttft = load * own * 0.06 * (0.5 * crate::stats::normal(&mut random)).exp();
                    let work = if is_it { colder } else { colder.map(|_| 1.0) };
                    replica.add(at, ttft, work.map(|work| ttft / (0.06 * load * work)));
                }
            }
            found.extend(judge(&mut replicas, quarter).iter().map(|slow| slow.replica));
        }
        found.dedup();
        found
    }

    #[test]
    fn a_slow_replica_is_found_whatever_the_load_does() {
        assert_eq!(slow(2.0, None), [2]);
        assert_eq!(slow(2.0, Some(1.0)), [2]);
        assert_eq!(slow(1.2, None), [0; 0], "its usual difference is none");
    }

    #[test]
    fn a_replica_with_colder_prompts_is_not_slow() {
        assert_eq!(slow(2.4, Some(2.2)), [0; 0]);
    }

    #[test]
    fn the_tail_of_colder_prompts_is_gone_without_their_replica() {
        let tail = |work: f64, slower: f64| {
            let mut random = fastrand::Rng::with_seed(5);
            let mut replicas = fresh(4);
            for request in 0..300_u32 {
                for (i, replica) in replicas.iter_mut().enumerate() {
                    let (work, slower) = if i == 2 { (work, slower) } else { (1.0, 1.0) };
                    let ttft = 0.06 * work * slower * (0.47 * crate::stats::normal(&mut random)).exp();
                    replica.add(f64::from(request), ttft, Some(ttft / (0.06 * work)));
                }
            }
            judge(&mut replicas, 0);
            tail_without_colder(&replicas, Some(0.06_f64.ln()))
        };
        let usual = 0.06 * (0.47_f64 * 1.28).exp();
        assert!(tail(2.0, 1.0).is_some_and(|tail| (tail / usual).ln().abs() < 0.1), "{:?}", tail(2.0, 1.0));
        assert_eq!(tail(1.0, 2.0), None, "slower than predicted");
        assert_eq!(tail(1.0, 1.0), None, "nothing to explain");
    }

    #[test]
    fn in_its_first_hours_a_replica_is_judged_by_its_work_alone() {
        let found = |residual: Option<f64>| {
            let mut replicas = fresh(3);
            (0..8).any(|quarter| {
                for (i, replica) in replicas.iter_mut().enumerate() {
                    let slow = if i == 1 { 2.5 } else { 1.0 };
                    (0..60).for_each(|n| {
                        let wide = 0.9 + 0.2 * f64::from(n % 2);
                        replica.add(
                            quarter as f64 * 900.0,
                            0.2 * slow * wide,
                            residual.map(|r| wide * slow.powf(r)),
                        );
                    });
                }
                !judge(&mut replicas, quarter).is_empty()
            })
        };
        assert!(!found(None), "the colder prompts of the first hour");
        assert!(!found(Some(0.0)), "as predicted");
        assert!(found(Some(1.0)), "slower than predicted");
    }
}
