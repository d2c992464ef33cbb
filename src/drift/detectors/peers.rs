//! One replica against its peers, concurrently.
//!
//! What moves all replicas (load, prompts, a new revision) cancels in the difference between one replica's median and
//! the median of the others, so that a slow replica is found in an hour without any model of the load. Affinity makes
//! replicas differ for good: each is judged against its own usual difference. Pure; needs at least two replicas.

use std::collections::VecDeque;

use super::blocks::Blocks;
use super::histogram::{Dense, Sparse};
use super::scale::{median, robust};

/// What is kept of one replica.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    quarter: Dense,
    quarters: VecDeque<(i64, Sparse)>,
    /// Own median (logarithm) and its difference from the others, once an hour.
    usual: VecDeque<(f64, f64)>,
    /// For how many quarters of an hour it has been slow.
    slow_for: u32,
    /// Whether that was found.
    is_slow: bool,
    /// Its days, for a tail that drifts at this replica alone.
    pub(super) blocks: Blocks,
    /// Availability of the last hours: requests and failures, halved every hour.
    pub(super) recent: (f64, f64),
}

/// A replica that is slower than its peers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SlowPeer {
    /// Place of the replica.
    pub(super) replica: usize,
    /// Its median of the last hour, in seconds.
    pub(super) now: f64,
    /// Median of the others.
    pub(super) others: f64,
    /// How many times slower than usual, compared with the others.
    pub(super) ratio: f64,
}

impl Peer {
    pub(super) fn new(blocks: Blocks) -> Self {
        Self {
            quarter: Dense::default(),
            quarters: VecDeque::new(),
            usual: VecDeque::new(),
            slow_for: 0,
            is_slow: false,
            blocks,
            recent: (0.0, 0.0),
        }
    }

    /// Takes a TTFT.
    pub(super) fn add(&mut self, at: f64, ttft: f64) {
        self.quarter.add(ttft);
        self.blocks.add(at, ttft);
    }

    /// Its usual median (logarithm), once it has one.
    pub(super) fn usual_median(&self) -> Option<f64> {
        let medians: Vec<f64> = self.usual.iter().map(|(own, _)| *own).collect();
        median(&medians).filter(|_| medians.len() >= KNOWN_AFTER)
    }

    /// Its usual hours, for the baseline file.
    pub(super) fn usual(&self) -> impl Iterator<Item = (f64, f64)> {
        self.usual.iter().copied()
    }

    /// Takes them from there.
    pub(super) fn restore_usual(&mut self, usual: &[(f64, f64)]) {
        self.usual = usual.iter().rev().take(USUAL_HOURS).rev().copied().collect();
    }

    fn close(&mut self, quarter: i64) {
        let part = self.quarter.take();
        self.quarters.push_back((quarter, part));
        while self.quarters.front().is_some_and(|(at, _)| *at <= quarter - QUARTERS) {
            self.quarters.pop_front();
        }
    }

    /// The median of the last hour (logarithm) and its own variance.
    pub(super) fn last_hour(&self) -> Option<(f64, f64)> {
        let mut hour = Dense::default();
        self.quarters.iter().for_each(|(_, part)| hour.merge(part));
        if hour.total() < FEWEST {
            return None;
        }
        let spread = (hour.ln_quantile(0.75)? - hour.ln_quantile(0.25)?) / 1.349;
        Some((hour.ln_quantile(0.5)?, (MEDIAN_LOSS * spread).powi(2) / hour.total() as f64))
    }
}

/// Closes a quarter of an hour and judges the hour that ends with it; every replica that is slow now.
pub(super) fn judge(peers: &mut [Peer], quarter: i64) -> Vec<SlowPeer> {
    peers.iter_mut().for_each(|peer| peer.close(quarter));
    let hours: Vec<Option<(f64, f64)>> = peers.iter().map(Peer::last_hour).collect();
    let mut slow = Vec::new();
    for (at, peer) in peers.iter_mut().enumerate() {
        let others = hours.iter().enumerate().filter(|(other, _)| *other != at);
        let others: Vec<f64> = others.filter_map(|(_, hour)| hour.map(|(median, _)| median)).collect();
        let own = hours.get(at).copied().flatten();
        let (Some((own, variance)), Some(others)) = (own, median(&others)) else {
            peer.slow_for = 0;
            continue;
        };
        let excess = peer.excess((own, others), variance);
        peer.slow_for = if excess.is_some() { peer.slow_for + 1 } else { 0 };
        peer.is_slow &= excess.is_some();
        if let Some(excess) = excess.filter(|_| peer.slow_for >= IN_A_ROW) {
            peer.is_slow = true;
            if peer.slow_for > USUAL_AFTER {
                // After a week it is what this replica is like.
                peer.usual.clear();
            }
            slow.push(SlowPeer { replica: at, now: own.exp(), others: others.exp(), ratio: excess.exp() });
        } else if peer.slow_for == 0 && quarter.rem_euclid(QUARTERS) == 0 {
            peer.usual.push_back((own, own - others));
            if peer.usual.len() > USUAL_HOURS {
                peer.usual.pop_front();
            }
        }
    }
    slow
}

impl Peer {
    /// By how much (logarithm) it is slower than usual against the others, where that is beyond doubt.
    fn excess(&self, medians: (f64, f64), variance: f64) -> Option<f64> {
        let (own, others) = medians;
        let differences: Vec<f64> = self.usual.iter().map(|(_, difference)| *difference).collect();
        let is_known = differences.len() >= KNOWN_AFTER;
        let usual = robust(&differences, (PRIOR_NOISE, PRIOR_HOURS));
        let (center, bar) = if is_known { (usual.center, BAR) } else { (0.0, BAR_UNKNOWN) };
        let excess = own - others - center;
        if self.is_slow {
            // Found already: it takes less to go on than to begin.
            return (excess >= BACK.ln()).then_some(excess);
        }
        // What hours differ by contains the error of their medians already; few requests make it larger, and the
        // others' medians are estimates as well.
        let noise = usual.scale.powi(2).max(2.0 * variance).sqrt();
        // Peers that got faster do not make this one slow.
        let is_felt = own.exp() - (own - excess).exp() >= LEAST;
        let own_rise = self.usual_median().filter(|_| is_known).map_or(excess, |before| own - before);
        (is_felt && excess >= bar.ln() && excess >= SURE * noise && own_rise >= excess / 2.0)
            .then_some(excess)
    }
}

/// Seconds in a quarter of an hour.
pub(super) const QUARTER: f64 = 900.0;
const QUARTERS: i64 = 4;
const FEWEST: u64 = 30;
/// A median's spread against a mean's.
const MEDIAN_LOSS: f64 = 1.25;
const IN_A_ROW: u32 = 2;
const USUAL_HOURS: usize = 7 * 24;
const KNOWN_AFTER: usize = 6;
const BAR: f64 = 1.3;
const BAR_UNKNOWN: f64 = 1.6;
const BACK: f64 = 1.15;
/// Seconds that are worth a word.
const LEAST: f64 = 0.01;
const USUAL_AFTER: u32 = 7 * 96;
const SURE: f64 = 4.5;
const PRIOR_NOISE: f64 = 0.05;
const PRIOR_HOURS: f64 = 6.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// Four replicas for a day, load doubling everyone's TTFT at noon; replica 2 slows by `factor` at 20:00.
    fn slow(factor: f64) -> Vec<usize> {
        let mut random = fastrand::Rng::with_seed(5);
        let mut peers = vec![Peer::new(Blocks::new(86_400.0, 86_400.0)); 4];
        let mut found = Vec::new();
        for quarter in 0..96_i64 {
            for request in 0..80_u32 {
                let at = quarter as f64 * QUARTER + f64::from(request) * 11.0;
                let load = if quarter < 48 { 1.0 } else { 2.0 };
                for (i, peer) in peers.iter_mut().enumerate() {
                    let own = if i == 2 && quarter >= 80 { factor } else { 1.0 + 0.1 * i as f64 };
                    peer.add(at, load * own * 0.06 * (0.5 * super::super::scale::normal(&mut random)).exp());
                }
            }
            found.extend(judge(&mut peers, quarter).iter().map(|slow| slow.replica));
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
