//! Tokens of media in prompts, learned from what engines count.
//!
//! The bytes of an image, a sound or a file do not give its tokens, and no field of a request does: `usage` tells
//! afterwards. One mean for all kinds: a request may hold several, and the engine counts their sum.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::units::{AtomicF64, Tokens};

/// Tokens that an image, a sound or a file takes, as engines count them: a running mean.
#[derive(Debug)]
pub(super) struct MediaTokens {
    each: AtomicF64,
    seen: AtomicU64,
}

impl Default for MediaTokens {
    fn default() -> Self {
        Self { each: UNSEEN_MEDIUM.into(), seen: AtomicU64::new(0) }
    }
}

impl MediaTokens {
    pub(super) fn estimate(&self, media: u32) -> Tokens {
        Tokens((self.each.load() * f64::from(media)) as u64)
    }

    /// `media` of them took `tokens`. The first answers count as much as all before them; a lost update is one answer.
    pub(super) fn observe(&self, media: u32, tokens: Tokens) {
        let seen = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
        let share = (1.0 / seen as f64).max(LEARNED);
        let each = self.each.load();
        self.each.store(each + share * (tokens.0 as f64 / f64::from(media) - each));
    }
}

/// Tokens of a medium until one was counted.
const UNSEEN_MEDIUM: f64 = 1024.0;
/// Share of an answer in the running mean.
const LEARNED: f64 = 0.1;
