//! Wall time as RFC 3339 in UTC, with microseconds: for the access log and the admin API.
//!
//! Pure. Only for times after 1970, which a gateway's clock is.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::digits;

/// `2026-02-28T13:05:09.000123Z`
#[must_use]
pub fn utc(time: SystemTime) -> String {
    let mut text = Vec::with_capacity(27);
    write_utc(&mut text, time);
    String::from_utf8(text).unwrap_or_default()
}

/// Appends it.
pub fn write_utc(out: &mut Vec<u8>, time: SystemTime) {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    digits::fraction::<4>(out, year);
    for (before, number) in [(b'-', month), (b'-', day), (b'T', hour), (b':', minute), (b':', second)] {
        out.push(before);
        digits::fraction::<2>(out, number);
    }
    out.push(b'.');
    digits::fraction::<6>(out, u64::from(since.subsec_micros()));
    out.push(b'Z');
}

/// The Gregorian date of a day since 1970-01-01. Years are taken to begin in March, so that the leap day is the
/// last of its year and months have a regular length.
fn date(days: u64) -> (u64, u64, u64) {
    // 719468 days from 0000-03-01 to 1970-01-01; 146097 days in 400 years.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates() {
        let table = [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (951_868_800, "2000-03-01T00:00:00.000000Z"),
            (1_798_761_599, "2026-12-31T23:59:59.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ];
        for (seconds, expected) in table {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
        assert!(utc(UNIX_EPOCH + Duration::from_micros(12)).ends_with("00.000012Z"));
    }
}
