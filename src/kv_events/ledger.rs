//! Which text an engine's blocks are: joins what answers counted with the blocks that were stored for them. Pure.
//!
//! There is no tokenizer here. A prompt that was answered is known by its text (the prefix chain) and by counts: how many tokens it
//! has, how many of them were cached, how many were generated. Its blocks are those that were stored between its sending and its
//! end, at just these depths, behind the blocks that its beginning is known to be. Where two prompts fit, neither is joined: its
//! next turn will be, and until then the index believes what it did before. From a joined prompt on events speak about text: a block
//! that is evicted takes its text out of the index, and one that others store brings it in.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use hashlink::LinkedHashMap;
use smallvec::SmallVec;

use super::PromptOutcome;
use super::batch::Event;
use super::firsts::Firsts;
use super::picture::{Change, MAX_BLOCKS, Picture};
use crate::clock::Stamp;
use crate::request::chain::{FINE_BLOCKS, block_end};
use crate::routing::PrefixIndex;
use crate::routing::prefix_index::{BLOCK_TOKENS, End};
use crate::routing::reports::PromptReport;

/// What is known of one pool's caches.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pictures: HashMap<usize, Picture>,
    meanings: Meanings,
    firsts: Firsts,
}

/// What blocks stand for, on whatever engine they are.
#[derive(Debug, Default)]
struct Meanings {
    /// What blocks are, by name.
    links: LinkedHashMap<u64, SmallVec<[Link; 2]>>,
    /// Names of blocks by the block of text that ends with them.
    texts: HashMap<u64, u64>,
    /// Prompts by whole hash.
    prompts: LinkedHashMap<u64, Known>,
}

/// What a block is the last one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// A block of text.
    Text { hash: u64, is_coarse: bool },
    /// Some part of what follows the text blocks of a prompt: its last words, and its answer.
    Tail { whole: u64 },
}

/// A prompt that was answered.
#[derive(Clone, Copy, Debug)]
struct Known {
    bytes: u64,
    blocks: u32,
    tokens: u32,
}

/// A look for the blocks of an answered prompt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// When the answer ended.
    pub answered: Stamp,
    /// There is no later look.
    pub is_last: bool,
}

impl Ledger {
    /// Follows a replica, of which nothing is known, or what was known when its connection was lost: a gap in the numbers shows
    /// whether events were missed since ([`Self::doubt`]).
    pub(super) fn open(&mut self, slot: usize, index: &PrefixIndex) {
        self.pictures.entry(slot).or_insert_with(|| Picture::new(MAX_BLOCKS));
        index.exact.follow(slot, true);
    }

    /// The number of blocks on its GPU.
    pub(super) fn set_gpu_capacity(&mut self, slot: usize, blocks: u64) {
        // Between two looks more may be stored than evicted.
        let blocks = usize::try_from(blocks).unwrap_or(MAX_BLOCKS).saturating_mul(2);
        if let Some(picture) = self.pictures.get_mut(&slot) {
            picture.set_gpu_capacity(blocks);
        }
    }

    /// A replica is followed no more: what the index believes of it is left to itself.
    pub(super) fn close(&mut self, slot: usize, index: &PrefixIndex) {
        self.pictures.remove(&slot);
        self.forget_ends(slot, index);
        index.exact.follow(slot, false);
        index.exact.set_in_tiers(slot, 0);
    }

    /// Events were lost: which blocks are held is unknown from here on back.
    pub(super) fn doubt(&mut self, slot: usize) {
        if let Some(picture) = self.pictures.get_mut(&slot) {
            picture.clear();
        }
    }

    /// A replica's cache is empty.
    pub(super) fn emptied(&mut self, slot: usize, index: &PrefixIndex) {
        self.doubt(slot);
        self.forget_ends(slot, index);
        index.forget(slot);
    }

    /// Those of prompts without a whole block of text would outlast the cache: no block that is gone takes them along.
    fn forget_ends(&self, slot: usize, index: &PrefixIndex) {
        self.meanings.prompts.keys().for_each(|whole| index.exact.set_end(slot, *whole, None));
    }

    /// Blocks held: those where the engine computes, and those in tiers behind it alone.
    pub(super) fn counts(&self, slot: usize) -> (usize, usize) {
        self.pictures.get(&slot).map_or((0, 0), Picture::counts)
    }

    /// Takes an event of a replica in.
    pub(super) fn take(&mut self, slot: usize, event: &Event, at: Stamp, index: &PrefixIndex) {
        let Some(picture) = self.pictures.get_mut(&slot) else { return };
        let block_tokens = picture.block_tokens;
        let gone = |change: Change| self.meanings.gone(slot, change, block_tokens, index);
        match event {
            Event::Stored(run) => {
                let came = |change| self.meanings.came(slot, change, run.block_tokens, index);
                picture.stored(run, at, came, gone);
            }
            Event::Copied { hashes } => picture.copied(hashes),
            Event::Removed { hashes, medium } => picture.removed(hashes, *medium, gone),
            Event::Cleared => self.emptied(slot, index),
        }
    }

    /// A prompt was answered: its counts hold whatever its blocks are.
    pub(super) fn answered(&mut self, report: &PromptReport, index: &PrefixIndex) {
        let Some(counts) = Counts::of(report) else { return };
        let block_tokens = self.pictures.get(&report.slot).map_or(0, |picture| picture.block_tokens);
        if let Some(cached) = counts.cached
            && block_tokens > 0
        {
            match report.before {
                Some(end) if report.blocks >= end.blocks as usize => {
                    index.exact.continued(end, cached, block_tokens);
                }
                None if report.is_new => note_fork(report, cached, block_tokens, index),
                _ => {}
            }
        }
        let known = Known { bytes: report.bytes, blocks: counts.end.blocks, tokens: counts.end.prompt };
        self.meanings.prompts.remove(&report.turn.whole);
        self.meanings.prompts.insert(report.turn.whole, known);
        while self.meanings.prompts.len() > MAX_PROMPTS
            && let Some((whole, _)) = self.meanings.prompts.pop_front()
        {
            self.pictures.keys().for_each(|slot| index.exact.set_end(*slot, whole, None));
        }
        index.exact.trim();
        self.mark(report, &counts, index);
    }

    /// Notes how many tokens there are up to each of its blocks: exact at its end and at that of the turn before, in proportion
    /// between them.
    fn mark(&self, report: &PromptReport, counts: &Counts, index: &PrefixIndex) {
        let marked = |at: &usize| report.chain.get(*at).and_then(|hash| index.exact.mark(*hash));
        let before = report.turn.continues.and_then(|whole| self.meanings.prompts.get(&whole));
        let mut base = before.map_or((0, 0), |known| (known.bytes, known.tokens));
        let last = (0..report.chain.len()).rev().find_map(|at| Some((block_end(at), marked(&at)?)));
        if let Some(last) = last.filter(|last| last.0 > base.0) {
            base = last;
        }
        if base.0 >= report.bytes || base.1 >= counts.end.prompt {
            base = (0, 0);
        }
        let (bytes, tokens) = ((report.bytes - base.0) as f64, f64::from(counts.end.prompt - base.1));
        for (at, hash) in report.chain.iter().enumerate() {
            let end = block_end(at);
            if index.exact.mark(*hash).is_none() {
                let share = (end.saturating_sub(base.0)) as f64 / bytes;
                let count = if end >= base.0 {
                    f64::from(base.1) + share * tokens
                } else {
                    end as f64 / base.0 as f64 * f64::from(base.1)
                };
                index.exact.set_mark(*hash, Some(count as u32));
            }
        }
    }

    /// Looks for the blocks of an answered prompt and joins them with its text.
    pub(super) fn join(&mut self, report: &PromptReport, look: Look, index: &PrefixIndex) -> PromptOutcome {
        let Some(counts) = Counts::of(report) else { return PromptOutcome::Nothing };
        let Some(picture) = self.pictures.get(&report.slot) else { return PromptOutcome::Nothing };
        let size = picture.block_tokens;
        if size == 0 || counts.end.prompt < size {
            return if size == 0 { PromptOutcome::Unknown } else { PromptOutcome::Nothing };
        }
        let text = first_text(report, size, index);
        let tip = match self.find(picture, report, &counts, look, text) {
            Ok(tip) => tip,
            Err(why) => return why,
        };
        let mut path = picture.path(tip.name);
        path.iter_mut().for_each(|(_, depth)| *depth += tip.base);
        if let (Some(text), Some(&(name, 1))) = (text, path.first()) {
            let is_meant =
                self.firsts.fits(text, name) || (look.is_last && self.firsts.contradict(text, name));
            if !is_meant {
                return PromptOutcome::Unknown;
            }
            self.firsts.note(text, name);
        }
        if let Some(picture) = self.pictures.get_mut(&report.slot) {
            picture.settle(&path, tip.base);
        }
        self.link(report, &path, size, index);
        PromptOutcome::Found
    }

    /// The last block that was stored for a prompt and its answer.
    fn find(
        &self,
        picture: &Picture,
        report: &PromptReport,
        counts: &Counts,
        look: Look,
        text: Option<u64>,
    ) -> Result<Tip, PromptOutcome> {
        let size = picture.block_tokens;
        let from = counts.cached.map(|cached| cached / size);
        let (whole, last) = (counts.end.prompt / size, counts.end.reach / size);
        if from.is_some_and(|from| from >= last) {
            // All of it was there before: its text is that of what stored it.
            return Err(PromptOutcome::Nothing);
        }
        let mut found: SmallVec<[Tip; 2]> = SmallVec::new();
        for recent in picture.recent().take_while(|recent| recent.at >= report.sent) {
            if recent.is_piece && from == Some(0) {
                // Its beginning is another's.
                continue;
            }
            // Of a piece only what was computed counts.
            let base = if recent.is_piece { from.unwrap_or(u32::MAX) } else { 0 };
            let depth = recent.depth.saturating_add(base);
            // The last block of an answer that was cut off may not have been stored.
            let is_tip = depth == last || look.is_last && depth.saturating_add(1) == last && depth >= whole;
            if !is_tip || found.iter().any(|tip| tip.name == recent.name) || !picture.holds(recent.name) {
                continue;
            }
            // Of two on one path the longer one, which came later.
            if found.iter().any(|tip| picture.get(tip.name).is_some_and(|held| held.parent == recent.name)) {
                continue;
            }
            let path = picture.path(recent.name);
            if from.is_none_or(|from| began_at(picture, report, &path, from.saturating_sub(base))) {
                found.push(Tip { name: recent.name, base, at: recent.at, known: 0 });
            }
        }
        let fits =
            |tip: &Tip| text.is_none_or(|text| self.begins_with(text, &picture.path(tip.name), tip.base));
        if found.iter().any(fits) {
            found.retain(|tip| fits(tip));
        }
        // What came later may be of a prompt that was sent when this one was answered.
        let in_time = |tip: &Tip| tip.at <= look.answered.after(LATE_EVENTS);
        if found.iter().any(in_time) {
            found.retain(|tip| in_time(tip));
        }
        if found.len() > 1 {
            found.iter_mut().for_each(|tip| tip.known = self.known_on(report, &picture.path(tip.name)));
            found.sort_by_key(|tip| std::cmp::Reverse(tip.known));
        }
        match found[..] {
            [] => Err(PromptOutcome::Unknown),
            [first, second, ..] if first.known == second.known => Err(PromptOutcome::Ambiguous),
            [first, ..] => Ok(first),
        }
    }

    /// Whether a path, where it is whole, may be that of a prompt with this text.
    fn begins_with(&self, text: u64, path: &[(u64, u32)], base: u32) -> bool {
        path.first().is_none_or(|(name, depth)| depth + base > 1 || self.firsts.fits(text, *name))
    }

    /// How many blocks of a prompt's text are known to be on a path.
    fn known_on(&self, report: &PromptReport, path: &[(u64, u32)]) -> usize {
        let names: HashSet<u64> = path.iter().map(|(name, _)| *name).collect();
        let is_on = |hash: &&u64| self.meanings.texts.get(*hash).is_some_and(|name| names.contains(name));
        report.chain.iter().filter(is_on).count()
    }

    /// Names what each block on a path is.
    fn link(&mut self, report: &PromptReport, path: &[(u64, u32)], size: u32, index: &PrefixIndex) {
        let first = path.first().map_or(1, |(_, depth)| *depth);
        let at_depth = |depth: u32| path.get(depth.checked_sub(first)? as usize).map(|(name, _)| *name);
        let mut covered = 0;
        for (at, hash) in report.chain.iter().enumerate() {
            let Some(tokens) = index.exact.mark(*hash) else { continue };
            let depth = (tokens / size).max(1);
            covered = depth;
            let Some(name) = at_depth(depth) else { continue };
            let is_coarse = at >= FINE_BLOCKS;
            self.meanings.add(name, Link::Text { hash: *hash, is_coarse }, index);
            for (slot, picture) in &self.pictures {
                if picture.holds(name) {
                    index.hold(*slot, *hash, is_coarse);
                } else if *slot == report.slot {
                    index.release(*slot, *hash);
                }
            }
        }
        let whole = report.turn.whole;
        for (name, _) in path.iter().filter(|(_, depth)| *depth > covered) {
            self.meanings.add(*name, Link::Tail { whole }, index);
        }
    }
}

impl Meanings {
    fn came(&self, slot: usize, change: Change, block_tokens: u32, index: &PrefixIndex) {
        for link in self.links.get(&change.name).into_iter().flatten() {
            match *link {
                Link::Text { hash, .. } if self.texts.get(&hash) != Some(&change.name) => {}
                Link::Text { hash, is_coarse } => index.hold(slot, hash, is_coarse),
                Link::Tail { whole } => {
                    let reach = change.depth.saturating_mul(block_tokens);
                    let end = index.exact.end(slot, whole);
                    let Some(known) = self.prompts.get(&whole) else { continue };
                    if end.is_none_or(|end| end.reach < reach) {
                        let end = End { blocks: known.blocks, prompt: known.tokens, reach };
                        index.exact.set_end(slot, whole, Some(end));
                    }
                }
            }
        }
    }

    fn gone(&self, slot: usize, change: Change, block_tokens: u32, index: &PrefixIndex) {
        let left = change.depth.saturating_sub(1).saturating_mul(block_tokens);
        for link in self.links.get(&change.name).into_iter().flatten() {
            match *link {
                // Of a text that was joined anew the later block counts.
                Link::Text { hash, .. } if self.texts.get(&hash) != Some(&change.name) => {}
                Link::Text { hash, .. } => index.release(slot, hash),
                Link::Tail { whole } => {
                    if let Some(end) = index.exact.end(slot, whole).filter(|end| end.reach > left) {
                        index.exact.set_end(slot, whole, Some(End { reach: left, ..end }));
                    }
                }
            }
        }
    }

    fn add(&mut self, name: u64, link: Link, index: &PrefixIndex) {
        let mut links = self.links.remove(&name).unwrap_or_default();
        if !links.contains(&link) {
            if links.len() >= MAX_LINKS
                && let Link::Text { hash, .. } = links.remove(0)
            {
                self.texts.remove(&hash);
            }
            links.push(link);
            if let Link::Text { hash, .. } = link {
                self.texts.insert(hash, name);
            }
        }
        self.links.insert(name, links);
        while self.links.len() > MAX_LINKED
            && let Some((_, links)) = self.links.pop_front()
        {
            for link in links {
                if let Link::Text { hash, .. } = link {
                    self.texts.remove(&hash);
                    index.exact.set_mark(hash, None);
                }
            }
        }
    }
}

/// The first block of its text that surely has a whole block of tokens: marks are estimates.
fn first_text(report: &PromptReport, size: u32, index: &PrefixIndex) -> Option<u64> {
    let is_whole = |hash: &&u64| index.exact.mark(**hash).is_some_and(|tokens| tokens >= size + size / 2);
    report.chain.iter().find(is_whole).copied()
}

/// Notes what a prompt found that shares no more than its first blocks with others.
fn note_fork(report: &PromptReport, cached: u32, block_tokens: u32, index: &PrefixIndex) {
    let Some(block) = report.blocks.checked_sub(1).and_then(|last| report.chain.get(last)) else { return };
    let is_near = |mark: u32| cached.abs_diff(mark) <= 2 * block_tokens.max(BLOCK_TOKENS as u32);
    if index.exact.mark(*block).is_some_and(is_near) {
        index.exact.set_fork(*block, cached);
    }
}

/// Whether the block behind `depth` on a path was stored after the prompt was sent, as the first of a run.
fn began_at(picture: &Picture, report: &PromptReport, path: &[(u64, u32)], depth: u32) -> bool {
    let Some((name, _)) = path.iter().find(|(_, own)| *own == depth + 1) else { return false };
    picture
        .recent()
        .take_while(|recent| recent.at >= report.sent)
        .any(|recent| recent.name == *name && recent.run_from == depth)
}

/// The last block of a prompt and its answer.
#[derive(Clone, Copy, Debug)]
struct Tip {
    name: u64,
    /// Depth before its piece.
    base: u32,
    /// When it was stored.
    at: Stamp,
    /// Blocks of the prompt's text that were known to be on its path.
    known: usize,
}

/// The counts of an answer, within reason.
#[derive(Clone, Copy, Debug)]
struct Counts {
    /// What its engine holds of it.
    end: End,
    cached: Option<u32>,
}

impl Counts {
    fn of(report: &PromptReport) -> Option<Self> {
        report.end().map(|end| Self { end, cached: report.found() })
    }
}

/// Prompts whose counts are known; some 100 bytes each.
const MAX_PROMPTS: usize = 1 << 17;
/// Blocks of which is known what they are; some 150 bytes each.
const MAX_LINKED: usize = 1 << 20;
/// Texts that end with one block.
const MAX_LINKS: usize = 16;
/// Events of an answer come with its end, some a moment after it.
const LATE_EVENTS: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests;
