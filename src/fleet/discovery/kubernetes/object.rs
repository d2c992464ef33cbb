//! What the objects that are followed have in common, and what happens to them.

use std::collections::HashMap;

use serde::{Deserialize, Deserializer};

/// One event of a watch.
#[derive(Debug)]
pub(super) enum Event<O> {
    /// An object is new or has changed.
    Changed(O),
    /// An object is gone, or is selected no more.
    Deleted(O),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metadata {
    #[serde(default)]
    pub(super) name: String,
    pub(super) uid: Option<String>,
    /// Of a slice those of its Service, as the API copies them.
    #[serde(default, deserialize_with = "or_null")]
    pub(super) labels: HashMap<String, String>,
    /// Set while it ends.
    pub(super) deletion_timestamp: Option<String>,
}

/// The API writes `null` for what is empty.
pub(super) fn or_null<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    from: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(from).map(Option::unwrap_or_default)
}

/// llm-d's label of what a server is for.
pub(super) const ROLE: &str = "llm-d.ai/role";
