//! `/api/v1/drift`: findings, what is muted, and what an operator sends about them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

answers! {
    struct Drift {
        /// Those that hold.
        active: Vec<Finding>,
        mutes: Vec<Mute>,
        /// The last ones, newest first, whether they hold or not.
        recent: Vec<Finding>,
        /// Series with a baseline.
        series: usize,
    }

    /// A departure from the baseline; also a line of `replay --drift` and a field of the log.
    struct Finding {
        acknowledged: bool,
        diagnosis: String,
        /// Of the finding and of its diagnosis.
        evidence: BTreeMap<String, Fact>,
        id: String,
        kind: String,
        /// Left out where no admin port says so.
        #[serde(skip_serializing_if = "Option::is_none")]
        muted: Option<bool>,
        /// The next likely diagnosis.
        runner_up: Option<RunnerUp>,
        series: FindingSeries,
        /// When it was found, in the observations' seconds.
        t: f64,
        /// `t` as a date; left out where no admin port says so.
        #[serde(skip_serializing_if = "Option::is_none")]
        time: Option<String>,
    }

    /// Where it was found.
    struct FindingSeries {
        replica: Option<String>,
        revision: String,
        route: String,
    }

    /// A diagnosis that is less likely.
    struct RunnerUp {
        diagnosis: String,
        evidence: BTreeMap<String, Fact>,
    }
}

/// A piece of evidence.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Fact {
    /// Seconds, or in the unit of its name.
    Number(f64),
    /// A word.
    Word(String),
    /// Of replicas.
    Names(Vec<String>),
    /// A number that JSON does not have.
    NotANumber,
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

impl std::fmt::Display for Fact {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => {
                f.write_str(format!("{number:.4}").trim_end_matches('0').trim_end_matches('.'))
            }
            Self::Word(word) => f.write_str(word),
            other => f.write_str(&serde_json::to_string(other).unwrap_or_default()),
        }
    }
}

answers! {
    /// Findings of which no alert is sent for a while, and the answer to [`MuteOrder`].
    struct Mute {
        /// `None` is every kind.
        kind: Option<String>,
        /// `None` is every route.
        route: Option<String>,
        until: String,
    }
}

/// Body of `/drift/mute`.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MuteOrder {
    pub(crate) route: Option<String>,
    pub(crate) kind: Option<String>,
    /// As configuration files write durations; `0s` ends a mute.
    pub(crate) r#for: String,
}

/// Body of `/drift/{id}/acknowledge`.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Acknowledgement {
    /// Takes it back.
    pub(crate) undo: bool,
}
