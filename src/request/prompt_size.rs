//! How long a prompt is. There is no tokenizer here: sizes are estimates unless the client sent token ids.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::request::makeup::Makeup;
use crate::request::ratio::TokenRatio;
use crate::units::Tokens;

/// How long a prompt is, before the engine has counted it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptSize {
    /// Length of the canonical bytes.
    pub bytes: u64,
    /// What they are made of.
    pub makeup: Makeup,
    /// Images, sounds and files among them: with any, the bytes say nothing about bytes per token.
    pub media: u32,
    /// Tokens, where the client sent token ids.
    pub exact_tokens: Option<Tokens>,
}

impl PromptSize {
    /// Tokens: counted where possible, else estimated.
    #[must_use]
    pub fn tokens(&self, ratio: &TokenRatio) -> Tokens {
        self.exact_tokens.unwrap_or_else(|| ratio.estimate(&self.makeup) + ratio.media.estimate(self.media))
    }

    /// Updates `ratio` with the engine's count, of prompts with media what one of them takes; no-op for token ids.
    pub fn teach(&self, ratio: &TokenRatio, counted: Tokens) {
        match (self.exact_tokens, self.media) {
            (Some(_), _) => {}
            (None, 0) => ratio.observe(&self.makeup, counted),
            (None, media) => ratio.media.observe(media, counted.saturating_sub(ratio.estimate(&self.makeup))),
        }
    }
}

/// Tokens that an image, a sound or a file takes, as engines count them: a running mean.
#[derive(Debug)]
pub(super) struct MediaTokens {
    /// A float as bits.
    each: AtomicU64,
    seen: AtomicU64,
}

impl Default for MediaTokens {
    fn default() -> Self {
        Self { each: AtomicU64::new(UNSEEN_MEDIUM.to_bits()), seen: AtomicU64::new(0) }
    }
}

impl MediaTokens {
    fn each(&self) -> f64 {
        f64::from_bits(self.each.load(Ordering::Relaxed))
    }

    fn estimate(&self, media: u32) -> Tokens {
        Tokens((self.each() * f64::from(media)) as u64)
    }

    /// `media` of them took so many tokens. The first answers count as much as all before them; a lost update is one answer.
    fn observe(&self, media: u32, tokens: Tokens) {
        let seen = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
        let share = (1.0 / seen as f64).max(LEARNED);
        let each = self.each() + share * (tokens.0 as f64 / f64::from(media) - self.each());
        self.each.store(each.to_bits(), Ordering::Relaxed);
    }
}

/// Tokens of a medium until one was counted.
const UNSEEN_MEDIUM: f64 = 1024.0;
/// Share of an answer in the running mean.
const LEARNED: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_count_as_what_usage_said_they_were() {
        let ratio = TokenRatio::default();
        let mut makeup = Makeup::default();
        makeup.add(&"word".repeat(100));
        let size = PromptSize { makeup, media: 2, ..PromptSize::default() };
        assert_eq!(size.tokens(&ratio), Tokens(100 + 2048));
        size.teach(&ratio, Tokens(6100));
        assert_eq!(size.tokens(&ratio), Tokens(6100));
        assert_eq!(ratio.estimate(&makeup), Tokens(100), "text counts as before");
    }
}
