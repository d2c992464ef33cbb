//! What is learned from which answers: a fleet of engines that compute prompts one after the other, as a router meets it.

use std::collections::BinaryHeap;

use super::*;
use crate::record::{SloBounds, TokenCounts};
use crate::routing::predictor::Queue;

/// Seconds of one engine: a request, a prompt token, a token of the answer.
#[derive(Clone, Copy)]
struct Speed {
    base: f64,
    prompt: f64,
    output: f64,
}

/// One engine: prompts wait for each other, tokens do not.
struct Engine {
    speed: Speed,
    free_at: Stamp,
    /// Tokens of every prompt that it has cached before anybody sends it one.
    warm: u64,
}

struct Site {
    fleet: Fleet,
    engines: Vec<Engine>,
    is_stream: bool,
    /// The tokens of each answer, and how many of them come in one event.
    output: u64,
    per_event: u64,
    /// Whether answers tell their cached tokens.
    tells_cached: bool,
    /// What the second engine's answers say of all their counts.
    nonsense: Option<u64>,
    sent: Vec<usize>,
    open: Vec<Option<Open>>,
    due: BinaryHeap<std::cmp::Reverse<(Stamp, usize, bool)>>,
}

struct Open {
    assignment: Assignment,
    first: Stamp,
    prompt: u64,
    cached: u64,
}

impl Site {
    fn new(speeds: &[Speed], is_stream: bool, output: u64) -> Self {
        let engine = |speed: &Speed| Engine { speed: *speed, free_at: Stamp::default(), warm: 0 };
        Self {
            fleet: Fleet::new(PolicyName::Latency, speeds.len()),
            engines: speeds.iter().map(engine).collect(),
            is_stream,
            output,
            per_event: 1,
            tells_cached: true,
            nonsense: None,
            sent: vec![0; speeds.len()],
            open: Vec::new(),
            due: BinaryHeap::new(),
        }
    }

    /// Lets everything happen that is due by `until`, the ticks of the dispatcher included.
    fn run(&mut self, until: Stamp) {
        while self.fleet.now < until {
            let now = self.fleet.now.after(REFRESH_EVERY).min(until);
            while let Some(std::cmp::Reverse((at, id, is_end))) = self.due.peek().copied() {
                if at > now {
                    break;
                }
                self.due.pop();
                self.fleet.now = at;
                self.happen(id, is_end);
            }
            self.fleet.now = now;
            let (all, ready) = (self.fleet.targets.iter(), self.fleet.targets.iter());
            self.fleet.dispatcher.refresh(all, ready, &LIMITS, 4.0, now);
        }
    }

    fn happen(&mut self, id: usize, is_end: bool) {
        let now = self.fleet.now;
        let Some(open) = self.open.get_mut(id).and_then(Option::as_mut) else { return };
        if !is_end {
            open.first = now;
            return open.assignment.first_token(now, now);
        }
        let Some(Open { assignment, first, prompt, cached }) = self.open[id].take() else { return };
        let cached = self.tells_cached.then_some(Tokens(cached));
        let told = TokenCounts { input: Some(Tokens(prompt)), cached, output: Some(Tokens(self.output)) };
        let nonsense = self.nonsense.filter(|_| assignment.decision.slot == 1).map(Tokens);
        let told = match nonsense {
            Some(count) => TokenCounts { input: Some(count), cached: Some(count), output: Some(count) },
            None => told,
        };
        self.fleet.dispatcher.answered(now);
        assignment.counted(&told);
        if self.is_stream {
            let streamed = Streamed { events: self.output.div_ceil(self.per_event), tokens: None };
            assignment.progress(streamed, now);
            assignment.served(first, now, streamed, told.output);
        } else {
            assignment.whole_answer(now, &told);
        }
    }

    fn send(&mut self, text: &Text) -> Decision {
        let fleet = &self.fleet;
        let prompt = text.prompt();
        let ask = Ask {
            prompt,
            session: None,
            slo: SloBounds::default(),
            waited: Duration::ZERO,
            queues_late: false,
            shows_first_token: self.is_stream,
            tried: &fleet.excluded,
        };
        let judged = fleet.dispatcher.judge(&*fleet.policy, &ask, &LIMITS, fleet.now, fleet.targets.iter());
        let assignment = judged.and_then(Judged::assign).unwrap();
        let decision = assignment.decision;
        self.sent[decision.slot] += 1;
        let engine = &mut self.engines[decision.slot];
        let cached = decision.hit.0.max(engine.warm.min(prompt.tokens.0 - 1));
        let seconds = engine.speed.base + engine.speed.prompt * (prompt.tokens.0 - cached) as f64;
        let first = engine.free_at.max(fleet.now).after(Duration::from_secs_f64(seconds));
        engine.free_at = first;
        let rest = Duration::from_secs_f64(engine.speed.output * (self.output - 1) as f64);
        let id = self.open.len();
        if self.is_stream {
            self.due.push(std::cmp::Reverse((first, id, false)));
        }
        self.due.push(std::cmp::Reverse((first.after(rest), id, true)));
        self.open.push(Some(Open { assignment, first, prompt: prompt.tokens.0, cached }));
        decision
    }

    /// Sends `count` prompts that share nothing, one every `every`.
    fn send_all(&mut self, count: u64, every: Duration) {
        for n in 0..count {
            let number = self.open.len() as u64 + n;
            self.send(&Text::session(number, 0, 4 + number % 9));
            self.run(self.fleet.now.after(every));
        }
    }

    /// What a cold prompt of so many tokens is predicted to take there, in seconds.
    fn predicted(&self, slot: usize, tokens: u64) -> f64 {
        let (model, now) = (&self.fleet.dispatcher.model, self.fleet.now);
        let (own, foreign) = (LoadView::default(), Foreign::default());
        let queue = Queue { own: &own, foreign: &foreign, batch_limit: None, cache: None, head_age: 0.0 };
        let work = Work::of(Tokens(tokens), Tokens(0));
        model.estimate(slot, now).terms(&model.view(), &queue, work).seconds()
    }
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// 10 ms for a request, or a second.
const FAST: Speed = Speed { base: 0.01, prompt: 0.0, output: 0.0 };
const SLOW: Speed = Speed { base: 1.0, prompt: 0.0, output: 0.0 };
/// A small model on a large GPU.
const USUAL: Speed = Speed { base: 0.015, prompt: 1e-4, output: 0.01 };

#[test]
fn a_fresh_gateway_spreads_evenly_and_leaves_what_is_overdue_before_it_answers() {
    for is_stream in [true, false] {
        for (every, most) in [(0, 24), (1, 24), (10, 10), (20, 8), (50, 8), (200, 8)] {
            let mut site = Site::new(&[FAST, SLOW, FAST], is_stream, 1);
            site.send_all(72, ms(every));
            let sent = &site.sent;
            assert!((1..=most).contains(&sent[1]), "stream {is_stream}, every {every} ms: {sent:?}");
            assert!(sent[0] > 4 && sent[2] > 4, "stream {is_stream}, every {every} ms: {sent:?}");
        }
    }
}

#[test]
fn answers_without_a_stream_teach_speed_and_a_slow_replica_gets_less() {
    let slow = Speed { base: 0.06, prompt: 4e-4, output: 0.04 };
    let mut site = Site::new(&[USUAL, slow, USUAL], false, 50);
    site.send_all(200, ms(150));
    assert!(site.sent[1] * 2 < site.sent[0] && site.sent[1] > 0, "{:?}", site.sent);
    let ratio = site.predicted(1, 1000) / site.predicted(0, 1000);
    assert!((2.5..6.0).contains(&ratio), "four times as slow, taken for {ratio}");
}

#[test]
fn a_restart_in_front_of_warm_engines_teaches_no_false_speed() {
    for is_stream in [true, false] {
        let mut site = Site::new(&[USUAL; 3], is_stream, 40);
        site.engines.iter_mut().for_each(|engine| engine.warm = 100_000);
        site.send_all(60, ms(40));
        site.run(site.fleet.now.after(ms(2000)));
        site.engines.iter_mut().for_each(|engine| engine.warm = 0);
        // Nothing was computed so far but a token of each prompt: what more would take is a guess, and not nothing.
        for slot in 0..3 {
            let predicted = site.predicted(slot, 2000);
            assert!(predicted > 0.04, "stream {is_stream}: {predicted} s instead of 215 ms");
        }
        site.send_all(9, ms(100));
        site.run(site.fleet.now.after(ms(1000)));
        for slot in 0..3 {
            let predicted = site.predicted(slot, 2000);
            let share = predicted / 0.215;
            assert!((0.6..1.6).contains(&share), "stream {is_stream}: {predicted} s instead of 215 ms");
        }
    }
}

#[test]
fn tokens_are_counted_and_not_events() {
    let mut site = Site::new(&[USUAL; 2], true, 400);
    site.per_event = 4;
    site.send_all(80, ms(50));
    site.run(site.fleet.now.after(ms(6000)));
    let mean = site.fleet.dispatcher.model.view().output;
    assert!((300.0..450.0).contains(&mean), "answers of 400 tokens in 100 events: {mean}");
    let per_event = site.fleet.dispatcher.model.tokens_per_event();
    assert!((3.5..4.5).contains(&per_event), "{per_event}");
    let mut assignment = site.fleet.dispatch(&Text::session(9999, 0, 4)).1;
    assignment.first_token(site.fleet.now, site.fleet.now);
    assignment.progress(Streamed { events: 100, tokens: None }, site.fleet.now.after(ms(10)));
    site.run(site.fleet.now.after(ms(20)));
    let context: u64 = site.fleet.targets.iter().map(|target| target.load.view().context).sum();
    assert!((600..720).contains(&context), "266 of the prompt and some 400 of the answer: {context}");
}

#[test]
fn a_cache_that_is_off_or_finds_less_is_not_believed_though_answers_do_not_tell() {
    for (told, most) in [
        (CacheTold { is_on: Some(false), ..CacheTold::default() }, 0.0),
        (CacheTold { grown: Some((20_000.0, 0.0)), ..CacheTold::default() }, 0.2),
        (CacheTold { share: Some(0.0), ..CacheTold::default() }, 0.2),
    ] {
        let mut site = Site::new(&[USUAL; 1], true, 10);
        site.tells_cached = false;
        let text = Text::session(1, 0, 64);
        for _ in 0..200 {
            site.send(&text);
            site.run(site.fleet.now.after(ms(200)));
            if site.open.len() % 5 == 0 {
                site.fleet.dispatcher.learn_cache(0, &told);
            }
        }
        assert!(site.send(&text).hit.0 as f64 <= most * 4096.0, "{told:?}");
    }
}

#[test]
fn nonsense_of_an_engine_neither_attracts_everything_nor_bans_it_for_ever() {
    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 1e300, 0.0];
    for (n, figure) in odd.into_iter().enumerate() {
        let mut site = Site::new(&[USUAL; 3], n % 2 == 0, 20);
        let mut sent_late = [0; 3];
        for round in 0..240 {
            let count = [0, u64::MAX][round % 2];
            site.nonsense = Some(count);
            let page = EnginePage {
                running: Some(figure),
                waiting: Some(-figure),
                kv_cache_usage: Some(figure),
                block_tokens: Some(count),
                total_blocks: Some(count),
                batch_limit: Some(count),
            };
            site.fleet.targets[1].scraped(page, site.fleet.now);
            let (grown, share) = (Some((figure, -figure)), Some(figure));
            let told = CacheTold { is_on: Some(true), grown, share };
            site.fleet.dispatcher.learn_cache(1, &told);
            site.fleet.dispatcher.learn_capacity(&site.fleet.targets[1], figure);
            let decision = site.send(&Text::session(round as u64, 0, 8));
            if round > 120 {
                sent_late[decision.slot] += 1;
            }
            site.run(site.fleet.now.after(ms(60)));
        }
        assert!(sent_late.iter().all(|sent| *sent >= 8), "case {n}, {figure}: {sent_late:?}");
    }
}
