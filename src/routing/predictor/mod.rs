//! Predicted time to first token, learned online from what was observed.
//!
//! [`PoolModel`] holds one learner for what a pool's replicas have in common (how a step, its context, tokens and attention
//! compare: one model on one image) and one a replica for how fast it is by that measure. So a replica is known
//! after a few answers, whatever their sizes, and one that has not answered is an average one. Learning takes short
//! locks; deciding reads published numbers without one. Time is an argument: the same observations teach the same.

mod calibration;
mod estimate;
mod fit;
mod pool;
mod replica;
mod saved;
mod transfers;
mod typical;

use std::time::Duration;

pub use self::calibration::Calibration;
pub(crate) use self::estimate::Queue;
pub use self::estimate::{Estimate, PoolView, Terms};
pub(super) use self::pool::PoolCell;
use self::replica::Cell;
pub use self::saved::{SavedPool, SavedSpeed};
pub use self::transfers::{LATE_TIMES, Links, Pair, Transfers, UnderWay};
pub use self::typical::{MeanRequest, Typical};
use super::backlog::Backlog;
use super::load::{Known, Pace, ReplicaLoad, TimingSample};
use super::tuning::priors;
use super::work::Work;
use crate::clock::Stamp;
use crate::units::Tokens;

/// What is known of one pool's speed, shared by decisions (readers) and first tokens (writers).
#[derive(Debug)]
pub struct PoolModel {
    /// What its replicas have in common.
    pub pool: PoolCell,
    replicas: Box<[Cell]>,
    /// Prompts that wait.
    pub(super) backlog: Backlog,
}

impl PoolModel {
    /// Models for `slots` replicas that are not known yet.
    pub fn new(slots: usize) -> Self {
        Self {
            pool: PoolCell::default(),
            replicas: (0..slots).map(|_| Cell::default()).collect(),
            backlog: Backlog::default(),
        }
    }

    /// What is known of a replica: its own answers, fading into the pool's as they age, so that a replica once
    /// slow is tried again.
    #[inline]
    pub fn estimate(&self, slot: usize, now: Stamp) -> Estimate {
        let usual = self.pool.average.load();
        self.replicas.get(slot).and_then(|cell| cell.estimate(now, &usual)).unwrap_or(usual)
    }

    /// A prompt, or several together, were computed by the replica in `slot`.
    pub fn observe(&self, slot: usize, sample: &TimingSample) {
        let Some(replica) = self.replicas.get(slot) else { return };
        let view = self.pool.view();
        let average = self.pool.average.load();
        if self.pool.is_young() {
            self.pool.observe(sample, &average);
            return;
        }
        // The replica first: it is judged against a pool that does not know this answer yet.
        let own = replica.observe(sample, &view, &average);
        self.pool.slowness_changed(replica.recount());
        self.pool.observe(sample, &own);
    }

    /// A request gave up while the engine was at it: `sample` is what it has cost so far. What was expected to take
    /// longer anyway says nothing.
    pub fn observe_censored(&self, slot: usize, sample: &TimingSample) {
        let estimate = self.estimate(slot, sample.at);
        let expected = estimate.slowness * self.pool.view().seconds(sample.context, &sample.work);
        if sample.busy.as_secs_f64() > expected + estimate.round_trip {
            self.observe(slot, sample);
        }
    }

    /// A first token came: how well it was predicted.
    pub fn compare(&self, slot: usize, predicted: Duration, actual: Duration) {
        let Some(replica) = self.replicas.get(slot) else { return };
        for ledger in [&replica.ledger, &self.pool.ledger] {
            ledger.lock().note(predicted, actual);
        }
    }

    /// Tokens in these content events of a stream that the engine did not count to its end.
    pub fn tokens_in(&self, events: u64) -> Tokens {
        Tokens((events as f64 * self.pool.tokens_per_event.load()).round() as u64)
    }

    /// Mean tokens of a content event; `None` until so many events of ended streams were counted that the assumed ones hardly matter.
    pub fn tokens_per_event(&self) -> Option<f64> {
        let is_known = self.pool.counted_events.load() >= KNOWN_FROM * priors::ANSWERS;
        is_known.then(|| self.pool.tokens_per_event.load())
    }

    /// How long the tokens of answers took.
    pub(super) fn observe_paces(&self, slot: usize, now: Stamp, paces: &[Pace]) {
        let Some(replica) = self.replicas.get(slot) else { return };
        replica.observe_paces(now, paces, &self.pool.average.load());
        self.pool.observe_paces(paces);
    }

    /// Asks the streams of a replica how far they are, if that is due, and learns from it. To be called every few
    /// milliseconds for every replica with work, beside the request path.
    pub fn refresh(&self, slot: usize, load: &ReplicaLoad, now: Stamp) {
        if slot >= self.replicas.len() || !load.is_stale(now) {
            return;
        }
        let (own, view) = (self.estimate(slot, now), self.pool.view());
        let context = load.context();
        let found = load.refresh(
            now,
            &Known {
                step: own.step(context) as f32,
                per_event: self.pool.tokens_per_event.load(),
                survival: &self.pool.survival(),
                seconds: &|work| own.slowness * view.seconds(context, work),
            },
        );
        for sample in &found.samples {
            self.observe(slot, sample);
        }
        if !found.paces.is_empty() {
            self.observe_paces(slot, now, &found.paces);
        }
    }

    /// Seconds in which an average replica of the pool gives the first token of a request that was to meet `terms`, or its whole answer.
    pub fn usual_wait(&self, terms: &Terms, is_whole: bool) -> f64 {
        let (usual, view) = (self.pool.average.load(), self.pool.view());
        let ahead = view.work(&Work::of(terms.ahead, Tokens(0)));
        let decoding = if is_whole { view.answers.output * usual.step(0) } else { 0.0 };
        usual.slowness * (ahead + view.seconds(0, &terms.work)) + usual.round_trip + decoding
    }

    /// The replica restarted or the slot has a new owner: back to the pool's average.
    pub fn forget(&self, slot: usize) {
        if let Some(cell) = self.replicas.get(slot) {
            self.pool.slowness_changed((cell.reset(), None));
        }
    }

    /// What is known of the replica in `slot`, to be kept; `None` before its own answers.
    pub fn save_replica(&self, slot: usize, now: Stamp) -> Option<SavedSpeed> {
        self.replicas.get(slot)?.save(now)
    }

    /// The same of the replica in `slot`.
    pub fn restore_replica(&self, slot: usize, saved: &SavedSpeed, now: Stamp) -> bool {
        let Some(replica) = self.replicas.get(slot) else { return false };
        let is_taken = replica.restore(saved, now, &self.pool.average.load());
        if is_taken {
            self.pool.slowness_changed(replica.recount());
        }
        is_taken
    }

    /// Seconds to the first token of the pool's mean prompt at the replica in `slot`, were it idle, and of a decoding step there;
    /// `None` until its own answers tell.
    pub fn typical_speed(&self, slot: usize, now: Stamp) -> Option<[f64; 2]> {
        let cell = self.replicas.get(slot)?;
        let own = cell.estimate(now, &self.pool.average.load()).filter(|_| cell.is_known())?;
        let view = self.pool.view();
        Some([own.slowness * view.seconds(0, &view.work_of(1.0)) + own.round_trip, own.step(0)])
    }

    /// How well predictions fit: of the replica in `slot`, or of the whole pool. `None` before the first.
    pub fn calibration(&self, slot: Option<usize>) -> Option<Calibration> {
        let ledger = match slot {
            Some(slot) => &self.replicas.get(slot)?.ledger,
            None => &self.pool.ledger,
        };
        ledger.lock().read()
    }
}

/// Times the assumed events of a stream from which the counted ones make the mean.
const KNOWN_FROM: f64 = 16.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::seconds as at;
    use crate::routing::foreign::Foreign;
    use crate::routing::load::LoadView;

    fn work(tokens: u64) -> Work {
        Work::of(Tokens(tokens), Tokens(0))
    }

    fn sample(tokens: u64, busy: Duration, at: Stamp) -> TimingSample {
        TimingSample { work: work(tokens), busy, was_idle: false, context: 0, at }
    }

    /// `count` answers, one a second, by a replica with 40 ms base and this rate.
    fn teach(model: &PoolModel, slot: usize, per_token_us: u64, count: u64) {
        for second in 0..count {
            let tokens = 100 + 400 * (second % 5);
            let busy = Duration::from_micros(40_000 + per_token_us * tokens);
            model.observe(slot, &sample(tokens, busy, at(second)));
        }
    }

    fn predicted_ms(model: &PoolModel, slot: usize, now: Stamp) -> u128 {
        let (own, foreign) = (LoadView::default(), Foreign::default());
        let queue = Queue { own: &own, foreign: &foreign, batch_limit: None, lacking: 0.0, head_age: 0.0 };
        let estimate = model.estimate(slot, now);
        estimate.terms(&model.pool.view(), &queue, work(1000)).ttft().as_millis()
    }

    #[test]
    fn a_replica_without_answers_is_taken_for_an_average_one() {
        let model = PoolModel::new(3);
        teach(&model, 0, 500, 60);
        let (known, unknown) = (predicted_ms(&model, 0, at(60)), predicted_ms(&model, 2, at(60)));
        assert!((500..600).contains(&known), "{known} ms");
        assert!((480..620).contains(&unknown), "{unknown} ms");
    }

    #[test]
    fn a_slow_replica_is_told_from_a_fast_one() {
        let model = PoolModel::new(2);
        for _ in 0..3 {
            teach(&model, 0, 100, 20);
            teach(&model, 1, 300, 20);
        }
        let (fast, slow) = (predicted_ms(&model, 0, at(20)), predicted_ms(&model, 1, at(20)));
        assert!((115..165).contains(&fast), "{fast} ms");
        assert!((300..380).contains(&slow), "{slow} ms");
    }

    #[test]
    fn long_prompts_cost_more_than_their_tokens() {
        let model = PoolModel::new(1);
        let truth = |tokens: f64| 0.02 + 6e-5 * tokens + 5e-10 * tokens * tokens;
        for round in 0..400 {
            let tokens = [300, 2000, 9000, 40_000, 100_000][round as usize % 5];
            model.observe(0, &sample(tokens, Duration::from_secs_f64(truth(tokens as f64)), at(round)));
        }
        let estimate = model.estimate(0, at(400));
        for tokens in [1000, 20_000, 70_000] {
            let found = estimate.slowness * model.pool.view().seconds(0, &work(tokens));
            let share = found / truth(tokens as f64);
            assert!((0.9..1.1).contains(&share), "{tokens} tokens: {share} of the truth");
        }
    }

    #[test]
    fn old_answers_fade_into_the_pools() {
        let model = PoolModel::new(2);
        teach(&model, 1, 2000, 30);
        for _ in 0..4 {
            teach(&model, 0, 100, 200);
        }
        let (fresh, later) = (predicted_ms(&model, 1, at(30)), predicted_ms(&model, 1, at(3600)));
        assert!(fresh > 1000 && later < fresh / 2, "{fresh} ms, then {later} ms");
    }

    #[test]
    fn a_replica_that_is_left_alone_is_one_like_the_others_again_within_minutes() {
        let answer = |seconds: u64, millis: u64, was_idle: bool| TimingSample {
            work: work(100),
            busy: Duration::from_millis(millis),
            was_idle,
            context: 0,
            at: at(seconds),
        };
        // A way that takes longer, or an engine that is ten times as slow, for a while.
        for (slow, was_idle, slow_from) in [(60, true, 25), (300, false, 20)] {
            let model = PoolModel::new(2);
            for second in 0..40 {
                let millis = if second >= slow_from { slow } else { 25 };
                model.observe(0, &answer(second, 25, was_idle));
                model.observe(1, &answer(second, millis, was_idle));
            }
            assert_ne!(model.estimate(0, at(40)), model.estimate(1, at(40)), "{slow} ms");
            for second in 40..640 {
                model.observe(0, &answer(second, 25, was_idle));
            }
            let are_alike = || {
                let [busy, left] = [0, 1].map(|slot| model.estimate(slot, at(640)));
                (busy.slowness, busy.round_trip) == (left.slowness, left.round_trip)
            };
            assert!(are_alike(), "{slow} ms");
            // One answer is enough to see that it is well.
            model.observe(1, &answer(640, 25, was_idle));
            assert!(are_alike(), "{slow} ms");
        }
    }

    #[test]
    fn the_mean_over_replicas_is_theirs_whatever_streams_report_in_between() {
        let model = PoolModel::new(2);
        for second in 0..300 {
            for (slot, millis) in [(0, 50), (1, 150)] {
                model.observe(slot, &sample(1000, Duration::from_millis(millis), at(second)));
                let pace = Pace { per_token: 0.02, context: 1000 };
                model.observe_paces(slot, at(second), &[pace]);
                model.observe_paces(slot, at(second + 2), &[pace]);
            }
        }
        let [fast, slow] = [0, 1].map(|slot| model.estimate(slot, at(300)).slowness);
        let share = model.pool.average.slowness.load() / (fast * slow).sqrt();
        assert!(slow > 2.0 * fast && (0.98..1.02).contains(&share), "{fast} {slow} {share}");
    }

    #[test]
    fn a_censored_answer_counts_only_when_it_was_longer_than_expected() {
        let model = PoolModel::new(1);
        teach(&model, 0, 100, 50);
        let before = predicted_ms(&model, 0, at(50));
        model.observe_censored(0, &sample(1000, Duration::from_millis(20), at(50)));
        assert_eq!(predicted_ms(&model, 0, at(50)), before);
        for _ in 0..8 {
            model.observe_censored(0, &sample(1000, Duration::from_secs(20), at(50)));
        }
        assert!(predicted_ms(&model, 0, at(50)) > 5 * before);
    }

    #[test]
    fn a_pool_whose_last_replica_goes_keeps_its_speed_for_the_next_one() {
        let model = PoolModel::new(1);
        teach(&model, 0, 500, 60);
        // The shape stays as the first answers made it; what the replica became is its own.
        teach(&model, 0, 50, 60);
        let before = predicted_ms(&model, 0, at(120));
        model.forget(0);
        let after = predicted_ms(&model, 0, at(120));
        assert!(after.abs_diff(before) <= before / 4, "{before} ms, {after} ms");
    }

    #[test]
    fn a_restart_forgets_and_an_unknown_slot_is_harmless() {
        let model = PoolModel::new(2);
        teach(&model, 0, 5000, 30);
        model.forget(0);
        assert_eq!(model.estimate(0, at(30)), model.estimate(1, at(30)));
        model.forget(9);
        teach(&model, 9, 1, 1);
        assert_eq!(model.estimate(9, at(30)), model.estimate(1, at(30)));
    }

    #[test]
    fn replicas_that_compute_no_prompts_are_typical_by_their_streams() {
        let model = PoolModel::new(1);
        let typical = || model.typical(&MeanRequest::default(), [(0, None)].into_iter(), at(9));
        assert!(typical().is_none(), "nothing was measured");
        for second in 0..9 {
            model.observe_paces(0, at(second), &[Pace { per_token: 0.06, context: 800 }]);
            model.pool.observe_output(Tokens(64));
        }
        let found = typical().unwrap();
        assert_eq!(found.prefill, 0.0);
        assert!((0.03..0.09).contains(&(found.step + found.per_sequence)), "{found:?}");
    }

    #[test]
    fn of_four_replicas_a_slow_one_takes_its_own_speed_from_what_they_serve() {
        let model = PoolModel::new(4);
        for second in 0..300 {
            for slot in 0..4 {
                let times = if slot == 3 { 40 } else { 1 };
                model.observe(slot, &sample(1000, Duration::from_millis(50 * times), at(second)));
                model.observe_paces(
                    slot,
                    at(second),
                    &[Pace { per_token: 0.02 * times as f64, context: 1000 }],
                );
            }
        }
        let typical = |slots: std::ops::Range<usize>| {
            let mean = MeanRequest { work: work(1000), prompts: 0.0 };
            let found = model.typical(&mean, slots.map(|slot| (slot, None)), at(300)).unwrap();
            [found.prefill, found.step + found.per_sequence]
        };
        for (all, fast) in typical(0..4).into_iter().zip(typical(0..3)) {
            assert!((1.2..1.4).contains(&(all / fast)), "{all} {fast}");
        }
    }

    #[test]
    fn a_typical_request_has_as_much_of_an_answer_as_the_mean_one() {
        let model = PoolModel::new(1);
        teach(&model, 0, 500, 20);
        let output = |prompts| {
            let mean = MeanRequest { work: work(500), prompts };
            model.typical(&mean, [(0, None)].into_iter(), at(20)).unwrap().output
        };
        let assumed = output(0.0);
        assert!(assumed > 200.0 && output(1.0) == 1.0, "{assumed}");
        assert!((output(0.75) - (1.0 + 0.25 * (assumed - 1.0))).abs() < 1e-6);
        (0..1024).for_each(|_| model.pool.observe_output(Tokens(16)));
        assert!(output(0.0) < 25.0 && output(1.0) == 1.0);
    }

    #[test]
    fn the_same_answers_teach_the_same() {
        let models = [PoolModel::new(2), PoolModel::new(2)];
        for model in &models {
            teach(model, 0, 120, 40);
            teach(model, 1, 900, 7);
            model.pool.observe_output(Tokens(80));
        }
        assert_eq!(models[0].estimate(1, at(42)), models[1].estimate(1, at(42)));
        assert_eq!(models[0].pool.view(), models[1].pool.view());
    }

    #[test]
    fn what_was_learned_is_the_same_in_another_gateway_and_goes_on_from_there() {
        let known = PoolModel::new(2);
        for _ in 0..3 {
            teach(&known, 0, 100, 20);
            teach(&known, 1, 300, 20);
        }
        for _ in 0..40 {
            known.pool.observe_output(Tokens(80));
            known.observe_paces(1, at(20), &[Pace { per_token: 0.02, context: 1000 }]);
        }
        let text = |model: &PoolModel| {
            let replicas: Vec<_> = (0..3).map(|slot| model.save_replica(slot, at(25))).collect();
            serde_json::to_string(&(model.pool.save(), replicas)).unwrap()
        };
        let (pool, replicas): (SavedPool, Vec<Option<SavedSpeed>>) =
            serde_json::from_str(&text(&known)).unwrap();
        // Its clock began later.
        let new = PoolModel::new(2);
        assert!(new.pool.is_young() && new.pool.restore(&pool) && !new.pool.is_young());
        assert!(replicas[2].is_none());
        for (slot, saved) in replicas.iter().flatten().enumerate() {
            assert!(new.restore_replica(slot, saved, at(6)));
            let (was, is) = (predicted_ms(&known, slot, at(25)), predicted_ms(&new, slot, at(6)));
            assert!(was.abs_diff(is) <= was / 20, "{slot}: {was} ms, {is} ms");
        }
        let service =
            |model: &PoolModel| model.pool.view().answers.output * model.pool.average.load().step(0);
        let ratio = service(&new) / service(&known);
        assert!((0.99..1.01).contains(&ratio), "{ratio}");
        teach(&new, 1, 100, 200);
        assert!(predicted_ms(&new, 1, at(200)) < 200, "it learns as before");
        // What cannot be is refused.
        let other = PoolModel::new(1);
        assert!(!other.pool.restore(&SavedPool::default()) && !other.pool.is_taught());
        let absurd = SavedSpeed { age: -1.0, ..replicas[0].clone().unwrap() };
        assert!(!other.restore_replica(0, &absurd, at(6)) && !other.restore_replica(9, &absurd, at(6)));
    }

    #[test]
    fn tokens_of_an_event_are_known_after_a_stream() {
        let model = PoolModel::new(1);
        assert_eq!(model.pool.tokens_per_event.load(), 1.0);
        model.pool.observe_events(Tokens(20), 20);
        assert_eq!(model.tokens_per_event(), None, "one short answer");
        model.pool.observe_events(Tokens(280), 280);
        assert_eq!(model.tokens_per_event(), Some(1.0));
        for _ in 0..40 {
            model.pool.observe_events(Tokens(800), 200);
        }
        assert!(
            (3.6..4.0).contains(&model.pool.tokens_per_event.load()),
            "{}",
            model.pool.tokens_per_event.load()
        );
        (0..20).for_each(|_| model.pool.observe_events(Tokens(1), 1));
        assert!(model.tokens_in(10) > Tokens(35), "short answers count little: {:?}", model.tokens_in(10));
        (0..500).for_each(|_| model.pool.observe_events(Tokens(90), 100));
        assert_eq!(model.tokens_in(10), Tokens(10), "no fewer than there are events");
    }

    #[test]
    fn an_answer_is_no_longer_than_its_request_allows() {
        let view = PoolModel::new(1).pool.view();
        assert_eq!(view.bounded(None), view);
        assert_eq!(view.bounded(Some(Tokens(1 << 30))).answers, view.answers);
        let short = view.bounded(Some(Tokens(16))).answers;
        assert_eq!((short.output, short.goes_on), (16.0, view.answers.goes_on));
        assert_eq!(view.bounded(Some(Tokens(1))).answers.goes_on, 0.0);
    }

    #[test]
    fn replicas_that_are_never_idle_say_nothing_of_the_way_to_an_idle_one() {
        let model = PoolModel::new(8);
        let before = model.pool.average.round_trip.load();
        for n in 0..20_000_u64 {
            let slot = (n % 8) as usize;
            let work = Work::of(Tokens(300 + 70 * (n % 26)), Tokens(0));
            // Half of them are three times as slow as the others.
            let busy = Duration::from_millis((30 + 5 * (n % 26)) * if slot < 4 { 1 } else { 3 });
            model.observe(slot, &TimingSample { work, busy, was_idle: false, context: 90_000, at: at(n) });
        }
        assert_eq!(model.pool.average.round_trip.load(), before);
        let (fast, slow) = (predicted_ms(&model, 0, at(20_000)), predicted_ms(&model, 7, at(20_000)));
        assert!(fast < 1_000 && slow < 3_000, "{fast} ms, {slow} ms");
    }

    #[test]
    fn tells_how_well_it_predicted() {
        let model = PoolModel::new(2);
        assert_eq!(model.calibration(Some(0)), None);
        model.compare(0, Duration::from_millis(100), Duration::from_millis(125));
        assert_eq!(model.calibration(Some(0)), model.calibration(None));
        assert!((model.calibration(None).unwrap().median_error - 0.2).abs() < 1e-6);
        assert_eq!(model.calibration(Some(1)), None);
    }
}
