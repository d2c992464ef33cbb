//! Predicted time to first token, learned online per replica from what was observed.
//!
//! [`PoolModel`] holds one [`Predictor`] a replica and one for the pool, which is the prior of a replica that has
//! not answered yet, or not for long. Learning takes a short lock; deciding reads published numbers without one.
//! Time is an argument, so that the same observations always teach the same. First, simple model: one line over
//! prompt tokens; decode interference and the quadratic term of long prompts are not in it.

mod estimate;
mod fit;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

pub(crate) use self::estimate::Queue;
pub use self::estimate::{Estimate, Terms};
use self::fit::{Fit, Line};
use crate::clock::Stamp;
use crate::record::ExpectedWait;

/// One first token: what the decision expected, and what came.
#[derive(Clone, Copy, Debug)]
pub struct Observation {
    /// When the first token came.
    pub at: Stamp,
    /// The terms of the decision that sent the request there.
    pub terms: Terms,
    /// From the decision to the first token, on that replica alone.
    pub ttft: Duration,
}

/// Learns one replica's speed.
#[derive(Debug)]
pub struct Predictor {
    fit: Fit,
    service: f64,
    mean_uncached: f64,
}

impl Default for Predictor {
    fn default() -> Self {
        Self { fit: Fit::default(), service: UNSEEN.service, mean_uncached: UNSEEN.mean_uncached }
    }
}

impl Predictor {
    /// Learns from a first token.
    pub fn observe(&mut self, observation: &Observation, prior: &Estimate) {
        let Observation { terms, ttft, .. } = observation;
        // The wait for a place is no property of the replica's speed.
        let seconds = ttft.saturating_sub(terms.slot_wait).as_secs_f64();
        let tokens = (terms.ahead + terms.uncached).0 as f64;
        self.fit.observe(tokens, seconds, &prior.line);
        self.mean_uncached += LEARNED * (terms.uncached.0 as f64 - self.mean_uncached);
    }

    /// Learns from a request that ended or timed out without content: its TTFT is at least this long. What was
    /// expected to take longer anyway says nothing.
    pub fn observe_censored(&mut self, observation: &Observation, prior: &Estimate) {
        if observation.ttft > self.estimate(prior).ttft(&observation.terms) {
            self.observe(observation, prior);
        }
    }

    /// Learns for how long a request held its place in the batch: from its first token to its end.
    pub fn observe_service(&mut self, held: Duration) {
        self.service += LEARNED * (held.as_secs_f64() - self.service);
    }

    /// What is known now.
    #[must_use]
    pub fn estimate(&self, prior: &Estimate) -> Estimate {
        Estimate {
            line: self.fit.line(&prior.line),
            service: self.service,
            mean_uncached: self.mean_uncached,
        }
    }
}

impl Estimate {
    /// The predicted wait in its two parts; `None` where nothing was learned yet.
    #[must_use]
    pub fn expected(&self, terms: &Terms) -> Option<ExpectedWait> {
        (*self != UNSEEN).then(|| ExpectedWait {
            queue: self.prefill(terms.ahead) + terms.slot_wait,
            prefill: self.base() + self.prefill(terms.uncached),
        })
    }
}

/// The predictors of one pool, shared by decisions (readers) and first tokens (writers).
#[derive(Debug)]
pub struct PoolModel {
    pool: Cell,
    replicas: Box<[Cell]>,
}

impl PoolModel {
    /// Models for `slots` replicas that are not known yet.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self { pool: Cell::default(), replicas: (0..slots).map(|_| Cell::default()).collect() }
    }

    /// What is known of a replica: its own answers, fading into the pool's as they age, so that a replica once
    /// slow is tried again.
    #[must_use]
    pub fn estimate(&self, slot: usize, now: Stamp) -> Estimate {
        let prior = self.prior();
        let Some((own, at)) = self.replicas.get(slot).and_then(Cell::published) else { return prior };
        let age = now.since(at).as_secs_f64();
        let trust = 1.0 / (1.0 + age / HALF_TRUST.as_secs_f64());
        Estimate { line: own.line.blend(&prior.line, trust), ..own }
    }

    /// A first token came from the replica in `slot`.
    pub fn observe(&self, slot: usize, observation: &Observation) {
        self.learn(slot, observation.at, |predictor, prior| predictor.observe(observation, prior));
    }

    /// A request ended or timed out at the replica in `slot` before any content (not: the client left at once
    /// and nothing can be said).
    pub fn observe_censored(&self, slot: usize, observation: &Observation) {
        self.learn(slot, observation.at, |predictor, prior| predictor.observe_censored(observation, prior));
    }

    /// A stream of the replica in `slot` ended, `held` after its first token.
    pub fn observe_service(&self, slot: usize, now: Stamp, held: Duration) {
        self.learn(slot, now, |predictor, _| predictor.observe_service(held));
    }

    /// The replica restarted or the slot has a new owner: back to the pool's prior.
    pub fn forget(&self, slot: usize) {
        if let Some(cell) = self.replicas.get(slot) {
            cell.reset();
        }
    }

    fn learn(&self, slot: usize, at: Stamp, lesson: impl Fn(&mut Predictor, &Estimate)) {
        let Some(replica) = self.replicas.get(slot) else { return };
        // The replica first: it is judged against a prior that does not know this answer yet.
        replica.learn(at, &self.prior(), &lesson);
        self.pool.learn(at, &UNSEEN, &lesson);
    }

    fn prior(&self) -> Estimate {
        self.pool.published().map_or(UNSEEN, |(estimate, _)| estimate)
    }
}

/// A predictor and its last estimate. The numbers are read one by one: a reader may mix two estimates that
/// follow one another, which differ by one answer.
#[derive(Debug, Default)]
struct Cell {
    predictor: Mutex<Predictor>,
    base: AtomicU64,
    per_token: AtomicU64,
    service: AtomicU64,
    mean_uncached: AtomicU64,
    /// Nanoseconds of the last lesson's stamp plus one; zero before the first.
    learned_at: AtomicU64,
}

impl Cell {
    fn learn(&self, at: Stamp, prior: &Estimate, lesson: &impl Fn(&mut Predictor, &Estimate)) {
        let mut predictor = self.predictor.lock();
        lesson(&mut predictor, prior);
        let Estimate { line, service, mean_uncached } = predictor.estimate(prior);
        for (cell, value) in [
            (&self.base, line.base),
            (&self.per_token, line.per_token),
            (&self.service, service),
            (&self.mean_uncached, mean_uncached),
        ] {
            cell.store(value.to_bits(), Ordering::Relaxed);
        }
        self.learned_at.store(at.as_nanos().saturating_add(1), Ordering::Release);
    }

    fn published(&self) -> Option<(Estimate, Stamp)> {
        let at = self.learned_at.load(Ordering::Acquire).checked_sub(1)?;
        let read = |cell: &AtomicU64| f64::from_bits(cell.load(Ordering::Relaxed));
        let line = Line { base: read(&self.base), per_token: read(&self.per_token) };
        let estimate =
            Estimate { line, service: read(&self.service), mean_uncached: read(&self.mean_uncached) };
        Some((estimate, Stamp::from_nanos(at)))
    }

    fn reset(&self) {
        let mut predictor = self.predictor.lock();
        *predictor = Predictor::default();
        self.learned_at.store(0, Ordering::Release);
    }
}

/// Before any answer at all: a mid-sized model on one GPU. Only ratios matter then: alike for all replicas.
const UNSEEN: Estimate =
    Estimate { line: Line { base: 0.05, per_token: 1e-4 }, service: 2.0, mean_uncached: 500.0 };
/// Share of each answer in the running means.
const LEARNED: f64 = 0.05;
/// An answer this old counts half, the pool's the other half.
const HALF_TRUST: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Tokens;

    fn at(seconds: u64) -> Stamp {
        Stamp::from_nanos(seconds * 1_000_000_000)
    }

    fn work(tokens: u64) -> Terms {
        Terms { uncached: Tokens(tokens), ..Terms::default() }
    }

    /// `count` answers, one a second, by a replica with 40 ms base and this rate.
    fn teach(model: &PoolModel, slot: usize, per_token_us: u64, count: u64) {
        for second in 0..count {
            let tokens = 100 + 400 * (second % 5);
            let ttft = Duration::from_micros(40_000 + per_token_us * tokens);
            model.observe(slot, &Observation { at: at(second), terms: work(tokens), ttft });
        }
    }

    fn predicted_ms(model: &PoolModel, slot: usize, now: Stamp) -> u128 {
        model.estimate(slot, now).ttft(&work(1000)).as_millis()
    }

    #[test]
    fn a_replica_without_answers_is_taken_for_an_average_one() {
        let model = PoolModel::new(3);
        assert_eq!(model.estimate(0, at(0)), UNSEEN);
        teach(&model, 0, 500, 60);
        let (known, unknown) = (predicted_ms(&model, 0, at(60)), predicted_ms(&model, 2, at(60)));
        assert!((500..580).contains(&known), "{known} ms");
        assert!((480..600).contains(&unknown), "{unknown} ms");
    }

    #[test]
    fn a_slow_replica_is_told_from_a_fast_one() {
        let model = PoolModel::new(2);
        for _ in 0..3 {
            teach(&model, 0, 100, 20);
            teach(&model, 1, 300, 20);
        }
        let (fast, slow) = (predicted_ms(&model, 0, at(20)), predicted_ms(&model, 1, at(20)));
        assert!((125..160).contains(&fast), "{fast} ms");
        assert!((300..360).contains(&slow), "{slow} ms");
    }

    #[test]
    fn old_answers_fade_into_the_pools() {
        let model = PoolModel::new(2);
        teach(&model, 1, 2000, 30);
        teach(&model, 0, 100, 200);
        let (fresh, later) = (predicted_ms(&model, 1, at(30)), predicted_ms(&model, 1, at(3600)));
        assert!(fresh > 1500 && later < 300, "{fresh} ms, then {later} ms");
    }

    #[test]
    fn a_censored_answer_counts_only_when_it_was_longer_than_expected() {
        let model = PoolModel::new(1);
        teach(&model, 0, 100, 50);
        let before = predicted_ms(&model, 0, at(50));
        let gave_up = |after| Observation { at: at(50), terms: work(1000), ttft: after };
        model.observe_censored(0, &gave_up(Duration::from_millis(20)));
        assert_eq!(predicted_ms(&model, 0, at(50)), before);
        for _ in 0..8 {
            model.observe_censored(0, &gave_up(Duration::from_secs(20)));
        }
        assert!(predicted_ms(&model, 0, at(50)) > 5 * before);
    }

    #[test]
    fn the_wait_for_a_place_does_not_look_like_a_slow_replica() {
        let model = PoolModel::new(1);
        for second in 0..50 {
            let terms = Terms { slot_wait: Duration::from_secs(3), ..work(1000) };
            let ttft = Duration::from_millis(3150);
            model.observe(0, &Observation { at: at(second), terms, ttft });
        }
        assert!(predicted_ms(&model, 0, at(50)) < 200);
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
    fn the_same_answers_teach_the_same() {
        let models = [PoolModel::new(2), PoolModel::new(2)];
        for model in &models {
            teach(model, 0, 120, 40);
            teach(model, 1, 900, 7);
            model.observe_service(1, at(41), Duration::from_secs(9));
        }
        assert_eq!(models[0].estimate(1, at(42)), models[1].estimate(1, at(42)));
    }
}
