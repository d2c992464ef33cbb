//! Requests of the simulated days: arrivals by a rate over time, lengths drawn or from a trace.

use std::time::Duration;

use tokenway::stats::normal;
use tokenway_sim::replay::{Trace, TraceRequest};

/// Poisson arrivals at `rate(second)`, never above `most`, for `seconds`.
pub fn poisson(
    seconds: f64,
    most: f64,
    random: &mut fastrand::Rng,
    rate: impl Fn(f64) -> f64,
) -> Vec<Duration> {
    let (mut at, mut all) = (0.0, Vec::new());
    loop {
        at -= (1.0 - random.f64()).ln() / most;
        if at >= seconds {
            return all;
        }
        if random.f64() * most < rate(at) {
            all.push(Duration::from_secs_f64(at));
        }
    }
}

/// Those arrivals with lengths by `length`.
pub fn requests(arrivals: Vec<Duration>, seconds: f64, mut length: impl FnMut() -> (u64, u64)) -> Trace {
    let request = |at| {
        let (prompt, output) = length();
        TraceRequest { at, prompt, output, blocks: Vec::new() }
    };
    Trace {
        requests: arrivals.into_iter().map(request).collect(),
        duration: Duration::from_secs_f64(seconds),
        grain: Duration::ZERO,
    }
}

/// Lognormal, at least one.
pub fn around(median: f64, sigma: f64, random: &mut fastrand::Rng) -> u64 {
    (median * (sigma * normal(random)).exp()).max(1.0) as u64
}

/// Nearest rank.
pub fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}
