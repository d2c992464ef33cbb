//! What a tenant may still use, as OpenAI's clients read it from headers.

use std::time::Duration;

/// The tightest limits that hold for a request when it came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimits {
    /// On requests.
    pub requests: Option<RateLimit>,
    /// On tokens.
    pub tokens: Option<RateLimit>,
}

/// One limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Of a window, or of an unused minute.
    pub limit: u64,
    /// What is left of it, reservations taken off.
    pub remaining: u64,
    /// Until all of it is there again.
    pub reset: Duration,
}

impl RateLimit {
    /// The one of which the smaller share is left.
    #[must_use]
    pub fn tighter(self, other: Option<Self>) -> Self {
        let (own, others) = (self, other);
        // a / b < c / d, without a division.
        let is_tighter = |a: &Self, b: &Self| {
            u128::from(a.remaining) * u128::from(b.limit) < u128::from(b.remaining) * u128::from(a.limit)
        };
        others.filter(|other| is_tighter(other, &own)).unwrap_or(own)
    }
}
