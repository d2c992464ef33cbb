//! API keys made at run time.

use serde_json::Value;

answers! {
    struct Keys {
        keys: Vec<Key>,
    }

    /// One of them, without its secret.
    struct Key {
        /// As `[[tenant.budget]]` writes them.
        budget: Vec<Value>,
        created: String,
        /// RFC 3339.
        expires: Option<String>,
        name: String,
        /// `null` is all of its tenant.
        routes: Option<Vec<String>>,
        /// `valid`, `expired`, `unknown_tenant` or, in the answer to an order, `revoked`.
        state: String,
        tenant: String,
    }

    /// POST `/keys`: what to make.
    #[serde(deny_unknown_fields)]
    struct KeyOrder {
        /// As `[[tenant.budget]]` writes them.
        budget: Vec<Value>,
        /// A duration from now, or a date.
        expires: Option<String>,
        name: Option<String>,
        routes: Option<Vec<String>>,
        tenant: String,
    }

    struct KeyMade {
        key: Key,
        /// Whether it outlasts a restart.
        kept: bool,
        /// Shown this once.
        secret: String,
    }
}
