//! Availability: how fast the error budget burns, and hours of the day in which it fails.
//!
//! Burn rates over pairs of windows (Site Reliability Workbook, chapter 5): the long one says that it matters, the
//! short one that it still goes on. A peak hour at 99.1 % hides in a day at 99.9 %: every hour of the day is therefore
//! also summed over a week. Both ask for more failures than chance explains. Counts by minute; nothing is kept of
//! single requests.

use std::collections::VecDeque;

use super::scale::ln_binomial_tail;

/// Requests and failures.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Count {
    pub(super) all: u64,
    pub(super) bad: u64,
}

impl Count {
    fn add(&mut self, is_bad: bool) {
        self.all += 1;
        self.bad += u64::from(is_bad);
    }

    fn share(self) -> f64 {
        self.bad as f64 / self.all.max(1) as f64
    }

    fn is_beyond(self, share: f64, sure: f64) -> bool {
        self.share() > share && ln_binomial_tail(self.bad as f64, self.all as f64, share) <= sure
    }
}

/// Minutes of the last three days.
#[derive(Clone, Debug, Default)]
pub(super) struct Burn {
    minutes: VecDeque<(i64, Count)>,
    /// Whether anything failed since it was last judged.
    is_due: bool,
}

/// A budget that burns too fast.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Burning {
    /// Times the rate that would use up the budget in 30 days.
    pub(super) rate: f64,
    /// Length of the long and the short window, in seconds.
    pub(super) windows: (f64, f64),
    /// The long window.
    pub(super) count: Count,
}

impl Burn {
    /// Takes one request.
    pub(super) fn add(&mut self, at: f64, is_bad: bool) {
        let index = minute(at);
        if self.minutes.back().is_none_or(|(last, _)| *last < index) {
            self.minutes.push_back((index, Count::default()));
            while self.minutes.front().is_some_and(|(first, _)| *first <= index - LONGEST) {
                self.minutes.pop_front();
            }
        }
        if let Some((_, count)) = self.minutes.back_mut() {
            count.add(is_bad);
        }
        self.is_due |= is_bad;
    }

    /// Judges the windows that end now, if anything failed since it was last asked; `budget` is the share of requests that may fail.
    pub(super) fn judge(&mut self, at: f64, budget: f64) -> Option<Burning> {
        if !std::mem::take(&mut self.is_due) {
            return None;
        }
        // One walk from the newest minute back answers all windows; most series have nothing to walk for.
        let now = minute(at);
        let mut sums = [Count::default(); LENGTHS.len()];
        for (index, count) in self.minutes.iter().rev() {
            for (sum, length) in sums.iter_mut().zip(LENGTHS) {
                if now - index < length {
                    sum.all += count.all;
                    sum.bad += count.bad;
                }
            }
        }
        PAIRS.into_iter().find_map(|(long, short, rate)| {
            let share = (rate * budget).min(0.9);
            let (long_sum, short_sum) = (sums[long], sums[short]);
            let burns = long_sum.is_beyond(share, SURE) && short_sum.share() > share && short_sum.bad >= 2;
            let seconds = |at: usize| LENGTHS[at] as f64 * 60.0;
            burns.then(|| Burning {
                rate: long_sum.share() / budget,
                windows: (seconds(long), seconds(short)),
                count: long_sum,
            })
        })
    }
}

/// Failures by hour of the day, for each of the last seven days.
#[derive(Clone, Debug)]
pub(super) struct HoursOfDay {
    /// By hour of the day: day and count, oldest first.
    hours: Vec<VecDeque<(i64, Count)>>,
}

impl Default for HoursOfDay {
    fn default() -> Self {
        Self { hours: vec![VecDeque::new(); 24] }
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
    /// Days in which it failed.
    pub(super) days: usize,
    pub(super) count: Count,
}

impl HoursOfDay {
    /// Takes one request.
    pub(super) fn add(&mut self, at: f64, is_bad: bool) {
        let (day, hour) = day_and_hour(at);
        let Some(days) = self.hours.get_mut(hour) else { return };
        if days.back().is_none_or(|(last, _)| *last < day) {
            days.push_back((day, Count::default()));
            while days.front().is_some_and(|(first, _)| *first <= day - DAYS) {
                days.pop_front();
            }
        }
        if let Some((_, count)) = days.back_mut() {
            count.add(is_bad);
        }
    }

    /// Requests in this hour of the day, against the mean hour.
    pub(super) fn load_ratio(&self, hour: usize) -> f64 {
        let count =
            |days: &VecDeque<(i64, Count)>| days.iter().map(|(_, count)| count.all).sum::<u64>() as f64;
        let all: f64 = self.hours.iter().map(count).sum();
        self.hours.get(hour).map_or(0.0, count) * 24.0 / all.max(1.0)
    }

    /// Judges the hour of the day that has just ended.
    pub(super) fn judge(&self, at: f64, budget: f64) -> Option<BadHour> {
        let (day, hour) = day_and_hour(at - super::hours::HOUR);
        let sum = |hour: usize| {
            let counts = self.hours.get(hour).into_iter().flatten();
            counts.filter(|(then, _)| *then > day - DAYS).fold(Count::default(), |sum, (_, count)| Count {
                all: sum.all + count.all,
                bad: sum.bad + count.bad,
            })
        };
        let here = sum(hour);
        let others = (0..24).filter(|other| *other != hour).map(sum);
        let others = others.fold(Count::default(), |a, b| Count { all: a.all + b.all, bad: a.bad + b.bad });
        let days = self.hours.get(hour)?.iter().filter(|(then, c)| *then > day - DAYS && c.bad > 0).count();
        let worse = (WORSE * others.share()).max(budget);
        (days >= 2 && others.all > 0 && here.is_beyond(worse, SURE)).then(|| BadHour {
            hour,
            availability: 1.0 - here.share(),
            elsewhere: 1.0 - others.share(),
            days,
            count: here,
        })
    }
}

fn minute(at: f64) -> i64 {
    (at / 60.0).floor() as i64
}

fn day_and_hour(at: f64) -> (i64, usize) {
    let hours = (at / super::hours::HOUR).floor() as i64;
    (hours.div_euclid(24), usize::try_from(hours.rem_euclid(24)).unwrap_or(0))
}

/// Windows in minutes: 5 m, 30 m, 1 h, 6 h, 3 d.
const LENGTHS: [i64; 5] = [5, 30, 60, 360, LONGEST];
const LONGEST: i64 = 3 * 24 * 60;
/// Long window, short window (places in [`LENGTHS`]), burn rate.
const PAIRS: [(usize, usize, f64); 3] = [(2, 0, 14.4), (3, 1, 6.0), (4, 3, 1.0)];
/// Logarithm of the chance at which failures are none: the 3-day window has some 120 independent looks a year.
const SURE: f64 = -11.0;
const DAYS: i64 = 7;
/// How much worse than the rest of the day an hour must be.
const WORSE: f64 = 3.0;

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: f64 = 0.001;

    /// A request every ten seconds for `days`; those for which `fails` says so.
    fn run(days: u32, fails: impl Fn(u32, f64) -> bool) -> (Option<Burning>, Option<BadHour>) {
        let (mut burn, mut hours) = (Burn::default(), HoursOfDay::default());
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
        assert_eq!(burning.windows, (3600.0, 300.0));
        assert!(burning.rate > 14.4, "{burning:?}");
    }

    #[test]
    fn a_trickle_over_the_budget_burns_slowly() {
        let (burning, _) = run(10, |request, _| request % 300 == 17);
        assert_eq!(burning.unwrap().windows.0, 3.0 * 86_400.0);
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
