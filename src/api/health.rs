//! `/healthz`, `/readyz`, and what the port answers where it cannot: [`Failure`].

use serde::Serialize;

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

answers! {
    /// Body of every status that is no success.
    struct Failure {
        error: FailureError,
    }

    struct FailureError {
        /// For programs: `unknown_path`, `invalid_query`, …
        code: String,
        message: String,
    }
}
