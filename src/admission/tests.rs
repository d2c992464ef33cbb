use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::clock::millis as at;
use crate::config::QueueLimits;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn limits(max_requests: usize, max_bytes: usize) -> Option<QueueLimits> {
    Some(QueueLimits { max_requests, max_bytes, max_wait: Duration::from_secs(5), isolate_long: true })
}

/// 100 ms of work, to be sent by `latest`.
fn waiter(tenant: &str, latest: u64) -> Waiter {
    let outlook = Outlook {
        work: ms(100),
        replicas: 1,
        slack: Some(Duration::MAX),
        latest: at(latest),
        bound: ms(600),
        ..Outlook::default()
    };
    Waiter {
        reason: WaitReason::Late,
        route: "chat".into(),
        share: Share { tenant: tenant.into(), weight: 1, priority: 0 },
        limits: limits(100, 1 << 20),
        is_long: false,
        bytes: 10,
        old_at: None,
        outlook,
    }
}

/// The same of a tenant that has these.
fn ranked(weight: u32, priority: i32, waiter: Waiter) -> Waiter {
    Waiter { share: Share { weight, priority, ..waiter.share }, ..waiter }
}

fn best_effort(tenant: &str) -> Waiter {
    let plain = waiter(tenant, 0);
    Waiter { outlook: Outlook { slack: None, ..plain.outlook }, ..plain }
}

#[derive(Default)]
struct Bench {
    queue: WaitQueue<u64>,
    positions: BTreeMap<u64, Position>,
}

impl Bench {
    /// The ids that lost their position, or the refusal's code.
    fn enter(&mut self, id: u64, waiter: &Waiter) -> Result<Vec<u64>, &'static str> {
        let entered = self.queue.enter(waiter, id).map_err(|refusal| refusal.exceeded.code())?;
        self.positions.insert(id, entered.position);
        Ok(entered.evicted.into_iter().map(|(id, _)| id).collect())
    }

    /// The order in which all are placed.
    fn drain(&mut self) -> Vec<u64> {
        let (mut order, mut next) = (Vec::new(), self.queue.tick());
        while let Some(id) = next {
            order.push(id);
            next = self.queue.placed(self.positions[&id], at(0));
            next = next.or_else(|| self.queue.tick());
        }
        order
    }
}

#[test]
fn lanes_go_before_weights_and_weights_before_deadlines() {
    let mut bench = Bench::default();
    let heavy = |latest| ranked(2, 0, waiter("heavy", latest));
    let urgent = ranked(2, 1, waiter("heavy", 900));
    let batch = best_effort("light");
    let urgent_batch = ranked(1, 1, batch.clone());
    let all = [(1, batch), (2, urgent_batch), (3, waiter("light", 30)), (4, waiter("light", 20))];
    let more = [(5, heavy(50)), (6, heavy(40)), (7, heavy(60)), (8, heavy(70)), (9, urgent)];
    for (id, waiter) in all.into_iter().chain(more) {
        assert_eq!(bench.enter(id, &waiter), Ok(vec![]));
    }
    // Priority 1; then of `light` (earliest deadline first) one for every two of `heavy`, which had one already.
    assert_eq!(bench.drain(), [9, 4, 6, 3, 5, 7, 8, 2, 1]);
    assert!(bench.queue.is_empty());
}

#[test]
fn a_late_request_of_a_tenant_without_its_part_waits_for_no_stream_of_fresh_ones() {
    let mut bench = Bench::default();
    assert_eq!(bench.enter(0, &best_effort("light")), Ok(vec![]));
    let flood = |bench: &mut Bench, id| {
        assert_eq!(bench.enter(id, &waiter("flood", 1000 + id)), Ok(vec![]));
        let next = bench.queue.tick().unwrap();
        // There is room for one each time.
        let mut also = bench.queue.placed(bench.positions[&next], at(0));
        while let Some(id) = also {
            also = bench.queue.stays(bench.positions[&id], Deferral::NoCapacity);
        }
        next
    };
    let order: Vec<u64> = (1..40).map(|id| flood(&mut bench, id)).collect();
    let light = order.iter().position(|id| *id == 0);
    assert!(light.is_some_and(|light| (20..24).contains(&light)), "two seconds of 100 ms each: {order:?}");
    // The flood's own late ones are behind its fresh ones as ever.
    let mut alone = Bench::default();
    assert_eq!(alone.enter(0, &best_effort("flood")), Ok(vec![]));
    let order: Vec<u64> = (1..40).map(|id| flood(&mut alone, id)).collect();
    assert!(!order.contains(&0), "{order:?}");
}

#[test]
fn a_long_queue_of_one_tenant_is_not_before_a_short_one_of_another() {
    let mut bench = Bench::default();
    for id in 0..50 {
        bench.enter(id, &waiter("flood", id)).unwrap();
    }
    let chat = waiter("chats", 1000);
    assert_eq!(bench.queue.ahead(&chat), Some(ms(100)), "one of the other's for one of its own");
    let again = waiter("flood", 1000);
    assert_eq!(bench.queue.ahead(&again), Some(ms(5000)));
    assert_eq!(bench.queue.ahead(&best_effort("chats")), Some(ms(5000)), "all others are before it");
    bench.enter(99, &chat).unwrap();
    let order = bench.drain();
    assert!(order.iter().position(|id| *id == 99).unwrap() <= 1, "{order:?}");
}

#[test]
fn no_room_ends_a_round_and_reasons_of_its_own_do_not() {
    let mut bench = Bench::default();
    for id in 0..200 {
        bench.enter(id, &Waiter { limits: None, ..waiter("a", id) }).unwrap();
    }
    assert_eq!(bench.queue.tick(), Some(0));
    assert_eq!(bench.queue.stays(bench.positions[&0], Deferral::NoCapacity), None);
    // Whatever is wrong with the first ones, everybody is asked within a few rounds.
    let mut asked = std::collections::BTreeSet::new();
    for _ in 0..4 {
        let mut next = bench.queue.tick();
        while let Some(id) = next {
            asked.insert(id);
            next = bench.queue.stays(bench.positions[&id], Deferral::Request);
        }
    }
    assert_eq!(asked.len(), 200);
}

#[test]
fn a_turn_during_a_call_begins_another_round_after_it() {
    let mut bench = Bench::default();
    bench.enter(1, &waiter("a", 1)).unwrap();
    bench.enter(2, &waiter("a", 2)).unwrap();
    assert_eq!(bench.queue.turn(), Some(1));
    assert_eq!(bench.queue.turn(), None);
    assert_eq!(bench.queue.stays(bench.positions[&1], Deferral::NoCapacity), Some(1));
    assert_eq!(bench.queue.leave(bench.positions[&1]), Some(2), "placed or gone, the next is called");
    assert_eq!(bench.queue.leave(bench.positions[&1]), None, "a position is given back once");
    assert_eq!(bench.queue.stays(bench.positions[&2], Deferral::NoCapacity), None);
}

#[test]
fn a_silent_waiter_blocks_no_other() {
    let mut bench = Bench::default();
    for id in [1, 2] {
        bench.enter(id, &waiter("a", id)).unwrap();
    }
    assert_eq!((bench.queue.tick(), bench.queue.tick()), (Some(1), Some(2)));
    assert_eq!(bench.queue.stays(bench.positions[&1], Deferral::Request), None, "it answers at last");
    assert_eq!(bench.queue.tick(), Some(1));
}

#[test]
fn limits_are_by_route_and_long_prompts_have_their_own() {
    let mut bench = Bench::default();
    let plain = Waiter { limits: limits(2, 30), ..waiter("a", 50) };
    let long = Waiter { is_long: true, ..plain.clone() };
    let held = Waiter { reason: WaitReason::Held, ..plain.clone() };
    let other = Waiter { route: "other".into(), ..plain.clone() };
    for (id, waiter, expected) in [
        (1, &plain, Ok(vec![])),
        (2, &plain, Ok(vec![])),
        (3, &plain, Err("max_requests")),
        (4, &held, Ok(vec![])),
        (5, &long, Ok(vec![])),
        (6, &Waiter { bytes: 21, ..long.clone() }, Err("max_bytes")),
        (7, &other, Ok(vec![])),
        (8, &Waiter { limits: None, ..plain.clone() }, Ok(vec![])),
    ] {
        assert_eq!(bench.enter(id, waiter), expected, "{id}");
    }
    assert_eq!(bench.drain().len(), 6);
    assert_eq!(bench.enter(9, &Waiter { bytes: 30, ..plain }), Ok(vec![]), "all bytes were given back");
}

#[test]
fn one_tenant_cannot_fill_the_queue_for_others() {
    let small = |tenant: &str, latest| Waiter { limits: limits(4, 1000), ..waiter(tenant, latest) };
    let mut bench = Bench::default();
    for id in 0..4 {
        bench.enter(id, &small("flood", id)).unwrap();
    }
    assert_eq!(bench.enter(4, &small("flood", 9)), Err("max_requests"));
    assert_eq!(bench.enter(5, &small("chats", 9)), Ok(vec![3]), "the last of the flood goes");
    assert_eq!(bench.enter(6, &small("chats", 9)), Ok(vec![2]));
    assert_eq!(bench.enter(7, &small("chats", 9)), Err("max_requests"), "both have their half");
    let large = Waiter { bytes: 980, ..small("third", 9) };
    assert_eq!(bench.enter(8, &large), Err("max_bytes"), "nobody else has as much");
}

#[test]
fn none_goes_for_a_request_that_is_refused_all_the_same() {
    let small = |tenant: &str, latest| Waiter { limits: limits(100, 100), ..waiter(tenant, latest) };
    let mut bench = Bench::default();
    for id in 0..9 {
        bench.enter(id, &small(if id < 6 { "flood" } else { "chats" }, id)).unwrap();
    }
    // Two of the flood's would make room for 30 bytes; then neither has as much as the newcomer would.
    assert_eq!(bench.enter(9, &Waiter { bytes: 45, ..small("third", 9) }), Err("max_bytes"));
    assert_eq!(bench.queue.len(), 9);
    assert_eq!(bench.enter(10, &Waiter { bytes: 30, ..small("third", 9) }), Ok(vec![5, 4]));
    let mut order = bench.drain();
    order.sort_unstable();
    assert_eq!(order, [0, 1, 2, 3, 6, 7, 8, 10], "who keeps its place is placed");
}

#[test]
fn a_weight_that_a_reload_changed_holds_for_those_that_wait() {
    let mut bench = Bench::default();
    let of = |tenant: &str, weight, latest| ranked(weight, 0, waiter(tenant, latest));
    for id in 0..20 {
        bench.enter(id, &of(if id % 2 == 0 { "a" } else { "b" }, 1, id)).unwrap();
    }
    for (id, tenant, weight) in [(20, "a", 1), (21, "b", 4)] {
        bench.enter(id, &of(tenant, weight, 99)).unwrap();
    }
    let first = bench.drain().into_iter().take(10).filter(|id| id % 2 == 1).count();
    assert!(first >= 7, "{first} of ten are of the tenant with four times the weight");
}

#[test]
fn a_full_queue_sheds_priorities_below_zero_and_nothing_for_their_sake() {
    let of = |tenant: &str, priority, latest| {
        ranked(1, priority, Waiter { limits: limits(3, 100), ..waiter(tenant, latest) })
    };
    let mut bench = Bench::default();
    for (id, priority) in [(0, -1), (1, -5), (2, -1)] {
        assert_eq!(bench.enter(id, &of("a", priority, id)), Ok(vec![]));
    }
    assert_eq!(bench.enter(3, &of("a", -5, 9)), Err("max_requests"), "nothing is below it");
    assert_eq!(bench.enter(4, &of("a", -1, 9)), Ok(vec![1]), "the lowest goes first");
    let large = Waiter { bytes: 101, ..of("a", 0, 9) };
    assert_eq!(bench.enter(5, &large), Err("max_bytes"), "and stays where that would not help");
    assert_eq!(bench.enter(6, &of("a", 0, 9)), Ok(vec![4]), "the latest of those alike");
    assert_eq!(bench.enter(7, &of("a", 7, 9)), Ok(vec![2]));
    assert_eq!(bench.enter(8, &of("a", 7, 9)), Ok(vec![0]));
    assert_eq!(bench.enter(9, &of("a", 7, 9)), Err("max_requests"), "0 is not shed");
    assert_eq!(bench.enter(10, &of("b", -1, 9)), Err("max_requests"), "whatever its tenant's share");
    assert_eq!(bench.enter(11, &of("b", 0, 9)), Ok(vec![6]), "among others the share decides");
}

#[test]
fn a_wait_beyond_max_wait_or_the_slack_is_not_begun() {
    let mut bench = Bench::default();
    let slack = |ms_left: u64, drain: u64| {
        let plain = waiter("a", 1);
        let outlook = Outlook { slack: Some(ms(ms_left)), drain: ms(drain), ..plain.outlook };
        Waiter { outlook, ..plain }
    };
    assert_eq!(bench.enter(1, &slack(400, 401)), Err("ttft"));
    assert_eq!(bench.enter(2, &slack(9999, 5001)), Err("max_wait"));
    for id in 3..7 {
        assert_eq!(bench.enter(id, &slack(400, 50)), Ok(vec![]));
    }
    assert_eq!(bench.enter(8, &slack(400, 50)), Err("ttft"), "400 ms of work are before it");
    assert_eq!(bench.enter(9, &slack(450, 50)), Ok(vec![]));
    let unproved = slack(400, 50);
    let unproved = Waiter { outlook: Outlook { is_held_back: true, ..unproved.outlook }, ..unproved };
    assert_eq!(bench.enter(10, &unproved), Ok(vec![]), "the engine is idle, and only our caution keeps it");
}

/// One of two tenants that ask again and again: 100 ms of work with such a weight.
fn weighted(tenant: &str, weight: u32, now: u64) -> Waiter {
    let plain = waiter(tenant, now + 600);
    let outlook = Outlook { at: at(now), ..plain.outlook };
    ranked(weight, 0, Waiter { outlook, ..plain })
}

/// Every 100 ms both tenants ask, in turn first, and there is room for one; the other's client gives up and the queue is empty.
/// The tenants that were placed.
fn rounds(queue: &mut WaitQueue<usize>, weights: [u32; 2], rounds: std::ops::Range<u64>) -> Vec<usize> {
    let tenants = ["a", "b"];
    let place = |round: u64| {
        let now = 100 * round;
        let mut positions = [None, None];
        for n in [round, round + 1] {
            let one = usize::from(n % 2 == 1);
            let waiter = weighted(tenants[one], weights[one], now);
            positions[one] = Some(queue.enter(&waiter, one).unwrap().position);
        }
        let first = queue.turn().unwrap();
        queue.placed(positions[first].unwrap(), at(now));
        queue.leave(positions[1 - first].unwrap());
        assert!(queue.is_empty());
        first
    };
    rounds.map(place).collect()
}

#[test]
fn weights_hold_in_a_queue_that_keeps_emptying() {
    for (weights, expected) in [([3, 1], 300), ([1, 1], 200), ([100, 300], 100)] {
        let placed = rounds(&mut WaitQueue::default(), weights, 0..400);
        let of_a = placed.iter().filter(|one| **one == 0).count();
        assert!(of_a.abs_diff(expected) <= 1, "{weights:?}: {of_a} of 400, not {expected}");
        // And smoothly: in any eight as many as in any other eight, but one.
        for some in placed.windows(8) {
            let of_a = some.iter().filter(|one| **one == 0).count();
            assert!(of_a.abs_diff(expected / 50) <= 1, "{weights:?}: {some:?}");
        }
    }
}

#[test]
fn a_tenant_that_was_away_is_neither_owed_what_others_got_nor_held_to_what_it_had() {
    let mut queue = WaitQueue::default();
    for now in 0..100 {
        let position = queue.enter(&weighted("b", 1, 100 * now), 1).unwrap().position;
        queue.placed(position, at(100 * now));
    }
    let placed = rounds(&mut queue, [3, 1], 100..140);
    let of_b = placed.iter().filter(|one| **one == 1).count();
    assert!(of_b.abs_diff(10) <= 1, "no credit for idle time: {placed:?}");
    assert!(placed.windows(5).all(|some| some.contains(&1)), "and no starvation: {placed:?}");

    let mut queue = WaitQueue::default();
    let long = Waiter { outlook: Outlook { work: ms(5000), ..waiter("a", 1).outlook }, ..waiter("a", 1) };
    let position = queue.enter(&long, 0).unwrap().position;
    queue.placed(position, at(0));
    assert_eq!(rounds(&mut queue, [1, 1], 2..6), [1; 4], "it has just had fifty times as much");
    assert_eq!(rounds(&mut queue, [1, 1], 36_000..36_004), [0, 1, 0, 1], "an hour later that is over");
}

/// A pool of four places, in each of which a request takes a second; none may wait: one that finds no place free is refused.
struct FullPool {
    queue: WaitQueue<u64>,
    busy_until: [u64; 4],
}

impl FullPool {
    fn ask(&mut self, tenant: &str, now: u64) -> Result<(), Duration> {
        let free_at = self.busy_until.into_iter().min().unwrap_or_default();
        let outlook = Outlook {
            at: at(now),
            work: ms(1000),
            drain: ms(free_at.saturating_sub(now)),
            slack: Some(Duration::ZERO),
            ..waiter(tenant, now).outlook
        };
        let waiter = Waiter { outlook, ..waiter(tenant, now) };
        if free_at > now || self.queue.ahead(&waiter).is_some() {
            return Err(self.queue.enter(&waiter, now).unwrap_err().retry_after);
        }
        self.queue.passed(&waiter, at(now));
        *self.busy_until.iter_mut().find(|until| **until == free_at).unwrap() = now + 1000;
        Ok(())
    }
}

/// Answers of a minute to `polite` clients of a tenant, which obey `Retry-After`, and to a flood that asks every
/// 20 ms.
fn beside_a_flood(polite: u64) -> [u64; 2] {
    let mut pool = FullPool { queue: WaitQueue::default(), busy_until: [0; 4] };
    let mut next: Vec<u64> = (0..polite).map(|n| 5000 + 13 * n).collect();
    let mut answered = [0, 0];
    for now in 0..60_000 {
        for comes in next.iter_mut().filter(|comes| **comes == now) {
            let after = match pool.ask("polite", now) {
                Ok(()) => {
                    answered[0] += 1;
                    1000
                }
                // Headers have whole seconds.
                Err(retry_after) => 1000 * retry_after.as_secs_f64().ceil() as u64 + 20,
            };
            *comes = now + after;
        }
        if now % 20 == 0 && pool.ask("flood", now).is_ok() {
            answered[1] += 1;
        }
    }
    answered
}

#[test]
fn clients_that_obey_retry_after_have_their_share_beside_a_flood() {
    let [polite, flood] = beside_a_flood(12);
    assert!(polite >= 90 && polite + flood >= 220, "{polite} and {flood} of 240");
    let [polite, flood] = beside_a_flood(1);
    assert!(
        polite >= 40 && polite + flood >= 220,
        "{polite} and {flood} of 240: one client alone gets all that it asks"
    );
    let [polite, flood] = beside_a_flood(0);
    assert!(polite == 0 && flood >= 230, "{flood} of 240");
}

#[test]
fn who_grows_old_as_best_effort_has_an_eighth_of_the_work() {
    let mut bench = Bench::default();
    for id in 0..10 {
        let old_at = Some(at(30_000 + id));
        bench.enter(id, &Waiter { old_at, limits: None, ..best_effort("late") }).unwrap();
    }
    // There is always one more that can be in time.
    let mut placed = Vec::new();
    for now in 0..120 {
        let now = 20_000 + 1_000 * now;
        let urgent = Waiter { limits: None, ..waiter("fresh", now + 500) };
        let outlook = Outlook { at: at(now), ..urgent.outlook };
        bench.enter(1_000 + now, &Waiter { outlook, ..urgent }).unwrap();
        let called = bench.queue.tick().unwrap();
        placed.push((now, called));
        if let Some(next) = bench.queue.placed(bench.positions[&called], at(now)) {
            bench.queue.stays(bench.positions[&next], Deferral::NoCapacity);
        }
    }
    let old: Vec<_> = placed.iter().filter(|(_, id)| *id < 1_000).collect();
    assert!(old.iter().all(|(now, _)| *now >= 30_000), "{old:?}");
    assert_eq!(
        old.iter().map(|(_, id)| *id).collect::<Vec<_>>(),
        (0..10).collect::<Vec<_>>(),
        "the oldest first"
    );
    let (first, last) = (old[0].0, old[9].0);
    assert!((68_000..=78_000).contains(&(last - first)), "one of eight: {old:?}");
}

#[test]
fn a_request_is_old_after_four_bounds_or_half_of_its_timeout() {
    let [bound, minute] = [2, 60].map(Duration::from_secs);
    assert_eq!(grows_old_after(Some(bound), minute), Duration::from_secs(8));
    assert_eq!(grows_old_after(Some(minute), minute), Duration::from_secs(30));
    assert_eq!(grows_old_after(None, minute), Duration::from_secs(30));
}

#[test]
fn an_old_request_goes_before_none_of_a_higher_priority() {
    let mut bench = Bench::default();
    let late = Waiter { old_at: Some(at(0)), limits: None, ..best_effort("late") };
    bench.enter(1, &late).unwrap();
    for id in 2..12 {
        bench.enter(id, &ranked(1, 1, Waiter { limits: None, ..waiter("fresh", id) })).unwrap();
    }
    assert_eq!(bench.drain().last(), Some(&1));
}
