//! A prompt as routing sees it: the chained hashes of its blocks, and how long it is.

use crate::request::chain::block_end;
use crate::units::Tokens;

/// A prompt by its prefix chain.
#[derive(Clone, Copy, Default)]
pub struct Prompt<'a> {
    /// Chained block hashes: hash `i` covers blocks `0..=i`.
    pub chain: &'a [u64],
    /// All bytes of the canonical prompt.
    pub bytes: u64,
    /// All its tokens, estimated or exact.
    pub tokens: Tokens,
}

impl Prompt<'_> {
    /// Tokens that an engine with this block size finds cached when it holds so many leading blocks of the
    /// chain, and something beyond. It caches whole blocks only, and computes the last token in any case.
    pub(super) fn cached(&self, blocks: usize, beyond: Tokens, block_tokens: u64) -> Tokens {
        let Some(last) = blocks.min(self.chain.len()).checked_sub(1) else { return Tokens(0) };
        if self.bytes == 0 || block_tokens == 0 {
            return Tokens(0);
        }
        let end = block_end(last).min(self.bytes);
        // Divisions of 128 bits are slow, and every candidate asks.
        let tokens = match end.checked_mul(self.tokens.0) {
            Some(covered) => covered / self.bytes,
            None => (end as f64 / self.bytes as f64 * self.tokens.0 as f64) as u64,
        };
        let tokens = tokens.saturating_add(beyond.0).min(self.tokens.0.saturating_sub(1));
        Tokens(tokens - tokens % block_tokens)
    }

    /// What several gateways agree on for prompts that begin alike.
    pub(super) fn root(&self) -> Option<u64> {
        self.chain.first().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hit_is_whole_engine_blocks_and_never_the_whole_prompt() {
        let chain = [1, 2, 3, 4];
        let cases = [
            ("nothing cached", 0, 0, 16, 0),
            ("one of four blocks", 1, 0, 16, 64),
            ("rounded down to the engine's blocks", 1, 0, 48, 48),
            ("less than one engine block", 1, 0, 128, 0),
            ("all of it: the last token is computed", 4, 0, 16, 240),
            ("more than the chain has", 9, 0, 16, 240),
            ("no block size", 4, 0, 0, 0),
            ("less than one engine block, with what is beyond", 1, 30, 80, 80),
            ("all of it, with what is beyond", 4, 30, 16, 240),
        ];
        for (name, blocks, beyond, block_tokens, expected) in cases {
            let prompt = Prompt { chain: &chain, bytes: 1024, tokens: Tokens(256) };
            assert_eq!(prompt.cached(blocks, Tokens(beyond), block_tokens), Tokens(expected), "{name}");
        }
    }

    #[test]
    fn a_prompt_without_bytes_or_tokens_hits_nothing() {
        for (bytes, tokens) in [(0, 100), (100, 0), (1, u64::MAX)] {
            let prompt = Prompt { chain: &[1], bytes, tokens: Tokens(tokens) };
            let hit = prompt.cached(1, Tokens(0), 16);
            assert!(hit.0 < tokens.max(1), "{hit:?} of {tokens}");
        }
    }
}
