//! Requests that other gateways sent to the same replicas, folded in as if they were ours: their load counts in every decision,
//! and their prompts and cached tokens teach the prefix index. Speeds are learned from our own requests only: the times of others
//! come late.

use std::collections::HashMap;
use std::sync::Arc;

use super::notice::{Event, Notice, Placed, Usage};
use super::work::{MOST_TOKENS, Work};
use super::{Dispatcher, LoadGuard, Placement, Target};
use crate::clock::Stamp;
use crate::units::Tokens;

/// A request of another gateway; its load is released when this is dropped.
#[derive(Debug)]
pub struct Followed {
    dispatcher: Arc<Dispatcher>,
    slot: usize,
    load: LoadGuard,
}

impl Dispatcher {
    /// Another gateway sent a request to `target`.
    pub fn follow(self: &Arc<Self>, target: &Target, placed: &Placed, at: Stamp) -> Followed {
        self.remember(target, placed, at);
        let prompt = Tokens(placed.prompt.0.min(MOST_TOKENS));
        let uncached = placed.uncached.min(prompt);
        let work = Work::of(uncached, prompt.saturating_sub(uncached));
        let placement = Placement {
            at,
            work: if placed.is_elsewhere { Work::default() } else { work },
            prompt,
            tpot: placed.tpot,
            is_stream: placed.is_stream,
            is_elsewhere: placed.is_elsewhere,
            is_followed: true,
            ..Placement::default()
        };
        let load = LoadGuard::reserve(&target.load, placement);
        Followed { dispatcher: Arc::clone(self), slot: target.slot, load }
    }

    /// A prompt is cached at `target`, whoever sent it.
    pub fn remember(&self, target: &Target, placed: &Placed, at: Stamp) {
        self.index.note_longest(&[placed.prefix.fork][usize::from(placed.prefix.fork == 0)..], at);
        self.index.insert_end(target.slot, &placed.prefix, placed.prompt.saturating_sub(placed.uncached));
    }
}

impl Followed {
    /// Its first token came.
    pub fn first_token(&mut self, at: Stamp) {
        self.dispatcher.answered(at);
        self.load.first_token(at);
    }

    /// It ended, and the answer reported this.
    pub fn ended(self, usage: &Usage) {
        let Placement { prompt, work, is_elsewhere, .. } = self.load.placement;
        let hit = prompt.saturating_sub(Tokens(work.tokens));
        let prompt = Tokens(usage.prompt.unwrap_or(prompt).0.min(MOST_TOKENS));
        if let Some(cached) = usage.cached.filter(|_| !is_elsewhere) {
            self.dispatcher.reported_cached(self.slot, hit, cached.min(prompt));
        }
    }
}

/// Requests of one other gateway, by the number of their decision.
#[derive(Debug, Default)]
pub struct FollowedRequests(HashMap<u32, Followed>);

impl FollowedRequests {
    /// Takes in a step of a request's life; `follow` finds the replica of a new one and reserves the load there. Returns whether it
    /// counts here.
    pub fn take(&mut self, notice: &Notice, follow: impl FnOnce(&Placed) -> Option<Followed>) -> bool {
        match notice.event {
            Event::Placed(placed) if self.0.len() < MAX_REQUESTS => {
                let followed = follow(&placed);
                let is_known = followed.is_some();
                self.0.extend(followed.map(|followed| (notice.id, followed)));
                is_known
            }
            Event::Placed(_) | Event::Left(_) | Event::Died(_) => false,
            Event::FirstToken => {
                if let Some(followed) = self.0.get_mut(&notice.id) {
                    followed.first_token(notice.at);
                }
                true
            }
            Event::Ended(usage) => {
                if let Some(followed) = self.0.remove(&notice.id) {
                    followed.ended(&usage);
                }
                true
            }
        }
    }

    /// Nothing is known of what is in flight; the load is released.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// Requests of one gateway.
const MAX_REQUESTS: usize = 65_536;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::millis as at;
    use crate::routing::notice::{Event, queue};
    use crate::routing::{Ask, EngineLimits, Prompt, SlotSet, policies};

    const LIMITS: EngineLimits = EngineLimits { scrape_interval: Duration::from_secs(1), batch_limit: None };

    /// A gateway before two replicas.
    struct Gateway {
        dispatcher: Arc<Dispatcher>,
        targets: [Target; 2],
    }

    impl Gateway {
        fn new() -> Self {
            Self { dispatcher: Dispatcher::new(2), targets: [Target::new(0, 10), Target::new(1, 11)] }
        }

        fn assign(&self, chain: &[u64], now: Stamp) -> super::super::Assignment {
            let tokens = Tokens(64 * chain.len() as u64);
            let prompt = Prompt { chain, bytes: tokens.0 * 4, tokens };
            let tried = SlotSet::new();
            let ask = Ask::of(prompt, &tried);
            let policy = policies::named(crate::config::PolicyName::Latency);
            self.dispatcher
                .judge(&*policy, &ask, &LIMITS, now, self.targets.iter())
                .unwrap()
                .assign()
                .unwrap()
        }
    }

    #[test]
    fn a_conversation_that_another_gateway_began_is_continued_where_its_cache_is() {
        let (one, other) = (Gateway::new(), Gateway::new());
        let (outbox, notices) = queue(100, true);
        one.dispatcher.announce(&outbox, "p");
        let chain: Vec<u64> =
            (1..=600).map(|block| xxhash_rust::xxh3::xxh3_64(&[block as u8, (block >> 8) as u8])).collect();
        for (turn, end) in [(1, 100), (2, 200), (3, 500)] {
            let assignment = one.assign(&chain[..end], at(turn * 1000));
            let notice = notices.try_recv().unwrap();
            let Event::Placed(placed) = notice.event else { panic!("{notice:?}") };
            let slot = assignment.decision.slot;
            drop(assignment);
            assert!(matches!(notices.try_recv().unwrap().event, Event::Ended(_)));
            let followed = other.dispatcher.follow(&other.targets[slot], &placed, notice.at);
            assert_eq!(other.targets[slot].load.inflight(), 1);
            followed.ended(&Usage::default());
            assert_eq!(other.targets[slot].load.inflight(), 0);
            // A prompt that continues it finds it, and one that differs at its end a part of it.
            assert_eq!(other.depth(slot, &chain), end);
            let before = [0, 0, 100, 200][turn as usize];
            assert!((before + 1..end).contains(&other.depth(slot, &chain[..end - 1])));
            assert_eq!(other.depth(1 - slot, &chain), 0);
        }
        let own = other.assign(&chain, at(9000));
        assert_eq!(other.depth(own.decision.slot, &chain[..450]), 450, "known by blocks from now on");
        assert_eq!(other.dispatcher.index.held(own.decision.slot), 600, "each counts once");
    }

    #[test]
    fn prompts_that_share_a_part_are_joined_though_each_gateway_has_had_one_alone() {
        let (one, other) = (Gateway::new(), Gateway::new());
        let (outbox, notices) = queue(100, true);
        one.dispatcher.announce(&outbox, "p");
        let block = |from: u64| move |at: u64| xxhash_rust::xxh3::xxh3_64(&(from + at).to_le_bytes());
        let prompt =
            |own: u64| -> Vec<u64> { (0..200).map(block(0)).chain((0..10).map(block(own))).collect() };
        let mut known = Vec::new();
        for own in 1..=8 {
            let slot = one.assign(&prompt(own * 1000), at(own * 1000)).decision.slot;
            let placed = notices.try_iter().find_map(|notice| match notice.event {
                Event::Placed(placed) => Some(placed),
                _ => None,
            });
            drop(other.dispatcher.follow(&other.targets[slot], &placed.unwrap(), at(own * 1000)));
            known.push(other.depth(slot, &prompt(99_000)));
        }
        assert!(known[0] > 0, "known after one: {known:?}");
        assert!(known.is_sorted() && known[7] == 200, "{known:?}");
    }

    #[test]
    fn what_others_sent_is_evicted_with_the_cache_it_fills() {
        let gateway = Gateway::new();
        gateway.dispatcher.index.set_capacity(0, 100);
        let sent = |tail: u64| {
            let prefix = crate::routing::notice::Prefix { tail, added: 40, ..Default::default() };
            let placed = Placed { prefix, prompt: Tokens(2560), uncached: Tokens(2560), ..Placed::default() };
            drop(gateway.dispatcher.follow(&gateway.targets[0], &placed, at(1)));
        };
        [7, 8, 9].into_iter().for_each(sent);
        assert_eq!([7, 8, 9].map(|tail| gateway.depth(0, &[tail])), [0, 1, 1]);
        // The same prompt again, of which all was cached.
        let again = |tail: u64| {
            let prefix = crate::routing::notice::Prefix { tail, held: tail, ..Default::default() };
            let placed = Placed { prefix, prompt: Tokens(2560), ..Placed::default() };
            drop(gateway.dispatcher.follow(&gateway.targets[0], &placed, at(2)));
        };
        again(9);
        again(8);
        sent(7);
        assert_eq!([7, 8, 9].map(|tail| gateway.depth(0, &[tail])), [1, 1, 0], "it fills as much as before");
        again(9);
        assert_eq!(
            [7, 8, 9].map(|tail| gateway.depth(0, &[tail])),
            [1, 0, 1],
            "and where it was forgotten here"
        );
        gateway.dispatcher.forget(0);
        assert_eq!([7, 8, 9].map(|tail| gateway.depth(0, &[tail])), [0; 3]);
    }

    impl Gateway {
        fn depth(&self, slot: usize, chain: &[u64]) -> usize {
            let mut hits = crate::routing::prefix_index::Hits::default();
            self.dispatcher.index.lookup(chain, &mut hits);
            hits.blocks(slot)
        }
    }
}
