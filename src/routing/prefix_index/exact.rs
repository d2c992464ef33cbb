//! Hits in the engine's own tokens, where its KV events are followed.
//!
//! The chain knows which text two prompts share, and not how many tokens that is. Answers count a prompt's tokens and those of its
//! answer: a turn that continues a prompt finds both, a repeated one finds itself, and one that forks off finds what others found
//! that forked there. What is no longer there, events take out of the index (`kv_events`). Nothing in here is estimated twice:
//! where a count is missing, [`PrefixIndex`] estimates as ever.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use dashmap::DashMap;

use super::PrefixIndex;
use super::hash::BuildSame;
use super::held::Entry;
use crate::routing::Prompt;
use crate::units::Tokens;

/// A prompt among the turns of its conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// The hash of the whole prompt.
    pub whole: u64,
    /// That of the prompt whose answer this one begins with.
    pub continues: Option<u64>,
}

/// What one replica holds of a prompt and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Whole blocks of its chain: while they are held, this holds.
    pub blocks: u32,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens held, those of the answer included.
    pub reach: u32,
}

/// Counts of tokens by prompt and by block.
#[derive(Debug)]
pub struct Exact {
    /// Slots whose engine's events are followed.
    followed: Box<[AtomicBool]>,
    /// Blocks that its engine holds in tiers alone, by slot.
    in_tiers: Box<[AtomicU64]>,
    known: OnceLock<Known>,
    /// Above zero where the next turn finds the answer of the one before.
    answers_kept: AtomicI32,
}

#[derive(Debug, Default)]
struct Known {
    /// By replica and whole prompt.
    ends: DashMap<u64, End, BuildSame>,
    /// Tokens up to the end of a block of text.
    marks: DashMap<u64, u32, BuildSame>,
    /// Tokens found by prompts that share no more than this block.
    forks: DashMap<u64, u32, BuildSame>,
}

impl Exact {
    pub(super) fn new(slots: usize) -> Self {
        Self {
            followed: (0..slots).map(|_| AtomicBool::new(false)).collect(),
            in_tiers: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            known: OnceLock::new(),
            answers_kept: AtomicI32::new(CERTAIN),
        }
    }

    /// Whether the KV events of a replica are followed: then its hits are counted in its own tokens where they are known.
    pub fn follow(&self, slot: usize, is_followed: bool) {
        if let Some(cell) = self.followed.get(slot) {
            cell.store(is_followed, Ordering::Relaxed);
        }
    }

    pub(in crate::routing) fn is_followed(&self, slot: usize) -> bool {
        self.followed.get(slot).is_some_and(|cell| cell.load(Ordering::Relaxed))
    }

    /// Notes how many blocks an engine holds in tiers behind the GPU alone, by its events.
    pub fn set_in_tiers(&self, slot: usize, blocks: u64) {
        if let Some(cell) = self.in_tiers.get(slot) {
            cell.store(blocks, Ordering::Relaxed);
        }
    }

    pub(in crate::routing) fn in_tiers(&self, slot: usize) -> u64 {
        self.in_tiers.get(slot).map_or(0, |cell| cell.load(Ordering::Relaxed))
    }

    /// Tokens that the engine in `slot` finds, of a prompt of which it holds `blocks` leading blocks; `None` where they are not known.
    pub(in crate::routing) fn hit(
        &self,
        slot: usize,
        turn: Turn,
        prompt: &Prompt<'_>,
        blocks: usize,
        block_tokens: u64,
    ) -> Option<Tokens> {
        let known = self.known.get().filter(|_| self.is_followed(slot) && block_tokens > 0)?;
        let end_of = |whole| known.ends.get(&key(whole, slot)).map(|end| *end);
        let is_held = |end: &End| blocks >= end.blocks as usize;
        let whole_blocks = |tokens: u64| Tokens(tokens - tokens % block_tokens);
        if let Some(end) = end_of(turn.whole).filter(is_held) {
            let prompt = u64::from(end.prompt).saturating_sub(1);
            return Some(whole_blocks(prompt.min(u64::from(end.reach))));
        }
        if let Some(end) = turn.continues.and_then(end_of).filter(is_held) {
            let keeps_answers = self.answers_kept.load(Ordering::Relaxed) > 0;
            let reach = if keeps_answers { end.reach } else { end.reach.min(end.prompt) };
            return Some(whole_blocks(u64::from(reach)));
        }
        let last = prompt.chain.get(blocks.checked_sub(1)?)?;
        let of = |map: &DashMap<u64, u32, BuildSame>| map.get(last).map(|tokens| u64::from(*tokens));
        of(&known.forks).or_else(|| of(&known.marks)).map(whole_blocks)
    }

    /// Notes that a prompt that continued another, whose answer ends at `end`, found `cached` tokens.
    pub fn continued(&self, end: End, cached: u32, block_tokens: u32) {
        let answer = end.reach.saturating_sub(end.prompt);
        if answer < 2 * block_tokens {
            return;
        }
        let step = if cached > end.prompt + answer / 2 { 1 } else { -1 };
        let kept = self.answers_kept.load(Ordering::Relaxed) + step;
        self.answers_kept.store(kept.clamp(-CERTAIN, CERTAIN), Ordering::Relaxed);
    }

    /// What a replica holds of a prompt and its answer.
    pub fn end(&self, slot: usize, whole: u64) -> Option<End> {
        self.known.get()?.ends.get(&key(whole, slot)).map(|end| *end)
    }

    /// Notes what a replica holds of a prompt and its answer.
    pub fn set_end(&self, slot: usize, whole: u64, end: Option<End>) {
        let ends = &self.known.get_or_init(Known::default).ends;
        match end {
            Some(end) => drop(ends.insert(key(whole, slot), end)),
            None => drop(ends.remove(&key(whole, slot))),
        }
    }

    /// Tokens up to the end of a block, where they are known.
    pub fn mark(&self, block: u64) -> Option<u32> {
        self.known.get()?.marks.get(&block).map(|tokens| *tokens)
    }

    /// Notes how many tokens there are up to the end of a block.
    pub fn set_mark(&self, block: u64, tokens: Option<u32>) {
        let known = self.known.get_or_init(Known::default);
        match tokens {
            Some(tokens) => drop(known.marks.insert(block, tokens)),
            None => {
                known.marks.remove(&block);
                known.forks.remove(&block);
            }
        }
    }

    /// Notes how many tokens a prompt found that shares no more than this block with others.
    pub fn set_fork(&self, block: u64, tokens: u32) {
        self.known.get_or_init(Known::default).forks.insert(block, tokens);
    }

    /// Forgets all counts: who kept them does so no more.
    pub fn forget(&self) {
        if let Some(known) = self.known.get() {
            known.ends.clear();
            known.marks.clear();
            known.forks.clear();
        }
    }

    /// Forgets all counts where there are too many: those of prompts whose blocks were never found stay otherwise.
    pub fn trim(&self) {
        if self.known.get().is_some_and(|known| known.ends.len().max(known.marks.len()) > MAX_COUNTS) {
            self.forget();
        }
    }
}

/// What its engine's KV events bring.
impl PrefixIndex {
    /// Notes that a replica holds a block, whoever put it there.
    pub fn hold(&self, slot: usize, block: u64, is_coarse: bool) {
        let Some(held) = self.replicas.get(slot) else { return };
        self.used.fetch_max(slot + 1, Ordering::AcqRel);
        let mut held = held.lock();
        if held.blocks.capacity > 0 && held.blocks.touch(block, is_coarse) {
            self.groups.set(slot, block);
            self.forget_surplus(slot, &mut held);
        }
    }

    /// Notes that a replica evicted a block.
    pub fn release(&self, slot: usize, block: u64) {
        let Some(held) = self.replicas.get(slot) else { return };
        let mut held = held.lock();
        if held.blocks.remove(block) {
            self.remove(slot, Entry::Block(block));
        }
    }
}

/// Names a prompt at a replica.
fn key(whole: u64, slot: usize) -> u64 {
    whole ^ (slot as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Counts of each kind; some 40 bytes each.
const MAX_COUNTS: usize = 1 << 21;
/// Turns after which a change of mind is due.
const CERTAIN: i32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    const CHAIN: [u64; 4] = [11, 12, 13, 14];

    fn hit(exact: &Exact, turn: Turn, blocks: usize) -> Option<u64> {
        let prompt = Prompt { chain: &CHAIN, bytes: 1100, tokens: Tokens(300) };
        exact.hit(0, turn, &prompt, blocks, 16).map(|tokens| tokens.0)
    }

    #[test]
    fn a_turn_finds_what_it_continues_and_a_repeated_prompt_finds_itself() {
        let exact = Exact::new(2);
        exact.set_end(0, 7, Some(End { blocks: 3, prompt: 208, reach: 251 }));
        let next = Turn { whole: 8, continues: Some(7) };
        assert_eq!(hit(&exact, next, 3), None, "not followed");
        exact.follow(0, true);
        assert_eq!(hit(&exact, next, 3), Some(240));
        assert_eq!(
            hit(&exact, Turn { whole: 7, continues: None }, 3),
            Some(192),
            "its last token is computed"
        );
        assert_eq!(hit(&exact, next, 2), None, "its tail is gone");
        assert_eq!(hit(&exact, Turn { whole: 9, continues: None }, 3), None);
    }

    #[test]
    fn a_fork_finds_what_others_found_that_forked_there() {
        let exact = Exact::new(1);
        exact.follow(0, true);
        let other = Turn { whole: 5, continues: None };
        exact.set_mark(12, Some(130));
        assert_eq!((hit(&exact, other, 2), hit(&exact, other, 1)), (Some(128), None));
        exact.set_fork(12, 160);
        assert_eq!(hit(&exact, other, 2), Some(160));
        exact.set_mark(12, None);
        assert_eq!(hit(&exact, other, 2), None);
    }

    #[test]
    fn templates_that_drop_what_was_generated_are_noticed() {
        let exact = Exact::new(1);
        exact.follow(0, true);
        let end = End { blocks: 3, prompt: 208, reach: 400 };
        exact.set_end(0, 7, Some(end));
        let next = Turn { whole: 8, continues: Some(7) };
        (0..CERTAIN).for_each(|_| exact.continued(end, 208, 16));
        assert_eq!(hit(&exact, next, 3), Some(208));
        (0..CERTAIN + 1).for_each(|_| exact.continued(end, 400, 16));
        assert_eq!(hit(&exact, next, 3), Some(400));
    }
}
