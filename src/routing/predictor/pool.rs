//! What is learned of all replicas of a pool together: how the causes of a prefill compare, how long answers are, what an
//! average replica is like.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::calibration::{Calibration, Ledger};
use super::estimate::{Answers, CAUSES, Estimate, PoolView, causes};
use super::fit::{Fit, Memory};
use super::replica::{StepFit, load};
use super::saved::{SavedPool, are_sound};
use crate::routing::hazard::lengths::{Lengths, Survival};
use crate::routing::hazard::{Curve, FRESH_SPARE, POINTS, Running};
use crate::routing::load::{Pace, TimingSample};
use crate::routing::tuning::{memories, priors};
use crate::units::Tokens;

/// The pool's learner and what it published.
#[derive(Debug)]
pub(super) struct PoolCell {
    rates: [AtomicU64; CAUSES],
    fresh: [AtomicU32; POINTS],
    /// Mean tokens of an answer.
    output: AtomicU64,
    /// Share of answers that have more than one.
    goes_on: AtomicU64,
    average: [AtomicU64; AVERAGES],
    tokens_per_event: AtomicU64,
    /// Mean absolute logarithm of actual over predicted.
    error: AtomicU64,
    has_learned: AtomicBool,
    survival: ArcSwap<Survival>,
    learner: Mutex<Learner>,
}

#[derive(Debug)]
struct Learner {
    shape: Fit<CAUSES>,
    steps: StepFit,
    lengths: Lengths,
    /// Tokens and content events of streams, older ones for less.
    events: [f64; 2],
    /// Answers that taught the shape.
    taught: u32,
    /// Sum of the logarithms of slowness of the replicas that are known, and how many they are.
    slowness: (f64, u32),
    round_trip: f64,
    mean_uncached: f64,
    ledger: Ledger,
}

impl Default for PoolCell {
    fn default() -> Self {
        let lengths = Lengths::default();
        let cell = Self {
            rates: priors::RATES.map(|rate| AtomicU64::new(rate.to_bits())),
            fresh: Default::default(),
            output: AtomicU64::new(0),
            goes_on: AtomicU64::new(0),
            average: UNSEEN.map(|figure| AtomicU64::new(figure.to_bits())),
            tokens_per_event: AtomicU64::new(1.0f64.to_bits()),
            error: AtomicU64::new(priors::ERROR.to_bits()),
            has_learned: AtomicBool::new(false),
            survival: ArcSwap::from_pointee(lengths.survival()),
            learner: Mutex::new(Learner {
                shape: Fit::new(SHAPE),
                steps: StepFit::default(),
                lengths,
                events: [priors::ANSWERS; 2],
                taught: 0,
                slowness: (0.0, 0),
                round_trip: UNSEEN[0],
                mean_uncached: UNSEEN[UNCACHED],
                ledger: Ledger::default(),
            }),
        };
        cell.publish_fresh();
        cell
    }
}

impl PoolCell {
    pub(super) fn view(&self) -> PoolView {
        let point = |point: &AtomicU32| f32::from_bits(point.load(Ordering::Relaxed));
        PoolView::new(
            &self.rates.each_ref().map(load),
            Curve::from_points(self.fresh.each_ref().map(point)),
            Answers { output: load(&self.output), goes_on: load(&self.goes_on) },
            load(&self.average[UNCACHED]),
        )
    }

    /// A replica of which nothing is known yet.
    pub(super) fn average(&self) -> Estimate {
        let [round_trip, step, per_context, slowness, _] = self.average.each_ref().map(load);
        Estimate { slowness, round_trip, service: load(&self.output) * step, step: [step, per_context] }
    }

    #[inline]
    pub(super) fn error(&self) -> f64 {
        load(&self.error)
    }

    #[inline]
    pub(super) fn usual_slowness(&self) -> f64 {
        load(&self.average[SLOWNESS])
    }

    pub(super) fn survival(&self) -> Arc<Survival> {
        self.survival.load_full()
    }

    /// Whether anything was learned at all.
    pub(super) fn is_taught(&self) -> bool {
        self.has_learned.load(Ordering::Relaxed)
    }

    /// Whether so little is known that replicas are taken to be alike: a measure is needed before things are measured.
    pub(super) fn is_young(&self) -> bool {
        self.learner.lock().taught < priors::ALIKE_LESSONS
    }

    /// A replica's slowness changed; `None` where it is not known (yet, or any more).
    pub(super) fn slowness_changed(&self, from: Option<f64>, to: Option<f64>) {
        let (sum, count) = &mut self.learner.lock().slowness;
        if let Some(from) = from {
            *sum -= from.ln();
            *count = count.saturating_sub(1);
        }
        if let Some(to) = to {
            *sum += to.ln();
            *count += 1;
        }
        let mean = (*sum / f64::from((*count).max(1))).exp();
        self.average[SLOWNESS].store(mean.to_bits(), Ordering::Relaxed);
    }

    /// Learns the shape from what a replica did, whatever its speed: the measure itself stays as the first answers made it.
    pub(super) fn observe(&self, sample: &TimingSample, by: &Estimate) {
        let mut learner = self.learner.lock();
        let round_trip = if sample.was_idle { by.round_trip } else { 0.0 };
        let seconds = (sample.busy.as_secs_f64() - round_trip).max(0.0) / by.slowness;
        learner.taught = learner.taught.saturating_add(1);
        self.has_learned.store(true, Ordering::Relaxed);
        let causes = causes(1.0, sample.context, &sample.work);
        learner.shape.observe(&causes, seconds, &priors::RATES);
        // No busy replica measures it: what a slow one is believed to take would raise what the next one is.
        if sample.was_idle {
            learner.round_trip += memories::LEARNED * (by.round_trip - learner.round_trip);
        }
        let rates = learner.shape.rates(&priors::RATES);
        for (cell, rate) in self.rates.iter().zip(rates) {
            cell.store(rate.to_bits(), Ordering::Relaxed);
        }
        let uncached = &mut learner.mean_uncached;
        *uncached += memories::LEARNED * (sample.work.tokens as f64 - *uncached);
        self.average[UNCACHED].store(uncached.to_bits(), Ordering::Relaxed);
        self.average[0].store(learner.round_trip.to_bits(), Ordering::Relaxed);
    }

    pub(super) fn observe_paces(&self, paces: &[Pace]) {
        let mut learner = self.learner.lock();
        learner.steps.observe(paces, &priors::STEP);
        let [step, per_context] = learner.steps.rates(&priors::STEP);
        self.average[1].store(step.to_bits(), Ordering::Relaxed);
        self.average[2].store(per_context.to_bits(), Ordering::Relaxed);
    }

    pub(super) fn observe_events(&self, output: Tokens, events: u64) {
        let mut learner = self.learner.lock();
        for (sum, more) in learner.events.iter_mut().zip([output.0, events]) {
            *sum = *sum * (1.0 - memories::LEARNED) + more as f64;
        }
        let [tokens, events] = learner.events;
        self.tokens_per_event.store((tokens / events).max(1.0).to_bits(), Ordering::Relaxed);
    }

    /// Tokens of a content event.
    pub(super) fn tokens_per_event(&self) -> f64 {
        load(&self.tokens_per_event)
    }

    pub(super) fn observe_output(&self, output: Tokens) {
        let mut learner = self.learner.lock();
        learner.lengths.observe(output.0);
        self.survival.store(Arc::new(learner.lengths.survival()));
        drop(learner);
        self.publish_fresh();
    }

    pub(super) fn compare(&self, predicted: Duration, actual: Duration) {
        let mut learner = self.learner.lock();
        learner.ledger.note(predicted, actual);
        let error = (actual.as_secs_f64() / predicted.as_secs_f64()).ln().abs();
        if error.is_finite() {
            let share = 1.0 / f64::from(memories::ENOUGH_ANSWERS);
            let mean = self.error() + share * (error - self.error());
            self.error.store(mean.to_bits(), Ordering::Relaxed);
        }
    }

    pub(super) fn calibration(&self) -> Option<Calibration> {
        self.learner.lock().ledger.read()
    }

    pub(super) fn ratio_within(&self, share: f64) -> Option<f64> {
        self.learner.lock().ledger.ratio_within(share)
    }

    pub(super) fn save(&self) -> SavedPool {
        let learner = self.learner.lock();
        SavedPool {
            shape: learner.shape.save(),
            steps: learner.steps.save(),
            lengths: learner.lengths.save(),
            events: learner.events,
            taught: learner.taught,
            round_trip: learner.round_trip,
            mean_uncached: learner.mean_uncached,
            error: self.error(),
            slowness: self.usual_slowness(),
        }
    }

    /// Knows what was saved; returns whether it could be read. What is known of its replicas stays.
    pub(super) fn restore(&self, saved: &SavedPool) -> bool {
        let SavedPool { events, round_trip, mean_uncached, error, slowness, .. } = *saved;
        let figures = [events[0], events[1], round_trip, mean_uncached, error, slowness];
        let is_sound = are_sound(&figures) && slowness > 0.0;
        let fits = Fit::restored(SHAPE, &saved.shape).zip(StepFit::restored(&saved.steps));
        let Some((shape, steps)) = fits.filter(|_| is_sound && saved.taught > 0 && events[1] > 0.0) else {
            return false;
        };
        let mut learner = self.learner.lock();
        learner.shape = shape;
        learner.steps = steps;
        learner.lengths = Lengths::restored(&saved.lengths);
        (learner.events, learner.taught) = (events, saved.taught);
        (learner.round_trip, learner.mean_uncached) = (round_trip, mean_uncached);
        let rates = learner.shape.rates(&priors::RATES);
        let [step, per_context] = learner.steps.rates(&priors::STEP);
        self.survival.store(Arc::new(learner.lengths.survival()));
        drop(learner);
        let tokens_per_event = (events[0] / events[1]).max(1.0);
        let averages = [
            (&self.average[0], round_trip),
            (&self.average[1], step),
            (&self.average[2], per_context),
            // What replicas are measured by until they are known themselves.
            (&self.average[SLOWNESS], slowness),
            (&self.average[UNCACHED], mean_uncached),
        ];
        let rates = self.rates.iter().zip(rates).chain(averages);
        for (cell, figure) in rates.chain([(&self.tokens_per_event, tokens_per_event), (&self.error, error)])
        {
            cell.store(figure.to_bits(), Ordering::Relaxed);
        }
        self.publish_fresh();
        self.has_learned.store(true, Ordering::Relaxed);
        true
    }

    fn publish_fresh(&self) {
        let mut curve = Curve::NONE;
        // Without a step of its own: how much slack a token brings is for the reader to say.
        let fresh = Running { tokens: 1.0, elapsed: 0.0, bound: FRESH_SPARE as f32, step: 0.0 };
        let survival = self.survival.load();
        curve.add(&fresh, &survival);
        for (cell, figure) in [(&self.output, survival.mean()), (&self.goes_on, survival.at(2.0))] {
            cell.store(f64::from(figure).to_bits(), Ordering::Relaxed);
        }
        for (cell, point) in self.fresh.iter().zip(curve.points()) {
            cell.store(point.to_bits(), Ordering::Relaxed);
        }
    }
}

/// A round trip, a step of decoding and its part of the context, slowness, uncached tokens of a prompt.
const UNSEEN: [f64; AVERAGES] =
    [priors::ROUND_TRIP, priors::STEP[0], priors::STEP[1], 1.0, 2.0 * priors::ANSWER_TOKENS];
const AVERAGES: usize = 5;
const SLOWNESS: usize = 3;
const UNCACHED: usize = 4;
const SHAPE: Memory = Memory { kept: memories::SHAPE_KEPT };
