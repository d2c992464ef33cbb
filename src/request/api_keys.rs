//! API keys made at run time, by the SHA-256 digests of their secrets: what the data path looks up.
//!
//! A change publishes a new map, so a look-up takes no lock: the next request sees a new key, and a revoked one no more.
//! Streams under way run to their end. Making, keeping and revoking is the control plane's.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use serde::{Deserialize, Serialize};

use crate::clock::wall_second;
use crate::config::{Budget, read_budgets, write_budgets};
use crate::digits;

/// SHA-256 of a secret.
pub type KeyDigest = [u8; 32];

/// One key of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct ApiKey {
    /// The tenant's name.
    pub tenant: Arc<str>,
    /// Unique within its tenant. A key of the configuration file is named by the first digits of its digest.
    pub name: Arc<str>,
    /// Names of routes, or models where no route has that name; `None` is every one of its tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routes: Option<Vec<Arc<str>>>,
    /// Beside those of its tenant.
    #[serde(
        rename = "budget",
        default,
        skip_serializing_if = "Vec::is_empty",
        serialize_with = "write_budgets",
        deserialize_with = "read_budgets"
    )]
    pub budgets: Vec<Budget>,
    /// Seconds since 1970.
    pub created: u64,
    /// Seconds since 1970, from which on it is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
}

impl ApiKey {
    /// A key that the configuration file lists for a tenant.
    pub fn of_file(tenant: &Arc<str>, digest: &KeyDigest) -> Self {
        let (start, _) = digest.split_at(DIGITS / 2);
        let name = digits::hex_of(start).into();
        Self { tenant: Arc::clone(tenant), name, ..Self::default() }
    }

    /// Whether it is no longer valid at a wall time.
    pub fn has_expired(&self, now: SystemTime) -> bool {
        self.expires.is_some_and(|end| wall_second(end) <= now)
    }

    /// Whether it may be used for a route; `means` is whether a word of its list is that route.
    pub fn may_use(&self, means: impl Fn(&str) -> bool) -> bool {
        self.routes.as_ref().is_none_or(|routes| routes.iter().any(|word| means(word)))
    }
}

/// Every key made at run time.
#[derive(Debug, Default)]
pub struct ApiKeys(ArcSwap<HashMap<KeyDigest, Arc<ApiKey>>>);

impl ApiKeys {
    /// The key of that digest, expired ones included.
    pub fn of(&self, digest: &KeyDigest) -> Option<Arc<ApiKey>> {
        self.0.load().get(digest).cloned()
    }

    /// All of them.
    pub fn all(&self) -> Arc<HashMap<KeyDigest, Arc<ApiKey>>> {
        self.0.load_full()
    }

    /// Puts another set in force.
    pub fn publish(&self, keys: HashMap<KeyDigest, Arc<ApiKey>>) {
        self.0.store(Arc::new(keys));
    }
}

/// Of a digest, in the name of a key of the file.
const DIGITS: usize = 8;
