//! What a prompt makes an engine compute: tokens, and attention of each of them to those before it.
//!
//! Both add up over a queue, so a replica's waiting work is two sums, whatever its speed turns out to be: seconds are made of
//! them at the moment of a decision, with the rates that are known then.

use std::ops::{Add, AddAssign, Sub};

use crate::units::Tokens;

/// Work of one prompt, or of many together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Prompt tokens to compute.
    pub tokens: u64,
    /// For each of them the tokens before it, cached ones included, summed.
    pub attention: u64,
}

impl Work {
    /// A prompt of which `uncached` tokens are computed after `cached` ones that need not be.
    pub fn of(uncached: Tokens, cached: Tokens) -> Self {
        let (tokens, before) = (uncached.0.min(MOST_TOKENS), cached.0.min(MOST_TOKENS));
        Self { tokens, attention: tokens * (before + tokens / 2) }
    }
}

impl Add for Work {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.saturating_add(other.tokens),
            attention: self.attention.saturating_add(other.attention),
        }
    }
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Work {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.saturating_sub(other.tokens),
            attention: self.attention.saturating_sub(other.attention),
        }
    }
}

/// No prompt is longer; keeps the products of thousands of them within 64 bits.
pub(super) const MOST_TOKENS: u64 = 1 << 25;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cached_prefix_saves_tokens_but_is_still_attended_to() {
        for (uncached, cached, tokens, attention) in [
            (0, 0, 0, 0),
            (100, 0, 100, 5000),
            (100, 1000, 100, 105_000),
            (u64::MAX, 0, MOST_TOKENS, MOST_TOKENS * (MOST_TOKENS / 2)),
        ] {
            assert_eq!(Work::of(Tokens(uncached), Tokens(cached)), Work { tokens, attention });
        }
    }
}
