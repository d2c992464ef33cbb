//! Kinds of findings: closed, because they become labels.

use serde::{Deserialize, Serialize};

use self::Horizon::{Days, Hours, Minutes};
use self::Subject::{Availability, Itl, Ttft};

/// Kind of a finding (label `kind`).
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The slowest TTFTs grow over days, the median does not.
    TtftTailDrift,
    /// TTFT as a whole grows over days.
    TtftDrift,
    /// Inter-token latency grows over days, in the tail.
    ItlDrift,
    /// TTFT at twice its baseline, for minutes.
    TtftDoubled,
    /// TTFT above its baseline for hours.
    TtftShift,
    /// Inter-token latency above its baseline for hours.
    ItlShift,
    /// Inter-token latency of the slowest streams alone above its baseline, for hours.
    ItlJitter,
    /// p99 of TTFT over the SLO for more than a minute.
    TtftP99OverSlo,
    /// The error budget burns too fast.
    AvailabilityBurn,
    /// One hour of the day fails day after day.
    AvailabilityHour,
    /// One replica is slower than its peers.
    ReplicaSlow,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 11] = [
        Self::TtftTailDrift,
        Self::TtftDrift,
        Self::ItlDrift,
        Self::TtftDoubled,
        Self::TtftShift,
        Self::ItlShift,
        Self::ItlJitter,
        Self::TtftP99OverSlo,
        Self::AvailabilityBurn,
        Self::AvailabilityHour,
        Self::ReplicaSlow,
    ];

    /// The kind of this label.
    #[must_use]
    pub fn parse(label: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == label)
    }

    /// Its row of the table.
    pub(super) fn row(self) -> &'static KindRow {
        KINDS.iter().find(|row| row.kind == self).unwrap_or(&KINDS[0])
    }

    /// The label's value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.row().label
    }

    /// Whether it pages somebody.
    #[must_use]
    pub fn is_urgent(self) -> bool {
        self.row().horizon == Minutes
    }

    /// Whether it develops over days.
    #[must_use]
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

/// A kind of finding.
#[derive(Clone, Copy, Debug)]
pub(super) struct KindRow {
    pub(super) kind: Kind,
    /// Its label.
    pub(super) label: &'static str,
    pub(super) subject: Subject,
    pub(super) horizon: Horizon,
    /// Seconds for which it stays active after it was last seen: some of its windows.
    pub(super) hold: f64,
}

const fn kind(kind: Kind, label: &'static str, subject: Subject, horizon: Horizon, hold: f64) -> KindRow {
    KindRow { kind, label, subject, horizon, hold }
}

/// In the order of [`Kind`].
pub(super) const KINDS: [KindRow; 11] = [
    kind(Kind::TtftTailDrift, "ttft_tail_drift", Ttft, Days, 2.0 * DAY),
    kind(Kind::TtftDrift, "ttft_drift", Ttft, Days, 2.0 * DAY),
    kind(Kind::ItlDrift, "itl_drift", Itl, Days, 2.0 * DAY),
    kind(Kind::TtftDoubled, "ttft_doubled", Ttft, Minutes, 1800.0),
    kind(Kind::TtftShift, "ttft_shift", Ttft, Hours, 6.0 * 3600.0),
    kind(Kind::ItlShift, "itl_shift", Itl, Hours, 6.0 * 3600.0),
    kind(Kind::ItlJitter, "itl_jitter", Itl, Hours, 6.0 * 3600.0),
    kind(Kind::TtftP99OverSlo, "ttft_p99_over_slo", Ttft, Minutes, 1800.0),
    kind(Kind::AvailabilityBurn, "availability_burn", Availability, Minutes, 1800.0),
    // Judged once a day.
    kind(Kind::AvailabilityHour, "availability_hour", Availability, Days, 25.0 * 3600.0),
    kind(Kind::ReplicaSlow, "replica_slow", Ttft, Hours, 3600.0),
];

const DAY: f64 = 86_400.0;
