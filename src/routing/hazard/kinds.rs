//! How long answers are, by kind of prompt: prompts that begin alike are answered at like length.
//!
//! Behind one system prompt stands one job (a classifier says three tokens, an agent some hundreds), so what is known of a
//! stream's end is known better by its prompt's first block than by all answers together. A kind is a place that the first
//! block's hash falls into: a fixed number of them, whatever clients send; two jobs in one place are known as one. A kind of
//! which little was seen is taken for the pool's. It does not look at what clients ask for (`max_tokens`).

use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use parking_lot::Mutex;

use super::lengths::{Lengths, Survival};

/// What prompts that begin alike have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kind(u8);

impl Kind {
    /// By the hash of a prompt's first block; prompts without one are of no kind.
    #[must_use]
    pub fn of(first_block: Option<u64>) -> Self {
        // Below the bits that choose the index's shard and above nothing: any bits of a hash would do.
        Self(first_block.map_or(0, |hash| (hash >> 8) as u8 % KINDS + 1))
    }

    fn place(self) -> Option<usize> {
        usize::from(self.0).checked_sub(1)
    }
}

/// The pool's answers.
#[derive(Debug)]
pub(in crate::routing) struct Answers {
    all: ArcSwap<Survival>,
    kinds: Box<[ArcSwapOption<Survival>]>,
    learner: Mutex<Learner>,
}

#[derive(Debug, Default)]
struct Learner {
    all: Lengths,
    kinds: Box<[(Lengths, u32)]>,
    unpublished: u32,
}

impl Default for Answers {
    fn default() -> Self {
        let kinds = (0..KINDS).map(|_| Default::default()).collect();
        Self {
            all: ArcSwap::from_pointee(Lengths::default().survival()),
            kinds: (0..KINDS).map(|_| ArcSwapOption::empty()).collect(),
            learner: Mutex::new(Learner { kinds, ..Learner::default() }),
        }
    }
}

impl Answers {
    /// Learns from a complete answer. True when what is known of all was published anew.
    pub(in crate::routing) fn observe(&self, kind: Kind, tokens: u64) -> bool {
        let mut learner = self.learner.lock();
        learner.all.observe(tokens);
        learner.unpublished += 1;
        let is_due = learner.unpublished >= PUBLISH_EVERY;
        if is_due {
            learner.unpublished = 0;
            self.all.store(Arc::new(learner.all.survival()));
        }
        let Some(place) = kind.place() else { return is_due };
        if let (Some((lengths, unpublished)), Some(cell)) =
            (learner.kinds.get_mut(place), self.kinds.get(place))
        {
            lengths.observe(tokens);
            *unpublished += 1;
            if *unpublished >= PUBLISH_EVERY {
                *unpublished = 0;
                cell.store(Some(Arc::new(lengths.survival_among(&self.all.load()))));
            }
        }
        is_due
    }

    /// Of all kinds together.
    pub(in crate::routing) fn all(&self) -> Guard<Arc<Survival>> {
        self.all.load()
    }

    /// Asks with what is known of a kind.
    pub(in crate::routing) fn with<T>(&self, kind: Kind, ask: impl FnOnce(&Survival) -> T) -> T {
        let known = kind.place().and_then(|place| self.kinds.get(place)).map(ArcSwapOption::load);
        match known.as_ref().and_then(|known| known.as_ref()) {
            Some(known) => ask(known),
            None => ask(&self.all.load()),
        }
    }
}

/// More jobs than most pools have, few enough that each is soon known.
const KINDS: u8 = 128;
/// Answers between two looks at how long they are.
const PUBLISH_EVERY: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(answers: &Answers, kind: Kind, tokens: f32) -> f32 {
        answers.with(kind, |known| known.at(tokens))
    }

    #[test]
    fn each_kind_is_known_by_its_own_answers_and_an_unknown_one_by_all() {
        let answers = Answers::default();
        let [short, long, unseen] = [1 << 8, 2 << 8, 3 << 8].map(|hash| Kind::of(Some(hash)));
        for _ in 0..200 {
            answers.observe(short, 3);
            answers.observe(long, 500);
        }
        assert!(reach(&answers, short, 10.0) < 0.06, "{}", reach(&answers, short, 10.0));
        assert!(reach(&answers, long, 400.0) > 0.94, "{}", reach(&answers, long, 400.0));
        for kind in [unseen, Kind::default(), Kind::of(None)] {
            assert!((reach(&answers, kind, 100.0) - 0.5).abs() < 0.05, "{kind:?}");
        }
    }

    #[test]
    fn a_few_answers_do_not_make_a_kind() {
        let answers = Answers::default();
        (0..500).for_each(|_| _ = answers.observe(Kind::default(), 500));
        let rare = Kind::of(Some(7 << 8));
        (0..8).for_each(|_| _ = answers.observe(rare, 3));
        assert!(reach(&answers, rare, 100.0) > 0.5, "{}", reach(&answers, rare, 100.0));
    }

    #[test]
    fn every_first_block_has_a_kind_among_a_fixed_number() {
        let answers = Answers::default();
        for hash in (0..100_000u64).map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15)) {
            answers.observe(Kind::of(Some(hash)), 5);
        }
        assert!(answers.learner.lock().kinds.iter().all(|(lengths, _)| *lengths != Lengths::default()));
        assert_eq!(answers.kinds.len(), usize::from(KINDS));
    }
}
