//! TTFT at twice its baseline in any five minutes.
//!
//! The trimmed mean of the last one to five minutes against what is ordinary for this hour of the day. A true doubling
//! must be found in five minutes even at 500 requests an hour, where the mean of forty is good to eight percent: so the
//! bar is at 1.65 times, and noise of window and hours must be five times smaller than the difference. Values reach
//! the baseline only when they leave the window. Does not know about replicas.

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
    replica: usize,
}

/// A window that is far above what is ordinary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Surged {
    /// Trimmed mean of the window, in seconds.
    pub(super) now: f64,
    /// The one that is ordinary.
    pub(super) ordinary: f64,
    /// Length of the window in seconds.
    pub(super) window: f64,
    /// Requests in it.
    pub(super) requests: usize,
    /// Hours that the baseline rests on.
    pub(super) baseline_hours: usize,
}

impl Surge {
    /// Takes a TTFT of a replica; what leaves the window goes to `hours`.
    pub(super) fn add(&mut self, at: f64, ttft: f64, replica: usize, hours: &mut Hours) {
        self.advance(at, hours);
        if self.window.len() < MOST {
            self.window.push_back(Value { at, ln: ttft.max(1e-6).ln(), replica });
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

    /// Judges the windows that end now.
    pub(super) fn judge(&mut self, at: f64, hours: &Hours) -> Option<Surged> {
        if self.window.len() < FEWEST {
            return None;
        }
        let ordinary = self.ordinary(at, hours)?;
        let bar = ordinary.center + BAR.ln();
        WINDOWS.into_iter().find_map(|length| {
            // A surge is not the doing of a few: and where it is, nothing needs to be sorted.
            let (over, all) = self
                .since(at - length)
                .fold((0, 0), |(over, all), value| (over + usize::from(value.ln >= bar), all + 1));
            if all < FEWEST || (over as f64) < MANY * all as f64 {
                return None;
            }
            let now = center(self.since(at - length).map(|value| value.ln).collect())?;
            let excess = now - ordinary.center;
            let chance = (TRIMMED_LOSS * ordinary.spread).powi(2) / all as f64;
            let noise = (chance + ordinary.noise.0.powi(2)).sqrt();
            (now >= bar && excess >= SURE * noise).then(|| Surged {
                now: now.exp(),
                ordinary: ordinary.center.exp(),
                window: length,
                requests: all,
                baseline_hours: ordinary.hours,
            })
        })
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
            Some((of, ordinary)) if of == index && ordinary.hours > 0 => Some(ordinary),
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
const WINDOWS: [f64; 4] = [300.0, 180.0, 120.0, 60.0];
const FEWEST: usize = 8;
const FEWEST_OF_REPLICA: usize = 5;
/// Values kept of one window.
const MOST: usize = 2048;
const BAR: f64 = 1.65;
const BACK: f64 = 1.3;
const SURE: f64 = 5.0;
/// Share of the window's requests that must be over the bar themselves.
const MANY: f64 = 0.35;
/// A trimmed mean's spread against a mean's.
const TRIMMED_LOSS: f64 = 1.06;

#[cfg(test)]
mod tests {
    use super::*;

    /// Lognormal TTFT at this many requests an hour that grows after `until`; seconds from there to the finding.
    fn delay(per_hour: f64, until: f64, factor: f64) -> Option<f64> {
        let mut random = fastrand::Rng::with_seed(3);
        let (mut surge, mut hours, mut at, mut tick) = (Surge::default(), Hours::default(), 0.0, 0.0);
        while at < until + 900.0 {
            let ttft = 0.06 * (0.47 * super::super::scale::normal(&mut random)).exp();
            surge.add(at, if at < until { ttft } else { factor * ttft }, 0, &mut hours);
            if at >= tick {
                tick = at + 30.0;
                if surge.judge(at, &hours).is_some() {
                    return Some(at - until);
                }
            }
            at += HOUR / per_hour;
        }
        None
    }

    #[test]
    fn a_doubling_is_found_within_five_minutes_and_half_of_it_is_not() {
        for per_hour in [500.0, 2000.0, 20_000.0] {
            let found = delay(per_hour, 6.0 * HOUR, 2.0).unwrap();
            assert!((0.0..300.0).contains(&found), "{per_hour}: {found}");
            assert_eq!(delay(per_hour, 6.0 * HOUR, 1.3), None, "{per_hour}");
        }
    }

    #[test]
    fn a_young_series_is_compared_with_its_own_first_hour() {
        assert!(delay(2000.0, 1800.0, 2.5).is_some_and(|found| (0.0..300.0).contains(&found)));
    }
}
