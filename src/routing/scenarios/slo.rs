//! What people see of SLOs in routing: who is spared, who waits, who cannot be helped, and who cannot cheat.

use super::*;
use crate::record::SloBounds;

/// A request that has to answer within `ttft_ms`, its tokens 50 ms apart at most, and may be held for half of that.
fn aim(ttft_ms: u64) -> Aim {
    let slo = SloBounds { ttft: Some(ms(ttft_ms)), tpot: Some(ms(50)), ..SloBounds::default() };
    Aim { slo, patience: 0.5, ..Aim::default() }
}

impl Fleet {
    /// A fleet of 20 ms a step whose answers have up to 400 tokens.
    pub(super) fn experienced(replicas: usize) -> Self {
        let mut fleet = Self::new(PolicyName::Latency, replicas);
        for n in 0..200 {
            let slot = n as usize % replicas;
            fleet.now = fleet.now.after(ms(1));
            fleet.dispatcher.model.pool.observe_output(Tokens(1 + 2 * n));
            let tokens = 100 * (1 + n % 7);
            let work = Work::of(Tokens(tokens), Tokens(0));
            let busy = ms(20 + tokens / 10);
            let sample = TimingSample { work, busy, was_idle: false, context: 0, at: fleet.now };
            fleet.dispatcher.model.observe(slot, &sample);
        }
        fleet
    }

    /// Streams on a replica that have brought `tokens` since they began, one every 20 ms.
    pub(super) fn streams(&mut self, slot: usize, count: usize, tokens: u64) -> Vec<LoadGuard> {
        let tpot = Some(ms(50));
        let placement = Placement { at: self.now, tpot, is_stream: true, ..Placement::default() };
        let mut guards: Vec<_> =
            (0..count).map(|_| LoadGuard::reserve(&self.targets[slot].load, placement)).collect();
        for guard in &mut guards {
            guard.first_token(self.now);
        }
        let last = self.now.after(ms(20 * (tokens - 1)));
        guards.iter().for_each(|guard| guard.progress(tokens, last));
        self.now = self.now.max(last);
        self.refresh();
        guards
    }

    /// Prompts that wait on every replica; the pool knows of them.
    fn overload(&mut self, each: u64) -> Vec<LoadGuard> {
        let slots = (0..each).flat_map(|_| 0..self.targets.len());
        let queue = slots.map(|slot| self.prompt(slot, 1000)).collect();
        self.time_passes(30);
        queue
    }

    /// So many seconds in which the pool is told what waits and nothing else happens.
    fn time_passes(&mut self, seconds: u64) {
        for _ in 0..10 * seconds {
            self.now = self.now.after(ms(100));
            self.note_backlog();
        }
    }

    fn note_backlog(&self) {
        let waiting = |target: &Target| Waiting::at(&target.load.view(), &Foreign::default());
        self.dispatcher.model.backlog.note(self.now, self.targets.iter().map(waiting));
    }

    pub(super) fn refresh(&self) {
        self.targets.iter().for_each(|target| {
            self.dispatcher.model.refresh(target.slot, &target.load, self.now);
        });
    }
}

#[test]
fn a_long_prompt_goes_where_the_streams_can_bear_it() {
    let mut fleet = Fleet::experienced(2);
    let _with_slack = fleet.streams(0, 12, 200);
    let _just_begun = fleet.streams(1, 12, 1);
    fleet.aim = aim(10_000);
    let decision = fleet.decide(&Text::session(1, 0, 64)).unwrap();
    assert_eq!(decision.slot, 0);
    fleet.aim = Aim::default();
    let harm = fleet.decide(&Text::session(1, 0, 64)).unwrap().terms.harm;
    assert!(harm < 1.0, "{harm}: streams that ran ahead can wait");
}

#[test]
fn a_hit_is_given_away_for_streams_while_there_is_time_and_kept_when_everybody_waits() {
    let mut fleet = Fleet::experienced(2);
    let _streams = fleet.streams(0, 12, 1);
    fleet.aim = Aim { patience: 0.0, ..aim(100_000) };
    let (cached, asked) = (Text::session(1, 0, 16), Text::session(1, 0, 64));
    fleet.dispatcher.index.insert(0, &cached.prompt());
    assert_eq!(fleet.decide(&asked).unwrap().slot, 1, "the streams there are fragile");
    let queue = fleet.overload(20);
    assert_eq!(fleet.decide(&asked).unwrap().slot, 0, "what is computed twice makes forty others later");
    drop(queue);
    fleet.time_passes(60);
    assert_eq!(fleet.decide(&asked).unwrap().slot, 1, "the queue is gone");
}

#[test]
fn a_hot_prefix_spreads_although_a_queue_stands_before_it() {
    let mut fleet = Fleet::experienced(4);
    let hot = |number| Text::session(number, 16, 4);
    let queue: Vec<_> = (0..800)
        .map(|number| {
            fleet.now = fleet.now.after(ms(20));
            fleet.note_backlog();
            fleet.dispatch(&hot(number)).1
        })
        .collect();
    let counts: Vec<_> = fleet.targets.iter().map(|target| target.load.inflight()).collect();
    assert!(counts.iter().all(|n| (120..=280).contains(n)), "{counts:?}");
    drop(queue);
}

#[test]
fn who_has_time_is_held_while_streams_are_fragile_and_placed_once_they_are_not() {
    let mut fleet = Fleet::experienced(1);
    let streams = fleet.streams(0, 8, 1);
    fleet.aim = aim(4000);
    let long = Text::session(1, 0, 64);
    let held = fleet.judge(&long).unwrap();
    assert!(matches!(held, Verdict::Hold(_)), "{held:?}");
    assert!(matches!(fleet.judge(&Text::new(&[])).unwrap(), Verdict::Place(_)), "a short one harms nobody");
    fleet.aim.waited = ms(1800);
    assert!(matches!(fleet.judge(&long).unwrap(), Verdict::Place(_)), "its own time is running out");
    fleet.aim = Aim { patience: 0.0, ..aim(4000) };
    assert!(matches!(fleet.judge(&long).unwrap(), Verdict::Place(_)), "a route without patience");
    fleet.aim = aim(4000);
    let later = fleet.now.after(ms(20 * 300));
    streams.iter().for_each(|stream| stream.progress(301, later));
    fleet.now = later;
    fleet.refresh();
    assert!(matches!(fleet.judge(&long).unwrap(), Verdict::Place(_)), "they have slack now");
}

#[test]
fn nobody_is_held_for_streams_that_gain_nothing_by_a_wait() {
    let mut fleet = Fleet::experienced(1);
    let _streams = fleet.streams(0, 8, 1);
    let long = Text::session(1, 0, 64);
    for (tpot, is_held) in [(50, true), (30, true), (20, false)] {
        fleet.aim = aim(4000);
        fleet.aim.slo.tpot = Some(ms(tpot));
        let verdict = fleet.judge(&long).unwrap();
        assert_eq!(
            matches!(verdict, Verdict::Hold(_)),
            is_held,
            "steps of 20 ms, bound of {tpot}: {verdict:?}"
        );
    }
}

#[test]
fn without_bounds_nothing_is_held() {
    for policy in PolicyName::ALL {
        let fleet = Fleet::new(policy, 2);
        let _queue: Vec<_> = (0..200).map(|n| fleet.dispatch(&Text::session(n, 0, 64)).1).collect();
        assert!(matches!(fleet.judge(&Text::session(999, 0, 64)).unwrap(), Verdict::Place(_)), "{policy:?}");
    }
}

#[test]
fn a_replica_that_lies_about_its_load_does_not_get_everything() {
    let fleet = Fleet::experienced(4);
    // It says that it is idle; the others tell the truth about what other gateways send.
    for target in &fleet.targets {
        target.scraped(if target.slot == 2 { page(0.0, 0.0) } else { page(6.0, 1.0) }, fleet.now);
    }
    let counts = fleet.burst((0..80).map(|n| Text::session(n, 0, 16)));
    assert!(counts.iter().all(|n| (8..=35).contains(n)), "{counts:?}");
}

#[test]
fn a_replica_that_boasts_of_cached_tokens_gains_nothing_and_one_that_finds_none_loses_its_hits() {
    let fleet = Fleet::experienced(2);
    let text = Text::session(1, 0, 16);
    fleet.dispatcher.index.insert(0, &text.prompt());
    for _ in 0..100 {
        fleet.dispatcher.index.reported(1, Tokens(0), Tokens(1 << 40));
        fleet.dispatcher.index.reported(1, Tokens(10), Tokens(1 << 40));
    }
    assert_eq!(fleet.decide(&text).unwrap().slot, 0, "who was sent it has it");
    let promised = fleet.decide(&text).unwrap().hit;
    for _ in 0..60 {
        fleet.dispatcher.index.reported(0, Tokens(1000), Tokens(0));
    }
    let believed = fleet.decide(&text).unwrap();
    assert!(believed.hit.0 < promised.0 / 5, "{:?} of {promised:?}", believed.hit);
}

#[test]
fn a_replica_that_hangs_is_left_before_anybody_times_out() {
    let mut fleet = Fleet::experienced(4);
    let mut hung = Vec::new();
    let mut counts = [0u32; 4];
    for n in 0..400u64 {
        fleet.now = fleet.now.after(ms(20));
        let (decision, mut guard) = fleet.dispatch(&Text::session(n, 0, 8));
        counts[decision.slot] += 1;
        if decision.slot == 1 {
            hung.push(guard);
        } else {
            // 71 ms of work for every 80 ms at the other three.
            guard.first_token(fleet.now.after(ms(5)));
        }
    }
    assert!(counts[1] < 25, "{counts:?}");
}

#[test]
fn absurd_prompts_take_bounded_time_and_memory() {
    let fleet = Fleet::experienced(3);
    // 10 MB in coarse blocks, thousands of them alike, and some that differ in their last block only.
    let blocks: Vec<u64> = (0..5120).collect();
    let long = Text::new(&blocks);
    for n in 0..300 {
        let mut other = blocks.clone();
        other[5119] = 10_000 + n % 3;
        let text = if n % 2 == 0 { Text::new(&other) } else { Text { chain: long.chain.clone() } };
        drop(fleet.dispatch(&text));
    }
    let held: usize = (0..3).map(|slot| fleet.dispatcher.index.held(slot)).sum();
    assert!(held <= 3 * (5120 + 3), "{held} blocks");
}

#[test]
fn prompts_are_held_back_only_where_an_engine_has_shown_that_some_wait() {
    let fleet = Fleet::experienced(2);
    let others: Vec<_> = (0..40).map(|session| fleet.dispatch(&Text::session(session, 0, 40)).1).collect();
    let text = Text::session(99, 0, 2);
    let runs_dry = || {
        let ask = Ask::of(text.prompt(), &fleet.excluded);
        let limits = EngineLimits { batch_limit: None, ..LIMITS };
        let judged = fleet.dispatcher.judge(&*fleet.policy, &ask, &limits, fleet.now, fleet.targets.iter());
        judged.unwrap().runs_dry(Duration::from_millis(200))
    };
    let scrape = |waiting| {
        let page = EnginePage { running: Some(20.0), waiting: Some(waiting), ..EnginePage::default() };
        fleet.targets.iter().for_each(|target| target.scraped(page, fleet.now));
    };
    assert!(runs_dry(), "it may compute all of them at once");
    scrape(0.0);
    assert!(runs_dry());
    scrape(3.0);
    assert!(!runs_dry());
    scrape(0.0);
    assert!(!runs_dry(), "it has a queue, whether one waits there now or not");
    fleet.targets.iter().for_each(Target::restarted);
    assert!(runs_dry(), "another engine may be there");
    drop(others);
}
