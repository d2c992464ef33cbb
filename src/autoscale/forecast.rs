//! The rate of requests that a replica will meet which is asked for now: it comes only when its cold start is over. Pure.
//!
//! What counts is the mean of the last minute, or of the last quarter of it where that is higher beyond chance; plus the trend,
//! as far as it is beyond chance, for the length of a cold start. Falls are never forecast: capacity is kept until load is gone.

use crate::stats::Ring;

/// Requests by time.
#[derive(Clone, Debug, Default)]
pub struct Forecast {
    /// Requests by bucket since it began, the open one last.
    buckets: Ring<f64>,
    /// Seconds.
    began: Option<f64>,
}

/// What is expected, in requests a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Expected {
    /// Of late.
    pub rate: f64,
    /// What it grows by until a replica is there that is asked for now.
    pub growth: f64,
}

impl Forecast {
    /// `arrived` requests came since the last call, until `now` in seconds.
    pub fn note(&mut self, now: f64, arrived: f64) {
        let began = *self.began.get_or_insert(now);
        let bucket = ((now - began) / BUCKET).floor() as i64;
        *self.buckets.at(bucket, MAX_BUCKETS + 1) += arrived;
    }

    /// What comes until `horizon` seconds from now.
    pub fn expected(&self, now: f64, horizon: f64) -> Expected {
        let open = self.buckets.newest().unwrap_or(0);
        // Those that are over, and what there is of the open one.
        let over = |buckets: i64| {
            let first = open - buckets.min(open);
            let count: f64 = self.buckets.range(first, open).map(|(_, count)| count).sum();
            (count, now - self.began.unwrap_or(now) - first as f64 * BUCKET)
        };
        let (count, seconds) = over(MINUTE);
        if seconds < MIN_SECONDS {
            return Expected { rate: count / MIN_SECONDS, growth: 0.0 };
        }
        let (recent, recently) = over(QUARTER);
        // The lower bound of a Poisson count.
        let at_least = (recent - CHANCE * recent.sqrt()) / recently.max(MIN_SECONDS);
        let rate = (count / seconds).max(at_least);
        let slope = TRENDS.iter().map(|buckets| self.slope(*buckets)).fold(0.0, f64::max);
        let growth = slope * horizon.min(MAX_HORIZON);
        Expected { rate, growth: growth.clamp(0.0, rate * MAX_GROWTH) }
    }

    /// Requests a second that each second adds, by least squares over the newest buckets, less what chance makes of it.
    fn slope(&self, window: i64) -> f64 {
        let Some(open) = self.buckets.newest().filter(|open| *open >= window) else { return 0.0 };
        // A bucket in which nothing was noted has no requests.
        let mut rates = vec![0.0; window as usize];
        for (bucket, count) in self.buckets.range(open - window, open - 1) {
            rates[(open - 1 - bucket) as usize] = count / BUCKET;
        }
        let n = rates.len() as f64;
        // The newest is at 0, those before it are negative.
        let at = |bucket: usize| -(bucket as f64) * BUCKET;
        let mean_at = at(0) - BUCKET * (n - 1.0) / 2.0;
        let mean = rates.iter().sum::<f64>() / n;
        let spread: f64 = (0..rates.len()).map(|b| (at(b) - mean_at).powi(2)).sum();
        let slope =
            rates.iter().enumerate().map(|(b, rate)| (at(b) - mean_at) * (rate - mean)).sum::<f64>() / spread;
        let residual = |(b, rate): (usize, &f64)| (rate - mean - slope * (at(b) - mean_at)).powi(2);
        let scatter = rates.iter().enumerate().map(residual).sum::<f64>() / (n - 2.0);
        // Residuals of few requests may be small by chance: never less than Poisson's.
        let error = (scatter.max(mean / BUCKET) / spread).sqrt();
        (slope - CHANCE * error).max(0.0)
    }
}

/// Seconds.
const BUCKET: f64 = 5.0;
/// Buckets.
const MINUTE: i64 = 12;
const QUARTER: i64 = 3;
const MAX_BUCKETS: i64 = 120;
/// Buckets over which a trend is looked for: a steep one shows within a minute, a slow one takes ten to stand out from chance.
const TRENDS: [i64; 3] = [MINUTE, 36, MAX_BUCKETS];
/// Rates are not known sooner.
const MIN_SECONDS: f64 = 5.0;
/// A trend is not trusted for longer.
const MAX_HORIZON: f64 = 600.0;
/// Nor for more than this multiple of the rate.
const MAX_GROWTH: f64 = 0.5;
/// Standard deviations that are taken for chance.
const CHANCE: f64 = 2.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn fed(seconds: u32, rate: impl Fn(f64) -> f64) -> Forecast {
        let mut forecast = Forecast::default();
        (0..=seconds).for_each(|second| forecast.note(f64::from(second), rate(f64::from(second))));
        forecast
    }

    #[test]
    fn a_steady_rate_is_found_and_has_no_trend() {
        let found = fed(600, |_| 10.0).expected(600.0, 120.0);
        assert!((found.rate - 10.0).abs() < 0.5 && found.growth < 0.2, "{found:?}");
        assert_eq!(Forecast::default().expected(3.0, 60.0), Expected::default());
    }

    #[test]
    fn chance_is_no_trend() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut wrong = 0;
        for _ in 0..50 {
            let draws: Vec<f64> =
                (0..=600).map(|_| (0..40).filter(|_| random.f64() < 0.1).count() as f64).collect();
            let forecast = fed(600, |second| draws[second as usize]);
            let found = forecast.expected(600.0, 120.0);
            wrong += usize::from(found.rate + found.growth > 4.0 * 1.35);
        }
        assert!(wrong <= 2, "{wrong} of 50");
    }

    #[test]
    fn a_ramp_is_seen_ahead_and_a_fall_is_not() {
        let up = fed(600, |second| 5.0 + second / 60.0).expected(600.0, 120.0);
        assert!((1.2..2.4).contains(&up.growth), "{up:?}");
        let down = fed(600, |second| 20.0 - second / 60.0).expected(600.0, 120.0);
        assert!(down.growth == 0.0 && down.rate >= 10.0, "{down:?}");
    }

    #[test]
    fn a_jump_counts_within_seconds() {
        let found = fed(610, |second| if second > 600.0 { 40.0 } else { 4.0 }).expected(610.0, 120.0);
        assert!(found.rate > 18.0, "{found:?}");
        assert!(found.growth <= found.rate * MAX_GROWTH);
    }

    #[test]
    fn a_clock_that_stood_still_or_leapt_does_no_harm() {
        let mut forecast = fed(100, |_| 3.0);
        forecast.note(100.0, 5.0);
        forecast.note(1e9, 5.0);
        let found = forecast.expected(1e9, 1e9);
        assert!(
            found.rate.is_finite()
                && found.rate < 1.5
                && forecast.buckets.iter().count() as i64 <= MAX_BUCKETS,
            "{found:?}"
        );
    }
}
