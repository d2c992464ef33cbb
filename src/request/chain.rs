//! The prefix chain: chained hashes of a prompt's fixed-size blocks, block i's hash covering blocks 0..=i.
//!
//! Chains of prompts with a common prefix have a common prefix, so one hash per block says how much of a prompt a
//! replica has cached. Blocks are 256 bytes up to 128 KiB, where prompts diverge, and 2 KiB beyond. The canonical bytes
//! are hashed as they are fed, without being concatenated.
//!
//! `canonical` defines those bytes; the routing's prefix index knows which replica holds which block.

use smallvec::SmallVec;
use xxhash_rust::xxh3::{xxh3_64_with_secret, xxh3_64_with_seed};

use crate::config::Secret;
use crate::debug::debug_as;

/// Makes chains of this gateway (and of all that share `routing.seed`) comparable, and unguessable to others.
#[derive(Clone)]
pub struct ChainSeed {
    seed: u64,
    /// Spread out once: hashing a block under a seed would do it for every block, which takes as long as the block.
    secret: [u8; SECRET_BYTES],
}

impl ChainSeed {
    /// The seed that `routing.seed` stands for.
    pub fn new(seed: &Secret) -> Self {
        let text = seed.reveal().as_bytes();
        let mut secret = [0; SECRET_BYTES];
        for (word, at) in secret.chunks_exact_mut(8).zip(1u64..) {
            word.copy_from_slice(&xxh3_64_with_seed(text, at).to_le_bytes());
        }
        Self { seed: xxh3_64_with_seed(text, 0), secret }
    }

    /// A hash that nobody without the seed can aim.
    pub fn hash(&self, bytes: &[u8]) -> u64 {
        xxh3_64_with_seed(bytes, self.seed)
    }

    /// The hash of a chain that goes on with this block. The block is hashed by itself and linked by eight bytes, so that a
    /// processor can work on several blocks at once.
    fn link(&self, before: u64, block: &[u8]) -> u64 {
        let content = xxh3_64_with_secret(block, &self.secret);
        xxh3_64_with_seed(&content.to_le_bytes(), before)
    }
}

debug_as!(ChainSeed => "ChainSeed(***)");

/// What is part of every block's identity: prompts under different roots share nothing.
#[derive(Clone, Copy, Debug)]
pub struct Root<'a> {
    /// Model or LoRA adapter, as the engine calls it.
    pub model: &'a str,
    /// `cache_salt`; none is the same as empty.
    pub cache_salt: &'a str,
    /// How the engine makes a prompt of the request (chat template, raw text, …).
    pub template: u8,
}

/// The chain of one prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixChain {
    hashes: Vec<u64>,
    whole: u64,
    bytes: u64,
}

impl PrefixChain {
    /// A chain whose hashes are given, for simulated prompts.
    #[cfg(test)]
    pub(crate) fn of_hashes(hashes: Vec<u64>, bytes: u64) -> Self {
        Self { whole: hashes.last().copied().unwrap_or_default(), hashes, bytes }
    }

    /// The hash of every whole block, in order.
    pub fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    /// One number for the whole prompt, its last partial block included; 0 without a prompt.
    pub fn whole(&self) -> u64 {
        self.whole
    }

    /// Canonical bytes of the whole prompt.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Where block `i` of a chain ends, in canonical bytes.
pub(crate) fn block_end(i: usize) -> u64 {
    let fine = (i + 1).min(FINE_BLOCKS);
    (fine * FINE_BLOCK) as u64 + ((i + 1 - fine) * COARSE_BLOCK) as u64
}

/// Makes a chain of canonical bytes, fed in any portions.
#[derive(Debug)]
pub struct ChainBuilder<'s> {
    seed: &'s ChainSeed,
    chain: PrefixChain,
    last: u64,
    /// The beginning of the next block; long ones are rare, and need their own memory.
    partial: SmallVec<[u8; FINE_BLOCK]>,
}

impl<'s> ChainBuilder<'s> {
    /// An empty chain under a root, with room for a prompt of about `bytes` bytes, so that the list of hashes grows once.
    pub fn new(seed: &'s ChainSeed, root: Root<'_>, bytes: usize) -> Self {
        // Each part is hashed on its own, so that no two lists of parts run together into the same bytes.
        let model = xxh3_64_with_seed(root.model.as_bytes(), seed.seed);
        let salted = xxh3_64_with_seed(root.cache_salt.as_bytes(), model);
        let last = xxh3_64_with_seed(&[root.template], salted);
        let hashes = Vec::with_capacity((bytes / FINE_BLOCK).min(FINE_BLOCKS));
        let chain = PrefixChain { hashes, ..PrefixChain::default() };
        Self { seed, chain, last, partial: SmallVec::new() }
    }

    /// Appends canonical bytes; past [`MAX_BLOCKS`] they are only counted.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        self.chain.bytes += bytes.len() as u64;
        while !bytes.is_empty() && self.chain.hashes.len() < MAX_BLOCKS {
            let block = self.block_len();
            if self.partial.is_empty()
                && let Some((whole, rest)) = bytes.split_at_checked(block)
            {
                self.close_block(whole);
                bytes = rest;
            } else {
                bytes = self.fill(bytes, block);
            }
        }
    }

    /// The chain of what was fed.
    pub fn finish(mut self) -> PrefixChain {
        self.chain.whole = if self.chain.bytes == 0 { 0 } else { self.whole_so_far() };
        self.chain
    }

    /// One number for all that was fed.
    pub fn whole_so_far(&self) -> u64 {
        xxh3_64_with_seed(&self.partial, self.last ^ self.chain.bytes)
    }

    fn block_len(&self) -> usize {
        if self.chain.hashes.len() < FINE_BLOCKS { FINE_BLOCK } else { COARSE_BLOCK }
    }

    /// Moves bytes into the partial block, closes it when it is whole, and returns the rest.
    fn fill<'b>(&mut self, bytes: &'b [u8], block: usize) -> &'b [u8] {
        let (now, rest) = bytes.split_at(bytes.len().min(block - self.partial.len()));
        self.partial.extend_from_slice(now);
        if self.partial.len() == block {
            self.last = self.seed.link(self.last, &self.partial);
            self.chain.hashes.push(self.last);
            self.partial.clear();
        }
        rest
    }

    fn close_block(&mut self, block: &[u8]) {
        self.last = self.seed.link(self.last, block);
        self.chain.hashes.push(self.last);
    }
}

/// Bytes of a block in the first 128 KiB: about 64 tokens, four engine blocks on a GPU.
pub const FINE_BLOCK: usize = 256;

/// Bytes of a block beyond.
pub const COARSE_BLOCK: usize = 2048;

/// As long as the hash's own.
const SECRET_BYTES: usize = 192;

/// Blocks of a chain before the first coarse one.
pub(crate) const FINE_BLOCKS: usize = 128 * 1024 / FINE_BLOCK;

/// Past this many blocks (15 MiB) bytes are counted but no longer hashed.
pub const MAX_BLOCKS: usize = 8192;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ROOT: Root<'_> = Root { model: "m", cache_salt: "", template: 0 };

    fn seed(text: &str) -> ChainSeed {
        ChainSeed::new(&Secret::new(text))
    }

    fn chain_of(root: Root<'_>, parts: &[&[u8]]) -> PrefixChain {
        let secret = seed("s");
        let mut builder = ChainBuilder::new(&secret, root, 0);
        for part in parts {
            builder.feed(part);
        }
        builder.finish()
    }

    #[test]
    fn blocks_end_where_the_layout_says() {
        for (len, blocks, end) in [
            (0, 0, None),
            (255, 0, None),
            (256, 1, Some(256)),
            (1000, 3, Some(768)),
            (128 * 1024, 512, Some(128 * 1024)),
            (130 * 1024 - 1, 512, Some(128 * 1024)),
            (130 * 1024, 513, Some(130 * 1024)),
            (40 << 20, 8192, Some(128 * 1024 + 7680 * 2048)),
        ] {
            let chain = chain_of(ROOT, &[&vec![b'x'; len]]);
            assert_eq!(chain.hashes().len(), blocks, "{len}");
            assert_eq!(blocks.checked_sub(1).map(block_end), end, "{len}");
            assert_eq!(chain.bytes(), len as u64);
        }
    }

    #[test]
    fn a_block_has_the_same_hash_on_every_processor() {
        let seed = seed("s");
        for (len, hash) in [(FINE_BLOCK, 0x1b42_4832_1c2a_78ef), (COARSE_BLOCK, 0xb24e_78f3_aef5_9374)] {
            let block: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
            assert_eq!(seed.link(7, &block), hash, "{len}");
        }
    }

    #[test]
    fn every_root_part_and_the_seed_change_every_hash() {
        let text = [b'x'; 1024];
        let base = chain_of(ROOT, &[&text]);
        let secret = seed("t");
        let mut other_seed = ChainBuilder::new(&secret, ROOT, 0);
        other_seed.feed(&text);
        for other in [
            chain_of(Root { model: "n", ..ROOT }, &[&text]),
            chain_of(Root { cache_salt: "n", ..ROOT }, &[&text]),
            chain_of(Root { model: "", cache_salt: "m", ..ROOT }, &[&text]),
            chain_of(Root { template: 1, ..ROOT }, &[&text]),
            other_seed.finish(),
        ] {
            assert!(base.hashes().iter().zip(other.hashes()).all(|(a, b)| a != b));
            assert_ne!(base.whole(), other.whole());
        }
    }

    #[test]
    fn equal_blocks_at_different_places_differ() {
        let chain = chain_of(ROOT, &[&[0; 4096]]);
        let distinct: std::collections::HashSet<_> = chain.hashes().iter().collect();
        assert_eq!(distinct.len(), chain.hashes().len());
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_chain(
            bytes in prop::collection::vec(any::<u8>(), 0..3000),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
            pad in prop_oneof![Just(0usize), Just(128 * 1024 - 1000)],
        ) {
            let bytes = [vec![7; pad], bytes].concat();
            let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            places.extend([0, bytes.len()]);
            places.sort_unstable();
            let parts: Vec<&[u8]> = places.windows(2).map(|w| &bytes[w[0]..w[1]]).collect();
            prop_assert_eq!(chain_of(ROOT, &parts), chain_of(ROOT, &[&bytes]));
        }

        #[test]
        fn more_bytes_keep_the_chain_and_a_change_ends_it(
            bytes in prop::collection::vec(any::<u8>(), 1..3000),
            more in prop::collection::vec(any::<u8>(), 0..3000),
            at in any::<prop::sample::Index>(),
        ) {
            let chain = chain_of(ROOT, &[&bytes]);
            let longer = chain_of(ROOT, &[&bytes, &more]);
            prop_assert!(longer.hashes().starts_with(chain.hashes()));
            let at = at.index(bytes.len());
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            let changed = chain_of(ROOT, &[&changed]);
            for (i, (a, b)) in chain.hashes().iter().zip(changed.hashes()).enumerate() {
                prop_assert_eq!(a == b, i < at / FINE_BLOCK);
            }
            prop_assert_ne!(chain.whole(), changed.whole());
        }
    }
}
