//! One replica against its peers, concurrently.
//!
//! What moves all replicas (load, prompts, a new revision) cancels in the difference between one replica's median and
//! the median of the others, so a slow replica is found within an hour without any model of the load. Affinity makes
//! replicas differ permanently: each is judged against its own usual difference. Needs at least two replicas.

use std::collections::VecDeque;

use super::blocks::BlockHistory;
use super::hours::HOURLY_NOISE;
use super::thresholds::{NEW_REPLICA_SLOW, REPLICA_SLOW};
use crate::stats::{Counts, Histogram, MEDIAN_ERROR, Ring, median, robust};

/// What is kept of one replica.
#[derive(Clone, Debug)]
pub(super) struct ReplicaHistory {
    /// The quarter of an hour in progress, and those of the last hour.
    quarter: Histogram,
    quarters: Ring<Counts>,
    /// Once an hour: own median and its difference from the others' (logarithms).
    usual: VecDeque<(f64, f64)>,
    /// Quarters in a row in which it was slow.
    slow_quarters: u32,
    /// Whether that is a finding.
    is_slow: bool,
    /// TTFT by days, for a tail that drifts at this replica alone.
    pub(super) blocks: BlockHistory,
    /// Requests of the last hours, halved every hour, and those of them that failed.
    pub(super) recent_requests: f64,
    pub(super) recent_failures: f64,
}

/// A replica that is slower than its peers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SlowReplica {
    /// Index of the replica.
    pub(super) replica: usize,
    /// Its median of the last hour, in seconds.
    pub(super) now: f64,
    /// Median of the others, in seconds.
    pub(super) others: f64,
    /// How many times slower than usual, compared with the others.
    pub(super) ratio: f64,
}

/// The median of an hour.
#[derive(Clone, Copy)]
pub(super) struct HourMedian {
    /// Logarithm of seconds.
    pub(super) ln: f64,
    /// Of the estimate.
    variance: f64,
}

impl ReplicaHistory {
    pub(super) fn new(blocks: BlockHistory) -> Self {
        Self {
            quarter: Histogram::default(),
            quarters: Ring::default(),
            usual: VecDeque::new(),
            slow_quarters: 0,
            is_slow: false,
            blocks,
            recent_requests: 0.0,
            recent_failures: 0.0,
        }
    }

    /// Takes a TTFT.
    pub(super) fn add(&mut self, at: f64, ttft: f64) {
        self.quarter.add_seconds(ttft);
        self.blocks.add(at, ttft);
    }

    /// Its usual median (logarithm), once it has one.
    pub(super) fn usual_median(&self) -> Option<f64> {
        let medians: Vec<f64> = self.usual.iter().map(|(own, _)| *own).collect();
        median(&medians).filter(|_| medians.len() >= MIN_USUAL_HOURS)
    }

    /// Its usual hours, for the baseline file.
    pub(super) fn usual(&self) -> impl Iterator<Item = (f64, f64)> {
        self.usual.iter().copied()
    }

    /// What it is like now is usual.
    pub(super) fn reset(&mut self) {
        self.usual.clear();
        (self.slow_quarters, self.is_slow) = (0, false);
    }

    /// Takes them from there.
    pub(super) fn restore_usual(&mut self, usual: &[(f64, f64)]) {
        self.usual = usual.iter().rev().take(MAX_USUAL_HOURS).rev().copied().collect();
    }

    fn close(&mut self, quarter: i64) {
        let part = self.quarter.take();
        self.quarters.push(quarter, part, QUARTERS_PER_HOUR);
    }

    /// The median of the last hour, where it had enough requests.
    pub(super) fn last_hour(&self) -> Option<HourMedian> {
        let hour = Counts::merged(self.quarters.iter().map(|(_, part)| part));
        if hour.count() < MIN_REQUESTS {
            return None;
        }
        let error = MEDIAN_ERROR * hour.ln_spread()?;
        Some(HourMedian { ln: hour.ln_quantile(0.5)?, variance: error.powi(2) / hour.count() as f64 })
    }

    /// By how much (logarithm) it is slower than usual compared with the others, where that exceeds the threshold.
    fn excess(&self, own: HourMedian, others: f64) -> Option<f64> {
        let differences: Vec<f64> = self.usual.iter().map(|(_, difference)| *difference).collect();
        let is_known = differences.len() >= MIN_USUAL_HOURS;
        let usual = robust(&differences, HOURLY_NOISE);
        let (center, threshold) =
            if is_known { (usual.center, &REPLICA_SLOW) } else { (0.0, &NEW_REPLICA_SLOW) };
        let excess = own.ln - others - center;
        if self.is_slow {
            return (excess >= threshold.clear_ratio.ln()).then_some(excess);
        }
        // Differences of hours contain the error of their medians; fewer requests than usual add to it, and the others'
        // median is an estimate as well.
        let noise = usual.scale.powi(2).max(2.0 * own.variance).sqrt();
        let delta = own.ln.exp() - (own.ln - excess).exp();
        // Peers that got faster do not make this one slow.
        let own_rise = self.usual_median().filter(|_| is_known).map_or(excess, |before| own.ln - before);
        (threshold.is_exceeded(excess, noise, delta) && own_rise >= excess / 2.0).then_some(excess)
    }
}

/// Closes a quarter of an hour and judges the hour that ends with it; every replica that is slow now.
pub(super) fn judge(replicas: &mut [ReplicaHistory], quarter: i64) -> Vec<SlowReplica> {
    replicas.iter_mut().for_each(|replica| replica.close(quarter));
    let hours: Vec<Option<HourMedian>> = replicas.iter().map(ReplicaHistory::last_hour).collect();
    let mut slow = Vec::new();
    for (index, replica) in replicas.iter_mut().enumerate() {
        let others = hours.iter().enumerate().filter(|(other, _)| *other != index);
        let others: Vec<f64> = others.filter_map(|(_, hour)| Some((*hour)?.ln)).collect();
        let (Some(own), Some(others)) = (hours.get(index).copied().flatten(), median(&others)) else {
            replica.slow_quarters = 0;
            continue;
        };
        let excess = replica.excess(own, others);
        replica.slow_quarters = if excess.is_some() { replica.slow_quarters + 1 } else { 0 };
        replica.is_slow &= excess.is_some();
        if let Some(excess) = excess.filter(|_| replica.slow_quarters >= MIN_SLOW_QUARTERS) {
            replica.is_slow = true;
            let (now, others) = (own.ln.exp(), others.exp());
            slow.push(SlowReplica { replica: index, now, others, ratio: excess.exp() });
        } else if replica.slow_quarters == 0 && quarter.rem_euclid(QUARTERS_PER_HOUR) == 0 {
            replica.usual.push_back((own.ln, own.ln - others));
            if replica.usual.len() > MAX_USUAL_HOURS {
                replica.usual.pop_front();
            }
        }
    }
    slow
}

/// Seconds in a quarter of an hour.
pub(super) const QUARTER: f64 = 900.0;
const QUARTERS_PER_HOUR: i64 = 4;
/// Requests of an hour that is judged: fewer do not place a median.
const MIN_REQUESTS: u64 = 30;
/// A finding takes two quarters in a row.
const MIN_SLOW_QUARTERS: u32 = 2;
/// A week of usual hours; from six on they are known.
const MAX_USUAL_HOURS: usize = 7 * 24;
const MIN_USUAL_HOURS: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    /// Four replicas for a day, load doubling everyone's TTFT at noon; replica 2 slows by `factor` at 20:00.
    fn slow(factor: f64) -> Vec<usize> {
        let mut random = fastrand::Rng::with_seed(5);
        let mut replicas = vec![ReplicaHistory::new(BlockHistory::new(86_400.0, 86_400.0)); 4];
        let mut found = Vec::new();
        for quarter in 0..96_i64 {
            for request in 0..80_u32 {
                let at = quarter as f64 * QUARTER + f64::from(request) * 11.0;
                let load = if quarter < 48 { 1.0 } else { 2.0 };
                for (i, replica) in replicas.iter_mut().enumerate() {
                    let own = if i == 2 && quarter >= 80 { factor } else { 1.0 + 0.1 * i as f64 };
                    replica.add(at, load * own * 0.06 * (0.5 * crate::stats::normal(&mut random)).exp());
                }
            }
            found.extend(judge(&mut replicas, quarter).iter().map(|slow| slow.replica));
        }
        found.dedup();
        found
    }

    #[test]
    fn a_slow_replica_is_found_whatever_the_load_does() {
        assert_eq!(slow(2.0), [2]);
        assert_eq!(slow(1.2), [0; 0], "its usual difference is none");
    }
}
