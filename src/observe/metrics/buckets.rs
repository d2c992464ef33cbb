//! Histogram edges: fixed ones and the configured SLO bounds.
//!
//! With its bound as an edge, the share of requests within an SLO is exact. Edges are set at start: a reload changes
//! verdicts at once but not edges, because Prometheus cannot use a histogram whose buckets move.

use std::time::Duration;

use crate::config::Config;

/// Bucket edges in seconds (`ratio`: no unit), ascending and distinct.
#[cfg_attr(test, derive(Default))]
pub(super) struct Edges {
    /// TTFT and time to first byte.
    pub(super) ttft: Vec<f64>,
    /// ICL, ITL and TPOT.
    pub(super) token: Vec<f64>,
    /// Duration of whole requests.
    pub(super) duration: Vec<f64>,
    /// Gateway overhead, from read to routed.
    pub(super) overhead: Vec<f64>,
    /// Every stage, from 100 µs to minutes, and the routes' budgets.
    pub(super) stage: Vec<f64>,
    /// Actual TTFT over predicted.
    pub(super) ratio: Vec<f64>,
    /// From discovery to the end of warm-up.
    pub(super) cold_start: Vec<f64>,
}

impl Edges {
    pub(super) fn new(config: &Config) -> Self {
        let bounds = |pick: fn(&crate::config::Slo) -> Option<Duration>| config.slo.values().filter_map(pick);
        let itl = config.slo.values().flat_map(|slo| slo.itl.iter().map(|(_, bound)| bound));
        let budgets = config.routes.iter().filter_map(|route| route.stage_budget.as_ref());
        let budgets = budgets.flat_map(|budget| budget.shares().map(|(_, share)| share));
        Self {
            ttft: with_bounds(TTFT, bounds(|slo| slo.ttft.map(|bound| bound.base))),
            token: with_bounds(TOKEN, bounds(|slo| slo.tpot).chain(itl)),
            duration: with_bounds(DURATION, bounds(|slo| slo.e2e)),
            overhead: OVERHEAD.to_vec(),
            stage: with_bounds(STAGE, budgets),
            ratio: RATIO.to_vec(),
            cold_start: COLD_START.to_vec(),
        }
    }
}

fn with_bounds(fixed: &[f64], bounds: impl Iterator<Item = Duration>) -> Vec<f64> {
    let mut edges: Vec<f64> = fixed.iter().copied().chain(bounds.map(|b| b.as_secs_f64())).collect();
    edges.retain(|edge| *edge > 0.0);
    edges.sort_by(f64::total_cmp);
    edges.dedup_by(|a, b| (*a - *b).abs() < 1e-9);
    edges
}

const TTFT: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0,
    15.0, 30.0, 60.0, 120.0,
];
const TOKEN: &[f64] =
    &[0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
const OVERHEAD: &[f64] = &[0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05];
const DURATION: &[f64] = &[
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 120.0,
    300.0, 600.0,
];
const STAGE: &[f64] = &[
    0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5,
    0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
];
const RATIO: &[f64] = &[0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0];

/// Of cold starts: a process that was there already, a model in memory, one that is downloaded.
const COLD_START: &[f64] =
    &[0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 1200.0, 1800.0];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_become_edges_once_and_in_order() {
        let edges = with_bounds(
            &[0.1, 0.5, 1.0],
            [Duration::from_millis(300), Duration::from_millis(500), Duration::ZERO].into_iter(),
        );
        assert_eq!(edges, [0.1, 0.3, 0.5, 1.0]);
    }
}
