//! Windows of the calendar: when the one that holds a moment began and when it ends. Pure.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, Datelike as _};

use crate::config::Window;

/// A window, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Period {
    pub(super) from: i64,
    pub(super) until: i64,
}

impl Period {
    /// The window that a moment lies in, where the clock is `ahead` seconds ahead of UTC.
    pub(super) fn of(window: Window, ahead: i32, at: SystemTime) -> Self {
        let local = seconds(at) + i64::from(ahead);
        let day = local.div_euclid(DAY);
        let regular = |length: i64, since: i64| {
            let from = (local - since).div_euclid(length) * length + since;
            (from, from + length)
        };
        let (from, until) = match window {
            Window::Minute => regular(60, 0),
            Window::Hour => regular(3600, 0),
            Window::Day => regular(DAY, 0),
            Window::Week => regular(7 * DAY, MONDAY * DAY),
            Window::Month => {
                let of_month =
                    |day: i64| DateTime::from_timestamp(day * DAY, 0).map_or(1, |at| i64::from(at.day()));
                let first = day - (of_month(day) - 1);
                // No month has 32 days, and none less than 28: this is a day of the next one.
                let next = first + 32 - (of_month(first + 32) - 1);
                (first * DAY, next * DAY)
            }
        };
        Self { from: from - i64::from(ahead), until: until - i64::from(ahead) }
    }

    /// How long it lasts yet.
    pub(super) fn left(self, at: SystemTime) -> Duration {
        Duration::from_secs(u64::try_from(self.until - seconds(at)).unwrap_or_default().max(1))
    }
}

fn seconds(at: SystemTime) -> i64 {
    i64::try_from(at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()).unwrap_or(i64::MAX / 2)
}

const DAY: i64 = 86_400;
/// 1970-01-05 was the first Monday.
const MONDAY: i64 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_begin_where_the_calendar_of_the_zone_says() {
        // 2026-11-24T13:30:05Z, a Tuesday.
        let at = 1_795_527_005;
        let midnight = at - 13 * 3600 - 30 * 60 - 5;
        for (window, ahead, from, length) in [
            (Window::Minute, 0, at - 5, 60),
            (Window::Hour, 0, at - 1805, 3600),
            (Window::Hour, 1800, at - 5, 3600),
            (Window::Day, 0, midnight, DAY),
            (Window::Day, 7200, midnight - 7200, DAY),
            (Window::Day, -50_400, midnight - DAY + 50_400, DAY),
            (Window::Week, 0, midnight - DAY, 7 * DAY),
            (Window::Month, 0, midnight - 23 * DAY, 30 * DAY),
        ] {
            let period = Period::of(window, ahead, UNIX_EPOCH + Duration::from_secs(at as u64));
            assert_eq!(period, Period { from, until: from + length }, "{window:?} {ahead}");
        }
        let february = Period::of(Window::Month, 0, UNIX_EPOCH + Duration::from_secs(1_709_164_800));
        assert_eq!(february.until - february.from, 29 * DAY, "2024-02-29");
        assert_eq!(february.left(UNIX_EPOCH + Duration::from_secs(1_709_164_800)).as_secs(), DAY as u64);
    }
}
