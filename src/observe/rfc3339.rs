//! Wall time as RFC 3339 in UTC, with microseconds: for the access log and the admin API.
//!
//! Pure. Only for times after 1970, which a gateway's clock is.

use std::time::SystemTime;

use jiff::Timestamp;
use jiff::tz::Offset;

use crate::digits;

/// `2026-02-28T13:05:09.000123Z`
pub fn utc(time: SystemTime) -> String {
    let mut text = Vec::with_capacity(27);
    write_utc(&mut text, time);
    String::from_utf8(text).unwrap_or_default()
}

/// `2026-02-28T13:05:09Z`
pub fn seconds(time: SystemTime) -> String {
    let mut text = utc(time);
    text.truncate("2026-02-28T13:05:09".len());
    text + "Z"
}

/// `2026-02-28`
pub fn date(time: SystemTime) -> String {
    let mut text = utc(time);
    text.truncate("2026-02-28".len());
    text
}

/// Appends it.
pub fn write_utc(out: &mut Vec<u8>, time: SystemTime) {
    let time = Offset::UTC.to_datetime(Timestamp::try_from(time).unwrap_or_default());
    digits::fraction::<4>(out, u64::from(time.year().unsigned_abs()));
    for (before, number) in [
        (b'-', time.month()),
        (b'-', time.day()),
        (b'T', time.hour()),
        (b':', time.minute()),
        (b':', time.second()),
    ] {
        out.push(before);
        digits::fraction::<2>(out, u64::from(number.unsigned_abs()));
    }
    out.push(b'.');
    digits::fraction::<6>(out, u64::from(time.subsec_nanosecond().unsigned_abs() / 1000));
    out.push(b'Z');
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

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
