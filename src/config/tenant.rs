//! `[[tenant]]`: clients, and what they may use.

use std::sync::Arc;

use super::declare::section;

/// `[[tenant]]`
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Unique name.
    pub name: Arc<str>,
    /// SHA-256 digests of its keys.
    pub key_digests: Vec<[u8; 32]>,
    /// Names in client certificates that are its own (`server.tls.client_ca`).
    pub client_names: Vec<Arc<str>>,
    /// Names of the routes that it may use; `None` is all.
    pub routes: Option<Vec<Arc<str>>>,
    /// Its part of a pool while others wait as well, at least 1.
    pub weight: u32,
    /// Higher ones are placed first.
    pub priority: i32,
    /// `tenant.limits`
    pub limits: TenantLimits,
}

impl Default for Tenant {
    /// The tenant of every request where none are configured.
    fn default() -> Self {
        Self {
            name: "default".into(),
            key_digests: Vec::new(),
            client_names: Vec::new(),
            routes: None,
            weight: 1,
            priority: 0,
            limits: TenantLimits::default(),
        }
    }
}

section! {
    /// what is absent is unlimited
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct TenantLimits for "tenant.limits", optional {
        /// requests per minute; a minute's may come at once
        requests_per_minute: Option<u64> as 1..=1_000_000_000, example 600;
        /// prompt and answer tokens per minute
        tokens_per_minute: Option<u64> as 1..=1_000_000_000_000, example 100000;
        /// requests in flight, waiting ones included
        concurrency: Option<u32> as 1..=1_000_000, example 64;
    }
}
