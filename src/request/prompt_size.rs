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
    /// Images, sounds and files among them: with any, the bytes say nothing about bytes per token.
    pub media: u32,
    /// Tokens, where the client sent token ids.
    pub exact_tokens: Option<Tokens>,
}

impl PromptSize {
    /// Tokens: counted where possible, else estimated.
    #[must_use]
    pub fn tokens(&self, ratio: &TokenRatio) -> Tokens {
        self.exact_tokens.unwrap_or_else(|| ratio.estimate(&self.makeup))
    }

    /// Updates `ratio` with the engine's count; no-op for token ids and prompts with media.
    pub fn teach(&self, ratio: &TokenRatio, counted: Tokens) {
        if self.exact_tokens.is_none() && self.media == 0 {
            ratio.observe(&self.makeup, counted);
        }
    }
}
