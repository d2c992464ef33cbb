//! Windows of the calendar: when the one that holds a moment began and when it ends. Pure.

use std::time::{Duration, SystemTime};

use jiff::civil::Date;
use jiff::{Timestamp, ToSpan as _};

use crate::clock::since_epoch;
use crate::config::{Window, Zone};

/// A moment, in whole seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unix(pub(super) i64);

impl From<SystemTime> for Unix {
    fn from(at: SystemTime) -> Self {
        let seconds = since_epoch(at).as_secs();
        Self(i64::try_from(seconds).unwrap_or(i64::MAX / 2))
    }
}

/// A window, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Period {
    pub(super) from: i64,
    pub(super) until: i64,
}

impl Period {
    /// The window that a moment lies in, by the clocks of a zone.
    pub(super) fn of(window: Window, zone: &Zone, Unix(now): Unix) -> Self {
        let regular = |length: i64| {
            let ahead = Timestamp::from_second(now).map_or(0, |at| zone.rules().to_offset(at).seconds());
            let from = (now + i64::from(ahead)).div_euclid(length) * length - i64::from(ahead);
            Self { from, until: from + length }
        };
        match window {
            Window::Minute => regular(60),
            Window::Hour => regular(3600),
            // After the year 9999 there are no dates.
            Window::Day | Window::Week | Window::Month => {
                Self::of_dates(window, zone, now).unwrap_or_else(|_| regular(DAY))
            }
        }
    }

    /// The window after this one.
    pub(super) fn next(self, window: Window, zone: &Zone) -> Self {
        Self::of(window, zone, Unix(self.until))
    }

    /// Days are as long as the zone has them: 23 or 25 hours where its clocks are changed.
    fn of_dates(window: Window, zone: &Zone, now: i64) -> Result<Self, jiff::Error> {
        let today = Timestamp::from_second(now)?.to_zoned(zone.rules().clone()).date();
        let (first, next) = match window {
            Window::Month => (today.first_of_month(), today.first_of_month().checked_add(1.month())?),
            Window::Week => {
                let monday = today.checked_sub(today.weekday().to_monday_zero_offset().days())?;
                (monday, monday.checked_add(7.days())?)
            }
            _ => (today, today.tomorrow()?),
        };
        let begin = |day: Date| day.to_zoned(zone.rules().clone()).map(|day| day.timestamp().as_second());
        Ok(Self { from: begin(first)?, until: begin(next)? })
    }

    /// Whether a moment lies in it.
    pub(super) fn holds(self, Unix(at): Unix) -> bool {
        (self.from..self.until).contains(&at)
    }

    /// How long it lasts yet.
    pub(super) fn left(self, Unix(at): Unix) -> Duration {
        Duration::from_secs(u64::try_from(self.until - at).unwrap_or_default().max(1))
    }
}

const DAY: i64 = 86_400;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_begin_where_the_calendar_of_the_zone_says() {
        // 2026-11-24T13:30:05Z, a Tuesday.
        let at = 1_795_527_005;
        let midnight = at - 13 * 3600 - 30 * 60 - 5;
        for (window, zone, from, length) in [
            (Window::Minute, "UTC", at - 5, 60),
            (Window::Hour, "UTC", at - 1805, 3600),
            (Window::Hour, "+00:30", at - 5, 3600),
            (Window::Day, "UTC", midnight, DAY),
            (Window::Day, "+02:00", midnight - 7200, DAY),
            (Window::Day, "-14:00", midnight - DAY + 50_400, DAY),
            (Window::Week, "UTC", midnight - DAY, 7 * DAY),
            (Window::Month, "UTC", midnight - 23 * DAY, 30 * DAY),
        ] {
            let period = Period::of(window, &Zone::named(zone).unwrap(), Unix(at));
            assert_eq!(period, Period { from, until: from + length }, "{window:?} {zone}");
        }
        let february = Period::of(Window::Month, &Zone::default(), Unix(1_709_164_800));
        assert_eq!(february.until - february.from, 29 * DAY, "2024-02-29");
        assert_eq!(february.left(Unix(1_709_164_800)).as_secs(), DAY as u64);
    }

    #[test]
    fn days_of_a_zone_are_as_long_as_its_clocks_make_them() {
        let length = |zone: &str, window, date: &str, hour| {
            let at = date
                .parse::<Date>()
                .unwrap()
                .at(hour, 30, 0, 0)
                .to_zoned(Zone::named(zone).unwrap().rules().clone());
            let period =
                Period::of(window, &Zone::named(zone).unwrap(), Unix(at.unwrap().timestamp().as_second()));
            (period.until - period.from) as f64 / 3600.0
        };
        for (zone, window, date, hours) in [
            ("Europe/Berlin", Window::Day, "2026-03-28", 24.0),
            ("Europe/Berlin", Window::Day, "2026-03-29", 23.0),
            ("Europe/Berlin", Window::Day, "2026-10-25", 25.0),
            ("Europe/Berlin", Window::Week, "2026-10-21", 7.0 * 24.0 + 1.0),
            ("Europe/Berlin", Window::Month, "2026-03-01", 31.0 * 24.0 - 1.0),
            ("America/New_York", Window::Day, "2026-11-01", 25.0),
            // Its clocks go forward at midnight: the day begins at one.
            ("America/Santiago", Window::Day, "2026-09-06", 23.0),
            ("Asia/Kolkata", Window::Hour, "2026-09-06", 1.0),
            ("+02:00", Window::Day, "2026-03-29", 24.0),
        ] {
            for hour in [1, 3, 23] {
                assert_eq!(length(zone, window, date, hour), hours, "{zone} {window:?} {date} {hour}:30");
            }
        }
        let zone = Zone::named("Europe/Berlin").unwrap();
        let far = Unix(400_000_000_000);
        assert!(Period::of(Window::Month, &zone, far).holds(far), "beyond the last date");
    }
}
