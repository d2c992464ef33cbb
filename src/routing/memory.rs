//! KV memory of an engine: a prompt begins only when there are free blocks for it.
//!
//! What our own streams hold beside the cached parts of their prompts is known at any moment. The engine's figure is as old as the last
//! scrape and shows how much it held beyond that then: of others, and of prefixes that were cached, however many share them.

use super::float::fast_max;
use super::load::LoadView;
use crate::routing::tuning::prices;
use crate::units::Tokens;

/// What an engine's KV cache has room for, in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Memory {
    /// All of its blocks.
    pub(super) capacity: f64,
    /// What running requests held beyond [`LoadView::held`] when its page was read.
    pub(super) beyond: f64,
}

impl Memory {
    /// Of an engine with `blocks` of `block_tokens`, the share `usage` of them in use, beside our own work at that moment.
    pub(super) fn of(blocks: u64, block_tokens: u64, usage: f64, own: &LoadView) -> Self {
        let capacity = blocks as f64 * block_tokens as f64;
        Self { capacity, beyond: usage * capacity - own.held as f64 }
    }

    /// Whether all of it is too little.
    #[inline]
    pub(super) fn is_below(&self, tokens: Tokens) -> bool {
        tokens.0 as f64 > self.capacity
    }

    /// Shares of its memory that have to come free before `tokens` more and what streams of so many expected tokens of `answer` will yet take
    /// find room, behind those that wait; zero where there is room. Where streams outgrow it the engine preempts some of them.
    #[inline]
    pub(super) fn lacking(&self, own: &LoadView, tokens: Tokens, answer: f64) -> f64 {
        let held = fast_max(own.held as f64 + self.beyond, 0.0);
        let growth = prices::GROWTH * answer * (own.decoding() as f64 + 1.0);
        let asked = held + own.waiting.tokens.saturating_add(tokens.0) as f64 + growth;
        fast_max(asked / self.capacity - 1.0, 0.0)
    }
}
