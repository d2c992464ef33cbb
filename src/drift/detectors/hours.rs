//! What an ordinary hour of one measure looks like: median and 90th percentile of each hour of the last eight days.
//!
//! Load repeats by the day, so an hour is compared with the same hour of other days as soon as there are two of them;
//! before that with the last day's hours, and in its first hour a series is compared with itself. Each comparison
//! says how many hours it rests on. Does not judge.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::histogram::Dense;
use super::scale::{median, robust};

/// One closed hour; logarithms of seconds.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Hour {
    /// Hours since the epoch.
    pub(super) index: i64,
    pub(super) count: u64,
    pub(super) median: f64,
    /// Trimmed mean: a better estimate of where the hour is than its median, from few values.
    pub(super) center: f64,
    pub(super) p90: f64,
    /// Robust standard deviation inside the hour.
    pub(super) spread: f64,
    /// Minutes of it in which something came.
    #[serde(default = "whole_hour")]
    pub(super) minutes: u32,
}

/// What is ordinary for an hour.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ordinary {
    pub(super) median: f64,
    pub(super) center: f64,
    pub(super) p90: f64,
    pub(super) spread: f64,
    /// Noise of the median, and of the 90th percentile, from hour to hour.
    pub(super) noise: (f64, f64),
    /// Values in such an hour.
    pub(super) count: f64,
    /// Hours that this rests on; 0 where it is the hour in progress.
    pub(super) hours: usize,
    /// Minutes of them in which something came, and how much in all.
    pub(super) minutes: f64,
    pub(super) requests: f64,
    /// Whether they are the same hours of other days.
    pub(super) is_daily: bool,
}

impl Ordinary {
    /// Whether it is a baseline worth the name. A busy minute says nothing of other minutes, and an hour's handful of
    /// requests nothing of its tail.
    pub(super) fn is_enough(&self) -> bool {
        self.minutes >= FEWEST_MINUTES && self.requests >= FEWEST_REQUESTS
    }

    /// How many came in a minute in which something came.
    pub(super) fn requests_a_minute(&self) -> f64 {
        self.requests / self.minutes.max(1.0)
    }
}

/// Hours of one measure.
#[derive(Clone, Debug, Default)]
pub(super) struct Hours {
    current: Dense,
    /// Minutes of the current hour in which something came, a bit each.
    minutes: u64,
    index: Option<i64>,
    past: VecDeque<Hour>,
}

impl Hours {
    /// Takes one value; true when an hour was closed by it.
    pub(super) fn add(&mut self, at: f64, value: f64) -> bool {
        let is_closed = self.advance(at);
        self.current.add(value);
        // What is late counts for the hour in progress; any minute of it will do.
        self.minutes |= 1 << ((at.rem_euclid(HOUR) / 60.0) as u32).min(59);
        is_closed
    }

    /// Lets time pass; true when an hour was closed.
    pub(super) fn advance(&mut self, at: f64) -> bool {
        let index = (at / HOUR).floor() as i64;
        let before = *self.index.get_or_insert(index);
        if index <= before {
            return false;
        }
        self.index = Some(index);
        let hour = summary(before, &self.current, self.minutes);
        self.current.take();
        self.minutes = 0;
        self.past.extend(hour);
        while self.past.front().is_some_and(|hour| hour.index < index - KEPT) {
            self.past.pop_front();
        }
        true
    }

    /// Closed hours, oldest first.
    pub(super) fn past(&self) -> impl Iterator<Item = &Hour> {
        self.past.iter()
    }

    /// Takes a closed hour of a baseline file; hours come in order.
    pub(super) fn restore(&mut self, hour: Hour) {
        let is_next = self.past.back().is_none_or(|last| last.index < hour.index);
        if is_next && self.past.len() <= KEPT as usize {
            self.past.push_back(hour);
            self.index = Some(hour.index + 1);
        }
    }

    /// The last closed hours, newest first.
    pub(super) fn latest(&self) -> impl Iterator<Item = &Hour> {
        self.past.iter().rev()
    }

    /// Whether a whole day was seen.
    pub(super) fn has_a_day(&self) -> bool {
        let first = self.past.front().map(|hour| hour.index);
        first.zip(self.index).is_some_and(|(first, now)| now - first >= 24)
    }

    /// What is ordinary for hour `index`, by hours that ended at least `apart` hours before it.
    pub(super) fn ordinary(&self, index: i64, apart: i64) -> Option<Ordinary> {
        let usable = || self.past.iter().filter(move |hour| hour.index <= index - apart);
        let is_same = |hour: &&Hour| {
            let of_day = (hour.index - index).rem_euclid(24);
            of_day <= 1 || of_day == 23
        };
        let same: Vec<&Hour> = usable().filter(is_same).collect();
        let days = same.iter().filter(|hour| (hour.index - index).rem_euclid(24) == 0).count();
        if days >= 2 {
            return of_hours(&same, true);
        }
        let last: Vec<&Hour> = usable().filter(|hour| hour.index >= index - 24).collect();
        // The first hour on the clock may have been a few minutes long.
        let closed = of_hours(&last, false);
        match closed {
            Some(closed) if closed.is_enough() => Some(closed),
            _ => self.of_this_hour().or(closed),
        }
    }

    /// The hour in progress: the best there is in a series' first hour.
    fn of_this_hour(&self) -> Option<Ordinary> {
        let hour = summary(0, &self.current, self.minutes).filter(|hour| hour.count >= ENOUGH)?;
        Some(Ordinary {
            median: hour.median,
            center: hour.center,
            p90: hour.p90,
            spread: hour.spread,
            noise: (2.0 * PRIOR_NOISE, 2.0 * PRIOR_NOISE),
            // A part of an hour says nothing of an hour's load.
            count: 0.0,
            hours: 0,
            minutes: f64::from(hour.minutes),
            requests: hour.count as f64,
            is_daily: false,
        })
    }
}

fn of_hours(hours: &[&Hour], is_daily: bool) -> Option<Ordinary> {
    if hours.is_empty() {
        return None;
    }
    let all = |pick: fn(&Hour) -> f64| hours.iter().map(|hour| pick(hour)).collect::<Vec<_>>();
    let medians = robust(&all(|hour| hour.median), (PRIOR_NOISE, PRIOR_HOURS));
    let p90s = robust(&all(|hour| hour.p90), (PRIOR_NOISE, PRIOR_HOURS));
    Some(Ordinary {
        median: medians.center,
        center: robust(&all(|hour| hour.center), (PRIOR_NOISE, PRIOR_HOURS)).center,
        p90: p90s.center,
        spread: median(&all(|hour| hour.spread))?,
        noise: (medians.scale, p90s.scale),
        count: median(&all(|hour| hour.count as f64))?,
        hours: hours.len(),
        minutes: all(|hour| f64::from(hour.minutes)).iter().sum(),
        requests: all(|hour| hour.count as f64).iter().sum(),
        is_daily,
    })
}

/// What a file that says nothing of minutes is taken for.
fn whole_hour() -> u32 {
    60
}

fn summary(index: i64, values: &Dense, minutes: u64) -> Option<Hour> {
    let count = values.total();
    let quantile = |q| values.ln_quantile(q).filter(|_| count >= FEWEST);
    let spread = (quantile(0.75)? - quantile(0.25)?) / 1.349;
    let center = values.ln_center()?;
    let (median, p90) = (quantile(0.5)?, quantile(0.9)?);
    Some(Hour { index, count, median, center, p90, spread, minutes: minutes.count_ones() })
}

/// Seconds in an hour.
pub(super) const HOUR: f64 = 3600.0;
/// Hours kept: eight days.
const KEPT: i64 = 8 * 24;
/// Values without which an hour says nothing.
const FEWEST: u64 = 8;
const ENOUGH: u64 = 50;
/// Minutes with requests, and requests, without which a baseline is none.
const FEWEST_MINUTES: f64 = 30.0;
const FEWEST_REQUESTS: f64 = 100.0;
/// Hour-to-hour noise that is ordinary until a series has shown its own, and for how many hours that counts.
const PRIOR_NOISE: f64 = 0.05;
const PRIOR_HOURS: f64 = 6.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_is_compared_with_the_same_hour_of_other_days() {
        let mut hours = Hours::default();
        for minute in 0..5 * 24 * 60 {
            let of_day = (minute / 60) % 24;
            let value = if of_day == 14 { 0.3 } else { 0.1 };
            for _ in 0..2 {
                hours.add(f64::from(minute) * 60.0, value);
            }
        }
        let busy = hours.ordinary(5 * 24 + 14, 1).unwrap();
        let quiet = hours.ordinary(5 * 24 + 4, 1).unwrap();
        assert!((quiet.median.exp() - 0.1).abs() < 0.005, "{quiet:?}");
        assert!(busy.median > quiet.median && busy.hours == 3 * 5, "{busy:?}");
    }

    #[test]
    fn a_first_hour_is_compared_with_itself() {
        let mut hours = Hours::default();
        assert_eq!(hours.ordinary(0, 1), None);
        for second in 0..60 {
            hours.add(f64::from(second), 0.1);
        }
        let ordinary = hours.ordinary(0, 1).unwrap();
        assert_eq!(ordinary.hours, 0);
        assert!((ordinary.median.exp() - 0.1).abs() < 0.005);
    }
}
