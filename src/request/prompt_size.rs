//! How long a prompt is. There is no tokenizer here: sizes are estimates unless the client sent token ids.

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
    /// Images, sounds and files among them: with any, the bytes do not give bytes per token.
    pub media: u32,
    /// Tokens, where the client sent token ids.
    pub exact_tokens: Option<Tokens>,
}

impl PromptSize {
    /// Tokens: counted where possible, else estimated.
    pub fn tokens(&self, ratio: &TokenRatio) -> Tokens {
        self.exact_tokens.unwrap_or_else(|| ratio.estimate(&self.makeup) + ratio.estimate_media(self.media))
    }

    /// Updates `ratio` with the engine's count, of prompts with media what one of them takes; no-op for token ids.
    pub fn teach(&self, ratio: &TokenRatio, counted: Tokens) {
        match (self.exact_tokens, self.media) {
            (Some(_), _) => {}
            (None, 0) => ratio.observe(&self.makeup, counted),
            (None, media) => ratio.observe_media(media, counted.saturating_sub(ratio.estimate(&self.makeup))),
        }
    }
}

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
