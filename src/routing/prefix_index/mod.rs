//! Which replica of a pool is believed to hold which prefix: from what we sent there, with the engine's capacity.
//!
//! One map has a bit per replica for each block's chain hash. What a replica holds is always a prefix of a chain, so the
//! longest one on every replica at once is found by a few looks, not by walking: a prompt of 10 MB costs hardly more than one
//! of 10 KB. Beside the map each replica has a list of its blocks that says what to forget ([`held`]) and a credit that reports
//! of cached tokens correct ([`credit`]). Locks are short and cut in shards; races leave a bit stale for microseconds, which
//! costs a worse guess and nothing else.
//!
//! Memory: some 80 bytes a block held by a replica (ADR 0008), for at most [`DEFAULT_CAPACITY`] or what the engine tells for
//! each replica, up to a million blocks, and some times that while prompts are on their way to it.

mod beyond;
mod credit;
mod ends;
mod exact;
mod groups;
mod hash;
mod held;
mod shared;

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;

use self::beyond::Beyond;
use self::credit::Credit;
use self::ends::Ends;
pub use self::exact::{End, Exact, Turn};
use self::groups::{Groups, Holders};
pub(super) use self::held::COARSE_WEIGHT;
use self::held::{Entry, Held, MAX_WEIGHT};
use self::shared::SharedEnds;
use super::Prompt;
use super::notice::Prefix;
use crate::clock::Stamp;
use crate::request::chain::{FINE_BLOCK, FINE_BLOCKS};
use crate::units::Tokens;

/// The prefix index of one pool; replicas are slots from zero.
#[derive(Debug)]
pub struct PrefixIndex {
    groups: Groups,
    /// Prompts of other gateways.
    ends: Ends,
    replicas: Box<[Mutex<Replica>]>,
    /// What a replica's hits are worth, as bits of a float.
    credits: Box<[AtomicU32]>,
    /// Slots below this one have held something: the others need no look.
    used: AtomicUsize,
    beyond: Beyond,
    shared: SharedEnds,
    /// Counts of tokens by prompt and by block.
    pub exact: Exact,
}

#[derive(Debug)]
struct Replica {
    blocks: Held,
    credit: Credit,
}

/// How many blocks of a chain each slot is believed to hold, from the first one without a gap.
#[derive(Clone, Debug, Default)]
pub struct Hits {
    blocks: SmallVec<[u32; 64]>,
}

impl Hits {
    /// Leading blocks that the slot holds.
    pub fn blocks(&self, slot: usize) -> usize {
        self.blocks.get(slot).map_or(0, |blocks| *blocks as usize)
    }
}

impl PrefixIndex {
    /// An index for `slots` replicas, each with [`DEFAULT_CAPACITY`].
    pub fn new(slots: usize) -> Self {
        let replica =
            || Mutex::new(Replica { blocks: Held::new(DEFAULT_CAPACITY as u64), credit: Credit::default() });
        Self {
            groups: Groups::new(slots),
            ends: Ends::new(slots),
            replicas: (0..slots).map(|_| replica()).collect(),
            credits: (0..slots).map(|_| AtomicU32::new(1.0f32.to_bits())).collect(),
            used: AtomicUsize::new(0),
            beyond: Beyond::default(),
            shared: SharedEnds::default(),
            exact: Exact::new(slots),
        }
    }

    /// Finds how far each replica's cache reaches into a prompt.
    pub fn lookup(&self, chain: &[u64], hits: &mut Hits) {
        hits.blocks.clear();
        hits.blocks.resize(self.used.load(Ordering::Acquire), 0);
        for (group, depths) in self.groups.beside(&mut hits.blocks) {
            find_depths(group, chain, depths);
        }
        self.ends.deepen(chain, &mut hits.blocks);
    }

    /// Leading blocks of a prompt that some replica holds whose hits are worth anything.
    pub fn longest(&self, chain: &[u64]) -> usize {
        let mut hits = Hits::default();
        self.lookup(chain, &mut hits);
        let of_caches = hits.blocks.iter().enumerate().filter(|(slot, _)| self.credit(*slot) > 0.0);
        of_caches.map(|(_, blocks)| *blocks as usize).max().unwrap_or(0)
    }

    /// What a hit on this replica is worth: 1, or less where its reports fall short of predictions; 0 where it caches nothing.
    pub fn credit(&self, slot: usize) -> f64 {
        let credit = self.credits.get(slot).map_or(1.0, |bits| f32::from_bits(bits.load(Ordering::Relaxed)));
        f64::from(credit)
    }

    /// What is left of a hit when reports of the past are held against it.
    pub(super) fn believed(&self, slot: usize, hit: Tokens) -> Tokens {
        let credit = self.credit(slot);
        if credit < 1.0 { Tokens((hit.0 as f64 * credit) as u64) } else { hit }
    }

    /// Notes that a replica holds this prompt.
    pub fn insert(&self, slot: usize, prompt: &Prompt<'_>) {
        let added = self.expect(slot, prompt);
        self.settle(slot, added);
    }

    /// Notes that a replica was sent this prompt and will hold it. To be called when the replica was chosen, so
    /// that the next request of a burst already finds it. What it adds, whose weight is returned, takes the place of nothing else until it is
    /// settled: an engine evicts nothing for a prompt that it refuses.
    #[must_use]
    pub fn expect(&self, slot: usize, prompt: &Prompt<'_>) -> u64 {
        let Some(held) = self.replicas.get(slot) else { return 0 };
        self.used.fetch_max(slot + 1, Ordering::AcqRel);
        // The replica's lock is held over the table's updates: a bit is set and cleared in the order in which
        // its block came and went.
        let mut held = held.lock();
        let fitting = fitting(prompt.chain.len(), held.blocks.capacity);
        let before = held.blocks.weight;
        for (at, &hash) in prompt.chain.iter().enumerate().take(fitting).rev() {
            if held.blocks.touch(hash, at >= FINE_BLOCKS) {
                self.groups.set(slot, hash);
            }
        }
        let added = held.blocks.weight - before;
        held.blocks.expected += added;
        self.forget_surplus(slot, &mut held);
        // What is known block by block counts once.
        for (_, hash) in self.ends.of(prompt.chain.get(..fitting).unwrap_or_default()) {
            if held.blocks.remove_end(hash) {
                self.ends.remove(slot, hash);
            }
        }
        added
    }

    /// What [`Self::expect`] added is there, or was taken out again.
    pub fn settle(&self, slot: usize, added: u64) {
        let Some(held) = self.replicas.get(slot).filter(|_| added > 0) else { return };
        let mut held = held.lock();
        held.blocks.expected = held.blocks.expected.saturating_sub(added);
        self.forget_surplus(slot, &mut held);
    }

    /// Notes that another gateway sent a replica a prompt that ends so, of which it had so many tokens.
    pub fn insert_end(&self, slot: usize, prefix: &Prefix, cached: Tokens) {
        let Some(held) = self.replicas.get(slot).filter(|_| prefix.tail != 0) else { return };
        self.used.fetch_max(slot + 1, Ordering::AcqRel);
        let mut held = held.lock();
        if held.blocks.capacity == 0 {
            return;
        }
        // A prompt that comes again keeps its weight. What is known here by no end takes its place all the same.
        let inherited = match prefix.held {
            0 => 0,
            known if held.blocks.has_end(known) && known == prefix.tail => 0,
            known if held.blocks.has_end(known) => held.blocks.lighten_end(known),
            known if held.blocks.has(known) => 0,
            _ => u32::try_from(cached.0 / BLOCK_TOKENS).unwrap_or(MAX_ADDED).min(MAX_ADDED),
        };
        // The engine evicts a prompt's tail before what it forks from: the root is touched last.
        let added = prefix.added.min(MAX_ADDED).saturating_add(inherited);
        for (hash, weight) in [(prefix.tail, added), (prefix.landmark, 1), (prefix.fork, 1), (prefix.held, 1)]
        {
            if hash != 0 && held.blocks.touch_end(hash, weight) {
                self.ends.insert(slot, hash);
            }
        }
        self.forget_surplus(slot, &mut held);
    }

    /// How many prompts of late had their longest hit end with the last of these blocks: 1 and less is a prompt's own past, more
    /// is what prompts share.
    pub fn sharing(&self, longest: &[u64], now: Stamp) -> f64 {
        longest.last().map_or(0.0, |end| self.shared.hits(*end, now))
    }

    /// Notes that a prompt's longest hit, on any replica, were these blocks. To be called once for each prompt that is sent.
    pub fn note_longest(&self, longest: &[u64], now: Stamp) {
        if let Some(end) = longest.last() {
            self.shared.note(*end, now);
        }
    }

    /// Sets how many blocks a replica's cache holds; see [`capacity_of`].
    pub fn set_capacity(&self, slot: usize, blocks: usize) {
        let is_followed = self.exact.is_followed(slot);
        self.change(slot, |replica| {
            // Events take out what is evicted, but no end, of which only the text is known: what the list forgets on its own must not
            // come first.
            let is_left_to_them = is_followed && replica.blocks.ends == 0;
            let blocks = if is_left_to_them { blocks.saturating_mul(2) } else { blocks };
            replica.blocks.set_capacity(blocks as u64);
        });
    }

    /// Tokens that engines usually find cached beyond the blocks that a lookup finds.
    #[inline]
    pub(super) fn beyond(&self) -> Tokens {
        self.beyond.tokens()
    }

    /// An answer told how many prompt tokens it found cached, where `predicted` were believed to be. Corrects what the
    /// replica is believed to hold, what its hits are worth, and what is usually found beyond them.
    pub fn reported(&self, slot: usize, predicted: Tokens, cached: Tokens) {
        if self.exact.is_followed(slot) {
            return;
        }
        // What is usual is no promise: only what was sent there may be missed.
        let promised = predicted.saturating_sub(self.beyond());
        if predicted > Tokens(0) && self.credit(slot) >= 1.0 {
            self.beyond.reported(predicted, cached);
        }
        self.change(slot, |replica| replica.credit.reported(promised.0, cached.0));
    }

    /// Forgets all that a replica held, with the size of its cache: it restarted, slept, or the slot has a new owner.
    pub fn forget(&self, slot: usize) {
        let Some(held) = self.replicas.get(slot) else { return };
        let mut held = held.lock();
        while let Some(entry) = held.blocks.evict() {
            self.remove(slot, entry);
        }
        held.blocks.set_capacity(DEFAULT_CAPACITY as u64);
        held.credit = Credit::default();
        self.publish_credit(slot, &held);
    }

    /// Blocks that a replica is believed to hold.
    pub fn held(&self, slot: usize) -> usize {
        self.replicas.get(slot).map_or(0, |held| held.lock().blocks.blocks())
    }

    fn remove(&self, slot: usize, entry: Entry) {
        let hash = match entry {
            Entry::Block(hash) => hash,
            Entry::End(hash) => return self.ends.remove(slot, hash),
        };
        self.groups.clear(slot, hash);
    }

    fn change(&self, slot: usize, change: impl FnOnce(&mut Replica)) {
        let Some(held) = self.replicas.get(slot) else { return };
        let mut held = held.lock();
        change(&mut held);
        self.publish_credit(slot, &held);
        self.forget_surplus(slot, &mut held);
    }

    fn publish_credit(&self, slot: usize, replica: &Replica) {
        let credit = if replica.blocks.capacity == 0 { 0.0 } else { replica.credit.get() };
        if let Some(cell) = self.credits.get(slot) {
            cell.store((credit as f32).to_bits(), Ordering::Relaxed);
        }
    }

    fn forget_surplus(&self, slot: usize, held: &mut Replica) {
        while let Some(entry) = held.blocks.evict_surplus() {
            self.remove(slot, entry);
        }
    }
}

/// The cache of an engine in our blocks: its KV blocks times their tokens, as bytes of prompt.
pub fn capacity_of(total_blocks: u64, block_tokens: u64, bytes_per_token: f64) -> usize {
    let bytes = total_blocks as f64 * block_tokens as f64 * bytes_per_token;
    // A float-to-integer cast saturates, and takes NaN for zero.
    ((bytes / FINE_BLOCK as f64) as usize).min(MAX_WEIGHT as usize)
}

/// How many leading blocks fit into a capacity.
fn fitting(blocks: usize, capacity: u64) -> usize {
    let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
    let coarse = capacity.saturating_sub(FINE_BLOCKS) / COARSE_WEIGHT as usize;
    blocks.min(capacity.min(FINE_BLOCKS) + coarse)
}

/// Replicas that hold `low` leading blocks of a chain and not `high`.
#[derive(Clone, Copy)]
struct Span {
    low: usize,
    high: usize,
    who: u64,
}

/// The longest prefix of `chain` on each of up to 64 replicas: who holds a block holds all before it, so that a few looks
/// find it. They wait for memory, one for as long as several that do not depend on each other: so a round looks at a few
/// places of each span at once, where halving would need twice as many rounds.
fn find_depths(holders: &Holders, chain: &[u64], depths: &mut [u32]) {
    let of = |hash: u64| holders.get(&hash).map_or(0, |bits| *bits);
    let mut spans: SmallVec<[Span; 16]> = SmallVec::new();
    let mut next: SmallVec<[Span; 16]> = SmallVec::new();
    let mut found: SmallVec<[u64; 64]> = SmallVec::new();
    spans.push(Span { low: 0, high: chain.len() + 1, who: u64::MAX >> (64 - depths.len()) });
    let mut ways = WAYS_AT_FIRST;
    while !spans.is_empty() {
        found.clear();
        for span in &spans {
            found.extend(span.places(ways).map(|held| of(chain[held - 1])));
        }
        let mut found = found.iter();
        for span in &spans {
            let mut rest = *span;
            for (place, holders) in span.places(ways).zip(found.by_ref()) {
                Span { high: place, who: rest.who & !holders, ..rest }.settle(depths, &mut next);
                rest = Span { low: place, who: rest.who & holders, ..rest };
            }
            rest.settle(depths, &mut next);
        }
        std::mem::swap(&mut spans, &mut next);
        next.clear();
        ways = WAYS;
    }
}

impl Span {
    /// Where to look: as many places as leave `ways` parts, or all that there are.
    fn places(self, ways: usize) -> impl Iterator<Item = usize> {
        let Self { low, high, .. } = self;
        let parts = ways.min(high - low);
        (1..parts).map(move |part| low + (high - low) * part / parts)
    }

    /// Notes the depth where it is known, else leaves the span for the next round.
    fn settle(self, depths: &mut [u32], next: &mut SmallVec<[Self; 16]>) {
        if self.high - self.low > 1 && self.who != 0 {
            next.push(self);
        } else if self.low > 0 {
            note_depth(self.who, self.low, depths);
        }
    }
}

fn note_depth(mut slots: u64, depth: usize, depths: &mut [u32]) {
    let depth = u32::try_from(depth).unwrap_or(u32::MAX);
    while slots != 0 {
        depths[slots.trailing_zeros() as usize] = depth;
        slots &= slots - 1;
    }
}

/// Parts that a round cuts a span into. Of the first there is one only, later there may be a few.
const WAYS: usize = 4;
const WAYS_AT_FIRST: usize = 8;
/// Fine blocks of the longest prompt.
const MAX_ADDED: u32 = 1 << 16;
/// Blocks a replica until its engine tells: 8 MiB of prompt text, about two million tokens.
pub const DEFAULT_CAPACITY: usize = 32_768;
/// Tokens in a fine block of the prefix chain, more or less.
pub(crate) const BLOCK_TOKENS: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// A chain as the request part makes them: every hash depends on all blocks before it.
    fn chain(blocks: &[u64]) -> Vec<u64> {
        let mut hash = 0;
        let link = |block: &u64| {
            hash = xxhash_rust::xxh3::xxh3_64_with_seed(&block.to_le_bytes(), hash);
            hash
        };
        blocks.iter().map(link).collect()
    }

    fn insert(index: &PrefixIndex, slot: usize, chain: &[u64]) {
        index.insert(slot, &Prompt { chain, ..Prompt::default() });
    }

    fn depths(index: &PrefixIndex, slots: usize, chain: &[u64]) -> Vec<usize> {
        let mut hits = Hits::default();
        index.lookup(chain, &mut hits);
        (0..slots).map(|slot| hits.blocks(slot)).collect()
    }

    #[test]
    fn one_walk_finds_the_longest_prefix_on_every_replica() {
        let index = PrefixIndex::new(4);
        insert(&index, 0, &chain(&[1, 2, 3, 4]));
        insert(&index, 1, &chain(&[1, 2, 9]));
        insert(&index, 2, &chain(&[5, 2, 3]));
        let cases: [(&[u64], [usize; 4]); 5] = [
            (&[1, 2, 3, 4, 5], [4, 2, 0, 0]),
            (&[1, 2, 9, 9], [2, 3, 0, 0]),
            (&[5, 2, 3], [0, 0, 3, 0]),
            (&[7], [0, 0, 0, 0]),
            (&[], [0, 0, 0, 0]),
        ];
        for (blocks, expected) in cases {
            assert_eq!(depths(&index, 4, &chain(blocks)), expected, "{blocks:?}");
        }
    }

    #[test]
    fn holds_for_more_than_64_replicas() {
        let index = PrefixIndex::new(130);
        let prompt = chain(&[1, 2, 3]);
        for slot in [0, 63, 64, 129] {
            insert(&index, slot, &prompt[..=slot % 3]);
        }
        let found = depths(&index, 130, &prompt);
        for (slot, depth) in found.into_iter().enumerate() {
            let expected = if [0, 63, 64, 129].contains(&slot) { slot % 3 + 1 } else { 0 };
            assert_eq!(depth, expected, "slot {slot}");
        }
    }

    #[test]
    fn a_full_cache_loses_the_tail_of_the_least_recently_used_prompt() {
        let index = PrefixIndex::new(1);
        index.set_capacity(0, 6);
        let (old, new) = (chain(&[1, 2, 3, 4]), chain(&[5, 6, 7]));
        insert(&index, 0, &old);
        insert(&index, 0, &new);
        assert_eq!((depths(&index, 1, &old), depths(&index, 1, &new)), (vec![3], vec![3]));
        insert(&index, 0, &old);
        assert_eq!((depths(&index, 1, &old), depths(&index, 1, &new)), (vec![4], vec![2]));
    }

    #[test]
    fn a_shared_root_outlives_the_branches() {
        let index = PrefixIndex::new(1);
        index.set_capacity(0, 4);
        for branch in 10..50 {
            insert(&index, 0, &chain(&[1, 2, branch]));
        }
        assert_eq!(depths(&index, 1, &chain(&[1, 2, 3])), [2]);
        assert_eq!(depths(&index, 1, &chain(&[1, 2, 49])), [3]);
        assert_eq!(depths(&index, 1, &chain(&[1, 2, 10])), [2]);
    }

    #[test]
    fn memory_is_bounded_by_the_capacity() {
        let index = PrefixIndex::new(2);
        index.set_capacity(0, 100);
        for prompt in 0..1000 {
            insert(&index, 0, &chain(&[prompt, 1, 2, 3, 4]));
        }
        insert(&index, 0, &chain(&(0..5000).collect::<Vec<_>>()));
        assert_eq!(index.held(0), 100);
        assert_eq!(index.groups.get(0).unwrap().len(), 100);
        index.set_capacity(0, 10);
        assert_eq!(index.held(0), 10);
        index.set_capacity(0, 0);
        insert(&index, 0, &chain(&[1]));
        assert_eq!(index.held(0), 0);
    }

    #[test]
    fn a_prompt_on_its_way_takes_no_others_place_before_it_is_there() {
        let index = PrefixIndex::new(1);
        index.set_capacity(0, 10);
        let prompts: [_; 12] =
            std::array::from_fn(|n| chain(&(0..8).map(|at| n as u64 * 100 + at).collect::<Vec<_>>()));
        let [old, refused, served, ..] = &prompts;
        let expect = |chain: &[u64]| index.expect(0, &Prompt { chain, ..Prompt::default() });
        insert(&index, 0, old);
        let added = [refused, served].map(|prompt| expect(prompt));
        assert_eq!([old, refused, served].map(|prompt| depths(&index, 1, prompt)[0]), [8, 8, 8]);
        assert_eq!((added, expect(served)), ([8, 8], 0), "what it has adds nothing");
        refused.iter().for_each(|block| index.release(0, *block));
        index.settle(0, added[0]);
        assert_eq!([old, refused, served].map(|prompt| depths(&index, 1, prompt)[0]), [8, 0, 8]);
        index.settle(0, added[1]);
        assert_eq!([old, served].map(|prompt| depths(&index, 1, prompt)[0]), [2, 8]);
        let added: u64 = prompts.iter().map(|prompt| expect(prompt)).sum();
        assert!(index.held(0) <= 50, "what is on its way is bounded: {}", index.held(0));
        index.settle(0, added);
        assert_eq!(index.held(0), 10);
    }

    #[test]
    fn a_restarted_replica_is_forgotten_and_the_others_are_not() {
        let index = PrefixIndex::new(2);
        let prompt = chain(&[1, 2, 3]);
        insert(&index, 0, &prompt);
        insert(&index, 1, &prompt);
        index.forget(0);
        assert_eq!(depths(&index, 2, &prompt), [0, 3]);
        insert(&index, 0, &prompt[..1]);
        assert_eq!(depths(&index, 2, &prompt), [1, 3]);
    }

    #[test]
    fn a_slot_whose_owner_cached_nothing_caches_for_the_next_one() {
        let index = PrefixIndex::new(1);
        let prompt = chain(&[1, 2, 3]);
        index.set_capacity(0, 0);
        index.forget(0);
        insert(&index, 0, &prompt);
        assert_eq!(depths(&index, 1, &prompt), [3]);
    }

    #[test]
    fn an_unknown_slot_is_nobody() {
        let index = PrefixIndex::new(1);
        insert(&index, 7, &chain(&[1]));
        index.set_capacity(7, 1);
        index.forget(7);
        assert_eq!(depths(&index, 1, &chain(&[1])), [0]);
        assert_eq!(index.held(7), 0);
    }

    #[test]
    fn capacity_follows_the_engine_within_a_bound() {
        let cases = [
            ("vLLM on a GPU", 50_000, 16, 4.0, 12_500),
            ("unknown", 0, 16, 4.0, 0),
            ("a boast", u64::MAX, 1024, 4.0, 1 << 20),
            ("no ratio", 1000, 16, f64::NAN, 0),
        ];
        for (name, total, block_tokens, ratio, expected) in cases {
            assert_eq!(capacity_of(total, block_tokens, ratio), expected, "{name}");
        }
    }

    #[test]
    fn threads_that_insert_and_forget_leave_table_and_lists_in_step() {
        let index = PrefixIndex::new(3);
        (0..3).for_each(|slot| index.set_capacity(slot, 20));
        std::thread::scope(|scope| {
            for thread in 0..3u64 {
                let index = &index;
                scope.spawn(move || {
                    for i in 0..300 {
                        let slot = ((i + thread) % 3) as usize;
                        insert(index, slot, &chain(&[i % 7, i % 5, i % 3, thread]));
                        if i % 50 == 0 {
                            index.forget(slot);
                        }
                    }
                });
            }
        });
        let bits: u32 = index.groups.get(0).unwrap().iter().map(|holders| holders.count_ones()).sum();
        assert_eq!(bits as usize, (0..3).map(|slot| index.held(slot)).sum::<usize>());
    }

    #[test]
    fn a_few_looks_find_what_walking_finds() {
        let index = PrefixIndex::new(64);
        let long = chain(&(0..3000).collect::<Vec<_>>());
        let mut random = fastrand::Rng::with_seed(4);
        let lengths: Vec<usize> =
            (0..64).map(|slot| if slot % 5 == 0 { 0 } else { random.usize(..3001) }).collect();
        for (slot, length) in lengths.iter().enumerate() {
            insert(&index, slot, &long[..*length]);
        }
        assert_eq!(depths(&index, 64, &long), lengths);
        assert_eq!(depths(&index, 64, &long[..1]), lengths.iter().map(|n| 1.min(*n)).collect::<Vec<_>>());
    }

    #[test]
    fn coarse_blocks_take_their_share_of_the_capacity() {
        let index = PrefixIndex::new(1);
        index.set_capacity(0, FINE_BLOCKS + 16);
        let long = chain(&(1..FINE_BLOCKS as u64 + 4).collect::<Vec<_>>());
        // Two coarse blocks fit beside the fine ones.
        insert(&index, 0, &long);
        assert_eq!(depths(&index, 1, &long), [FINE_BLOCKS + 2]);
        insert(&index, 0, &chain(&[9999]));
        assert_eq!(
            depths(&index, 1, &long),
            [FINE_BLOCKS + 1],
            "a fine block more, and the last coarse one has to go"
        );
    }

    #[test]
    fn reports_correct_what_a_replica_is_believed_to_hold() {
        let index = PrefixIndex::new(1);
        index.set_capacity(0, 100);
        insert(&index, 0, &chain(&[1, 2, 3]));
        (0..10).for_each(|_| index.reported(0, Tokens(4000), Tokens(0)));
        assert!(index.credit(0) < 0.7, "{}", index.credit(0));
        index.forget(0);
        assert_eq!((index.held(0), index.credit(0)), (0, 1.0));
    }
}
