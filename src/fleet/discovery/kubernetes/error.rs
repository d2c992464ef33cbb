//! Why the Kubernetes API told nothing.

use http::StatusCode;
use serde::Deserialize;
use thiserror::Error;

use crate::upstream::call::CallError;

/// Why the API told nothing.
#[derive(Debug, Error)]
pub(super) enum ApiError {
    /// The version that a watch or the rest of a list begins from is too old (410), or one of another history.
    #[error("the version of the list or watch expired")]
    Expired,
    /// Not in a cluster, or files of the service account cannot be read.
    #[error("{0}")]
    Credentials(String),
    /// The server refuses.
    #[error("the API server answered {status}: {message}")]
    Refused { status: StatusCode, message: String },
    #[error("API server: {0}")]
    Call(#[from] CallError),
    #[error("the API server's answer makes no sense: {0}")]
    Protocol(String),
}

impl ApiError {
    /// The server was there and did not do what it was asked for.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::Expired | Self::Refused { .. } | Self::Protocol(_))
    }
}

/// What the server says where it refuses.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Refusal {
    #[serde(default)]
    pub(super) message: String,
    pub(super) code: Option<u16>,
}
