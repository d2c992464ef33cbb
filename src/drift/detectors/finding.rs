//! A finding: its kind, its series, its diagnosis, and the numbers behind them.
//!
//! Kinds and diagnoses are closed sets, because they become labels. Evidence is names and values that can be checked, no
//! prose.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::cause::{Case, Causes, Diagnosis};
use crate::api::drift as api;

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

    /// The label's value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TtftTailDrift => "ttft_tail_drift",
            Self::TtftDrift => "ttft_drift",
            Self::ItlDrift => "itl_drift",
            Self::TtftDoubled => "ttft_doubled",
            Self::TtftShift => "ttft_shift",
            Self::ItlShift => "itl_shift",
            Self::ItlJitter => "itl_jitter",
            Self::TtftP99OverSlo => "ttft_p99_over_slo",
            Self::AvailabilityBurn => "availability_burn",
            Self::AvailabilityHour => "availability_hour",
            Self::ReplicaSlow => "replica_slow",
        }
    }

    /// Whether it pages somebody.
    #[must_use]
    pub fn is_urgent(self) -> bool {
        matches!(self, Self::TtftDoubled | Self::TtftP99OverSlo | Self::AvailabilityBurn)
    }

    /// Whether it develops over days.
    #[must_use]
    pub fn is_of_days(self) -> bool {
        self.is_drift() || self == Self::AvailabilityHour
    }

    /// Whether it is a tail that grows from day to day.
    pub(super) fn is_drift(self) -> bool {
        matches!(self, Self::TtftTailDrift | Self::TtftDrift | Self::ItlDrift)
    }

    /// Seconds for which it stays active after it was last seen. A drift ends by recovery; this long after it can no longer be
    /// judged, because nothing comes.
    pub(super) fn hold(self) -> f64 {
        match self {
            Self::TtftTailDrift | Self::TtftDrift | Self::ItlDrift => 2.0 * 86_400.0,
            Self::TtftDoubled | Self::TtftP99OverSlo | Self::AvailabilityBurn => 1800.0,
            Self::TtftShift | Self::ItlShift | Self::ItlJitter => 6.0 * 3600.0,
            // Judged once a day.
            Self::AvailabilityHour => 25.0 * 3600.0,
            Self::ReplicaSlow => 3600.0,
        }
    }
}

/// A series, or one replica of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SeriesName {
    /// Route name.
    pub route: Arc<str>,
    /// Revision.
    pub revision: Arc<str>,
    /// Replica, where it is about one.
    pub replica: Option<Arc<str>>,
}

/// One piece of evidence.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// A number; seconds unless its name says otherwise.
    Number(f64),
    /// A word.
    Word(Arc<str>),
    /// Names of replicas.
    Names(Vec<Arc<str>>),
}

impl From<f64> for Fact {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for Fact {
    fn from(word: &str) -> Self {
        Self::Word(word.into())
    }
}

/// A departure from the baseline.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// When it was found, in the observations' seconds.
    pub at: f64,
    /// What was found.
    pub kind: Kind,
    /// Where.
    pub series: SeriesName,
    /// The most likely cause and the next, each with its numbers.
    pub causes: Causes,
    /// What was found: numbers and names, in order of importance.
    pub evidence: Vec<(Cow<'static, str>, Fact)>,
    /// Somebody has said so: it is known.
    pub is_acknowledged: bool,
}

impl Finding {
    /// The most likely cause.
    #[must_use]
    pub fn diagnosis(&self) -> Diagnosis {
        self.causes.diagnosis()
    }

    /// What it is about, as a name: the same for every gateway, after a restart, and if it comes again.
    #[must_use]
    pub fn id(&self) -> String {
        let SeriesName { route, revision, replica } = &self.series;
        let replica = replica.as_deref().unwrap_or_default();
        let text = format!("{}\n{route}\n{revision}\n{replica}", self.kind.as_str());
        format!("{:016x}", xxh3_64(text.as_bytes()))
    }

    /// Labels of its metrics: route, revision, replica (`none` unless one alone drifts), kind, diagnosis.
    #[must_use]
    pub fn labels(&self) -> [&str; 5] {
        let SeriesName { route, revision, replica } = &self.series;
        let replica = replica.as_deref().unwrap_or("none");
        [route, revision, replica, self.kind.as_str(), self.diagnosis().as_str()]
    }

    /// What was found and what speaks for the cause.
    pub fn facts(&self) -> impl Iterator<Item = (&str, Fact)> {
        let found = self.evidence.iter().map(|(name, fact)| (&**name, fact.clone()));
        let of_cause = self.causes.first.iter().flat_map(|case| &case.facts);
        found.chain(of_cause.map(|(name, value)| (*name, Fact::Number(*value))))
    }

    /// As in the admin API, in `replay --drift` and in the log.
    #[must_use]
    pub(crate) fn to_api(&self) -> api::Finding {
        api::Finding {
            acknowledged: self.is_acknowledged,
            diagnosis: self.diagnosis().as_str().to_owned(),
            evidence: self.facts().map(|(name, fact)| (name.to_owned(), fact.to_api())).collect(),
            id: self.id(),
            kind: self.kind.as_str().to_owned(),
            muted: None,
            runner_up: self.causes.runner_up.as_ref().map(runner_up),
            series: api::FindingSeries {
                replica: self.series.replica.as_deref().map(str::to_owned),
                revision: self.series.revision.to_string(),
                route: self.series.route.to_string(),
            },
            t: self.at,
            time: None,
        }
    }
}

fn runner_up(case: &Case) -> api::RunnerUp {
    let evidence = case.facts.iter().map(|(name, value)| ((*name).to_owned(), api::Fact::Number(*value)));
    api::RunnerUp { diagnosis: case.cause.as_str().to_owned(), evidence: evidence.collect() }
}

impl Fact {
    fn to_api(&self) -> api::Fact {
        match self {
            Self::Number(number) => api::Fact::Number(*number),
            Self::Word(word) => api::Fact::Word(word.to_string()),
            Self::Names(names) => api::Fact::Names(names.iter().map(|name| name.to_string()).collect()),
        }
    }
}

/// Evidence as it is being gathered.
#[derive(Clone, Debug, Default)]
pub(super) struct Evidence(pub(super) Vec<(Cow<'static, str>, Fact)>);

impl Evidence {
    pub(super) fn with(mut self, name: &'static str, fact: impl Into<Fact>) -> Self {
        self.0.push((Cow::Borrowed(name), fact.into()));
        self
    }

    /// Adds a known fact.
    pub(super) fn maybe(self, name: &'static str, fact: Option<impl Into<Fact>>) -> Self {
        match fact {
            Some(fact) => self.with(name, fact),
            None => self,
        }
    }
}
