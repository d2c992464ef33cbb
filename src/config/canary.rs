//! `[route.canary]`, as checked.

use std::path::PathBuf;
use std::time::Duration;

use super::Endpoint;
use super::check::values::{POSITIVE_DURATION, SIZE};
use super::declare::section;
use crate::labels::labels;

/// `[route.canary]`: a revision that takes the route over step by step, as long as it is no worse than the others.
#[derive(Clone, Debug, PartialEq)]
pub struct Canary {
    /// Index into [`Config::pools`](super::Config::pools) of the new revision; one of the route's pools.
    pub pool: usize,
    /// Step zero: it gets copies of requests, of whose answers clients see nothing.
    pub shadow: Option<CanaryShadow>,
    /// At least one, with increasing weights.
    pub steps: Vec<CanaryStep>,
    /// Longest time from the first sight of a replica until it is ready.
    pub max_cold_start: Option<Duration>,
    /// Bounds on TTFT, as multiples of the baseline's.
    pub max_ttft_ratio: QuantileRatios,
    /// Bounds on ITL.
    pub max_itl_ratio: QuantileRatios,
    /// Bounds on TPOT.
    pub max_tpot_ratio: QuantileRatios,
    /// By how much the share of failed attempts may be above the baseline's, 0 to 1.
    pub max_error_ratio_increase: f64,
    /// By how much the share of requests within their SLO may be below the baseline's, 0 to 1.
    pub max_goodput_decrease: f64,
    /// Bound on the standing queue per replica, as a multiple of the baseline's.
    pub max_queue_ratio: f64,
    /// Probability that a revision within all bounds is rolled back, over the whole rollout.
    pub false_rollback_rate: f64,
    /// What a breach does.
    pub on_breach: OnBreach,
    /// Answers of the canary without which no step ends.
    pub min_requests: u64,
    /// Where reports of breaches, and ends of rollouts, are posted.
    pub webhook: Option<Endpoint>,
    /// Where the rollout is kept over restarts.
    pub state: Option<PathBuf>,
}

/// One step of a canary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CanaryStep {
    /// The canary's share of the route's requests in percent, 1 to 100.
    pub weight: u32,
    /// How long it keeps it.
    pub soak: Duration,
}

section! {
    /// copies of requests, of whose answers clients see nothing
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct CanaryShadow for "route.canary.shadow", optional {
        /// percent of the baseline's requests that are copied
        weight: u32 as 1..=100, required 5;
        /// how long
        soak: Duration as POSITIVE_DURATION, required "10m";
        /// answered copies without which it does not end
        min_requests: u64 as 0..=1_000_000_000, default 200;
        /// copies under way at a time
        max_concurrent: usize as 1..=10_000, default 32;
        /// of their bodies together
        max_bytes: usize as SIZE, default "32MiB";
    }
}

/// Bounds by quantile; `None` is not judged.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QuantileRatios {
    /// Of the median.
    pub p50: Option<f64>,
    /// Of the 99th percentile.
    pub p99: Option<f64>,
}

labels! {
    /// `route.canary.on_breach`
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum OnBreach {
        /// Traffic goes back, for good.
        Rollback = "rollback",
        /// Traffic goes back until somebody resumes, promotes or rolls back.
        Pause = "pause",
    }
}
