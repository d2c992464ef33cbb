//! What people see of routing: whole decisions against a small fleet whose engines answer by a known line.

mod apart;
mod cold;
mod decoding;
mod memory;
mod slo;

use std::sync::Arc;
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::*;
use crate::clock::Stamp;
use crate::config::PolicyName;
use crate::routing::policies::named;
use crate::routing::score::Stakes;
use crate::routing::verdict::judge;
use crate::units::Tokens;

struct Fleet {
    policy: Box<dyn Policy>,
    dispatcher: Arc<Dispatcher>,
    targets: Vec<Target>,
    excluded: SlotSet,
    session: Option<u64>,
    aim: Aim,
    shows_first_token: bool,
    /// Transfer time of KV, where prompts are computed elsewhere.
    transfer: Option<fn(u64, Tokens) -> f64>,
    now: Stamp,
}

/// A prompt of 256-byte blocks, 64 tokens each.
struct Text {
    chain: Vec<u64>,
}

impl Text {
    fn new(blocks: &[u64]) -> Self {
        let mut hash = 0;
        let link = |block: &u64| {
            hash = xxh3_64_with_seed(&block.to_le_bytes(), hash);
            hash
        };
        Self { chain: blocks.iter().map(link).collect() }
    }

    fn prompt(&self) -> Prompt<'_> {
        let blocks = self.chain.len() as u64;
        Prompt { chain: &self.chain, bytes: 256 * blocks + 40, tokens: Tokens(64 * blocks + 10) }
    }

    /// `shared` blocks that all have in common, then `own` ones that nobody else has.
    fn session(number: u64, shared: u64, own: u64) -> Self {
        let own = (0..own).map(|block| 1_000_000 * (number + 1) + block);
        Self::new(&(0..shared).chain(own).collect::<Vec<_>>())
    }
}

impl Fleet {
    fn new(policy: PolicyName, replicas: usize) -> Self {
        Self {
            policy: named(policy),
            dispatcher: Dispatcher::new(replicas),
            targets: (0..replicas)
                .map(|slot| Target::new(slot, rendezvous::identity(1, format!("gpu-{slot}").as_bytes())))
                .collect(),
            excluded: SlotSet::new(),
            session: None,
            aim: Aim::default(),
            shows_first_token: true,
            transfer: None,
            now: Stamp::default(),
        }
    }

    fn decide(&self, text: &Text) -> Option<Decision> {
        self.ask(text, |policy, query, candidates| {
            let decision = decide(policy, query, candidates)?;
            if policy.predicts() {
                for (candidate, terms) in cheapest(query, candidates, &decision) {
                    let sum: f64 = terms.cost.named().iter().map(|(_, seconds)| seconds).sum();
                    assert!((sum - candidate.cost).abs() < 1e-9 * sum.abs().max(1.0), "{terms:?}");
                }
            }
            Some(decision)
        })
    }

    fn elsewhere(&self) -> Option<Elsewhere<'_>> {
        self.transfer.as_ref().map(|transfer| Elsewhere { transfer })
    }

    fn judge(&self, text: &Text) -> Option<Verdict> {
        self.ask(text, judge)
    }

    fn asked<'a>(&'a self, text: &'a Text) -> Ask<'a> {
        Ask {
            session: self.session,
            waited: self.aim.waited,
            shows_first_token: self.shows_first_token,
            elsewhere: self.elsewhere(),
            ..Ask::of(text.prompt(), &self.excluded)
        }
    }

    /// Asks one step of a decision, with `aim` as it is.
    fn ask<T>(&self, text: &Text, ask: impl Fn(&dyn Policy, &Query<'_>, &mut [Candidate<'_>]) -> T) -> T {
        let query = Query {
            ask: self.asked(text),
            aim: Aim { now: self.now, ..self.aim },
            model: &self.dispatcher.model,
            index: &self.dispatcher.index,
        };
        let candidate = |target| Candidate::of(target, &LIMITS, self.now);
        let mut candidates: Vec<_> = self.targets.iter().map(candidate).collect();
        ask(&*self.policy, &query, &mut candidates)
    }

    /// A whole decision, acted on whatever its verdict.
    fn dispatch(&self, text: &Text) -> (Decision, Assignment) {
        let ask = self.asked(text);
        let judged = self.dispatcher.judge(&*self.policy, &ask, &LIMITS, self.now, self.targets.iter());
        let assignment = judged.and_then(|judged| judged.assign()).unwrap();
        (assignment.decision, assignment)
    }

    /// A prompt that a replica has yet to compute.
    fn prompt(&self, slot: usize, tokens: u64) -> LoadGuard {
        let work = Work::of(Tokens(tokens), Tokens(0));
        let placement = Placement { at: self.now, work, is_stream: true, ..Placement::default() };
        LoadGuard::reserve(&self.targets[slot].load, placement)
    }

    /// Sends all at once and keeps them in flight: how many each replica got.
    fn burst(&self, texts: impl IntoIterator<Item = Text>) -> Vec<u64> {
        let _held: Vec<_> = texts.into_iter().map(|text| self.dispatch(&text).1).collect();
        self.targets.iter().map(|target| target.load.inflight()).collect()
    }

    /// The replica answers, `factor` times slower than 40 ms and 10,000 tokens a second.
    fn answer(&mut self, decision: &Decision, factor: f64) {
        let tokens = (decision.terms.ahead + Tokens(decision.terms.work.tokens)).0 as f64;
        let busy = Duration::from_secs_f64(factor * (0.04 + tokens * 1e-4));
        self.now = self.now.after(busy);
        let work = Work::of(Tokens(tokens as u64), Tokens(0));
        let sample = TimingSample { work, busy, was_idle: true, context: 0, at: self.now };
        self.dispatcher.model.observe(decision.slot, &sample);
    }
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A fleet whose answers have 1,500 tokens.
fn talkative(replicas: usize) -> Fleet {
    let fleet = Fleet::experienced(replicas);
    for _ in 0..1024 {
        fleet.dispatcher.model.pool.observe_output(Tokens(1500));
    }
    fleet
}

fn page(running: f64, waiting: f64) -> EnginePage {
    EnginePage {
        running: Some(running),
        waiting: Some(waiting),
        kv_cache_usage: Some(0.5),
        block_tokens: Some(16),
        ..EnginePage::default()
    }
}

const LIMITS: EngineLimits =
    EngineLimits { scrape_interval: Duration::from_secs(3600), batch_limit: Some(8) };

#[test]
fn a_hit_is_the_reason_only_where_it_decided() {
    let fleet = Fleet::experienced(2);
    let home = fleet.dispatch(&Text::session(1, 0, 40)).0.slot;
    let other = 1 - home;
    let longer = Text::session(1, 0, 44);
    assert_eq!(fleet.decide(&longer).map(|d| (d.slot, d.reason)), Some((home, Reason::Prefix)));
    let _busy = fleet.prompt(other, 100_000);
    assert_eq!(fleet.decide(&longer).map(|d| (d.slot, d.reason)), Some((home, Reason::Load)));
}

#[test]
fn a_conversation_stays_where_its_prefix_is() {
    for policy in [PolicyName::Prefix, PolicyName::Latency] {
        let mut fleet = Fleet::new(policy, 8);
        for number in 0..20 {
            let (first, _) = fleet.dispatch(&Text::session(number, 0, 8));
            fleet.answer(&first, 1.0);
            for turn in 1..6 {
                let (next, _) = fleet.dispatch(&Text::session(number, 0, 8 + 2 * turn));
                assert_eq!((next.slot, next.reason), (first.slot, Reason::Prefix), "{policy:?}");
                assert_eq!(next.hit, Tokens(64 * (6 + 2 * turn)));
                fleet.answer(&next, 1.0);
            }
        }
    }
}

#[test]
fn conversations_that_run_side_by_side_use_all_replicas() {
    for policy in PolicyName::ALL {
        let fleet = Fleet::new(policy, 8);
        let counts = fleet.burst((0..64).map(|number| Text::session(number, 0, 8)));
        assert!(counts.iter().all(|n| (4..=14).contains(n)), "{policy:?}: {counts:?}");
    }
}

#[test]
fn a_hot_prefix_spreads_when_its_replicas_queue_costs_more_than_computing_it_again() {
    let fleet = Fleet::experienced(4);
    let hot = |number| Text::session(number, 16, 1);
    let (first, _done) = fleet.dispatch(&hot(0));
    let counts = fleet.burst((1..5).map(hot));
    assert!(
        counts[first.slot] >= 3,
        "a short queue is no reason to leave the cache before many share it: {counts:?}"
    );
    let fleet = Fleet::new(PolicyName::Latency, 4);
    let counts = fleet.burst((0..200).map(hot));
    let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    assert!(*least >= 30 && *most <= 80, "{counts:?}");
}

#[test]
fn a_burst_does_not_herd() {
    for policy in [PolicyName::Latency, PolicyName::Prefix, PolicyName::LeastLoaded] {
        let different = Fleet::new(policy, 8).burst((0..100).map(|n| Text::session(n, 1, 16)));
        assert!(different.iter().all(|n| *n <= 25), "{policy:?}, different prompts: {different:?}");
        let identical = Fleet::new(policy, 8).burst((0..100).map(|_| Text::session(0, 0, 16)));
        assert!(identical.iter().all(|n| *n <= 60), "{policy:?}, identical prompts: {identical:?}");
        let tiny = Fleet::new(policy, 8).burst((0..100).map(|_| Text::new(&[])));
        assert!(tiny.iter().all(|n| *n <= 25), "{policy:?}, prompts below a block: {tiny:?}");
    }
}

#[test]
fn a_slow_replica_gets_less_and_is_tried_again() {
    let mut fleet = Fleet::new(PolicyName::Latency, 4);
    let mut counts = [0u32; 4];
    for round in 0..100 {
        let batch: Vec<_> = (0..6).map(|i| fleet.dispatch(&Text::session(10 * round + i, 0, 16))).collect();
        for (decision, guard) in batch {
            counts[decision.slot] += 1;
            fleet.answer(&decision, if decision.slot == 2 { 4.0 } else { 1.0 });
            drop(guard);
        }
    }
    let others = (counts[0] + counts[1] + counts[3]) / 3;
    assert!(counts[2] < others / 2 && counts[2] > 0, "{counts:?}");
}

#[test]
fn work_of_other_gateways_counts() {
    for policy in [PolicyName::Latency, PolicyName::LeastLoaded] {
        let fleet = Fleet::new(policy, 2);
        fleet.targets[0].scraped(page(8.0, 12.0), fleet.now);
        fleet.targets[1].scraped(page(1.0, 0.0), fleet.now);
        for number in 0..4 {
            assert_eq!(fleet.decide(&Text::session(number, 0, 4)).unwrap().slot, 1, "{policy:?}");
        }
    }
}

#[test]
fn an_overloaded_cache_holder_is_passed_over() {
    let fleet = Fleet::new(PolicyName::Prefix, 4);
    let counts = fleet.burst((0..80).map(|n| Text::session(n, 8, 1)));
    assert!(counts.iter().all(|n| *n > 0 && *n <= 27), "{counts:?}");
}

#[test]
fn sixteen_conversations_behind_one_prompt_share_the_fleet_and_keep_their_replicas() {
    for policy in [PolicyName::Prefix, PolicyName::Latency] {
        let fleet = Fleet::new(policy, 4);
        let first: Vec<_> = (0..16).map(|n| fleet.dispatch(&Text::session(n, 64, 8))).collect();
        let counts: Vec<_> = fleet.targets.iter().map(|target| target.load.inflight()).collect();
        assert!(counts.iter().all(|n| (2..=6).contains(n)), "{policy:?}: {counts:?}");
        let slots: Vec<_> = first.iter().map(|(decision, _)| decision.slot).collect();
        drop(first);
        if policy == PolicyName::Prefix {
            for (n, slot) in (0..16).zip(slots) {
                assert_eq!(
                    fleet.dispatch(&Text::session(n, 64, 12)).0.slot,
                    slot,
                    "{n} has its history there"
                );
            }
        }
    }
}

#[test]
fn a_fresh_pool_is_tried_evenly() {
    let fleet = Fleet::new(PolicyName::Latency, 3);
    assert_eq!(fleet.burst((0..72).map(|n| Text::session(n, 16, 1))), [24; 3]);
}

#[test]
fn what_was_tried_is_never_chosen_again() {
    for policy in PolicyName::ALL {
        let mut fleet = Fleet::new(policy, 70);
        fleet.session = Some(7);
        let text = Text::session(1, 0, 4);
        for tried in 0..70u16 {
            let (decision, _guard) = fleet.dispatch(&text);
            assert!(!fleet.excluded.contains(decision.slot), "{policy:?}");
            assert_eq!(decision.candidates, 70 - tried);
            assert_eq!(decision.reason == Reason::Only, tried == 69, "{policy:?}");
            fleet.excluded.insert(decision.slot);
        }
        assert!(fleet.decide(&text).is_none(), "{policy:?}: nobody is left");
    }
}

#[test]
fn a_session_keeps_its_replica_whatever_its_load() {
    let mut fleet = Fleet::new(PolicyName::Session, 8);
    let mut used = SlotSet::new();
    for session in 0..64 {
        fleet.session = Some(rendezvous::identity(1, format!("user-{session}").as_bytes()));
        let held: Vec<_> = (0..5).map(|n| fleet.dispatch(&Text::session(n, 0, 3))).collect();
        assert!(held.iter().all(|(d, _)| d.slot == held[0].0.slot && d.reason == Reason::Session));
        used.insert(held[0].0.slot);
    }
    assert!((0..8).all(|slot| used.contains(slot)), "64 sessions use all 8 replicas");
}

#[test]
fn round_robin_takes_turns() {
    let fleet = Fleet::new(PolicyName::RoundRobin, 3);
    let slots: Vec<_> = (0..6).map(|_| fleet.decide(&Text::new(&[1])).unwrap().slot).collect();
    assert_eq!(slots, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn two_gateways_that_know_the_same_decide_alike() {
    for policy in [PolicyName::Latency, PolicyName::Prefix, PolicyName::Session] {
        let mut gateways = [Fleet::new(policy, 16), Fleet::new(policy, 16)];
        for number in 0..50 {
            let text = Text::session(number % 9, 2, number % 5);
            let slots = gateways.each_mut().map(|gateway| {
                gateway.session = Some(number % 9);
                let (decision, _) = gateway.dispatch(&text);
                gateway.answer(&decision, 1.0);
                decision.slot
            });
            assert_eq!(slots[0], slots[1], "{policy:?}");
        }
    }
}

#[test]
fn only_latency_predicts_and_the_summary_says_so() {
    for policy in PolicyName::ALL {
        let fleet = Fleet::new(policy, 2);
        let decision = fleet.decide(&Text::session(1, 0, 4)).unwrap();
        let summary = decision.summary(Duration::from_millis(300));
        assert_eq!(summary.policy, policy.as_str());
        let expected =
            (policy == PolicyName::Latency).then(|| decision.terms.ttft() + Duration::from_millis(300));
        assert_eq!(summary.predicted_ttft, expected, "{policy:?}: what was waited is part of TTFT");
        assert!(Reason::ALL.iter().any(|reason| reason.as_str() == summary.reason));
    }
}
