//! What engines find cached beyond the blocks of a prompt's chain that are known to be there.
//!
//! The chain knows whole blocks of bytes, so that what two prompts share ends somewhere in the block after the last equal one. And
//! an engine keeps what it generated: the next turn of a conversation finds the answer of the one before, of which no prompt
//! told. How many tokens that makes goes with the traffic, so it is learned from the reports of cached tokens: their median, by
//! steps of one size up and down (the sign is all that counts, so one odd report says no more than any other). It
//! is one number for all replicas of a pool, and bounded: nobody attracts traffic by claiming more than was sent.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::routing::tuning::priors;
use crate::units::Tokens;

/// A running median of tokens.
#[derive(Debug, Default)]
pub(super) struct Beyond(AtomicU64);

impl Beyond {
    #[inline]
    pub(super) fn tokens(&self) -> Tokens {
        Tokens(self.0.load(Ordering::Relaxed))
    }

    /// An engine found so many tokens of a prompt where `predicted` were expected, these here included. Of reports that come
    /// together one may be lost.
    pub(super) fn reported(&self, predicted: Tokens, cached: Tokens) {
        let Tokens(now) = self.tokens();
        let next = match cached.0.cmp(&predicted.0) {
            std::cmp::Ordering::Less => now.saturating_sub(STEP),
            std::cmp::Ordering::Equal => return,
            std::cmp::Ordering::Greater => (now + STEP).min(MOST),
        };
        self.0.store(next, Ordering::Relaxed);
    }
}

/// Half a block of the usual engines: a few dozen reports reach the answer of a chat.
const STEP: u64 = priors::BLOCK_TOKENS / 2;
/// A long answer.
const MOST: u64 = 512;

#[cfg(test)]
mod tests {
    use super::*;

    /// After reports of engines with blocks of so many tokens, of prompts that share so many.
    fn after(block: u64, shared: impl Iterator<Item = u64>) -> u64 {
        let beyond = Beyond::default();
        for shared in shared {
            let known = shared - shared % 64;
            let whole = |tokens: u64| Tokens(tokens - tokens % block);
            beyond.reported(whole(known + beyond.tokens().0), whole(shared + 100));
        }
        beyond.tokens().0
    }

    #[test]
    fn the_middle_of_what_is_found_is_learned() {
        for block in [16, 128] {
            let learned = after(block, (0..2000).map(|n| 700 + n * 37 % 640));
            assert!(
                (100..170).contains(&learned),
                "blocks of {block}: {learned}, where 100 to 163 are right"
            );
        }
    }

    #[test]
    fn claims_are_bounded_and_shortfalls_end_at_nothing() {
        let beyond = Beyond::default();
        for _ in 0..1000 {
            beyond.reported(Tokens(10), Tokens(u64::MAX));
        }
        assert_eq!(beyond.tokens(), Tokens(MOST));
        for _ in 0..1000 {
            beyond.reported(Tokens(10), Tokens(0));
        }
        assert_eq!(beyond.tokens(), Tokens(0));
    }
}
