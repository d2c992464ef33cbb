//! Every number of the detectors, with its unit and its reason. False alarms and delays at these values: `docs/drift.md`,
//! `benches/drift`.

use crate::diagnosis::table::{DIFFERS, DIFFERS_FROM_USUAL};
use crate::stats::Prior;

/// Burn: more than `least` requests of the long window are bad, over `lasts` seconds, at `rate` times the budget.
#[derive(Clone, Copy, Debug)]
pub(super) struct BurnRow {
    /// Seconds.
    pub(super) long: i64,
    /// Seconds.
    pub(super) short: i64,
    pub(super) rate: f64,
    pub(super) least: u64,
    pub(super) lasts: i64,
}

const fn burn(long: i64, short: i64, rate: f64) -> BurnRow {
    BurnRow { long, short, rate, least: LEAST_BAD, lasts: 0 }
}

/// Availability: the Workbook's pairs.
pub(super) const WORKBOOK: [BurnRow; 3] =
    [burn(3600, 300, 14.4), burn(6 * 3600, 1800, 6.0), burn(3 * 24 * 3600, 6 * 3600, 1.0)];
/// Late first tokens: p99 is over its bound for more than a minute. A few requests a minute need the half hour.
pub(super) const P99: [BurnRow; 2] = [
    BurnRow { least: 5, lasts: 70, ..burn(300, 300, 1.0) },
    BurnRow { least: 5, lasts: 70, ..burn(1800, 1800, 1.0) },
];
/// Share of requests that p99 allows over its bound.
pub(super) const LATE_BUDGET: f64 = 0.01;
/// Bad requests of the short window: one is chance.
pub(super) const LEAST_BAD: u64 = 2;
/// Logarithm of the probability of the count by chance: a year has some 120 independent 3-day windows.
pub(super) const LN_CHANCE: f64 = -10.0;
/// Bad share that always burns, however large the budget.
pub(super) const MOST_BAD_SHARE: f64 = 0.9;
/// Days over which an hour of the day is summed, how many of them must have failures, and times the other hours' share.
pub(super) const WEEK: i64 = 7;
pub(super) const FAILING_DAYS: usize = 2;
pub(super) const FAILING_HOUR: f64 = 3.0;

/// Step: a latency above its baseline. All three bounds must be exceeded: 10 ms instead of 5 ms is a ratio of two that no user
/// notices. Ends at a lower ratio than it begins, so that it does not flap.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepRow {
    /// Latency over baseline.
    pub(super) ratio: f64,
    /// Difference of logarithms over its standard error.
    pub(super) z: f64,
    /// Seconds above the baseline.
    pub(super) delta: f64,
    /// Ratio at which it is over.
    pub(super) clear: f64,
}

impl StepRow {
    /// `excess` and its standard error `noise` are logarithms, `delta` is in seconds.
    pub(super) fn is_exceeded(&self, excess: f64, noise: f64, delta: f64) -> bool {
        excess >= self.ratio.ln() && excess >= self.z * noise && delta >= self.delta
    }
}

/// TTFT of minutes: a true doubling reaches 1.65 in five minutes even at 500 requests an hour.
pub(super) const TTFT_MINUTES: StepRow = StepRow { ratio: 1.65, z: 5.4, delta: 0.025, clear: 1.3 };
/// Tokens come every few milliseconds: a tenth of TTFT's difference is noticeable.
pub(super) const ITL_MINUTES: StepRow = StepRow { delta: 0.0025, ..TTFT_MINUTES };
/// A quarter, for two hours: too small for minutes.
pub(super) const TTFT_HOURS: StepRow = StepRow { ratio: 1.25, z: 5.0, delta: 0.010, clear: 1.12 };
pub(super) const ITL_HOURS: StepRow = StepRow { delta: 0.001, ..TTFT_HOURS };
/// A replica beside its peers, whose load it shares: less noise is left than in a comparison with the past.
pub(super) const REPLICA: StepRow = StepRow { ratio: DIFFERS_FROM_USUAL, z: 4.5, delta: 0.010, clear: 1.15 };
/// While its usual difference from them is unknown.
pub(super) const NEW_REPLICA: StepRow = StepRow { ratio: DIFFERS, ..REPLICA };

/// Seconds of the newest values, and how long they must have been high at least: a burst of a second shows in percentiles.
pub(super) const WINDOW: f64 = 300.0;
pub(super) const LASTS: f64 = 45.0;
/// Values of a window or an hour: fewer say nothing.
pub(super) const FEW: usize = 8;
/// Minutes with requests, and requests, of a sufficient baseline: 100 put the centre within a tenth.
pub(super) const BASELINE_MINUTES: f64 = 30.0;
pub(super) const BASELINE_REQUESTS: f64 = 100.0;
/// A value counts for a doubling and this many spreads: a few very slow requests are a tail.
pub(super) const SPREADS: f64 = 1.1;
/// Noise of an hour's median from hour to hour (logarithm); a day shows a series' own.
pub(super) const HOURLY_NOISE: Prior = Prior { scale: 0.05, weight: 6.0 };
/// Hours between a judged hour and its baseline: a shift must not be part of what it is compared with.
pub(super) const BASELINE_GAP: i64 = 4;
/// A young baseline knows nothing of over twice its load, and a wait that was predicted is no surprise.
pub(super) const KNOWN_LOAD: f64 = 2.0;
/// Share of the requests that must have a prediction before it explains or compares them.
pub(super) const PREDICTED: f64 = 0.8;

/// Requests of a replica's hour: fewer do not place a median.
pub(super) const REPLICA_REQUESTS: u64 = 30;
/// Quarters of an hour in a row in which it must be slow.
pub(super) const SLOW_QUARTERS: u32 = 2;
/// Hours after which its usual difference from its peers is known.
pub(super) const USUAL_HOURS: usize = 6;

/// Score of a drift of TTFT, and of ITL, over days; the rest of its numbers are in `slow`.
pub(super) const SLOW_SCORE: f64 = 3.1;
pub(super) const SLOW_SCORE_ITL: f64 = 3.6;
/// While the series drifts, a lower score names the replicas that do.
pub(super) const SLOW_SCORE_AFFECTED: f64 = 1.0;
