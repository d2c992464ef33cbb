//! Wall time as RFC 3339 in UTC, with microseconds: for the access log and the admin API.
//!
//! Pure. Only for times after 1970, which a gateway's clock is.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::clock::date;
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
