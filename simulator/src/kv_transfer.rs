//! How long KV takes from the replica that computed a prompt to the one that decodes it.

use std::time::Duration;

/// Times of transfers of KV from another replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvTransfer {
    /// The first one from each replica.
    pub handshake: Duration,
    /// Each.
    pub base: Duration,
    /// Each token.
    pub per_token: Duration,
    /// Until one is known to be lost.
    pub lost_after: Duration,
}

impl Default for KvTransfer {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(1),
            base: Duration::from_millis(20),
            per_token: Duration::from_micros(30),
            lost_after: Duration::from_secs(5),
        }
    }
}

impl KvTransfer {
    /// Of so many tokens, between replicas that know each other.
    #[must_use]
    pub fn of(&self, tokens: u64) -> Duration {
        self.base + self.per_token.saturating_mul(u32::try_from(tokens).unwrap_or(u32::MAX))
    }
}
