//! Every number of the detectors, with its unit and its reason. False alarms and delays at these values: `docs/drift.md`,
//! `benches/drift`.

use std::time::Duration;

use crate::diagnosis::table::{DIFFERS_FROM_USUAL, MISSES};
use crate::stats::Prior;

/// Seconds in an hour, and the times in one at which replicas are judged.
pub(in crate::drift) const HOUR: f64 = 3600.0;
pub(super) const QUARTERS: i64 = 4;
/// Days after which load repeats.
pub(super) const WEEK: i64 = 7;
/// Seconds between two judgements of the quickest detectors.
pub(super) const TICK: f64 = 30.0;
/// Times that something must be seen, requests, hours or days: once is chance.
pub(super) const REPEATED: usize = 2;
/// Requests beyond a bound that are no chance, and fewer of which say nothing of their share.
pub(super) const LEAST: f64 = MISSES as f64;

/// Burn: `least` requests or more of the long window are bad, over `lasts` seconds, at `rate` times the budget.
#[derive(Clone, Copy, Debug)]
pub(super) struct BurnRow {
    /// Seconds.
    pub(super) long: i64,
    /// Seconds.
    pub(super) short: i64,
    pub(super) rate: f64,
    pub(super) least: f64,
    pub(super) lasts: i64,
}

const fn burn(long: i64, short: i64, rate: f64, least: f64) -> BurnRow {
    BurnRow { long, short, rate, least, lasts: 0 }
}

/// Availability: the Workbook's pairs, and as many failures as `rules.yml` asks for.
pub(super) const WORKBOOK: [BurnRow; 3] = [
    burn(3600, 300, 14.4, LEAST),
    burn(6 * 3600, 1800, 6.0, 2.0 * LEAST),
    burn(3 * 24 * 3600, 6 * 3600, 1.0, 4.0 * LEAST),
];
/// Late first tokens: p99 is over its bound for more than a minute. A few requests a minute need the half hour.
pub(super) const P99: [BurnRow; 2] = [
    BurnRow { lasts: 70, ..burn(300, 300, 1.0, LEAST) },
    BurnRow { lasts: 70, ..burn(1800, 1800, 1.0, LEAST) },
];
/// Share of requests that p99 allows over its bound.
pub(super) const LATE_BUDGET: f64 = 0.01;
/// Logarithm of the probability of the count by chance: a year has some 120 independent 3-day windows.
pub(super) const LN_CHANCE: f64 = -10.0;
/// Share that is as good as all: of bad requests that always burn, however large the budget, and of those that must have a
/// prediction before it explains or compares them.
pub(super) const MOST: f64 = 0.8;
/// Failures of an hour of the day, times the other hours' share.
pub(super) const FAILING_HOUR: f64 = 3.0;

/// Step: a latency above its baseline. All three bounds must be exceeded: 10 ms instead of 5 ms is a ratio of two that no user
/// notices.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepRow {
    /// Latency over baseline.
    pub(super) ratio: f64,
    /// Difference of logarithms over its standard error.
    pub(super) z: f64,
    /// Seconds above the baseline.
    pub(super) delta: f64,
}

impl StepRow {
    /// `excess` and its standard error `noise` are logarithms, `delta` is in seconds.
    pub(super) fn is_exceeded(&self, excess: f64, noise: f64, delta: f64) -> bool {
        excess >= self.ratio.ln() && excess >= self.z * noise && delta >= self.delta
    }

    /// Ratio at which it is over: half of the way back (logarithm), so that it does not flap.
    pub(super) fn clear(&self) -> f64 {
        self.ratio.sqrt()
    }

    /// The same of tokens, which come every few milliseconds: a tenth of TTFT's difference is noticeable.
    pub(super) fn of_tokens(self) -> Self {
        Self { delta: self.delta / 10.0, ..self }
    }
}

/// TTFT of minutes: a true doubling reaches 1.65 in five minutes even at 500 requests an hour.
pub(super) const MINUTES: StepRow = StepRow { ratio: 1.65, z: 5.4, delta: 0.025 };
/// A quarter, for two hours: too small for minutes.
pub(super) const HOURS: StepRow = StepRow { ratio: 1.25, z: 5.0, delta: 0.010 };
/// A replica beside its peers, whose load it shares: less noise is left than in a comparison with the past.
pub(super) const REPLICA: StepRow = StepRow { ratio: DIFFERS_FROM_USUAL, z: 4.5, delta: 0.010 };
/// A tail over days: requests beyond the baseline's bound over those of the baseline, for two days; no user must notice.
pub(super) const TAIL: StepRow = StepRow { ratio: 1.65, z: 3.1, delta: 0.0 };
/// Days of ITL are less alike than those of TTFT.
pub(super) const ITL_TAIL: StepRow = StepRow { z: 3.6, ..TAIL };

/// Seconds of the newest values, and how long they must have been high at least: a burst of a second shows in percentiles.
pub(in crate::drift) const WINDOW: f64 = 300.0;
pub(super) const LASTS: f64 = 45.0;
/// After a finding, in which its cause is looked for: by then all that is of now began with it.
pub(super) const LOOKED_AT: f64 = 2.0 * WINDOW;
/// Values of a window or an hour: fewer say nothing.
pub(super) const FEW: usize = 8;
/// Minutes with requests, and requests, of a sufficient baseline: 100 put the centre within a tenth.
pub(super) const BASELINE_MINUTES: f64 = 30.0;
pub(super) const BASELINE_REQUESTS: f64 = 100.0;
/// Noise of an hour's median from hour to hour (logarithm); a day shows a series' own.
pub(super) const HOURLY_NOISE: Prior = Prior { scale: 0.05, weight: 6.0 };
/// Hours between a judged hour and its baseline: a shift must not be part of what it is compared with.
pub(super) const BASELINE_GAP: i64 = 4;
/// A young baseline knows nothing of over twice its load, and a wait that was predicted is no surprise.
pub(super) const KNOWN_LOAD: f64 = 2.0;

/// Requests of a replica's hour: fewer do not place a median.
pub(super) const REPLICA_REQUESTS: u64 = 30;
/// Hours after which its usual difference from its peers is known.
pub(super) const USUAL_HOURS: usize = 6;

/// Parts of a block: a day is judged every four hours.
pub(super) const PARTS: usize = 6;
/// Days of the shortest window, and of a median: two days are no trend.
pub(super) const MIN_DAYS: usize = 3;
/// Scales that a single day counts for: lower loses a drift that has come far, higher lets bad days in.
pub(super) const MAX_DAY: f64 = 2.3;
/// Quantiles whose exceedances are counted, and exceedances in a block of the baseline that make one usable.
pub(super) const QUANTILES: [f64; 3] = [0.99, 0.95, 0.9];
pub(super) const MIN_IN_BASELINE_BLOCK: f64 = 20.0;
/// Noise of a day's exceedances, and of a day's median (logarithms). It is flat within the noise of an hour.
pub(super) const DAILY_NOISE: Prior = Prior { scale: 0.35, weight: 8.0 };
pub(super) const MEDIAN_NOISE: Prior = Prior { scale: 0.01, weight: 4.0 };

/// Values of the last minutes that are kept, of more requests an even sample: more than enough for a centre.
pub(super) const MAX_VALUES: usize = 2048;
/// Series (route and revision) that are judged; beyond it the one unseen for longest is forgotten, if that is an hour.
pub(super) const MAX_SERIES: usize = 256;
/// Replicas of a series; beyond it the one unseen for longest is forgotten.
pub(super) const MAX_REPLICAS: usize = 64;
/// Findings that are kept: of a series' file (one of each kind and replica), of the last ones, for the collector.
pub(in crate::drift) const MAX_FINDINGS: usize = 128;

/// Ended requests that wait for the detectors, and what is waited for more of them.
pub(in crate::drift) const MAX_QUEUED: usize = 4096;
pub(in crate::drift) const BATCH_EVERY: Duration = Duration::from_millis(50);
/// Between two judgements without a request.
pub(in crate::drift) const IDLE_TICK: Duration = Duration::from_secs(5);
/// For one post to the webhook, and between two: Alertmanager ends what is not repeated.
pub(in crate::drift) const POST_TIMEOUT: Duration = Duration::from_secs(10);
pub(in crate::drift) const REPEAT_EVERY: Duration = Duration::from_secs(60);
