//! What is learned of one replica: how slow it is by its pool's measure, how far the way to it is, how long a
//! step of decoding takes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::calibration::{Calibration, Ledger};
use super::estimate::{Estimate, PER_CONTEXT, PoolView, Published};
use super::fit::{Fit, dot};
use super::saved::{SavedFit, SavedSpeed, are_sound};
use crate::clock::Stamp;
use crate::routing::load::{Pace, TimingSample};
use crate::routing::tuning::{memories, priors};

/// A learner and its last estimate.
#[derive(Debug, Default)]
#[repr(C, align(64))] // what a decision reads is one cache line, and two replicas never share one
pub(super) struct Cell {
    published: Published,
    /// Nanoseconds of the last sample's stamp plus one; zero before the first.
    learned_at: AtomicU64,
    learner: Mutex<Option<Box<Learner>>>,
}

#[derive(Debug)]
struct Learner {
    /// Causes: the pool's seconds, the way to an idle replica.
    speed: Fit<2>,
    has_speed: bool,
    steps: StepFit,
    ledger: Ledger,
}

impl Cell {
    #[inline]
    pub(super) fn estimate(&self, now: Stamp, usual: f64) -> Option<Estimate> {
        let slowness = self.believed_slowness(now, usual)?;
        Some(Estimate { slowness, ..self.published.load() })
    }

    /// How slow it is by its own answers, which count less and less beside what is usual as they age.
    #[inline]
    pub(super) fn believed_slowness(&self, now: Stamp, usual: f64) -> Option<f64> {
        let at = self.learned_at.load(Ordering::Acquire).checked_sub(1)?;
        let age = now.as_nanos().saturating_sub(at) as f64 * 1e-9;
        // A division for those that are old only: the others lose less than a fiftieth.
        let half = memories::STANDING.as_secs_f64();
        let trust = if age < 1.0 { 1.0 } else { half / (half + age) };
        let own = self.published.slowness.load();
        // Replicas of one kind differ by chance, and each that seems the fastest would get a crowd.
        let is_usual = (own - usual).abs() <= priors::ALIKE * usual;
        Some(if is_usual { usual } else { usual + (own - usual) * trust })
    }

    pub(super) fn observe(&self, sample: &TimingSample, pool: &PoolView, average: &Estimate) -> Estimate {
        self.learn(sample.at, average, |learner| {
            let nominal = pool.seconds(1.0, sample.context, &sample.work);
            let round_trip = if sample.was_idle { 1.0 } else { 0.0 };
            learner.speed.observe(
                &[nominal, round_trip],
                sample.busy.as_secs_f64(),
                &[average.slowness, average.round_trip],
            );
            learner.has_speed = true;
        })
    }

    pub(super) fn observe_paces(&self, now: Stamp, paces: &[Pace], average: &Estimate) {
        self.learn(now, average, |learner| learner.steps.observe(paces, &average.step));
    }

    pub(super) fn compare(&self, predicted: Duration, actual: Duration) {
        let mut learner = self.learner.lock();
        learner.get_or_insert_default().ledger.note(predicted, actual);
    }

    /// How slow it is, once it has taught something.
    pub(super) fn slowness(&self) -> Option<f64> {
        let learner = self.learner.lock();
        learner.as_ref().filter(|learner| learner.has_speed).map(|_| self.published.slowness.load())
    }

    /// `None` before its speed is known.
    pub(super) fn save(&self, now: Stamp) -> Option<SavedSpeed> {
        let at = self.learned_at.load(Ordering::Acquire).checked_sub(1)?;
        let learner = self.learner.lock();
        let learner = learner.as_ref().filter(|learner| learner.has_speed)?;
        Some(SavedSpeed {
            speed: learner.speed.save(),
            steps: learner.steps.save(),
            age: now.since(Stamp::from_nanos(at)).as_secs_f64(),
        })
    }

    /// Knows what was saved, as old as it was; returns whether it could be read.
    pub(super) fn restore(&self, saved: &SavedSpeed, now: Stamp, average: &Estimate) -> bool {
        let figures = are_sound(&[saved.age]);
        let fits = Fit::restored(1.0 - memories::LEARNED, &saved.speed).zip(StepFit::restored(&saved.steps));
        let Some((speed, steps)) = fits.filter(|_| figures) else { return false };
        let learner = Learner { speed, has_speed: true, steps, ledger: Ledger::default() };
        // A young clock does not reach back as far.
        let age = Duration::from_secs_f64(saved.age.min(1e6)).as_nanos();
        let at = Stamp::from_nanos(now.as_nanos().saturating_sub(u64::try_from(age).unwrap_or(u64::MAX)));
        self.learn(at, average, |known| *known = learner);
        true
    }

    pub(super) fn calibration(&self) -> Option<Calibration> {
        self.learner.lock().as_ref()?.ledger.read()
    }

    pub(super) fn reset(&self) {
        let mut learner = self.learner.lock();
        *learner = None;
        self.learned_at.store(0, Ordering::Release);
    }

    fn learn(&self, at: Stamp, average: &Estimate, sample: impl FnOnce(&mut Learner)) -> Estimate {
        let mut held = self.learner.lock();
        let learner = held.get_or_insert_default();
        sample(learner);
        let [slowness, round_trip] = learner.speed.rates(&[average.slowness, average.round_trip]);
        let step = learner.steps.rates(&average.step);
        let slowness = slowness.max(LEAST_SLOWNESS);
        let own = Estimate { slowness, round_trip, step };
        self.published.store(&own);
        // Lessons come late, and not in their order.
        self.learned_at.fetch_max(at.as_nanos().saturating_add(1), Ordering::Release);
        own
    }
}

impl Default for Learner {
    fn default() -> Self {
        let speed = Fit::new(1.0 - memories::LEARNED);
        Self { speed, has_speed: false, steps: StepFit::default(), ledger: Ledger::default() }
    }
}

/// Seconds of an undisturbed step: a line through the lowest tenth of what was seen, since stalls only add.
#[derive(Debug)]
pub(super) struct StepFit(Fit<2>);

impl Default for StepFit {
    fn default() -> Self {
        Self(Fit::new(memories::STEPS_KEPT))
    }
}

impl StepFit {
    pub(super) fn save(&self) -> SavedFit {
        self.0.save()
    }

    pub(super) fn restored(saved: &SavedFit) -> Option<Self> {
        Fit::restored(memories::STEPS_KEPT, saved).map(Self)
    }

    pub(super) fn observe(&mut self, paces: &[Pace], prior: &[f64; 2]) {
        let rates = self.0.rates(prior);
        for pace in paces {
            let causes = [1.0, pace.context as f64 / PER_CONTEXT];
            let expected = dot(&rates, &causes);
            let is_low = pace.per_token < expected;
            let seconds = pace.per_token.min(priors::OUTLIER * expected);
            let weight = if is_low { 0.9 } else { 0.1 };
            self.0.add(&causes, seconds, weight / (expected * expected).max(1e-12));
        }
    }

    pub(super) fn rates(&mut self, prior: &[f64; 2]) -> [f64; 2] {
        self.0.rates(prior)
    }
}

/// No replica is a thousand times faster than its pool.
const LEAST_SLOWNESS: f64 = 1e-3;
