//! API keys made at run time.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// `/keys`
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Keys {
    pub(crate) keys: Vec<Key>,
}

/// One of them, without its secret.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Key {
    /// As `[[tenant.budget]]` writes them.
    pub(crate) budget: Vec<Value>,
    pub(crate) created: String,
    /// RFC 3339.
    pub(crate) expires: Option<String>,
    pub(crate) name: String,
    /// `null` is all of its tenant.
    pub(crate) routes: Option<Vec<String>>,
    /// `valid`, `expired`, `unknown_tenant` or, in the answer to an order, `revoked`.
    pub(crate) state: String,
    pub(crate) tenant: String,
}

/// POST `/keys`: what to make.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct KeyOrder {
    /// As `[[tenant.budget]]` writes them.
    pub(crate) budget: Vec<Value>,
    /// A duration from now, or a date.
    pub(crate) expires: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) routes: Option<Vec<String>>,
    pub(crate) tenant: String,
}

/// A key that was made.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct KeyMade {
    pub(crate) key: Key,
    /// Whether it outlasts a restart.
    pub(crate) kept: bool,
    /// Shown this once.
    pub(crate) secret: String,
}
