//! Compares the replicas of a pool with one another, and publishes what follows for each.
//!
//! Every figure is taken relative to the lower median of the others: with half of a pool sick, the healthy half is still the
//! measure. Speed counts only for those in slow start.

use std::time::Duration;

use super::evidence::Member;
use crate::clock::Stamp;
use crate::routing::PoolModel;
use crate::stats::Peers;

/// Compares the members, and publishes the standing of those that are ready; `is_warm` is called with the place of each whose slow
/// start is over.
pub(crate) fn compare(members: &[Member<'_>], model: &PoolModel, now: Stamp, mut is_warm: impl FnMut(usize)) {
    let is_any_slow = members.iter().any(|member| member.health.warmth.is_in_slow_start());
    let compared = if is_any_slow { members } else { &[] };
    let speed =
        |member: &Member<'_>| model.typical_speed(member.target.slot, now).filter(|_| member.is_ready());
    let speeds: Vec<Option<[f64; 2]>> = compared.iter().map(speed).collect();
    let failing: Vec<Option<f64>> =
        members.iter().map(|member| member.health.answers.demotion_rate(now)).collect();
    let usual = Peers::of(failing.iter().copied().flatten());
    let usual_speeds = [0, 1].map(|of| Peers::of(speeds.iter().flatten().map(|speed| speed[of])));
    // What those that were ejected would answer now, they do not show.
    let ready = members.iter().zip(&failing).filter(|(member, _)| member.is_ready());
    let usual_now = Peers::of(ready.filter_map(|(_, failing)| *failing));
    for (place, member) in members.iter().enumerate().filter(|(_, member)| member.is_ready()) {
        let own = failing.get(place).copied().flatten();
        member.health.beside(usual.beside(own).unwrap_or_default());
        member.health.answers.beside(usual_now.beside(own).unwrap_or_default(), now);
        let slowness = speeds.get(place).copied().flatten().map_or(1.0, |own| slowness(own, &usual_speeds));
        if member.health.warmth.looked(slowness, now) {
            is_warm(place);
        }
        if member.health.warmth.slow_start(|slow| slow.is_retrial_due(now)) == Some(true) {
            model.forget(member.target.slot);
        }
        member.publish(now);
    }
}

/// Times what is usual among the others, by the worse of its [`PoolModel::typical_speed`]; 1 where there is nothing to compare.
fn slowness(own: [f64; 2], usual: &[Peers; 2]) -> f64 {
    let times = own.iter().zip(usual).zip(NEGLIGIBLE).filter_map(|((own, peers), negligible)| {
        Some((own + negligible) / (peers.beside(Some(*own))? + negligible))
    });
    times.reduce(f64::max).filter(|times| times.is_finite()).unwrap_or(1.0)
}

/// Between two comparisons of a pool's replicas.
pub(crate) const COMPARE_EVERY: Duration = Duration::from_millis(200);
/// Absolute floors in seconds, of a first token and of a further one: a multiple of less is no difference.
const NEGLIGIBLE: [f64; 2] = [0.02, 0.002];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::millis as at;
    use crate::fleet::health::Health;
    use crate::fleet::life::ReplicaState;
    use crate::routing::Target;

    struct Pool([(Health, Target); 4]);

    impl Pool {
        fn look(&self, millis: u64) {
            let state = ReplicaState::Ready;
            let members: Vec<_> = self
                .0
                .iter()
                .map(|(health, target)| Member { health, target, state, is_held: false })
                .collect();
            compare(&members, &PoolModel::new(4), at(millis), |_| {});
        }

        fn shares(&self) -> [f64; 4] {
            self.0.each_ref().map(|(_, target)| target.share())
        }
    }

    #[test]
    fn what_failed_when_all_did_costs_nothing_once_some_have_shown_that_they_are_well() {
        let pool = Pool([0, 1, 2, 3].map(|slot| (Health::default(), Target::new(slot, 0))));
        let answers = |slot: usize| &pool.0[slot].0.answers;
        for step in 0..40 {
            (0..4).for_each(|slot| _ = answers(slot).failed(step, at(200 * step)));
            pool.look(200 * step);
        }
        assert_eq!(pool.shares(), [1.0; 4]);
        for step in 40..50 {
            (0..2).for_each(|slot| _ = answers(slot).good(at(200 * step)));
            pool.look(200 * step);
        }
        assert!(
            answers(2).demotion_rate(at(10_000)).unwrap()
                > 2.0 * answers(0).demotion_rate(at(10_000)).unwrap()
        );
        assert!(pool.shares().iter().all(|share| *share > 0.99), "{:?}", pool.shares());
        for step in 50..60 {
            answers(3).failed(step, at(200 * step));
            pool.look(200 * step);
        }
        assert!(
            pool.shares()[2] > 0.99 && pool.shares()[3] < 0.2,
            "alone it is its own doing: {:?}",
            pool.shares()
        );
    }
}
