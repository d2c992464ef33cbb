//! `/healthz`, `/readyz`, and what the port answers where it cannot: [`Failure`].

use serde::{Deserialize, Serialize};

/// `/healthz`
#[derive(Serialize)]
pub(crate) struct Alive {
    pub(crate) status: &'static str,
}

/// `/readyz`
#[derive(Serialize)]
pub(crate) struct Ready {
    /// Against it, for people.
    pub(crate) reasons: Vec<String>,
    pub(crate) status: &'static str,
}

/// Body of every status that is no success.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Failure {
    pub(crate) error: FailureError,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct FailureError {
    /// For programs: `unknown_path`, `invalid_query`, …
    pub(crate) code: String,
    pub(crate) message: String,
}
