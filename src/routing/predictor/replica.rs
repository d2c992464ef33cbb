//! What is learned of one replica: how slow it is by its pool's measure, how far the way to it is, how long a
//! step of decoding takes.

use std::array::from_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::calibration::Ledger;
use super::estimate::{Estimate, PER_CONTEXT, PoolView, Published};
use super::fit::{Fit, dot};
use super::saved::{SavedSpeed, are_sound};
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
    pub(super) ledger: Mutex<Ledger>,
}

/// One replica's part in the mean of its pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    pub(super) slowness: f64,
    /// Of its last answer.
    pub(super) at: Stamp,
}

#[derive(Debug)]
struct Learner {
    /// Causes: the pool's seconds, the way to an idle replica.
    speed: Fit<2>,
    has_speed: bool,
    /// What the pool's mean holds of it.
    counted: Option<Standing>,
    /// Seconds of an undisturbed step.
    steps: Fit<2>,
}

impl Cell {
    /// By its own answers, which count less and less beside what is usual as they age: so one that was slow is tried again.
    #[inline]
    pub(super) fn estimate(&self, now: Stamp, usual: &Estimate) -> Option<Estimate> {
        let age = self.age(now)?;
        let own = self.published.load();
        let aged = |own: f64, usual: f64, memory| usual + (own - usual) * trust(age, memory);
        // Replicas of one kind differ by chance, and each that seems the fastest would get a crowd.
        let believed = |own: f64, usual: f64| {
            let aged = aged(own, usual, memories::STANDING);
            if (aged - usual).abs() <= priors::ALIKE * usual { usual } else { aged }
        };
        Some(Estimate {
            slowness: believed(own.slowness, usual.slowness),
            round_trip: believed(own.round_trip, usual.round_trip),
            step: from_fn(|at| aged(own.step[at], usual.step[at], memories::RECENT)),
        })
    }

    /// Seconds since its last lesson; `None` before the first.
    #[inline]
    fn age(&self, now: Stamp) -> Option<f64> {
        let at = self.learned_at.load(Ordering::Acquire).checked_sub(1)?;
        Some(now.as_nanos().saturating_sub(at) as f64 * 1e-9)
    }

    pub(super) fn observe(&self, sample: &TimingSample, pool: &PoolView, average: &Estimate) -> Estimate {
        self.learn(sample.at, average, |learner| {
            let nominal = pool.seconds(sample.context, &sample.work);
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
        self.learn(now, average, |learner| observe_steps(&mut learner.steps, paces, &average.step));
    }

    /// Its part in the pool's mean: as it was counted last, and as it counts from now on.
    pub(super) fn recount(&self) -> (Option<Standing>, Option<Standing>) {
        let mut held = self.learner.lock();
        let Some(learner) = held.as_mut() else { return (None, None) };
        let at = Stamp::from_nanos(self.learned_at.load(Ordering::Acquire).saturating_sub(1));
        let counts = learner.has_speed.then(|| Standing { slowness: self.published.slowness.load(), at });
        (std::mem::replace(&mut learner.counted, counts), counts)
    }

    /// Whether its answers have taught how slow it is.
    pub(super) fn is_known(&self) -> bool {
        self.learner.lock().as_ref().is_some_and(|learner| learner.has_speed)
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
        let fits = Fit::restored(1.0 - memories::LEARNED, &saved.speed)
            .zip(Fit::restored(memories::STEPS_KEPT, &saved.steps));
        let Some((speed, steps)) = fits.filter(|_| figures) else { return false };
        let learner = Learner { speed, has_speed: true, steps, ..Learner::default() };
        // A young clock does not reach back as far.
        let age = Duration::from_secs_f64(saved.age.min(1e6)).as_nanos();
        let at = Stamp::from_nanos(now.as_nanos().saturating_sub(u64::try_from(age).unwrap_or(u64::MAX)));
        *self.ledger.lock() = Ledger::default();
        self.learn(at, average, |known| *known = Learner { counted: known.counted, ..learner });
        true
    }

    /// Forgets everything; returns what the pool's mean holds of it.
    pub(super) fn reset(&self) -> Option<Standing> {
        let mut learner = self.learner.lock();
        *self.ledger.lock() = Ledger::default();
        self.learned_at.store(0, Ordering::Release);
        learner.take()?.counted
    }

    fn learn(&self, at: Stamp, average: &Estimate, sample: impl FnOnce(&mut Learner)) -> Estimate {
        let mut held = self.learner.lock();
        let learner = held.get_or_insert_default();
        // What it was long ago counts for as little as it does in an estimate.
        if let Some(age) = self.age(at).filter(|age| *age >= FRESH) {
            learner.speed.fade(trust(age, memories::STANDING));
            learner.steps.fade(trust(age, memories::RECENT));
        }
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
        Self { speed, has_speed: false, counted: None, steps: Fit::new(memories::STEPS_KEPT) }
    }
}

/// What a lesson of `age` seconds still counts, 0 to 1. Computed for those that are old only: the others lose little.
#[inline]
fn trust(age: f64, memory: Duration) -> f64 {
    if age < FRESH { 1.0 } else { weight_after(age, memory) }
}

/// What a lesson still counts after `seconds`.
pub(super) fn weight_after(seconds: f64, memory: Duration) -> f64 {
    (-seconds / memory.as_secs_f64()).exp2()
}

/// Learns the seconds of an undisturbed step: a line through the lowest tenth of what was seen, since stalls only add.
pub(super) fn observe_steps(steps: &mut Fit<2>, paces: &[Pace], prior: &[f64; 2]) {
    let rates = steps.rates(prior);
    for pace in paces {
        let causes = [1.0, pace.context as f64 / PER_CONTEXT];
        let expected = dot(&rates, &causes);
        let is_low = pace.per_token < expected;
        let seconds = pace.per_token.min(priors::OUTLIER * expected);
        let weight = if is_low { 0.9 } else { 0.1 };
        steps.add(&causes, seconds, weight / (expected * expected).max(1e-12));
    }
}

/// Seconds.
const FRESH: f64 = 1.0;
/// No replica is a thousand times faster than its pool.
const LEAST_SLOWNESS: f64 = 1e-3;
