//! One engine's KV cache as its events have it: which blocks it holds, and which block each follows. Pure.
//!
//! A block has a name that is the same on every engine: the hash of its content under its parent's name. The engine's own hash is only
//! looked up, so that the algorithm behind it does not matter. A block whose parent is unknown (it was stored before
//! the gateway listened) begins a piece whose depth is unknown: what an answer counted as cached shows it later. What is held is bounded, whatever a
//! publisher claims.

use std::collections::{HashMap, VecDeque};

use hashlink::LinkedHashMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::batch::{Medium, Stored};
use crate::clock::Stamp;

#[derive(Debug, Default)]
pub(super) struct Picture {
    /// By name, the one that was stored last at the end.
    held: LinkedHashMap<u64, Held>,
    /// Names by the engine's hashes.
    names: HashMap<u64, u64>,
    recent: VecDeque<Recent>,
    /// Of those held, where the engine computes.
    in_gpu: usize,
    pub(super) block_tokens: u32,
    gpu_capacity: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    /// Name of the block before it; 0 for none that is known.
    pub(super) parent: u64,
    /// From 1, counted from the start of the prompt, or of the piece.
    pub(super) depth: u32,
    pub(super) is_piece: bool,
    /// Where the engine computes: prompts that are computed at one time each store their own.
    in_gpu: Copies,
    /// In tiers: there may be several, and one of them stores a block once for each of its chunks that has it.
    in_other: Copies,
}

/// A block in one medium.
#[derive(Clone, Copy, Debug)]
struct Copies {
    count: u32,
    /// As the events of this medium name it: a tier may hash otherwise.
    hash: u64,
}

/// A block that was stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recent {
    pub(super) at: Stamp,
    pub(super) name: u64,
    pub(super) depth: u32,
    /// Depth before the run of blocks that it came with.
    pub(super) run_from: u32,
    pub(super) is_piece: bool,
}

/// A block that came or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) name: u64,
    pub(super) depth: u32,
}

impl Picture {
    pub(super) fn new(gpu_capacity: usize) -> Self {
        Self { gpu_capacity: gpu_capacity.clamp(1, MAX_BLOCKS), ..Self::default() }
    }

    /// Blocks held: those where the engine computes, and those in tiers behind it alone.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.in_gpu, self.held.len().saturating_sub(self.in_gpu))
    }

    pub(super) fn get(&self, name: u64) -> Option<&Held> {
        self.held.get(&name)
    }

    pub(super) fn holds(&self, name: u64) -> bool {
        self.held.contains_key(&name)
    }

    /// Those that were stored, the newest first.
    pub(super) fn recent(&self) -> impl Iterator<Item = &Recent> {
        self.recent.iter().rev()
    }

    /// The names of a block and of all before it, by depth.
    pub(super) fn path(&self, name: u64) -> Vec<(u64, u32)> {
        let mut path = Vec::new();
        let mut at = name;
        while let Some(held) = self.held.get(&at) {
            path.push((at, held.depth));
            if held.depth <= 1 || path.len() >= MAX_BLOCKS {
                break;
            }
            at = held.parent;
        }
        path.reverse();
        path
    }

    /// A path turns out to begin `base` blocks further on, at these depths: it is no piece any more.
    pub(super) fn settle(&mut self, path: &[(u64, u32)], base: u32) {
        for (name, depth) in path.iter().filter(|_| base > 0) {
            if let Some(held) = self.held.get_mut(name) {
                (held.depth, held.is_piece) = (*depth, false);
            }
        }
    }

    /// Takes a run of blocks in; `came` and `went` get what changed.
    pub(super) fn stored(
        &mut self,
        run: &Stored,
        at: Stamp,
        mut came: impl FnMut(Change),
        went: impl FnMut(Change),
    ) {
        if self.block_tokens != run.block_tokens {
            // Part of a block, or of a tier that has blocks of its own.
            if run.block_tokens < self.block_tokens || run.medium == Medium::Other {
                return;
            }
            self.clear();
            self.block_tokens = run.block_tokens;
        }
        let (mut parent, mut depth, mut is_piece) = match run.parent {
            None => (ROOT, 0, false),
            Some(hash) => match self.names.get(&hash).and_then(|name| Some((*name, self.held.get(name)?))) {
                Some((name, held)) => (name, held.depth, held.is_piece),
                None => (hash ^ PIECE, 0, true),
            },
        };
        let run_from = depth;
        for block in &run.blocks {
            depth = depth.saturating_add(1);
            // The engine's hash covers salt and images, which the events of a tier lack: a known block keeps its name.
            let by_content = || xxh3_64_with_seed(&block.content.to_le_bytes(), parent);
            let name = self.names.get(&block.hash).copied().unwrap_or_else(by_content);
            let before = self.held.remove(&name);
            let none = Copies { count: 0, hash: block.hash };
            let mut held = before.unwrap_or(Held { parent, depth, is_piece, in_gpu: none, in_other: none });
            if held.is_piece && !is_piece {
                (held.parent, held.depth, held.is_piece) = (parent, depth, false);
            }
            (depth, is_piece) = (held.depth, held.is_piece);
            self.in_gpu += usize::from(run.medium == Medium::Gpu && held.in_gpu.count == 0);
            self.forget_hashes(&held);
            let count = held.copies(run.medium).count.saturating_add(1);
            *held.copies(run.medium) = Copies { count, hash: block.hash };
            self.names.extend(held.hashes().map(|hash| (hash, name)));
            self.held.insert(name, held);
            if before.is_none() {
                came(Change { name, depth });
            }
            self.recent.push_back(Recent { at, name, depth, run_from, is_piece });
            parent = name;
        }
        while self.recent.len() > MAX_RECENT {
            self.recent.pop_front();
        }
        self.forget_surplus(went);
    }

    /// Notes copies in a tier, of blocks that are known.
    pub(super) fn copied(&mut self, hashes: &[u64]) {
        for hash in hashes {
            if let Some(held) = self.names.get(hash).and_then(|name| self.held.get_mut(name)) {
                held.in_other.count = held.in_other.count.saturating_add(1);
            }
        }
    }

    /// Takes blocks out of one medium; `went` gets those that are in none any more.
    pub(super) fn removed(&mut self, hashes: &[u64], medium: Medium, mut went: impl FnMut(Change)) {
        for hash in hashes {
            let Some(name) = self.names.get(hash).copied() else { continue };
            let Some(held) = self.held.get_mut(&name) else { continue };
            self.in_gpu -= usize::from(medium == Medium::Gpu && held.in_gpu.count == 1);
            let copies = held.copies(medium);
            copies.count = copies.count.saturating_sub(1);
            if held.in_gpu.count == 0 && held.in_other.count == 0 {
                let held = *held;
                self.held.remove(&name);
                self.forget_hashes(&held);
                went(Change { name, depth: held.depth });
            }
        }
    }

    fn forget_surplus(&mut self, mut went: impl FnMut(Change)) {
        // The size of a tier is not known: it is bounded by its own events alone.
        while (self.in_gpu > self.gpu_capacity || self.held.len() > MAX_BLOCKS)
            && let Some((name, held)) = self.held.pop_front()
        {
            self.in_gpu -= usize::from(held.in_gpu.count > 0);
            self.forget_hashes(&held);
            went(Change { name, depth: held.depth });
        }
    }

    fn forget_hashes(&mut self, held: &Held) {
        for hash in held.hashes() {
            self.names.remove(&hash);
        }
    }

    pub(super) fn clear(&mut self) {
        self.held.clear();
        self.names.clear();
        self.recent.clear();
        self.in_gpu = 0;
    }

    /// The number of blocks on the GPU.
    pub(super) fn set_gpu_capacity(&mut self, blocks: usize) {
        self.gpu_capacity = blocks.clamp(1, MAX_BLOCKS);
    }
}

impl Held {
    fn hashes(&self) -> [u64; 2] {
        [self.in_gpu.hash, self.in_other.hash]
    }

    fn copies(&mut self, medium: Medium) -> &mut Copies {
        match medium {
            Medium::Gpu => &mut self.in_gpu,
            Medium::Other => &mut self.in_other,
        }
    }
}

/// The parent of a prompt's first block.
const ROOT: u64 = 0x6b76_2d72_6f6f_7400;
const PIECE: u64 = 0x5bd1_e995_97f4_a7c5;
/// Blocks of one replica; some 100 bytes each.
pub(super) const MAX_BLOCKS: usize = 1 << 20;
/// Blocks among which those of an answered prompt are looked for.
const MAX_RECENT: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::seconds as at;
    use crate::kv_events::batch::Block;

    fn run(parent: Option<u64>, hashes: &[u64]) -> Stored {
        run_in(Medium::Gpu, parent, hashes)
    }

    fn run_in(medium: Medium, parent: Option<u64>, hashes: &[u64]) -> Stored {
        let blocks = hashes.iter().map(|&hash| Block { hash, content: hash % 1000 }).collect();
        Stored { parent, medium, block_tokens: 16, blocks }
    }

    fn store(picture: &mut Picture, run: &Stored) -> (usize, usize) {
        let (mut came, mut went) = (0, 0);
        picture.stored(run, at(1), |_| came += 1, |_| went += 1);
        (came, went)
    }

    #[test]
    fn engines_that_hash_differently_name_the_same_blocks_alike() {
        let (mut one, mut other) = (Picture::new(100), Picture::new(100));
        store(&mut one, &run(None, &[1, 2]));
        store(&mut one, &run(Some(2), &[3]));
        store(&mut other, &run(None, &[5001, 7002, 9003]));
        let names = |picture: &Picture| picture.recent().map(|recent| recent.name).collect::<Vec<_>>();
        assert_eq!(names(&one), names(&other));
        let tip = one.recent().next().unwrap();
        assert_eq!((tip.depth, tip.run_from, one.path(tip.name).len()), (3, 2, 3));
    }

    #[test]
    fn a_block_keeps_its_name_whatever_a_tier_publishes_of_its_content() {
        let mut picture = Picture::new(100);
        store(&mut picture, &run(None, &[1, 2]));
        let mut unsalted = run_in(Medium::Other, None, &[1, 2, 3]);
        unsalted.blocks.iter_mut().for_each(|block| block.content += 500);
        assert_eq!(store(&mut picture, &unsalted), (1, 0));
        assert_eq!(picture.counts(), (2, 1));
        let mut gone = 0;
        picture.removed(&[1, 2, 3], Medium::Other, |_| gone += 1);
        picture.removed(&[1, 2, 3], Medium::Gpu, |_| gone += 1);
        assert_eq!((gone, picture.counts()), (3, (0, 0)));
    }

    #[test]
    fn a_piece_is_known_whole_once_a_tier_publishes_what_it_follows() {
        let mut picture = Picture::new(100);
        store(&mut picture, &run(Some(2), &[3, 4]));
        store(&mut picture, &run_in(Medium::Other, None, &[1, 2, 3, 4]));
        let tip = picture.recent().next().unwrap();
        assert_eq!((tip.depth, tip.is_piece, picture.path(tip.name).len()), (4, false, 4));
        assert_eq!(picture.counts(), (2, 2));
    }

    #[test]
    fn a_block_is_gone_when_no_medium_holds_it() {
        let mut picture = Picture::new(100);
        store(&mut picture, &run(None, &[1, 2]));
        store(&mut picture, &run_in(Medium::Other, None, &[1]));
        let mut gone = 0;
        picture.removed(&[1, 2, 3], Medium::Gpu, |_| gone += 1);
        assert_eq!((gone, picture.counts()), (1, (0, 1)));
        picture.removed(&[1], Medium::Other, |_| gone += 1);
        assert_eq!((gone, picture.counts()), (2, (0, 0)));
    }

    #[test]
    fn copies_in_a_tier_are_noted_of_blocks_that_are_known() {
        let mut picture = Picture::new(100);
        store(&mut picture, &run(None, &[1, 2]));
        picture.copied(&[2, 3]);
        let mut gone = 0;
        picture.removed(&[1, 2], Medium::Gpu, |_| gone += 1);
        assert_eq!((gone, picture.counts()), (1, (0, 1)));
    }

    #[test]
    fn a_block_in_two_tiers_is_held_until_both_lost_it() {
        let mut picture = Picture { block_tokens: 16, ..Picture::new(100) };
        store(&mut picture, &run_in(Medium::Other, None, &[1]));
        store(&mut picture, &run_in(Medium::Other, None, &[1]));
        let mut gone = 0;
        picture.removed(&[1], Medium::Other, |_| gone += 1);
        assert_eq!((gone, picture.counts()), (0, (0, 1)));
        picture.removed(&[1], Medium::Other, |_| gone += 1);
        assert_eq!((gone, picture.counts()), (1, (0, 0)));
    }

    #[test]
    fn chunks_of_another_tier_take_the_place_of_no_block() {
        let mut picture = Picture::new(100);
        let chunk = Stored { block_tokens: 256, ..run_in(Medium::Other, None, &[9]) };
        store(&mut picture, &chunk);
        store(&mut picture, &run(None, &[1, 2]));
        store(&mut picture, &chunk);
        store(&mut picture, &run(None, &[3]));
        assert_eq!((picture.counts(), picture.block_tokens), ((3, 0), 16));
    }

    #[test]
    fn a_block_that_two_prompts_stored_is_held_until_both_copies_are_gone() {
        let mut picture = Picture::new(100);
        store(&mut picture, &run(None, &[1]));
        store(&mut picture, &run(None, &[1]));
        let mut gone = 0;
        picture.removed(&[1], Medium::Gpu, |_| gone += 1);
        assert_eq!((gone, picture.counts()), (0, (1, 0)));
        picture.removed(&[1], Medium::Gpu, |_| gone += 1);
        assert_eq!((gone, picture.counts()), (1, (0, 0)));
    }

    #[test]
    fn what_a_publisher_claims_is_bounded() {
        let mut picture = Picture::new(10);
        let hashes: Vec<u64> = (1..=50).collect();
        assert_eq!(store(&mut picture, &run(None, &hashes)), (50, 40));
        assert_eq!(picture.counts(), (10, 0));
        assert_eq!(picture.path(picture.recent().next().unwrap().name).len(), 10);
    }

    #[test]
    fn what_a_tier_holds_is_bounded_by_the_most_blocks_of_all() {
        let mut picture = Picture { block_tokens: 16, ..Picture::new(10) };
        let (mut parent, mut lost) = (None, 0);
        for from in (0..MAX_BLOCKS as u64 + 20).step_by(4096) {
            let hashes: Vec<u64> = (from..from + 4096).collect();
            lost += store(&mut picture, &run_in(Medium::Other, parent, &hashes)).1;
            parent = hashes.last().copied();
        }
        assert_eq!((picture.counts(), lost), ((0, MAX_BLOCKS), 4096));
        assert!(picture.names.len() <= MAX_BLOCKS);
    }

    #[test]
    fn a_block_goes_by_one_hash_in_each_medium() {
        let mut picture = Picture::new(10);
        let (mut gone, content) = (0, |hash: u64| 1000 * hash + 5);
        for round in 1..100 {
            store(&mut picture, &run(None, &[content(round)]));
            // A tier with hashes of its own.
            store(&mut picture, &run_in(Medium::Other, None, &[content(round + 100)]));
            assert_eq!(picture.names.len(), 2);
            picture.removed(&[content(round)], Medium::Gpu, |_| gone += 1);
            assert_eq!(picture.counts(), (0, 1));
            picture.removed(&[content(round + 100)], Medium::Other, |_| gone += 1);
            assert!(picture.names.is_empty());
        }
        assert_eq!(gone, 99);
        // A publisher that names what it holds ever anew.
        for hash in 1..1000 {
            store(&mut picture, &run(None, &[content(hash)]));
        }
        assert!(picture.names.len() <= 2, "{}", picture.names.len());
    }

    #[test]
    fn a_run_behind_an_unknown_block_is_a_piece() {
        let mut picture = Picture::new(10);
        store(&mut picture, &run(Some(99), &[1, 2]));
        let tip = picture.recent().next().unwrap();
        assert_eq!((tip.depth, tip.is_piece, picture.path(tip.name).len()), (2, true, 2));
    }
}
