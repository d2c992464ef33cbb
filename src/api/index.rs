//! `/api/v1/`: every endpoint.

use serde::Serialize;

/// `/`
#[derive(Serialize)]
pub(crate) struct Index {
    /// `v1`
    pub(crate) api: &'static str,
    pub(crate) endpoints: Vec<IndexEntry>,
    /// Fingerprint of the page's files.
    pub(crate) page: String,
    /// Of the gateway.
    pub(crate) version: &'static str,
}

#[derive(Serialize)]
pub(crate) struct IndexEntry {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) summary: &'static str,
}
