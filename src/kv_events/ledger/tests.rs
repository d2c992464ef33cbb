//! Prompts on an engine that holds little: what is predicted is what it finds.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::*;
use crate::clock::millis as at;
use crate::config::PolicyName;
use crate::kv_events::batch::{Block, Medium, Stored};
use crate::routing::notice::{self, Notice, queue};
use crate::routing::prefix_index::Turn;
use crate::routing::{Ask, Dispatcher, EngineLimits, Prompt, SlotSet, Target, policies};
use crate::units::Tokens;

const BLOCK: usize = 16;
/// Tokens of a block of text.
const TEXT: usize = 64;
const LIMITS: EngineLimits = EngineLimits { scrape_interval: Duration::from_secs(1), batch_limit: None };

/// An engine with a cache of a few blocks, which evicts what was used last the longest ago, tails first.
struct Engine {
    capacity: usize,
    used: HashMap<u64, u64>,
    clock: u64,
}

impl Engine {
    fn chain(tokens: &[u32]) -> Vec<(u64, u64)> {
        let mut parent = 1;
        let link = |block: &[u32]| {
            let bytes: Vec<u8> = block.iter().flat_map(|token| token.to_le_bytes()).collect();
            let content = xxh3_64_with_seed(&bytes, 0);
            parent = xxh3_64_with_seed(&content.to_le_bytes(), parent);
            (parent, content)
        };
        tokens.chunks_exact(BLOCK).map(link).collect()
    }

    /// Computes a prompt and an answer; returns the cached tokens and what it publishes.
    fn serve(&mut self, prompt: &[u32], answer: &[u32]) -> (usize, Vec<Event>) {
        let whole: Vec<u32> = prompt.iter().chain(answer).copied().collect();
        let chain = Self::chain(&whole[..whole.len() - 1]);
        let most = (prompt.len() - 1) / BLOCK;
        let cached = chain.iter().take(most).take_while(|(hash, _)| self.used.contains_key(hash)).count();
        let new: Vec<Block> =
            chain[cached..].iter().map(|(hash, content)| Block { hash: *hash, content: *content }).collect();
        for (hash, _) in chain.iter().rev() {
            self.clock += 1;
            self.used.insert(*hash, self.clock);
        }
        let mut events = Vec::new();
        while self.used.len() > self.capacity {
            let oldest = *self.used.iter().min_by_key(|(_, used)| **used).unwrap().0;
            self.used.remove(&oldest);
            events.push(Event::Removed { hashes: vec![oldest], medium: Medium::Gpu });
        }
        let parent = cached.checked_sub(1).map(|last| chain[last].0);
        let stored = Stored { parent, medium: Medium::Gpu, block_tokens: BLOCK as u32, blocks: new };
        events.insert(0, Event::Stored(stored));
        (cached * BLOCK, events)
    }
}

struct Scene {
    dispatcher: Arc<Dispatcher>,
    target: Target,
    ledger: Ledger,
    reports: Receiver<PromptReport>,
    engine: Engine,
    /// What it has published, to be replayed.
    published: Vec<(Stamp, Event)>,
    now: u64,
}

impl Scene {
    fn new(capacity: usize) -> Self {
        let dispatcher = Dispatcher::new(1);
        let (reports, receiver) = std::sync::mpsc::sync_channel(16);
        dispatcher.reports.store(Some(Arc::new(reports)));
        let mut ledger = Ledger::default();
        ledger.open(0, &dispatcher.index);
        let engine = Engine { capacity, used: HashMap::new(), clock: 0 };
        let (target, published) = (Target::new(0, 1), Vec::new());
        Self { dispatcher, target, ledger, reports: receiver, engine, published, now: 1 }
    }

    /// The index holds as much as the engine does.
    fn resize(&mut self, follows_events: bool) {
        if !follows_events {
            self.ledger.close(0, &self.dispatcher.index);
        }
        self.dispatcher.index.set_capacity(0, self.engine.capacity * BLOCK / TEXT);
    }

    /// The gateway starts again, with its decisions of before, and all events are replayed.
    fn restart(&mut self, decided: impl Iterator<Item = Notice>, follows_events: bool) {
        let before = std::mem::replace(self, Self::new(self.engine.capacity));
        (self.engine, self.published, self.now) = (before.engine, before.published, before.now);
        self.resize(follows_events);
        for notice in decided {
            if let notice::Event::Placed(placed) = notice.event {
                self.dispatcher.remember(&self.target, &placed, at(self.now));
            }
        }
        for (at, event) in self.published.iter().filter(|_| follows_events) {
            self.ledger.take(0, event, *at, &self.dispatcher.index);
        }
        self.resize(follows_events);
    }

    fn name(tokens: &[u32]) -> u64 {
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        xxh3_64_with_seed(&bytes, 9)
    }

    /// The chain of a prompt's text.
    fn text(prompt: &[u32]) -> Vec<u64> {
        let mut last = 3;
        let link = |block: &[u32]| {
            last = xxh3_64_with_seed(&Self::name(block).to_le_bytes(), last);
            last
        };
        prompt.chunks_exact(TEXT).map(link).collect()
    }

    /// What an answer of 10 tokens to a prompt shows that found nothing cached and whose blocks were not published; as many were
    /// stored meanwhile for `other`. Returns whether those are taken for its own, at each of `looks`.
    fn misses(&mut self, prompt: &[u32], other: &[u32], looks: &[bool]) -> Vec<PromptOutcome> {
        self.now += 10;
        let report = self.report(prompt);
        self.engine.used.clear();
        let (_, events) = self.engine.serve(other, &[7; 10]);
        for event in &events {
            self.ledger.take(0, event, at(self.now + 1), &self.dispatcher.index);
        }
        self.ledger.answered(&report, &self.dispatcher.index);
        let look = |is_last| Look { answered: at(self.now + 1), is_last };
        looks
            .iter()
            .map(|is_last| self.ledger.join(&report, look(*is_last), &self.dispatcher.index))
            .collect()
    }

    /// Of an answer of 10 tokens to a prompt that found nothing cached and was sent now.
    fn report(&self, prompt: &[u32]) -> PromptReport {
        PromptReport {
            slot: 0,
            sent: at(self.now),
            chain: Self::text(prompt).into(),
            bytes: prompt.len() as u64 * 4,
            turn: Turn { whole: Self::name(prompt), continues: None },
            blocks: 0,
            is_new: true,
            prompt: Tokens(prompt.len() as u64),
            cached: Some(Tokens(0)),
            output: Tokens(10),
            ..PromptReport::default()
        }
    }

    /// Sends a prompt that continues another; returns what was predicted to be cached and what was.
    fn ask(&mut self, prompt: &[u32], continues: Option<&[u32]>, answer: &[u32]) -> (u64, u64) {
        let found = self.ends(prompt, continues, answer);
        let report = self.reports.try_recv().unwrap();
        self.ledger.answered(&report, &self.dispatcher.index);
        let look = Look { answered: at(self.now + 1), is_last: true };
        assert_ne!(self.ledger.join(&report, look, &self.dispatcher.index), PromptOutcome::Ambiguous);
        found
    }

    /// The same up to the end of the answer: what it reports is still in the queue.
    fn ends(&mut self, prompt: &[u32], continues: Option<&[u32]>, answer: &[u32]) -> (u64, u64) {
        let chain = Self::text(prompt);
        let (bytes, tried) = (prompt.len() as u64 * 4, SlotSet::new());
        let own = Prompt { chain: &chain, bytes, tokens: Tokens(bytes / 4) };
        let turn = Turn { whole: Self::name(prompt), continues: continues.map(Self::name) };
        let ask = Ask { turn, ..Ask::of(own, &tried) };
        let policy = policies::named(PolicyName::Latency);
        self.now += 10;
        let targets = std::iter::once(&self.target);
        let judged = self.dispatcher.judge(&*policy, &ask, &LIMITS, at(self.now), targets).unwrap();
        let mut assignment = judged.assign().unwrap();
        let (cached, events) = self.engine.serve(prompt, answer);
        for event in events {
            self.ledger.take(0, &event, at(self.now + 1), &self.dispatcher.index);
            self.published.push((at(self.now + 1), event));
        }
        assignment.answer_counted(Some(Tokens(answer.len() as u64)));
        assignment.prompt_reported(Some(Tokens(prompt.len() as u64)), Some(Tokens(cached as u64)));
        let predicted = assignment.decision.hit.0;
        drop(assignment);
        (predicted, cached as u64)
    }
}

fn tokens(random: &mut fastrand::Rng, count: usize) -> Vec<u32> {
    (0..count).map(|_| random.u32(..100_000)).collect()
}

#[test]
fn what_is_predicted_under_pressure_is_what_the_engine_finds() {
    for seed in 0..4 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut scene = Scene::new(300);
        let system = tokens(&mut random, 400);
        // Prompts with their answers, and the prompt before the last.
        let mut talks: Vec<(Vec<u32>, Option<Vec<u32>>)> = Vec::new();
        let (mut right, mut all) = (0, 0);
        for round in 0..400 {
            let place = random.usize(..12);
            if talks.len() <= place || talks[place].0.len() > 1500 {
                talks.resize_with(talks.len().max(place + 1), || (system.clone(), None));
                talks[place] = (system.clone(), None);
            }
            let (talk, before) = &talks[place];
            let question = random.usize(20..200);
            let prompt: Vec<u32> = talk.iter().copied().chain(tokens(&mut random, question)).collect();
            let length = random.usize(1..40);
            let answer = tokens(&mut random, length);
            let (predicted, cached) = scene.ask(&prompt, before.as_deref(), &answer);
            if round >= 20 {
                all += 1;
                right += usize::from(predicted.abs_diff(cached) <= TEXT as u64);
            }
            let whole = prompt.iter().chain(&answer).copied().collect();
            talks[place] = (whole, Some(prompt));
        }
        assert!(right * 100 >= all * 99, "seed {seed}: {right} of {all}");
    }
}

#[test]
fn a_turn_right_behind_an_answer_is_predicted_to_find_all_of_it() {
    let mut random = fastrand::Rng::with_seed(4);
    let mut scene = Scene::new(300);
    let (system, question, answer) = (400, 90, 200);
    let (first, answer) = (tokens(&mut random, system), tokens(&mut random, answer));
    scene.ask(&tokens(&mut random, system), None, &[7; 10]);
    scene.ends(&first, None, &answer);
    let next = [&first[..], &answer, &tokens(&mut random, question)].concat();
    let (predicted, cached) = scene.ends(&next, Some(&first), &[7; 10]);
    assert_eq!((predicted, cached), (592, 592), "of 600 in blocks of 16");
}

#[test]
fn what_is_predicted_after_a_restart_is_what_the_engine_finds() {
    let mut right = [0; 2];
    for (seed, follows_events) in (0..4).flat_map(|seed| [(seed, true), (seed, false)]) {
        let (mut random, mut scene) = (fastrand::Rng::with_seed(seed), Scene::new(560));
        scene.resize(follows_events);
        let (outbox, notices) = queue(1000, false);
        scene.dispatcher.announce(&outbox, "p");
        // More than the engine holds.
        let prompts: Vec<_> = (0..12).map(|n| tokens(&mut random, 700 + 90 * n)).collect();
        for _ in 0..48 {
            scene.ask(&prompts[random.usize(..12)], None, &[7; 10]);
        }
        scene.restart(notices.try_iter(), follows_events);
        for _ in 0..24 {
            let (predicted, cached) = scene.ask(&prompts[random.usize(..12)], None, &[7; 10]);
            right[usize::from(follows_events)] += usize::from(predicted.abs_diff(cached) <= 128);
        }
    }
    assert!(right.iter().all(|right| *right >= 88), "of 96 without and with events: {right:?}");
}

#[test]
fn what_another_prompt_stored_is_not_taken_for_one_that_begins_otherwise() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut scene = Scene::new(1000);
    let system = tokens(&mut random, 200);
    let mut prompt = || [&system[..], &tokens(&mut random, 100)].concat();
    let (first, second, third) = (prompt(), prompt(), prompt());
    scene.ask(&first, None, &[7; 10]);
    let mut other = fastrand::Rng::with_seed(2);
    let mut other = || tokens(&mut other, 300);
    assert_eq!(scene.misses(&second, &other(), &[false, true]), [PromptOutcome::Unknown; 2]);
    assert_eq!(scene.misses(&third, &other(), &[false, true]), [PromptOutcome::Unknown; 2]);
    assert_eq!(scene.misses(&third, &third, &[false]), [PromptOutcome::Found]);
}

#[test]
fn what_was_stored_after_the_answer_is_of_a_later_prompt() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut scene = Scene::new(1000);
    let (first, second) = (tokens(&mut random, 300), tokens(&mut random, 300));
    scene.misses(&first, &first, &[]);
    let answered = at(scene.now + 1);
    let report = scene.report(&first);
    // As long, and the blocks of the first are looked for when those of both are there.
    scene.now += 10;
    assert_eq!(scene.misses(&second, &second, &[false]), [PromptOutcome::Found]);
    let look = Look { answered, is_last: false };
    assert_eq!(scene.ledger.join(&report, look, &scene.dispatcher.index), PromptOutcome::Found);
}

#[test]
fn a_beginning_that_changes_for_good_is_followed() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut scene = Scene::new(1000);
    let (system, dated) = (tokens(&mut random, 200), tokens(&mut random, 200));
    let mut joined = Vec::new();
    scene.ask(&[&system[..], &[1; 100]].concat(), None, &[7; 10]);
    for question in 2..7 {
        let prompt = |system: &[u32]| [system, &[question; 100]].concat();
        joined.extend(scene.misses(&prompt(&system), &prompt(&dated), &[true]));
    }
    use PromptOutcome::{Found, Unknown};
    assert_eq!(joined, [Unknown, Unknown, Found, Found, Found]);
}

#[test]
fn counts_that_lie_do_no_harm() {
    let mut scene = Scene::new(100);
    let report = |prompt: u64, cached: u64, output: u64| PromptReport {
        slot: 0,
        sent: at(1),
        chain: [1, 2, 3].into(),
        bytes: 800,
        turn: Turn { whole: 5, continues: Some(5) },
        blocks: 9,
        prompt: Tokens(prompt),
        cached: Some(Tokens(cached)),
        output: Tokens(output),
        ..PromptReport::default()
    };
    let run = Stored { parent: None, medium: Medium::Gpu, block_tokens: 16, blocks: Vec::new() };
    scene.ledger.take(0, &Event::Stored(run), at(1), &scene.dispatcher.index);
    for (prompt, cached, output) in
        [(1, 1, 1), (200, 500, 3), (200, 199, u64::MAX), (u64::MAX, 0, 0), (3, 0, 70)]
    {
        let report = report(prompt, cached, output);
        scene.ledger.answered(&report, &scene.dispatcher.index);
        let look = Look { answered: at(1), is_last: true };
        scene.ledger.join(&report, look, &scene.dispatcher.index);
    }
    assert_eq!(scene.ledger.counts(0), (0, 0));
}

#[test]
fn a_prompt_without_a_block_of_text_is_no_hit_once_the_cache_is_empty() {
    let mut random = fastrand::Rng::with_seed(3);
    let prompt = tokens(&mut random, TEXT - BLOCK);
    let mut scene = Scene::new(64);
    scene.ask(&prompt, None, &[7; 10]);
    let again = scene.ask(&prompt, None, &[7; 10]);
    assert_eq!(again, (32, 32));
    scene.engine.used.clear();
    scene.ledger.take(0, &Event::Cleared, at(scene.now), &scene.dispatcher.index);
    assert_eq!(scene.ask(&prompt, None, &[7; 10]), (0, 0));
    // Another replica takes the place of one that left.
    scene.engine.used.clear();
    scene.ledger.close(0, &scene.dispatcher.index);
    scene.dispatcher.forget(0);
    scene.ledger.open(0, &scene.dispatcher.index);
    assert_eq!(scene.ask(&prompt, None, &[7; 10]), (0, 0));
}

#[test]
fn what_is_evicted_after_a_reconnect_is_forgotten() {
    let mut random = fastrand::Rng::with_seed(4);
    let prompt = tokens(&mut random, 4 * TEXT);
    let mut scene = Scene::new(64);
    scene.ask(&prompt, None, &[7; 10]);
    assert!(scene.ask(&prompt, None, &[7; 10]).0 > 0);
    scene.dispatcher.index.exact.follow(0, false);
    scene.ledger.open(0, &scene.dispatcher.index);
    let hashes: Vec<u64> = scene.engine.used.drain().map(|(hash, _)| hash).collect();
    let evicted = Event::Removed { hashes, medium: Medium::Gpu };
    scene.ledger.take(0, &evicted, at(scene.now), &scene.dispatcher.index);
    assert_eq!(scene.ask(&prompt, None, &[7; 10]), (0, 0));
}
