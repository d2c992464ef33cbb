//! Prompts and the KV memory that they need.

use super::*;

/// A page with 1,000 blocks of 16 tokens, this share of them in use.
fn usage(kv_cache_usage: f64) -> EnginePage {
    EnginePage { kv_cache_usage: Some(kv_cache_usage), total_blocks: Some(1_000), ..page(0.0, 0.0) }
}

#[test]
fn a_prompt_goes_where_its_kv_has_room() {
    let mut fleet = talkative(2);
    let (long, short) = (Text::session(1, 0, 40), Text::session(2, 0, 4));
    // The second one has a prompt to compute first, the first one nothing to do.
    let _busy = fleet.prompt(1, 3_000);
    assert_eq!(fleet.decide(&long).unwrap().slot, 0, "of memory nothing is known");
    for (used, long_at) in [(0.3, 0), (0.95, 1)] {
        fleet.targets[0].scraped(usage(used), fleet.now);
        fleet.targets[1].scraped(usage(0.1), fleet.now);
        assert_eq!(fleet.decide(&long).unwrap().slot, long_at, "2,560 tokens of 16,000, {used} in use");
        assert_eq!(fleet.decide(&short).unwrap().slot, 0, "256 tokens, {used} in use");
    }
    // What had the memory ended, as the next page shows.
    fleet.now = fleet.now.after(Duration::from_secs(1));
    fleet.targets[0].scraped(usage(0.3), fleet.now);
    assert_eq!(fleet.decide(&long).unwrap().slot, 0);
}

#[test]
fn streams_behind_a_cached_prefix_share_its_memory() {
    let fleet = talkative(1);
    let text = |number| Text::session(number, 96, 4);
    let begun = |number| {
        let (_, mut stream) = fleet.dispatch(&text(number));
        stream.first_token(fleet.now);
        stream
    };
    let mut streams = vec![begun(0)];
    fleet.targets[0].scraped(usage(0.4), fleet.now);
    streams.extend((1..6).map(begun));
    assert!(
        fleet.targets[0].load.view().context > 38_000,
        "of 16,000, as each of them attends to all of its prompt"
    );
    assert_eq!(fleet.decide(&text(7)).unwrap().terms.slot_wait, 0.0);
    drop(streams);
}

#[test]
fn streams_that_will_yet_grow_leave_less_room() {
    let room = |streams: u64| {
        let fleet = talkative(1);
        let begun = |number| {
            let (_, mut stream) = fleet.dispatch(&Text::session(number, 0, 1));
            stream.first_token(fleet.now);
            stream
        };
        let _streams: Vec<_> = (0..streams).map(begun).collect();
        fleet.targets[0].scraped(usage(0.9), fleet.now);
        fleet.decide(&Text::session(99, 0, 4)).unwrap().terms.slot_wait == 0.0
    };
    assert!(room(0), "14,400 of 16,000 tokens are in use");
    assert!(!room(6), "as many, and each stream takes more");
}

#[test]
fn what_no_engine_can_ever_hold_waits_for_no_room() {
    let fleet = talkative(2);
    let endless = Text::session(1, 0, 300);
    for target in &fleet.targets {
        target.scraped(usage(0.3), fleet.now);
    }
    let placed = || {
        let (targets, ask) = (fleet.targets.iter(), fleet.asked(&endless));
        match fleet.dispatcher.judge(&*fleet.policy, &ask, &LIMITS, fleet.now, targets).unwrap().verdict {
            Verdict::Place(decision) => (decision.slot, decision.terms.slot_wait > 0.0),
            Verdict::Hold(_) => panic!("held"),
        }
    };
    assert!(!placed().1, "19,200 tokens of 16,000: its engine is to refuse it");
    fleet.targets[1].scraped(EnginePage { total_blocks: Some(2_000), ..usage(0.6) }, fleet.now);
    assert_eq!(placed(), (1, true), "the larger one holds it once it has room");
}
