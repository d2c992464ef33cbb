//! Availability: how fast the error budget burns, and hours of the day in which it fails.
//!
//! Burn rates over pairs of windows (Site Reliability Workbook, chapter 5): the long one shows that it matters, the
//! short one that it goes on. A peak hour at 99.1 % hides in a day at 99.9 %, so each hour of the day is also summed over a
//! week. Both need more failures than chance explains.

use serde::{Deserialize, Serialize};

use super::hours::{HOUR, hour_index};
use crate::stats::{Ring, ln_binomial_tail};

/// Requests and failures.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(super) struct Count {
    pub(super) all: u64,
    pub(super) bad: u64,
}

impl Count {
    fn add(&mut self, is_bad: bool) {
        self.all += 1;
        self.bad += u64::from(is_bad);
    }

    /// Share that failed.
    fn share(self) -> f64 {
        self.bad as f64 / self.all.max(1) as f64
    }

    /// Whether more failed than `share`, beyond chance.
    fn exceeds(self, share: f64) -> bool {
        self.share() > share && ln_binomial_tail(self.bad as f64, self.all as f64, share) <= MAX_LN_CHANCE
    }
}

impl std::iter::Sum for Count {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |sum, count| Self { all: sum.all + count.all, bad: sum.bad + count.bad })
    }
}

/// Minutes of the last three days.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct BurnWindows {
    minutes: Ring<Count>,
    /// Whether anything failed since it was last judged.
    #[serde(skip)]
    is_due: bool,
}

/// An error budget that burns too fast.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BudgetBurn {
    /// Burn rate: 1 uses up the budget in 30 days.
    pub(super) rate: f64,
    /// Seconds.
    pub(super) long_window: f64,
    /// Seconds.
    pub(super) short_window: f64,
    /// Requests of the long window.
    pub(super) count: Count,
}

impl BurnWindows {
    /// Without what lies after `now`, in order: it comes from a file.
    pub(super) fn up_to(mut self, now: f64) -> Self {
        self.minutes = self.minutes.up_to(minute_index(now));
        self
    }

    /// Takes one request.
    pub(super) fn add(&mut self, at: f64, is_bad: bool) {
        self.minutes.at(minute_index(at), MAX_MINUTES).add(is_bad);
        self.is_due |= is_bad;
    }

    /// Judges the windows that end now, if anything failed since the last call; `budget` is the share that may fail.
    pub(super) fn judge(&mut self, at: f64, budget: f64) -> Option<BudgetBurn> {
        if !std::mem::take(&mut self.is_due) {
            return None;
        }
        let now = minute_index(at);
        let sum = |length: i64| -> Count {
            let newest = self.minutes.iter().rev().take_while(|(index, _)| now - *index < length);
            newest.map(|(_, count)| *count).sum()
        };
        BURN_ALERTS.into_iter().find_map(|alert| {
            // At 14.4 times a budget of over 7 % more would have to fail than came.
            let share = (alert.rate * budget).min(MAX_BURN_SHARE);
            let short = sum(alert.short_minutes);
            if short.share() <= share || short.bad < MIN_RECENT_FAILURES {
                return None;
            }
            let count = sum(alert.long_minutes);
            count.exceeds(share).then(|| BudgetBurn {
                rate: count.share() / budget,
                long_window: alert.long_minutes as f64 * 60.0,
                short_window: alert.short_minutes as f64 * 60.0,
                count,
            })
        })
    }
}

/// Failures by hour of the day, for each of the last seven days.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct HoursOfDay {
    /// By hour of the day: day and count, oldest first.
    hours: Vec<Ring<Count>>,
}

impl Default for HoursOfDay {
    fn default() -> Self {
        Self { hours: vec![Ring::default(); 24] }
    }
}

/// An hour of the day that fails day after day.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BadHour {
    /// 0 to 23, UTC.
    pub(super) hour: usize,
    pub(super) availability: f64,
    /// Of the other hours of the same days.
    pub(super) elsewhere: f64,
    /// Days with failures in it.
    pub(super) days: usize,
    pub(super) count: Count,
}

impl HoursOfDay {
    /// As [`BurnWindows::up_to`].
    pub(super) fn up_to(mut self, now: f64) -> Self {
        let (today, _) = day_and_hour(now);
        self.hours.resize(24, Ring::default());
        self.hours = self.hours.into_iter().map(|days| days.up_to(today)).collect();
        self
    }

    /// Takes one request.
    pub(super) fn add(&mut self, at: f64, is_bad: bool) {
        let (day, hour) = day_and_hour(at);
        if let Some(days) = self.hours.get_mut(hour) {
            days.at(day, MAX_DAYS).add(is_bad);
        }
    }

    /// Requests in this hour of the day over those of the mean hour.
    pub(super) fn load_ratio(&self, hour: usize) -> f64 {
        let requests = |hour| self.sum(hour, i64::MIN).all as f64;
        requests(hour) * 24.0 / (0..24).map(requests).sum::<f64>().max(1.0)
    }

    /// An hour of the day on the days after `day`.
    fn sum(&self, hour: usize, day: i64) -> Count {
        let days = self.hours.get(hour).into_iter().flat_map(Ring::iter);
        days.filter(|(then, _)| *then > day).map(|(_, count)| *count).sum()
    }

    /// Judges the hour of the day that has just ended.
    pub(super) fn judge(&self, at: f64, budget: f64) -> Option<BadHour> {
        let (day, hour) = day_and_hour(at - HOUR);
        let after = day - MAX_DAYS;
        let here = self.sum(hour, after);
        let others: Count = (0..24).filter(|other| *other != hour).map(|other| self.sum(other, after)).sum();
        let days = self.hours.get(hour)?.iter().filter(|(then, c)| *then > after && c.bad > 0).count();
        let allowed = (MIN_FAILURE_RATIO * others.share()).max(budget);
        (days >= MIN_FAILING_DAYS && others.all > 0 && here.exceeds(allowed)).then(|| BadHour {
            hour,
            availability: 1.0 - here.share(),
            elsewhere: 1.0 - others.share(),
            days,
            count: here,
        })
    }
}

fn minute_index(at: f64) -> i64 {
    (at / 60.0).floor() as i64
}

fn day_and_hour(at: f64) -> (i64, usize) {
    let hours = hour_index(at);
    (hours.div_euclid(24), usize::try_from(hours.rem_euclid(24)).unwrap_or(0))
}

/// A pair of windows and the burn rate that both must exceed.
struct BurnAlert {
    long_minutes: i64,
    short_minutes: i64,
    rate: f64,
}

/// The Workbook's pairs.
const BURN_ALERTS: [BurnAlert; 3] = [
    BurnAlert { long_minutes: 60, short_minutes: 5, rate: 14.4 },
    BurnAlert { long_minutes: 360, short_minutes: 30, rate: 6.0 },
    BurnAlert { long_minutes: MAX_MINUTES, short_minutes: 360, rate: 1.0 },
];
/// Three days.
const MAX_MINUTES: i64 = 3 * 24 * 60;
const MAX_BURN_SHARE: f64 = 0.9;
/// One failure in the short window is chance.
const MIN_RECENT_FAILURES: u64 = 2;
/// Logarithm of the probability of the failures: a year has some 120 independent 3-day windows.
const MAX_LN_CHANCE: f64 = -11.0;
const MAX_DAYS: i64 = 7;
/// One bad day is not an hour of the day.
const MIN_FAILING_DAYS: usize = 2;
/// Failures in an hour of the day over those in the others.
const MIN_FAILURE_RATIO: f64 = 3.0;

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: f64 = 0.001;

    /// A request every ten seconds for `days`; those for which `fails` says so.
    fn run(days: u32, fails: impl Fn(u32, f64) -> bool) -> (Option<BudgetBurn>, Option<BadHour>) {
        let (mut burn, mut hours) = (BurnWindows::default(), HoursOfDay::default());
        let (mut burning, mut bad_hour) = (None, None);
        for request in 0..days * 8640 {
            let at = f64::from(request) * 10.0;
            let is_bad = fails(request, at);
            burn.add(at, is_bad);
            hours.add(at, is_bad);
            if request % 6 == 0 {
                burning = burning.or(burn.judge(at, BUDGET));
            }
            if request % 360 == 0 && request > 0 {
                bad_hour = bad_hour.or(hours.judge(at, BUDGET));
            }
        }
        (burning, bad_hour)
    }

    #[test]
    fn failures_at_the_budget_are_silent() {
        assert_eq!(run(10, |request, _| request % 1000 == 17), (None, None));
    }

    #[test]
    fn an_outage_burns_fast() {
        let (burning, _) = run(2, |_, at| (90_000.0..90_600.0).contains(&at));
        let burning = burning.unwrap();
        assert_eq!((burning.long_window, burning.short_window), (3600.0, 300.0));
        assert!(burning.rate > 14.4, "{burning:?}");
    }

    #[test]
    fn a_trickle_over_the_budget_burns_slowly() {
        let (burning, _) = run(10, |request, _| request % 300 == 17);
        assert_eq!(burning.unwrap().long_window, 3.0 * 86_400.0);
    }

    #[test]
    fn a_peak_hour_that_fails_day_after_day_is_found() {
        let in_peak = |at: f64| (at / 3600.0).floor() as i64 % 24 == 14;
        let (_, bad_hour) = run(7, |request, at| in_peak(at) && request % 100 == 0);
        let bad_hour = bad_hour.unwrap();
        assert_eq!(bad_hour.hour, 14);
        assert!(bad_hour.availability < 0.995 && bad_hour.elsewhere > 0.999, "{bad_hour:?}");
        let (_, once) = run(7, |request, at| at < 90_000.0 && in_peak(at) && request % 50 == 0);
        assert_eq!(once, None, "one bad day is not an hour of the day");
    }
}
