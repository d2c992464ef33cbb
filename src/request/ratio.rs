//! Bytes per token of one model, learned from the engine's `usage`.
//!
//! The gateway has no tokenizer; this one number turns prompt bytes into estimated tokens. It starts at four,
//! moves quickly at first and slowly later, and is moved little by short prompts, whose token count is mostly
//! chat template. Token-id prompts never come here: they are counted.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::units::Tokens;

/// A learned ratio; lock-free for readers and writers.
#[derive(Debug)]
pub struct TokenRatio(AtomicU64);

impl Default for TokenRatio {
    fn default() -> Self {
        Self(AtomicU64::new(Learned { ratio: INITIAL, weight: 0.0 }.pack()))
    }
}

impl TokenRatio {
    /// Learns from a text prompt of `bytes` canonical bytes that the engine counted as `tokens`. What no tokenizer
    /// could have counted (images, counting errors) is ignored.
    pub fn observe(&self, bytes: u64, tokens: Tokens) {
        let sample = bytes as f32 / tokens.0 as f32;
        if !PLAUSIBLE.contains(&sample) {
            return;
        }
        let share = (tokens.0 as f32 / FULL_WEIGHT_TOKENS).min(1.0);
        let learn = |bits| {
            let Learned { ratio, weight } = Learned::unpack(bits);
            let weight = (weight + share).min(MEMORY);
            // The initial guess counts as one full observation.
            let ratio = ratio + (sample - ratio) * share / (weight + 1.0);
            Some(Learned { ratio, weight }.pack())
        };
        let _never_refused = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, learn);
    }

    /// Tokens in a text of `bytes` bytes, at least one unless it is empty.
    #[must_use]
    pub fn estimate(&self, bytes: u64) -> Tokens {
        Tokens((bytes as f64 / self.bytes_per_token()).ceil() as u64)
    }

    /// The ratio as it stands.
    #[must_use]
    pub fn bytes_per_token(&self) -> f64 {
        f64::from(Learned::unpack(self.0.load(Ordering::Relaxed)).ratio)
    }
}

/// Both halves live in one word, so that no reader sees one without the other.
struct Learned {
    ratio: f32,
    weight: f32,
}

impl Learned {
    fn pack(&self) -> u64 {
        u64::from(self.ratio.to_bits()) << 32 | u64::from(self.weight.to_bits())
    }

    fn unpack(bits: u64) -> Self {
        let [r0, r1, r2, r3, w0, w1, w2, w3] = bits.to_be_bytes();
        Self { ratio: f32::from_be_bytes([r0, r1, r2, r3]), weight: f32::from_be_bytes([w0, w1, w2, w3]) }
    }
}

/// English text in most vocabularies.
const INITIAL: f32 = 4.0;

/// Below lie prompts that are all template, above none that a tokenizer makes.
const PLAUSIBLE: std::ops::RangeInclusive<f32> = 0.5..=24.0;

/// A prompt of this many tokens counts in full.
const FULL_WEIGHT_TOKENS: f32 = 512.0;

/// How many full observations are remembered.
const MEMORY: f32 = 50.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_at_four_and_rounds_up() {
        let ratio = TokenRatio::default();
        for (bytes, tokens) in [(0, 0), (1, 1), (4, 1), (5, 2), (4096, 1024)] {
            assert_eq!(ratio.estimate(bytes), Tokens(tokens), "{bytes}");
        }
    }

    #[test]
    fn converges_on_what_the_engine_counts() {
        let ratio = TokenRatio::default();
        for _ in 0..100 {
            ratio.observe(6000, Tokens(2000));
        }
        assert!((ratio.bytes_per_token() - 3.0).abs() < 0.05, "{ratio:?}");
        for _ in 0..300 {
            ratio.observe(10_000, Tokens(2000));
        }
        assert!((ratio.bytes_per_token() - 5.0).abs() < 0.05, "{ratio:?}");
    }

    #[test]
    fn short_prompts_move_it_little() {
        let ratio = TokenRatio::default();
        ratio.observe(10, Tokens(10));
        assert!((ratio.bytes_per_token() - 4.0).abs() < 0.1, "{ratio:?}");
    }

    #[test]
    fn absurd_counts_are_ignored() {
        let ratio = TokenRatio::default();
        for (bytes, tokens) in [(0, 0), (0, 5), (5, 0), (u64::MAX, 1), (1, u64::MAX), (u64::MAX, 0)] {
            ratio.observe(bytes, Tokens(tokens));
        }
        assert!((ratio.bytes_per_token() - 4.0).abs() < f64::EPSILON);
    }
}
