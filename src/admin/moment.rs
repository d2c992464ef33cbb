//! Moments as people write them: so long before or after now, or a date.

use std::time::{Duration, SystemTime};

use chrono::{DateTime, NaiveDate, NaiveTime};

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
        if let Ok(at) = DateTime::parse_from_rfc3339(text) {
            return Ok(Self::At(at.into()));
        }
        if let Ok(day) = text.parse::<NaiveDate>() {
            return Ok(Self::At(day.and_time(NaiveTime::MIN).and_utc().into()));
        }
        let duration = parse_duration(text).map(Self::Away);
        duration.map_err(|error| {
            format!(
                "{error}; write a duration such as 30d, a date such as 2026-12-31, or 2026-12-31T10:00:00Z"
            )
        })
    }
}

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
        for wrong in ["", "soon", "30", "2026-13-01", "2026-11-24T01:00:00"] {
            assert!(Moment::parse(wrong).is_err(), "{wrong}");
        }
    }
}
