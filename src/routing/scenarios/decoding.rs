//! What people see of decoding in routing: running streams count, and a replica that is too slow for them is left alone.

use super::*;
use crate::record::SloBounds;

#[test]
fn chats_behind_one_system_prompt_spread_by_what_their_answers_cost() {
    let mut fleet = talkative(4);
    let mut running = Vec::new();
    for n in 0..64 {
        let (_, mut guard) = fleet.dispatch(&Text::session(n, 64, 1));
        fleet.now = fleet.now.after(Duration::from_millis(60));
        guard.first_token(fleet.now);
        running.push(guard);
        fleet.now = fleet.now.after(Duration::from_millis(440));
    }
    let counts: Vec<_> = fleet.targets.iter().map(|target| target.load.inflight()).collect();
    assert!(counts.iter().all(|n| (10..=24).contains(n)), "{counts:?}");
}

/// Chats behind a shared system prompt; the latest 24 are being answered. Returns the replica of each.
fn chats(
    fleet: &mut Fleet,
    running: &mut std::collections::VecDeque<Assignment>,
    numbers: std::ops::Range<u64>,
    shared: u64,
    every: Duration,
) -> Vec<usize> {
    let first_token = Duration::from_millis(50);
    let one = |n| {
        let (decision, mut guard) = fleet.dispatch(&Text::session(n, shared, 1));
        fleet.now = fleet.now.after(first_token);
        guard.first_token(fleet.now);
        running.push_back(guard);
        if running.len() > 24 {
            running.pop_front();
        }
        fleet.now = fleet.now.after(every - first_token);
        decision.slot
    };
    numbers.map(one).collect()
}

#[test]
fn a_new_replica_that_lacks_only_what_all_share_is_used_at_once() {
    let mut fleet = Fleet::experienced(4);
    let mut running = std::collections::VecDeque::new();
    // Answers of eight seconds, three requests a second: few streams, and steps hardly longer by them.
    let every = Duration::from_millis(333);
    fleet.excluded.insert(3);
    chats(&mut fleet, &mut running, 0..84, 32, every);
    fleet.excluded = SlotSet::new();
    let slots = chats(&mut fleet, &mut running, 84..96, 32, every);
    let to_new = slots.iter().filter(|slot| **slot == 3).count();
    assert!((2..=8).contains(&to_new), "{to_new} of twelve");
}

#[test]
fn a_long_prompt_goes_where_the_fewest_streams_stand_still_for_it() {
    let mut fleet = Fleet::experienced(2);
    let stream = Placement { at: fleet.now, is_stream: true, ..Placement::default() };
    let mut there: Vec<_> = (0..6).map(|_| LoadGuard::reserve(&fleet.targets[0].load, stream)).collect();
    for guard in &mut there {
        guard.first_token(fleet.now);
    }
    // Some of the prompt is cached where they run.
    fleet.dispatcher.index.insert(0, &Text::session(1, 0, 10).prompt());
    let whole = Text::session(1, 0, 80);
    for bound in [None, Some(Duration::from_secs(1))] {
        fleet.aim.slo.tpot = bound;
        assert_eq!(fleet.decide(&whole).unwrap().slot, 1, "a bound that is never reached changes nothing");
    }
}

#[test]
fn short_chats_behind_one_system_prompt_use_every_replica_alike() {
    let mut fleet = Fleet::experienced(4);
    // Answers of four seconds, six requests a second.
    let slots = chats(&mut fleet, &mut Default::default(), 0..480, 16, Duration::from_millis(167));
    let mut sent = [0; 4];
    slots.iter().skip(240).for_each(|slot| sent[*slot] += 1);
    assert!(sent.iter().all(|n| (54..=66).contains(n)), "{sent:?}");
}

#[test]
fn a_replica_whose_steps_are_over_the_bound_is_dearer_the_more_it_has() {
    let mut fleet = talkative(3);
    let text = Text::session(1, 64, 1);
    (0..3).for_each(|slot| fleet.dispatcher.index.insert(slot, &text.prompt()));
    let _some = fleet.streams(0, 20, 10);
    let _many = fleet.streams(1, 60, 10);
    // A step of 20 ms at least: no stream there can be in time, however many there are.
    let tpot = Some(Duration::from_millis(15));
    fleet.aim.slo = SloBounds { tpot, ..SloBounds::default() };
    let costs = costs(&fleet, &text);
    let [some, many, none] = costs[..] else { panic!("three replicas") };
    assert!(some > none + 0.1 && many > some + 0.1, "{none} {some} {many}");
    assert_eq!(fleet.decide(&text).unwrap().slot, 2);
    assert!(matches!(fleet.judge(&text).unwrap(), Verdict::Place(_)), "no wait would help");
}

/// What the replicas would cost, whatever runs there, without a limit on how many do.
fn costs(fleet: &Fleet, text: &Text) -> Vec<f64> {
    fleet.ask(text, |_, query, candidates| {
        candidates.iter_mut().for_each(|candidate| candidate.batch_limit = None);
        Stakes::of(query, candidates).price(candidates);
        candidates.iter().map(|candidate| candidate.cost).collect()
    })
}

/// The streams of a replica come at this pace.
fn at_pace(fleet: &Fleet, slot: usize, per_token: f64) {
    for _ in 0..200 {
        fleet.dispatcher.model.observe_paces(slot, fleet.now, &[Pace { per_token, context: 0 }]);
    }
}

#[test]
fn a_replica_whose_steps_were_long_for_a_moment_gets_streams_again_within_half_a_minute() {
    let mut fleet = Fleet::experienced(2);
    let text = Text::session(1, 16, 1);
    fleet.aim.slo = SloBounds { tpot: Some(Duration::from_millis(50)), ..SloBounds::default() };
    at_pace(&fleet, 0, 0.04);
    at_pace(&fleet, 1, 0.052);
    // Streams of the other one go on, as does what is learned of them.
    let _running = fleet.streams(0, 6, 10);
    assert_eq!(fleet.decide(&text).unwrap().slot, 0, "the other's steps are over the bound");
    let mut chosen = Vec::new();
    for _ in 0..30 {
        fleet.now = fleet.now.after(Duration::from_secs(1));
        at_pace(&fleet, 0, 0.04);
        chosen.push(fleet.decide(&text).unwrap().slot);
    }
    let again = chosen.iter().position(|slot| *slot == 1);
    assert!(again.is_some_and(|second| second > 2), "{chosen:?}");
}

#[test]
fn nobody_waits_for_the_speed_of_a_full_batch() {
    let mut fleet = talkative(2);
    at_pace(&fleet, 0, 0.02);
    at_pace(&fleet, 1, 0.08);
    let text = Text::session(1, 64, 1);
    (0..2).for_each(|slot| fleet.dispatcher.index.insert(slot, &text.prompt()));
    let _most = fleet.streams(0, 7, 10);
    assert_eq!(fleet.decide(&text).unwrap().slot, 0, "answers are four times as fast");
    let _last = fleet.streams(0, 1, 10);
    assert_eq!(fleet.decide(&text).unwrap().slot, 1, "others take that speed; here is a place");
    let _full = fleet.streams(1, 8, 10);
    assert_eq!(fleet.decide(&text).unwrap().slot, 0, "everybody waits");
}

#[test]
fn streams_that_just_keep_their_bound_get_no_more_company() {
    let mut fleet = Fleet::experienced(2);
    at_pace(&fleet, 0, 0.02);
    at_pace(&fleet, 1, 0.06);
    let text = Text::session(1, 16, 1);
    (0..2).for_each(|slot| fleet.dispatcher.index.insert(slot, &text.prompt()));
    let _streams = fleet.streams(0, 30, 10);
    let step = fleet.dispatcher.model.estimate(0, fleet.now).itl(0);
    for (tpot, best) in [(4 * step, 0), (step, 1)] {
        fleet.aim.slo = SloBounds { tpot: Some(tpot), ..SloBounds::default() };
        let costs = costs(&fleet, &text);
        assert!(costs[best] < costs[1 - best], "bound of {tpot:?}: {costs:?}");
    }
}

#[test]
fn what_is_late_anyway_is_not_made_much_later_for_one_stream() {
    let mut fleet = Fleet::experienced(2);
    let _fragile = fleet.streams(0, 1, 1);
    // Two seconds and eight.
    let _queues = [fleet.prompt(0, 20_000), fleet.prompt(1, 80_000)];
    let (ttft, tpot) = (Some(Duration::from_secs(1)), Some(Duration::from_millis(50)));
    fleet.aim.slo = SloBounds { ttft, tpot, ..SloBounds::default() };
    assert_eq!(fleet.decide(&Text::session(1, 0, 64)).unwrap().slot, 0);
}

#[test]
fn an_engine_that_reports_nonsense_is_neither_chosen_for_ever_nor_never() {
    let figures = [f64::NAN, -7.0, f64::INFINITY, f64::NEG_INFINITY, 1e300, -0.0];
    for policy in [PolicyName::Latency, PolicyName::Prefix, PolicyName::LeastLoaded] {
        for bad in figures {
            let mut fleet = Fleet::experienced(4);
            fleet.policy = named(policy);
            for n in 0..200 {
                let (blocks, tokens) = [(0, 0), (u64::MAX, u64::MAX), (n, 1)][n as usize % 3];
                let page = EnginePage {
                    // Counters fall, too.
                    running: Some(if n % 2 == 0 { bad } else { (200 - n) as f64 }),
                    waiting: Some(bad),
                    kv_cache_usage: Some(bad),
                    block_tokens: Some(tokens),
                    total_blocks: Some(blocks),
                    is_caching_off: false,
                    batch_limit: None,
                    cache: Some(CacheFigures::Totals { queries: (200 - n) as f64, hits: bad }),
                };
                fleet.now = fleet.now.after(Duration::from_millis(10));
                fleet.targets[2].scraped(page, fleet.now);
                fleet.dispatcher.learn_cache(&fleet.targets[2], bad);
                fleet.dispatcher.model.pool.observe_output(Tokens(0));
            }
            let last = EnginePage {
                running: Some(bad),
                waiting: Some(bad),
                kv_cache_usage: Some(bad),
                ..EnginePage::default()
            };
            fleet.targets[2].scraped(last, fleet.now);
            let counts = fleet.burst((0..80).map(|n| Text::session(n, 0, 16)));
            assert!(counts.iter().all(|n| (8..=35).contains(n)), "{policy:?}, {bad}: {counts:?}");
        }
    }
}

#[test]
fn a_request_without_a_bound_on_its_stream_is_never_held() {
    let mut fleet = Fleet::experienced(1);
    let _streams = fleet.streams(0, 8, 1);
    let slo = SloBounds { ttft: Some(Duration::from_secs(4)), ..SloBounds::default() };
    fleet.aim = Aim { slo, patience: 0.5, ..Aim::default() };
    assert!(matches!(fleet.judge(&Text::session(1, 0, 64)).unwrap(), Verdict::Place(_)));
}
