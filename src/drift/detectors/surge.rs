//! TTFT at twice its baseline in any five minutes.
//!
//! The newest values, however many of the last five minutes it takes, against what is ordinary for this hour of the day.
//! A true doubling must be found in five minutes even at 500 requests an hour: so the bar is at 1.65 times, and the noise
//! of values and hours must be several times smaller than the difference. A baseline is believed when it is worth the
//! name: half an hour in which requests came, and a hundred of them. One that knows no such hour of another day says
//! nothing of another load, nor of what was predicted. Values reach the baseline only when they leave the window.

use std::collections::VecDeque;

use super::histogram::TRIMMED;
use super::hours::{HOUR, Hours, Ordinary};
use super::scale::median;

/// The last five minutes of one series, in front of its hours.
#[derive(Clone, Debug, Default)]
pub(super) struct Surge {
    window: VecDeque<Value>,
    /// What is ordinary for the hour that it was last asked for: a comparison of 200 hours is not for every tick.
    ordinary: Option<(i64, Ordinary)>,
}

/// One TTFT, as a logarithm.
#[derive(Clone, Copy, Debug)]
struct Value {
    at: f64,
    ln: f64,
    /// How far it is over its prediction, where it had one.
    residual: Option<f64>,
    replica: usize,
}

/// Who made a value, and what it had been predicted to be.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Source {
    pub(super) replica: usize,
    pub(super) predicted: Option<f64>,
}

/// Values that are far above what is ordinary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Surged {
    /// Where they are, in seconds.
    pub(super) now: f64,
    /// What is ordinary.
    pub(super) ordinary: f64,
    /// How many times over its prediction, where most were predicted.
    pub(super) over_predicted: Option<f64>,
    /// Over how many seconds they came.
    pub(super) window: f64,
    /// How many they are.
    pub(super) requests: usize,
    /// How far they are above, in scales of what values and hours differ by.
    pub(super) score: f64,
    /// Hours that the baseline rests on; 0 is the hour in progress.
    pub(super) baseline_hours: usize,
    /// Requests of the baseline.
    pub(super) baseline_requests: f64,
}

impl Surge {
    /// Takes a TTFT; what leaves the window goes to `hours`.
    pub(super) fn add(&mut self, at: f64, ttft: f64, source: Source, hours: &mut Hours) {
        self.advance(at, hours);
        if self.window.len() < MOST {
            let ln = ttft.max(1e-6).ln();
            let residual = source.predicted.filter(|p| *p > 0.0).map(|predicted| ln - predicted.ln());
            self.window.push_back(Value { at, ln, residual, replica: source.replica });
        } else {
            // More than enough for a median: the rest only teaches.
            hours.add(at, ttft);
        }
    }

    /// Lets time pass.
    pub(super) fn advance(&mut self, at: f64, hours: &mut Hours) {
        while let Some(oldest) = self.window.front().copied().filter(|value| value.at <= at - WINDOW) {
            self.window.pop_front();
            hours.add(oldest.at, oldest.ln.exp());
        }
        // Values of the window belong to hours that are still open.
        hours.advance(at - WINDOW);
    }

    /// Judges the values that end now.
    pub(super) fn judge(&mut self, at: f64, hours: &Hours) -> Option<Surged> {
        if self.window.len() < FEWEST {
            return None;
        }
        let ordinary = self.ordinary(at, hours).filter(Ordinary::is_enough)?;
        let surged = self.strongest(at, &ordinary)?;
        let is_sure = surged.score >= SURE && surged.now - surged.ordinary >= FELT;
        (is_sure && (ordinary.is_daily || self.is_unexplained(&surged, &ordinary))).then_some(surged)
    }

    /// The newest values that are over the bar and furthest above what is ordinary, in scales of noise.
    pub(super) fn strongest(&self, at: f64, ordinary: &Ordinary) -> Option<Surged> {
        // Ever more of the newest ones: how long a surge has lasted is not known beforehand. One value counts for so
        // much at most, so that a few very slow requests are none.
        let most = 2.0_f64.ln() + PULLED_IN * ordinary.spread;
        let (mut over, mut sum, mut squares) = (0, 0.0, 0.0);
        let mut best: Option<(f64, f64, usize)> = None;
        for (index, value) in self.window.iter().rev().enumerate() {
            let excess = (value.ln - ordinary.center).clamp(-most, most);
            over += usize::from(excess >= BAR.ln());
            sum += excess;
            squares += excess * excess;
            let requests = index + 1;
            let count = requests as f64;
            let mean = sum / count;
            let has_lasted = requests >= FEWEST && at - value.at >= SHORTEST;
            if !has_lasted || mean < BAR.ln() || (over as f64) < MANY * count {
                continue;
            }
            // Hours differ in how wide they are, too: what is seen counts, beside what is usual.
            let seen = (squares - count * mean * mean).max(0.0) + USUAL_WEIGHT * ordinary.spread.powi(2);
            let spread = (seen / (USUAL_WEIGHT + count - 1.0)).max(ordinary.spread.powi(2));
            let score = mean / (spread / count + ordinary.noise.0.powi(2)).sqrt();
            if best.is_none_or(|(before, ..)| score > before) {
                best = Some((score, mean, requests));
            }
        }
        let (score, mean, requests) = best?;
        let oldest = self.window.iter().rev().nth(requests - 1)?.at;
        Some(Surged {
            now: (ordinary.center + mean).exp(),
            ordinary: ordinary.center.exp(),
            over_predicted: self.over_predicted(requests),
            window: at - oldest,
            requests,
            score,
            baseline_hours: ordinary.hours,
            baseline_requests: ordinary.requests,
        })
    }

    /// How many times over its prediction the newest requests are, where most were predicted.
    fn over_predicted(&self, requests: usize) -> Option<f64> {
        let residuals: Vec<f64> =
            self.window.iter().rev().take(requests).filter_map(|value| value.residual).collect();
        let is_most = residuals.len() as f64 >= PREDICTED * requests as f64;
        center(residuals).filter(|_| is_most).map(f64::exp)
    }

    /// Whether neither a load that the baseline has not seen nor the prediction explains it. A baseline of the same hour
    /// of other days has seen its load; a young one has seen what came until now, and a load test is no drift.
    fn is_unexplained(&self, surged: &Surged, ordinary: &Ordinary) -> bool {
        let a_minute = self.window.len() as f64 * 60.0 / WINDOW;
        let is_known_load = a_minute <= KNOWN_LOAD * ordinary.requests_a_minute();
        is_known_load && surged.over_predicted.is_none_or(|ratio| ratio >= UNEXPLAINED)
    }

    /// Where the window is, against what is ordinary (a ratio).
    pub(super) fn ratio(&mut self, at: f64, hours: &Hours) -> Option<f64> {
        let inside = center(self.since(at - WINDOW).map(|value| value.ln).collect())?;
        Some((inside - self.ordinary(at, hours)?.center).exp())
    }

    /// Requests an hour in the window, against what is ordinary (a ratio).
    pub(super) fn load_ratio(&mut self, at: f64, hours: &Hours) -> Option<f64> {
        let ordinary = self.ordinary(at, hours)?.count;
        let now = self.since(at - WINDOW).count() as f64 * HOUR / WINDOW;
        (ordinary > 0.0 && self.window.len() < MOST).then(|| now / ordinary)
    }

    /// Whether a surge that was found still goes on: less than what finding it takes, so that it is found once.
    pub(super) fn goes_on(&mut self, at: f64, hours: &Hours) -> bool {
        self.ratio(at, hours).is_some_and(|ratio| ratio >= BACK)
    }

    /// Where the values since `from` are without those of one replica, against what is ordinary (a ratio).
    pub(super) fn ratio_without(&self, replica: usize, from: f64, ordinary: f64) -> Option<f64> {
        let others = self.since(from).filter(|value| value.replica != replica);
        Some((center(others.map(|value| value.ln).collect())? - ordinary).exp())
    }

    /// The median of one replica's values (logarithm), if there are a few.
    pub(super) fn of_replica(&self, replica: usize) -> Option<f64> {
        let own: Vec<f64> = self.window.iter().filter(|v| v.replica == replica).map(|v| v.ln).collect();
        median(&own).filter(|_| own.len() >= FEWEST_OF_REPLICA)
    }

    fn since(&self, from: f64) -> impl Iterator<Item = &Value> {
        self.window.iter().rev().take_while(move |value| value.at > from)
    }

    /// What is ordinary now.
    pub(super) fn ordinary(&mut self, at: f64, hours: &Hours) -> Option<Ordinary> {
        let index = (at / HOUR).floor() as i64;
        match self.ordinary {
            Some((of, ordinary)) if of == index && ordinary.hours > 0 && ordinary.is_enough() => {
                Some(ordinary)
            }
            _ => {
                let ordinary = hours.ordinary(index, 1)?;
                self.ordinary = Some((index, ordinary));
                Some(ordinary)
            }
        }
    }
}

/// Trimmed mean of a few logarithms.
fn center(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let cut = (values.len() as f64 * TRIMMED) as usize;
    let inside = values.get(cut..values.len() - cut).filter(|inside| !inside.is_empty())?;
    Some(inside.iter().sum::<f64>() / inside.len() as f64)
}

const WINDOW: f64 = 300.0;
const FEWEST: usize = 8;
/// Seconds that a surge lasts at least: a burst of a second is for the percentiles.
const SHORTEST: f64 = 45.0;
const FEWEST_OF_REPLICA: usize = 5;
/// Values kept of one window.
const MOST: usize = 2048;
const BAR: f64 = 1.65;
const BACK: f64 = 1.3;
const SURE: f64 = 5.4;
/// Share of the requests that must be over the bar themselves.
const MANY: f64 = 0.35;
/// A value counts for a doubling and so many spreads, at most: heavy tails would be surges otherwise.
const PULLED_IN: f64 = 1.1;
/// How many values the usual spread counts for, beside those that are judged.
const USUAL_WEIGHT: f64 = 8.0;
/// Seconds that a person may feel. Five milliseconds instead of ten are twice as fast, and nobody's concern.
const FELT: f64 = 0.025;
/// Share of requests with a prediction that makes it count.
const PREDICTED: f64 = 0.8;
/// What is closer to its prediction than this is explained by it: by prompts, caches and queues.
const UNEXPLAINED: f64 = 1.3;
/// Times the load that a young baseline has seen.
const KNOWN_LOAD: f64 = 2.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// What happens to a series, minute by minute: seconds of TTFT, requests an hour, and the prediction's share of it.
    type Minute = (f64, f64, Option<f64>);

    /// Lognormal TTFT around what `of` says of each second; when it is found to have surged.
    fn found(of: impl Fn(f64) -> Minute, end: f64) -> Option<(f64, Surged)> {
        let mut random = fastrand::Rng::with_seed(3);
        let (mut surge, mut hours, mut at, mut tick) = (Surge::default(), Hours::default(), 0.0, 0.0);
        while at < end {
            let (ttft, per_hour, share) = of(at);
            let ttft = ttft * (0.47 * super::super::scale::normal(&mut random)).exp();
            let predicted = share.map(|share| share * ttft);
            surge.add(at, ttft, Source { replica: 0, predicted }, &mut hours);
            if at >= tick {
                tick = at + 5.0;
                if let Some(surged) = surge.judge(at, &hours) {
                    return Some((at, surged));
                }
            }
            at += HOUR / per_hour;
        }
        None
    }

    #[test]
    fn a_doubling_is_found_within_five_minutes_and_half_of_it_is_not() {
        for per_hour in [500.0, 2000.0, 20_000.0] {
            let grows = |factor: f64| {
                found(|at| (if at < 6.0 * HOUR { 0.06 } else { factor * 0.06 }, per_hour, None), 6.25 * HOUR)
            };
            let (at, surged) = grows(2.0).unwrap();
            assert!((0.0..300.0).contains(&(at - 6.0 * HOUR)), "{per_hour}: {surged:?}");
            assert_eq!(grows(1.3), None, "{per_hour}");
        }
    }

    #[test]
    fn a_young_series_is_judged_by_a_baseline_worth_the_name() {
        let doubled_at = |minutes: f64, per_hour: f64| {
            let until = minutes * 60.0;
            let found = found(|at| (if at < until { 0.06 } else { 0.15 }, per_hour, None), until + 600.0);
            found.map(|(at, _)| at - until)
        };
        assert!(doubled_at(50.0, 2000.0).is_some_and(|after| (0.0..300.0).contains(&after)));
        assert_eq!(doubled_at(20.0, 2000.0), None, "twenty minutes");
        assert_eq!(doubled_at(50.0, 60.0), None, "fifty requests");
    }

    #[test]
    fn a_load_test_on_a_young_gateway_is_no_surge() {
        let begins = 0.8 * HOUR;
        let run = |before: Minute, after: Minute| {
            found(|at| if at < begins { before } else { after }, begins + 1200.0).is_some()
        };
        assert!(!run((0.005, 600.0, None), (0.012, 600.0, None)), "nobody feels it");
        assert!(!run((0.02, 300.0, None), (0.08, 20_000.0, None)), "a load that was never seen");
        assert!(run((0.02, 300.0, None), (0.08, 300.0, None)), "the same load");
        assert!(!run((0.02, 300.0, Some(1.0)), (0.08, 300.0, Some(0.9))), "as predicted");
        assert!(run((0.02, 300.0, Some(1.0)), (0.08, 300.0, Some(0.4))), "not as predicted");
    }

    #[test]
    fn an_hour_that_other_days_know_is_judged_whatever_the_load() {
        let begins = 51.5 * HOUR;
        let of = |at: f64| if at < begins { (0.06, 300.0, Some(1.0)) } else { (0.15, 900.0, Some(1.0)) };
        assert!(found(of, begins + 300.0).is_some_and(|(_, surged)| surged.baseline_hours > 0));
    }
}
