//! Bad requests beyond their budget: failures against the availability target, late first tokens against p99.
//!
//! Burn rates over pairs of windows (Site Reliability Workbook, chapter 5): the long one shows that it matters, the short one
//! that it goes on. More must be bad than chance explains, over longer than a burst. A peak hour at 99.1 % hides in a day at
//! 99.9 %, so each hour of the day is also summed over a week.

use serde::{Deserialize, Serialize};

use super::hours::hour_index;
use super::table::{BurnRow, FAILING_HOUR, HOUR, LN_CHANCE, MOST, REPEATED, WEEK, WORKBOOK};
use crate::diagnosis::figures::Count;
use crate::stats::{Ring, ln_binomial_tail};

/// Requests and the bad ones in slots of `SECONDS`: of 10 s for [`FINE`], longer ones for the longest window of [`WORKBOOK`].
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct BadRequests<const SECONDS: i64> {
    slots: Ring<Count>,
    /// Whether any was bad since it was last judged.
    #[serde(skip)]
    is_due: bool,
}

/// A budget that burns too fast.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Burn {
    /// Multiple of the rate at which the budget is just used up.
    pub(super) rate: f64,
    /// Seconds.
    pub(super) long: f64,
    /// Seconds.
    pub(super) short: f64,
    /// Seconds between the first and the last bad request of the long window.
    pub(super) lasted: f64,
    /// Requests of the long window.
    pub(super) count: Count,
}

impl<const SECONDS: i64> BadRequests<SECONDS> {
    const KEPT: i64 = if SECONDS < 60 { FINE as i64 } else { WORKBOOK[2].long } / SECONDS;

    /// Without what lies after `now`, in order: it comes from a file.
    pub(super) fn up_to(mut self, now: f64) -> Self {
        self.slots = self.slots.up_to(slot::<SECONDS>(now));
        self
    }

    pub(super) fn add(&mut self, at: f64, is_bad: bool) {
        self.slots.at(slot::<SECONDS>(at), Self::KEPT).add(is_bad);
        self.is_due |= is_bad;
    }

    /// By slot, from `onset` on.
    pub(super) fn since(&self, onset: f64) -> impl Iterator<Item = (i64, Count)> {
        self.slots.range(slot::<SECONDS>(onset), i64::MAX).map(|(slot, count)| (slot, *count))
    }

    /// Judges the windows of `rows` that end now, if any request was bad since the last call; `budget` is the share that may be.
    pub(super) fn judge(&mut self, at: f64, rows: &[BurnRow], budget: f64) -> Option<Burn> {
        if !std::mem::take(&mut self.is_due) {
            return None;
        }
        let window = |seconds| self.window(at, seconds);
        rows.iter().find_map(|row| {
            let share = row.share(budget);
            let short: Count = window(row.short).map(|(_, count)| *count).sum();
            if short.share() <= share || short.bad < REPEATED as f64 {
                return None;
            }
            let count: Count = window(row.long).map(|(_, count)| *count).sum();
            let mut bad = window(row.long).filter(|(_, count)| count.bad > 0.0).map(|(at, _)| at);
            let last = bad.next()?;
            let lasted = (last - bad.last().unwrap_or(last)) * SECONDS;
            (count.bad >= row.least && lasted >= row.lasts && is_over(count, share)).then(|| Burn {
                rate: count.share() / budget,
                long: row.long as f64,
                short: row.short as f64,
                lasted: lasted as f64,
                count,
            })
        })
    }

    /// Whether what a row found lasts: both of its windows are over their share, whether or not a request was bad just now.
    pub(super) fn goes_on(&self, at: f64, row: &BurnRow, budget: f64) -> bool {
        let is_over = |seconds| {
            let count: Count = self.window(at, seconds).map(|(_, count)| *count).sum();
            count.share() > row.share(budget)
        };
        is_over(row.short) && is_over(row.long)
    }

    /// The last seconds, newest slot first.
    fn window(&self, at: f64, seconds: i64) -> impl Iterator<Item = (i64, &Count)> {
        let now = slot::<SECONDS>(at);
        self.slots.iter().rev().take_while(move |(at, _)| (now - at) * SECONDS < seconds)
    }
}

impl BurnRow {
    /// At 14.4 times a budget of over 7 % more would have to fail than came.
    fn share(&self, budget: f64) -> f64 {
        (self.rate * budget).min(MOST)
    }
}

/// Whether more were bad than `share`, beyond chance.
fn is_over(count: Count, share: f64) -> bool {
    count.share() > share && ln_binomial_tail(count.bad, count.all, share) <= LN_CHANCE
}

fn slot<const SECONDS: i64>(at: f64) -> i64 {
    (at / SECONDS as f64).floor() as i64
}

/// Failures by hour of the day, for each day of a week.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct HoursOfDay {
    /// By hour of the day: day and count, oldest first.
    hours: [Ring<Count>; 24],
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
    /// As [`BadRequests::up_to`].
    pub(super) fn up_to(mut self, now: f64) -> Self {
        let (today, _) = day_and_hour(now);
        self.hours = self.hours.map(|days| days.up_to(today));
        self
    }

    pub(super) fn add(&mut self, at: f64, is_bad: bool) {
        let (day, hour) = day_and_hour(at);
        if let Some(days) = self.hours.get_mut(hour) {
            days.at(day, WEEK).add(is_bad);
        }
    }

    /// Requests in this hour of the day over those of the mean hour.
    pub(super) fn load_ratio(&self, hour: usize) -> f64 {
        let requests = |hour| self.sum(hour, i64::MIN).all;
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
        let after = day - WEEK;
        let here = self.sum(hour, after);
        let others: Count = (0..24).filter(|other| *other != hour).map(|other| self.sum(other, after)).sum();
        let days = self.hours.get(hour)?.iter().filter(|(then, c)| *then > after && c.bad > 0.0).count();
        let allowed = (FAILING_HOUR * others.share()).max(budget);
        (days >= REPEATED && others.all > 0.0 && is_over(here, allowed)).then(|| BadHour {
            hour,
            availability: 1.0 - here.share(),
            elsewhere: 1.0 - others.share(),
            days,
            count: here,
        })
    }
}

fn day_and_hour(at: f64) -> (i64, usize) {
    let hours = hour_index(at);
    (hours.div_euclid(24), usize::try_from(hours.rem_euclid(24)).unwrap_or(0))
}

/// Seconds for which slots of 10 s are kept.
pub(super) const FINE: f64 = 2.0 * HOUR;

#[cfg(test)]
mod tests {
    use super::super::table::{LATE_BUDGET, P99};
    use super::*;

    /// A request every ten seconds for `days`; those for which `fails` says so.
    fn run(days: u32, fails: impl Fn(u32, f64) -> bool) -> (Option<Burn>, Option<BadHour>) {
        let (mut burn, mut hours) = (BadRequests::<60>::default(), HoursOfDay::default());
        let (mut burning, mut bad_hour) = (None, None);
        for request in 0..days * 8640 {
            let at = f64::from(request) * 10.0;
            let is_bad = fails(request, at);
            burn.add(at, is_bad);
            hours.add(at, is_bad);
            if request % 6 == 0 {
                burning = burning.or(burn.judge(at, &WORKBOOK, 0.001));
            }
            if request % 360 == 0 && request > 0 {
                bad_hour = bad_hour.or(hours.judge(at, 0.001));
            }
        }
        (burning, bad_hour)
    }

    #[test]
    fn failures_at_the_budget_are_silent() {
        assert_eq!(run(10, |request, _| request % 1000 == 17), (None, None));
    }

    #[test]
    fn an_outage_burns_fast_and_a_trickle_slowly() {
        let outage = run(2, |_, at| (90_000.0..90_600.0).contains(&at)).0.unwrap();
        assert_eq!((outage.long, outage.short), (3600.0, 300.0));
        assert!(outage.rate > 14.4, "{outage:?}");
        let trickle = run(10, |request, _| request % 300 == 17).0.unwrap();
        assert_eq!(trickle.long, 3.0 * 86_400.0);
    }

    #[test]
    fn a_handful_of_failures_is_no_burn_until_the_alerts_take_it_for_one() {
        let fails = |failures: u32| run(1, |request, _| request < failures).0;
        assert_eq!(fails(4), None);
        assert!(fails(5).is_some_and(|burn| burn.long == 3600.0));
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

    /// Seconds from the start of trouble to the finding; `slow` of a hundred requests are late for `lasts`.
    fn late(per_minute: u32, slow: u32, lasts: f64) -> Option<f64> {
        let mut requests = BadRequests::<10>::default();
        for request in 0..60 * per_minute {
            let at = f64::from(request) * 60.0 / f64::from(per_minute);
            let trouble = at - 1200.0;
            requests.add(at, (0.0..lasts).contains(&trouble) && request % 100 < slow);
            if requests.judge(at, &P99, LATE_BUDGET).is_some() {
                return Some(trouble);
            }
        }
        None
    }

    #[test]
    fn p99_over_the_slo_is_found_after_a_minute_and_not_for_a_single_slow_request() {
        for per_minute in [8, 60, 600] {
            let after = late(per_minute, 100, 600.0).unwrap();
            assert!((60.0..120.0).contains(&after), "{per_minute}: {after}");
            assert_eq!(late(per_minute, 100, 7.0), None, "{per_minute}");
        }
        assert_eq!(late(1, 100, 200.0), None, "four slow ones on an idle gateway");
        assert_eq!(late(600, 1, 3000.0), None);
        assert!(late(600, 10, 3000.0).is_some_and(|after| after < 120.0));
    }
}
