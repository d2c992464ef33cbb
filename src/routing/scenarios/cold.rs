//! What people see of a gateway that has just begun, and of answers that tell less than a stream does.

use super::*;

/// Sends `count` requests, `every` so often or as soon as fewer than `at_once` are under way, to replicas that take so long each for
/// a first token and end with it: how many each of them got.
fn trickle(fleet: &mut Fleet, takes: &[Duration], count: u64, every: Duration, at_once: usize) -> Vec<u32> {
    let mut counts = vec![0; takes.len()];
    let mut under_way: Vec<(Stamp, Assignment)> = Vec::new();
    let mut next = fleet.now;
    for number in 0..count {
        next = next.after(every);
        loop {
            let earliest = under_way.iter().map(|(end, _)| *end).min();
            let is_due = |end: &Stamp| *end <= next || under_way.len() >= at_once;
            let Some(end) = earliest.filter(is_due) else { break };
            fleet.now = fleet.now.max(end);
            while let Some(at) = under_way.iter().position(|(one, _)| *one == end) {
                let (_, mut assignment) = under_way.swap_remove(at);
                assignment.first_token(end);
                assignment.served(Tokens(20), 20);
            }
        }
        next = next.max(fleet.now);
        fleet.now = next;
        fleet.refresh();
        let (decision, assignment) = fleet.dispatch(&Text::session(number, 16, 1));
        counts[decision.slot] += 1;
        under_way.push((fleet.now.after(takes[decision.slot]), assignment));
    }
    counts
}

#[test]
fn a_fresh_gateway_does_not_send_most_to_the_one_slow_replica() {
    for slow in 0..3 {
        for (every, at_once) in [(0, 72), (2, 72), (10, 72), (30, 72), (0, 6), (0, 12), (0, 24), (10, 6)] {
            let mut fleet = Fleet::new(PolicyName::Latency, 3);
            let mut takes = [ms(10); 3];
            takes[slow] = ms(1000);
            let counts = trickle(&mut fleet, &takes, 72, ms(every), at_once);
            assert!(counts[slow] <= 24, "{slow} is slow, every {every} ms, {at_once} at once: {counts:?}");
        }
    }
}

#[test]
fn an_engine_whose_counters_show_no_hits_loses_its_promises_although_no_answer_tells() {
    let fleet = Fleet::experienced(2);
    let text = Text::session(1, 0, 64);
    fleet.dispatcher.index.insert(0, &text.prompt());
    let promised = fleet.decide(&text).unwrap().hit;
    assert_eq!(fleet.decide(&text).unwrap().slot, 0);
    let mut queries = 1e6;
    for _ in 0..10 {
        let cache = Some(CacheFigures::Totals { queries, hits: 5e5 });
        fleet.targets[0].scraped(EnginePage { cache, ..page(0.0, 0.0) }, fleet.now);
        fleet.dispatcher.learn_cache(&fleet.targets[0], 4.0);
        (0..40).for_each(|_| drop(fleet.dispatch(&text)));
        queries += 40.0 * 4000.0;
    }
    let believed = fleet.decide(&text).unwrap();
    assert!(believed.hit.0 < promised.0 / 2, "{:?} of {promised:?}", believed.hit);
}

#[test]
fn answers_that_come_whole_show_which_replica_is_slow() {
    let mut fleet = Fleet::new(PolicyName::Latency, 4);
    fleet.shows_first_token = false;
    let mut counts = [0u32; 4];
    for round in 0..100 {
        let batch: Vec<_> = (0..6).map(|i| fleet.dispatch(&Text::session(10 * round + i, 0, 16))).collect();
        let began = fleet.now;
        for (decision, assignment) in batch {
            counts[decision.slot] += 1;
            let ends = began.after(ms(if decision.slot == 2 { 2400 } else { 600 }));
            fleet.now = fleet.now.max(ends);
            fleet.refresh();
            assignment.served_whole(ends, Tokens(25));
        }
    }
    let others = (counts[0] + counts[1] + counts[3]) / 3;
    assert!(counts[2] < others / 2 && counts[2] > 0, "{counts:?}");
}
