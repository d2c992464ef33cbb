//! What a class of requests is promised: bounds that a request is held to at its end.
//!
//! Plain values. `check` reads them and refuses contradictions; [`crate::observe::slo`] judges by them.

use std::time::Duration;

use crate::units::Tokens;

/// One SLO class: bounds that are not given do not apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slo {
    /// Time to first token.
    pub ttft: Option<TtftBound>,
    /// Percentiles of a stream's own inter-token latencies.
    pub itl: ItlBounds,
    /// Mean time per output token.
    pub tpot: Option<Duration>,
    /// Whole request.
    pub e2e: Option<Duration>,
}

/// Bounds on percentiles of the inter-token latencies of one stream, in the order of [`ItlBounds::PERCENTILES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ItlBounds([Option<Duration>; 4]);

impl ItlBounds {
    /// The percentiles that may be bound, with their keys.
    pub const PERCENTILES: [(&str, u8); 4] = [("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99)];

    /// Bounds in the order of the percentiles.
    #[must_use]
    pub const fn new(bounds: [Option<Duration>; 4]) -> Self {
        Self(bounds)
    }

    /// Whether no bound is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// Percentile (in percent) and bound, of those that are bound, the lowest percentile first.
    pub fn iter(&self) -> impl Iterator<Item = (u8, Duration)> {
        let bound = |((_, percent), bound): ((&str, u8), &Option<Duration>)| bound.map(|b| (percent, b));
        Self::PERCENTILES.into_iter().zip(&self.0).filter_map(bound)
    }
}

/// A TTFT bound that may grow with the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TtftBound {
    /// For an empty prompt.
    pub base: Duration,
    /// For each prompt token.
    pub per_prompt_token: Duration,
}

impl TtftBound {
    /// The bound for a prompt of `prompt` tokens.
    #[must_use]
    pub fn for_prompt(&self, prompt: Tokens) -> Duration {
        let tokens = u32::try_from(prompt.0).unwrap_or(u32::MAX);
        self.base + self.per_prompt_token.saturating_mul(tokens)
    }
}
