//! What the objects that are followed have in common.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Deserializer};

/// The objects of one list, by name.
pub(super) type Objects<O> = BTreeMap<String, O>;

/// Any object, as far as its list is concerned.
#[derive(Deserialize)]
pub(super) struct Listed {
    pub(super) metadata: ListedMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListedMetadata {
    #[serde(default)]
    pub(super) name: String,
    pub(super) resource_version: Option<String>,
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
