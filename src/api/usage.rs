//! Usage for the bill.

use serde::{Deserialize, Serialize};

/// `/usage`
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct UsageAnswer {
    /// What rows are by: `tenant`, `model`, `key`, `day`.
    pub(crate) by: Vec<String>,
    pub(crate) rows: Vec<UsageRow>,
    /// From when on figures count: the beginning of the hour, or of the day where it is long over. `null` without any.
    pub(crate) since: Option<String>,
    pub(crate) total: UsageRow,
    pub(crate) until: String,
}

/// What was used; a name is left out where rows are not by it.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct UsageRow {
    pub(crate) cached_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) day: Option<String>,
    pub(crate) decode_seconds: f64,
    /// Of whole answers for which engines report neither prefill nor decode.
    pub(crate) engine_other_seconds: f64,
    /// Cached ones included.
    pub(crate) input_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<String>,
    pub(crate) output_tokens: u64,
    pub(crate) prefill_seconds: f64,
    /// Refused ones included.
    pub(crate) requests: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<String>,
}
