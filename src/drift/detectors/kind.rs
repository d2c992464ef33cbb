//! Kinds of findings: closed, because they become labels.

use serde::{Deserialize, Serialize};

use self::Horizon::{Days, Hours, Minutes};
use self::Subject::{Availability, Itl, Ttft};
use super::table::HOUR;
use crate::labels::labels;

labels! {
    /// Kind of a finding (label `kind`).
    #[derive(Deserialize, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Kind {
        /// The slowest TTFTs grow over days, the median does not.
        TtftTailDrift = "ttft_tail_drift",
        /// TTFT as a whole grows over days.
        TtftDrift = "ttft_drift",
        /// Inter-token latency grows over days, in the tail.
        ItlDrift = "itl_drift",
        /// TTFT at twice its baseline, for minutes.
        TtftDoubled = "ttft_doubled",
        /// TTFT above its baseline for hours.
        TtftShift = "ttft_shift",
        /// Inter-token latency above its baseline for hours.
        ItlShift = "itl_shift",
        /// Inter-token latency of the slowest streams alone above its baseline, for hours.
        ItlJitter = "itl_jitter",
        /// p99 of TTFT over the SLO for more than a minute.
        TtftP99OverSlo = "ttft_p99_over_slo",
        /// The error budget burns too fast.
        AvailabilityBurn = "availability_burn",
        /// One hour of the day fails day after day.
        AvailabilityHour = "availability_hour",
        /// One replica is slower than its peers.
        ReplicaSlow = "replica_slow",
    }
}

impl Kind {
    /// What it is about, how it shows, and for how many hours it stays active after it was last seen.
    pub(super) fn row(self) -> KindRow {
        let (subject, horizon, hours) = match self {
            Self::TtftTailDrift | Self::TtftDrift => (Ttft, Days, 48.0),
            Self::ItlDrift => (Itl, Days, 48.0),
            Self::TtftDoubled | Self::TtftP99OverSlo => (Ttft, Minutes, 0.5),
            Self::TtftShift => (Ttft, Hours, 6.0),
            Self::ItlShift | Self::ItlJitter => (Itl, Hours, 6.0),
            Self::AvailabilityBurn => (Availability, Minutes, 0.5),
            // Judged once a day.
            Self::AvailabilityHour => (Availability, Days, 25.0),
            Self::ReplicaSlow => (Ttft, Hours, 1.0),
        };
        KindRow { subject, horizon, hold: hours * HOUR }
    }

    /// Whether it pages somebody.
    pub fn is_urgent(self) -> bool {
        self.row().horizon == Minutes
    }

    /// Whether it develops over days.
    pub fn is_of_days(self) -> bool {
        self.row().horizon == Days
    }
}

/// What a kind is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Ttft,
    Itl,
    Availability,
}

/// How long it takes a kind to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Horizon {
    Minutes,
    Hours,
    Days,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct KindRow {
    pub(super) subject: Subject,
    pub(super) horizon: Horizon,
    /// Seconds for which it stays active after it was last seen: some of its windows.
    pub(super) hold: f64,
}
