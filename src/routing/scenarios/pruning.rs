//! A decision that passes over the hopeless candidates is the decision that looks at all of them to the last term.

use super::*;
use crate::record::SloBounds;

/// A fleet in some state: speeds, queues, streams with and without slack, caches.
fn some_fleet(random: &mut fastrand::Rng) -> (Fleet, Vec<LoadGuard>) {
    let replicas = random.usize(2..20);
    let mut fleet = Fleet::new(PolicyName::Latency, replicas);
    let mut guards = Vec::new();
    let ms = |ms: u64| Stamp::from_nanos(ms * 1_000_000);
    for slot in 0..replicas {
        for _ in 0..random.u64(0..6) {
            let work = Work::of(Tokens(random.u64(10..4000)), Tokens(random.u64(0..4000)));
            let busy = Duration::from_millis(random.u64(20..800));
            fleet
                .dispatcher
                .model
                .observe(slot, &Lesson { work, busy, was_idle: false, context: 0, at: ms(500) });
        }
        for _ in 0..random.usize(0..12) {
            let work = Work::of(Tokens(random.u64(10..6000)), Tokens(0));
            let tpot = random.bool().then(|| Duration::from_millis(random.u64(20..120)));
            let at = ms(random.u64(0..900));
            let placement = Placement { at, work, prompt: Tokens(5000), tpot, is_stream: true };
            let mut guard = LoadGuard::reserve(&fleet.targets[slot].load, placement);
            if random.bool() {
                guard.first_token(ms(900));
                guard.progress(random.u64(1..50), ms(990));
            }
            guards.push(guard);
        }
        fleet.dispatcher.model.refresh(slot, &fleet.targets[slot].load, ms(1000));
        if random.bool() {
            fleet.targets[slot].scraped(page(random.f64() * 20.0, random.f64() * 6.0), ms(1000));
        }
        let held = Text::session(random.u64(0..3), 4, random.u64(0..9));
        fleet.dispatcher.index.insert(slot, &held.prompt());
    }
    if random.bool() {
        fleet.excluded.insert(random.usize(..replicas));
    }
    let bound =
        |random: &mut fastrand::Rng| random.bool().then(|| Duration::from_millis(random.u64(50..4000)));
    let (ttft, tpot) = (bound(random), bound(random).map(|bound| bound / 30));
    fleet.aim.slo = SloBounds { ttft, tpot, ..SloBounds::default() };
    fleet.now = ms(1000);
    (fleet, guards)
}

#[test]
fn pricing_only_who_may_win_never_changes_the_winner() {
    let mut random = fastrand::Rng::with_seed(11);
    let mut passed_over = 0;
    for round in 0..2000 {
        let (fleet, _guards) = some_fleet(&mut random);
        let text = Text::session(random.u64(0..3), 4, random.u64(0..12));
        passed_over += fleet.ask(&text, |policy, query, candidates| {
            let mut all = candidates.to_vec();
            let decision = decide(policy, query, candidates).unwrap();
            weigh(query, &mut all);
            let stakes = Stakes::of(query);
            all.iter_mut().for_each(|candidate| candidate.cost = stakes.terms(candidate).cost);
            let eligible = Eligible::new(&all, query.excluded);
            if eligible.count() > 1 {
                assert_eq!(policy.choose(query, &eligible).unwrap().at, decision.at, "round {round}");
            }
            assert_eq!(all[decision.at].cost, decision.terms.cost, "round {round}");
            candidates.iter().zip(&all).filter(|(one, full)| one.cost != full.cost).count()
        });
    }
    assert!(passed_over > 1000, "only {passed_over} candidates were passed over");
}
