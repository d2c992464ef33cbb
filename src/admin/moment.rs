//! Moments as people write them: so long before or after now, or a date.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::config::check::parse_duration;

/// A moment of a query or an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// `7d`: from now, in the direction that is meant.
    Away(Duration),
    /// `2026-11-24` (UTC) or `2026-11-24T10:00:00+01:00`.
    At(SystemTime),
}

impl Moment {
    /// Reads one; the error names what is wrong.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        Self::parse_day(text, Some)
    }

    /// Reads the end of a span, to which a date belongs as a whole.
    pub(super) fn parse_end(text: &str) -> Result<Self, String> {
        Self::parse_day(text, |day| day.tomorrow().ok())
    }

    fn parse_day(text: &str, meant: fn(Date) -> Option<Date>) -> Result<Self, String> {
        if let Ok(at) = text.parse::<Timestamp>() {
            return Ok(Self::At(at.into()));
        }
        // A date with a time and no offset would be read as a date alone.
        let day = Some(text).filter(|text| text.len() == DATE).and_then(|text| text.parse::<Date>().ok());
        if let Some(day) = day {
            let at = meant(day).and_then(|day| day.to_zoned(TimeZone::UTC).ok());
            return Ok(Self::At(at.map_or(NEVER, |at| at.timestamp()).into()));
        }
        let duration = parse_duration(text).map(Self::Away);
        duration.map_err(|error| {
            format!(
                "{error}; write a duration such as 30d, a date such as 2026-12-31, or 2026-12-31T10:00:00Z"
            )
        })
    }
}

/// For dates past the last moment that there is, with room for a second's rest.
const NEVER: Timestamp = Timestamp::constant(253_402_207_200, 0);
/// Bytes of `2026-11-24`.
const DATE: usize = 10;

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn durations_dates_and_times() {
        let at = |seconds| Ok(Moment::At(UNIX_EPOCH + Duration::from_secs(seconds)));
        assert_eq!(Moment::parse("30d"), Ok(Moment::Away(Duration::from_secs(30 * 86_400))));
        assert_eq!(Moment::parse("2026-11-24"), at(1_795_478_400));
        assert_eq!(Moment::parse("2026-11-24T01:00:00+01:00"), at(1_795_478_400));
        assert_eq!(Moment::parse_end("2026-11-24"), at(1_795_564_800), "of that day");
        assert_eq!(Moment::parse_end("2026-11-24T00:00:00Z"), at(1_795_478_400));
        let last = Ok(Moment::At(NEVER.into()));
        assert_eq!([Moment::parse("9999-12-31"), Moment::parse_end("9999-12-31")], [last.clone(), last]);
        for wrong in ["", "soon", "30", "2026-13-01", "2026-11-24T01:00:00"] {
            assert!(Moment::parse(wrong).is_err(), "{wrong}");
        }
    }
}
