//! Hours of one measure: a summary of each of the last eight days, and the baseline that they make for an hour.
//!
//! Load repeats by the day, so an hour is compared with the same hour of other days as soon as there are two of them;
//! before that with the last 24 that had traffic, and until those are enough a series is compared with itself.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::table::{BASELINE_MINUTES, BASELINE_REQUESTS, FEW, HOUR, HOURLY_NOISE, REPEATED, WEEK};
use crate::diagnosis::table::UNMOVED;
use crate::stats::{Counts, Histogram, Noise, median, robust};

/// One closed hour; logarithms of seconds.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct HourSummary {
    /// Hours since the epoch.
    pub(super) index: i64,
    pub(super) count: u64,
    pub(super) median: f64,
    /// Trimmed mean: from few values a better estimate of the centre than the median.
    pub(super) center: f64,
    pub(super) p90: f64,
    /// Robust standard deviation inside the hour.
    pub(super) spread: f64,
    /// Minutes with requests.
    pub(super) minutes: u32,
}

/// What an hour is compared with; logarithms of seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct HourBaseline {
    /// With its noise from hour to hour.
    pub(super) median: Noise,
    pub(super) center: f64,
    /// The same of the 90th percentile.
    pub(super) p90: Noise,
    pub(super) spread: f64,
    /// Requests in such an hour; 0 where the hour in progress is part of the baseline.
    pub(super) requests_per_hour: f64,
    /// Closed hours that it rests on; 0 where the hour in progress is part of it.
    pub(super) hours: usize,
    /// Minutes of them with requests.
    pub(super) minutes: f64,
    /// Requests in all of them.
    pub(super) requests: f64,
    /// Whether they are the same hours of other days.
    pub(super) is_same_hour: bool,
}

impl HourBaseline {
    /// Whether it can be compared with: a busy minute says nothing of other minutes, and 100 requests put the centre of a
    /// distribution as wide as TTFT's within a tenth.
    pub(super) fn is_sufficient(&self) -> bool {
        self.minutes >= BASELINE_MINUTES && self.requests >= BASELINE_REQUESTS
    }

    /// Requests in a minute that has any.
    pub(super) fn requests_per_minute(&self) -> f64 {
        self.requests / self.minutes.max(1.0)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct HourHistory {
    current: Histogram,
    /// Minutes of the current hour with requests, a bit each.
    minutes: u64,
    index: Option<i64>,
    past: VecDeque<HourSummary>,
}

impl HourHistory {
    /// Takes a value in seconds, `times` times.
    pub(super) fn add(&mut self, at: f64, value: f64, times: u32) {
        self.advance(at);
        self.current.add_seconds_times(value, times);
        // A late value counts for the hour in progress, at the minute it carries.
        self.minutes |= 1 << ((at.rem_euclid(HOUR) / 60.0) as u32).min(59);
    }

    /// Closes the hour in progress once `at` is beyond it.
    pub(super) fn advance(&mut self, at: f64) {
        let index = hour_index(at);
        let before = *self.index.get_or_insert(index);
        if index <= before {
            return;
        }
        self.index = Some(index);
        let hour = summary(before, &self.current.take(), self.minutes);
        self.minutes = 0;
        self.past.extend(hour);
        while self.past.front().is_some_and(|hour| hour.index < index - MAX_HOURS) {
            self.past.pop_front();
        }
    }

    /// Closed hours, oldest first.
    pub(super) fn past(&self) -> impl DoubleEndedIterator<Item = &HourSummary> {
        self.past.iter()
    }

    pub(super) fn last(&self) -> Option<&HourSummary> {
        self.past.back()
    }

    /// Those of a baseline file: none of the future as of `now`, or out of order.
    pub(super) fn restored(closed: &[HourSummary], now: f64) -> Self {
        let mut hours = Self::default();
        for hour in closed.iter().filter(|hour| hour.index < hour_index(now)) {
            let is_next = hours.last().is_none_or(|last| last.index < hour.index);
            if is_next && hours.past.len() <= MAX_HOURS as usize {
                hours.past.push_back(*hour);
                hours.index = Some(hour.index + 1);
            }
        }
        hours
    }

    /// Whether the hours of a whole day were seen, of one or of several.
    pub(super) fn has_a_day(&self) -> bool {
        self.past.len() >= DAY
    }

    /// The baseline of hour `index`, from hours at least `gap` hours before it.
    pub(super) fn baseline(&self, index: i64, gap: i64) -> Option<HourBaseline> {
        let usable = || self.past.iter().filter(move |hour| hour.index <= index - gap);
        let offset = |hour: &HourSummary| (hour.index - index).rem_euclid(24);
        // Its neighbours count as the same hour: three times as many values, and load moves slowly.
        let same: Vec<&HourSummary> = usable().filter(|hour| matches!(offset(hour), 0 | 1 | 23)).collect();
        let exact: Vec<&HourSummary> = same.iter().copied().filter(|hour| offset(hour) == 0).collect();
        if exact.len() >= REPEATED {
            let all = of_hours(&same, true)?;
            // An hour that is slower than its neighbours day after day has a batch of its own.
            let own = of_hours(&exact, true).filter(|own| {
                exact.len() > REPEATED && own.is_sufficient() && own.center >= all.center + UNMOVED.ln()
            });
            return Some(own.unwrap_or(all));
        }
        // Of a route that slept for a week its last day's: those of this night alone know nothing of the day.
        let last_day: Vec<&HourSummary> = usable().rev().take(DAY).collect();
        let closed = of_hours(&last_day, false);
        match closed {
            Some(closed) if closed.is_sufficient() => Some(closed),
            _ => self.of_all(&last_day).or(closed),
        }
    }

    /// Of the hour in progress and those before it: the first on the clock may have been a few minutes long.
    fn of_all(&self, closed: &[&HourSummary]) -> Option<HourBaseline> {
        let current = summary(0, &self.current.counts(), self.minutes)?;
        let all = of_hours(&[closed, &[&current]].concat(), false)?;
        let louder = |noise: Noise| Noise { scale: 2.0 * noise.scale, ..noise };
        Some(HourBaseline {
            median: louder(all.median),
            p90: louder(all.p90),
            requests_per_hour: 0.0,
            hours: 0,
            ..all
        })
    }
}

/// The hour of a moment, in hours since the epoch.
pub(super) fn hour_index(at: f64) -> i64 {
    (at / HOUR).floor() as i64
}

fn of_hours(hours: &[&HourSummary], is_same_hour: bool) -> Option<HourBaseline> {
    if hours.is_empty() {
        return None;
    }
    let all = |pick: fn(&HourSummary) -> f64| hours.iter().map(|hour| pick(hour)).collect::<Vec<_>>();
    Some(HourBaseline {
        median: robust(&all(|hour| hour.median), HOURLY_NOISE),
        center: robust(&all(|hour| hour.center), HOURLY_NOISE).center,
        p90: robust(&all(|hour| hour.p90), HOURLY_NOISE),
        spread: median(&all(|hour| hour.spread))?,
        requests_per_hour: median(&all(|hour| hour.count as f64))?,
        hours: hours.len(),
        minutes: all(|hour| f64::from(hour.minutes)).iter().sum(),
        requests: all(|hour| hour.count as f64).iter().sum(),
        is_same_hour,
    })
}

fn summary(index: i64, values: &Counts, minutes: u64) -> Option<HourSummary> {
    let count = values.count();
    if count < FEW as u64 {
        return None;
    }
    Some(HourSummary {
        index,
        count,
        median: values.ln_quantile(0.5)?,
        center: values.ln_center()?,
        p90: values.ln_quantile(0.9)?,
        spread: values.ln_spread()?,
        minutes: minutes.count_ones(),
    })
}

const DAY: usize = 24;
/// Hours that are kept: those of a week, and the day being judged.
const MAX_HOURS: i64 = (WEEK + 1) * 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_is_compared_with_the_same_hour_of_other_days() {
        let mut hours = HourHistory::default();
        for minute in 0..5 * 24 * 60 {
            let of_day = (minute / 60) % 24;
            let value = if of_day == 14 { 0.3 } else { 0.1 };
            for _ in 0..2 {
                hours.add(f64::from(minute) * 60.0, value, 1);
            }
        }
        let busy = hours.baseline(5 * 24 + 14, 1).unwrap();
        let quiet = hours.baseline(5 * 24 + 4, 1).unwrap();
        assert!((quiet.median.center.exp() - 0.1).abs() < 0.005, "{quiet:?}");
        assert!(
            (busy.median.center.exp() - 0.3).abs() < 0.01,
            "no batch of a single hour is averaged away: {busy:?}"
        );
        assert_eq!((busy.hours, quiet.hours), (5, 3 * 5));
    }

    #[test]
    fn the_morning_of_a_route_that_slept_for_a_week_is_compared_with_its_last_day() {
        let mut hours = HourHistory::default();
        for minute in (0..24 * 60).chain(7 * 24 * 60..(7 * 24 + 9) * 60) {
            let value = if (8..20).contains(&(minute / 60 % 24)) { 0.2 } else { 0.1 };
            (0..2).for_each(|_| hours.add(f64::from(minute) * 60.0, value, 1));
        }
        let baseline = hours.baseline(7 * 24 + 9, 1).unwrap();
        assert!(baseline.hours == 24 && baseline.median.scale > 0.2, "{baseline:?}");
    }

    #[test]
    fn a_first_hour_is_compared_with_itself() {
        let mut hours = HourHistory::default();
        assert_eq!(hours.baseline(0, 1), None);
        for second in 0..60 {
            hours.add(f64::from(second), 0.1, 1);
        }
        let baseline = hours.baseline(0, 1).unwrap();
        assert_eq!(baseline.hours, 0);
        assert!((baseline.median.center.exp() - 0.1).abs() < 0.005);
    }

    #[test]
    fn half_an_hour_is_enough_wherever_the_clock_stands() {
        for start in [0, 10, 31, 40, 59] {
            let mut hours = HourHistory::default();
            for second in (start * 60)..((start + 30) * 60) {
                hours.add(f64::from(second), 0.1, 1);
            }
            let index = hour_index(f64::from((start + 30) * 60 - 1));
            let baseline = hours.baseline(index, 1).unwrap();
            assert!(baseline.is_sufficient(), "from minute {start}: {baseline:?}");
        }
    }
}
