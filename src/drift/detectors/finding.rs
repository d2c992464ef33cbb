//! A finding: its kind, its series, its diagnosis, and the numbers behind them.
//!
//! Kinds and diagnoses are closed sets, because they become labels. Evidence is names and values that can be checked, no
//! prose.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::kind::Kind;
use crate::api::drift as api;
pub use crate::api::drift::Fact;
use crate::diagnosis::{Case, Causes, Diagnosis};

/// A series, or one replica of it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Hash, Serialize)]
pub struct SeriesName {
    /// Route name.
    pub route: Arc<str>,
    /// Revision.
    pub revision: Arc<str>,
    /// Replica, where it is about one.
    pub replica: Option<Arc<str>>,
}

/// A departure from the baseline.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
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
    pub fn diagnosis(&self) -> Diagnosis {
        self.causes.diagnosis()
    }

    /// What it is about, as a name: the same for every gateway, after a restart, and if it comes again.
    pub fn id(&self) -> String {
        let SeriesName { route, revision, replica } = &self.series;
        let replica = replica.as_deref().unwrap_or_default();
        let text = format!("{}\n{route}\n{revision}\n{replica}", self.kind.as_str());
        format!("{:016x}", xxh3_64(text.as_bytes()))
    }

    /// Labels of its metrics: route, revision, replica (`none` unless one alone drifts), kind, diagnosis.
    pub fn labels(&self) -> [&str; 5] {
        let SeriesName { route, revision, replica } = &self.series;
        let replica = replica.as_deref().unwrap_or("none");
        [route, revision, replica, self.kind.as_str(), self.diagnosis().as_str()]
    }

    /// What was found and what speaks for the cause.
    pub fn facts(&self) -> impl Iterator<Item = (&str, Fact)> {
        let found = self.evidence.iter().map(|(name, fact)| (&**name, fact.clone()));
        let of_cause = self.causes.first.iter().flat_map(|case| &case.facts);
        found.chain(of_cause.map(|(name, value)| (&**name, Fact::Number(*value))))
    }

    /// As in the admin API, in `replay --drift` and in the log.
    pub(crate) fn to_api(&self) -> api::Finding {
        api::Finding {
            acknowledged: self.is_acknowledged,
            diagnosis: self.diagnosis().as_str().to_owned(),
            evidence: self.facts().map(|(name, fact)| (name.to_owned(), fact)).collect(),
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
    let evidence = case.facts.iter().map(|(name, value)| (name.to_string(), Fact::Number(*value)));
    api::RunnerUp { diagnosis: case.cause.as_str().to_owned(), evidence: evidence.collect() }
}
