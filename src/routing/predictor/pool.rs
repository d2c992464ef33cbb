//! What is learned of all replicas of a pool together: how the causes of a prefill compare, how long answers are, what an
//! average replica is like.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;

use super::calibration::Ledger;
use super::estimate::{Answers, CAUSES, Estimate, PoolView, Published, causes};
use super::fit::Fit;
use super::replica::{Standing, observe_steps, weight_after};
use super::saved::{SavedPool, are_sound};
use crate::clock::Stamp;
use crate::routing::hazard::lengths::{Lengths, Survival};
use crate::routing::hazard::{Curve, FRESH_SPARE, POINTS, Running};
use crate::routing::load::{Pace, TimingSample};
use crate::routing::tuning::{memories, priors};
use crate::units::{AtomicF64, Tokens};

/// The pool's learner and what it published.
#[derive(Debug)]
pub struct PoolCell {
    rates: [AtomicF64; CAUSES],
    fresh: [AtomicU32; POINTS],
    /// Mean tokens of an answer.
    output: AtomicF64,
    /// Share of answers that have more than one.
    goes_on: AtomicF64,
    /// A replica of which nothing is known yet.
    pub(in crate::routing) average: Published,
    /// Uncached tokens of a prompt.
    uncached: AtomicF64,
    pub(super) tokens_per_event: AtomicF64,
    /// Content events that this rests on.
    pub(super) counted_events: AtomicF64,
    has_learned: AtomicBool,
    learner: Mutex<Learner>,
    pub(in crate::routing) ledger: Mutex<Ledger>,
}

#[derive(Debug)]
struct Learner {
    shape: Fit<CAUSES>,
    /// Seconds of an undisturbed step.
    steps: Fit<2>,
    lengths: Lengths,
    /// Tokens and content events of streams, older ones for less.
    events: [f64; 2],
    /// Answers that taught the shape.
    taught: u32,
    /// Over the replicas that are known.
    slowness: Mean,
    round_trip: f64,
    mean_uncached: f64,
}

/// A geometric mean over replicas, each by what its last answer still counts. All weights halve in the same time, so the mean moves with
/// answers alone.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    /// Of weighted logarithms.
    sum: f64,
    weight: f64,
    /// When the weights were these.
    at: Stamp,
    replicas: u32,
}

impl Mean {
    /// Another is a part of it.
    fn add(&mut self, one: &Standing) {
        let weight = self.weight_of(one);
        self.sum += weight * one.slowness.ln();
        self.weight += weight;
        self.replicas += 1;
    }

    /// One that was a part of it is none any more.
    fn remove(&mut self, one: &Standing) {
        let weight = self.weight_of(one);
        self.sum -= weight * one.slowness.ln();
        self.weight -= weight;
        self.replicas = self.replicas.saturating_sub(1);
        if self.replicas == 0 {
            *self = Self::default();
        }
    }

    fn weight_of(&mut self, one: &Standing) -> f64 {
        if one.at > self.at {
            let kept = weight_after(one.at.since(self.at).as_secs_f64(), memories::STANDING);
            (self.sum, self.weight, self.at) = (self.sum * kept, self.weight * kept, one.at);
        }
        weight_after(self.at.since(one.at).as_secs_f64(), memories::STANDING)
    }

    /// `None` without any, and where rounding is all that is left of those that have not answered for long: the rates were learned at
    /// what it was, and hold for the next replica.
    fn read(&self) -> Option<f64> {
        (self.replicas > 0 && self.weight > LEAST_WEIGHT).then(|| (self.sum / self.weight).exp())
    }
}

impl Default for PoolCell {
    fn default() -> Self {
        let lengths = Lengths::default();
        let survival = lengths.survival();
        let (mean_uncached, round_trip) = (2.0 * priors::ANSWER_TOKENS, 2.0 * priors::JITTER);
        let cell = Self {
            rates: priors::RATES.map(AtomicF64::from),
            fresh: Default::default(),
            output: AtomicF64::default(),
            goes_on: AtomicF64::default(),
            average: Published::default(),
            uncached: mean_uncached.into(),
            tokens_per_event: 1.0.into(),
            counted_events: AtomicF64::default(),
            has_learned: AtomicBool::new(false),
            learner: Mutex::new(Learner {
                shape: Fit::new(memories::SHAPE_KEPT),
                steps: Fit::new(memories::STEPS_KEPT),
                lengths,
                events: [priors::ANSWERS; 2],
                taught: 0,
                slowness: Mean::default(),
                round_trip,
                mean_uncached,
            }),
            ledger: Mutex::default(),
        };
        cell.average.store(&Estimate { slowness: 1.0, round_trip, step: priors::STEP });
        cell.publish_fresh(&survival);
        cell
    }
}

impl PoolCell {
    /// What the replicas have in common; read once for a decision.
    pub fn view(&self) -> PoolView {
        let point = |point: &AtomicU32| f32::from_bits(point.load(Ordering::Relaxed));
        PoolView::new(
            &self.rates.each_ref().map(AtomicF64::load),
            Curve(self.fresh.each_ref().map(point)),
            Answers { output: self.output.load(), goes_on: self.goes_on.load() },
            self.uncached.load(),
        )
    }

    /// How long answers are.
    pub(super) fn survival(&self) -> Survival {
        self.learner.lock().lengths.survival()
    }

    /// Whether any answer has taught it; before that its numbers are guesses.
    pub fn is_taught(&self) -> bool {
        self.has_learned.load(Ordering::Relaxed)
    }

    /// Whether anything was learned of how long tokens take.
    pub(super) fn has_paces(&self) -> bool {
        self.learner.lock().steps.count > 0.0
    }

    /// Whether it has yet to learn how replicas compare: what others have learned is better.
    pub fn is_young(&self) -> bool {
        self.learner.lock().taught < priors::ALIKE_LESSONS
    }

    /// A replica's slowness changed; `None` where it is not known (yet, or any more).
    pub(super) fn slowness_changed(&self, (from, to): (Option<Standing>, Option<Standing>)) {
        let known = &mut self.learner.lock().slowness;
        if let Some(to) = &to {
            known.add(to);
        }
        if let Some(from) = &from {
            known.remove(from);
        }
        if let Some(mean) = known.read() {
            self.average.slowness.store(mean);
        }
    }

    /// Learns the shape from what a replica did, whatever its speed: the measure itself stays as the first answers made it.
    pub(super) fn observe(&self, sample: &TimingSample, by: &Estimate) {
        let mut learner = self.learner.lock();
        let round_trip = if sample.was_idle { by.round_trip } else { 0.0 };
        let seconds = (sample.busy.as_secs_f64() - round_trip).max(0.0) / by.slowness;
        learner.taught = learner.taught.saturating_add(1);
        self.has_learned.store(true, Ordering::Relaxed);
        let causes = causes(sample.context, &sample.work);
        learner.shape.observe(&causes, seconds, &priors::RATES);
        // No busy replica measures it: what a slow one is believed to take would raise what the next one is.
        if sample.was_idle {
            learner.round_trip += memories::LEARNED * (by.round_trip - learner.round_trip);
        }
        let uncached = &mut learner.mean_uncached;
        *uncached += memories::LEARNED * (sample.work.tokens as f64 - *uncached);
        self.publish(&mut learner);
    }

    pub(super) fn observe_paces(&self, paces: &[Pace]) {
        let mut learner = self.learner.lock();
        observe_steps(&mut learner.steps, paces, &priors::STEP);
        self.publish(&mut learner);
    }

    /// A stream brought its tokens in so many content events: engines that speculate, or write in intervals, put several into one.
    pub(in crate::routing) fn observe_events(&self, output: Tokens, events: u64) {
        let mut learner = self.learner.lock();
        for (sum, more) in learner.events.iter_mut().zip([output.0, events]) {
            *sum = *sum * (1.0 - memories::LEARNED) + more as f64;
        }
        self.publish(&mut learner);
    }

    /// An answer ended, with so many tokens.
    pub fn observe_output(&self, output: Tokens) {
        let mut learner = self.learner.lock();
        learner.lengths.observe(output.0);
        let changed = learner.lengths.changed();
        drop(learner);
        if let Some(survival) = changed {
            self.publish_fresh(&survival);
        }
    }

    /// What the replicas have in common, to be kept.
    pub fn save(&self) -> SavedPool {
        let learner = self.learner.lock();
        SavedPool {
            shape: learner.shape.save(),
            steps: learner.steps.save(),
            lengths: learner.lengths.save(),
            events: learner.events,
            taught: learner.taught,
            round_trip: learner.round_trip,
            mean_uncached: learner.mean_uncached,
            slowness: self.average.slowness.load(),
        }
    }

    /// Takes over what was kept; returns whether it could be read. Replicas are measured by it: they follow.
    pub fn restore(&self, saved: &SavedPool) -> bool {
        let SavedPool { events, round_trip, mean_uncached, slowness, .. } = *saved;
        let figures = [events[0], events[1], round_trip, mean_uncached, slowness];
        let is_sound = are_sound(&figures) && slowness > 0.0;
        let fits = Fit::restored(memories::SHAPE_KEPT, &saved.shape)
            .zip(Fit::restored(memories::STEPS_KEPT, &saved.steps));
        let Some((shape, steps)) = fits.filter(|_| is_sound && saved.taught > 0 && events[1] > 0.0) else {
            return false;
        };
        let mut learner = self.learner.lock();
        learner.shape = shape;
        learner.steps = steps;
        learner.lengths = Lengths::restored(&saved.lengths);
        (learner.events, learner.taught) = (events, saved.taught);
        (learner.round_trip, learner.mean_uncached) = (round_trip, mean_uncached);
        // Its slowness is what replicas are measured by until they are known themselves.
        self.average.slowness.store(slowness);
        self.publish(&mut learner);
        self.publish_fresh(&learner.lengths.survival());
        self.has_learned.store(true, Ordering::Relaxed);
        true
    }

    /// What was learned, but of how long answers are.
    fn publish(&self, learner: &mut Learner) {
        let rates = learner.shape.rates(&priors::RATES);
        self.rates.iter().zip(rates).for_each(|(cell, rate)| cell.store(rate));
        let step = learner.steps.rates(&priors::STEP);
        self.average.step.iter().zip(step).for_each(|(cell, figure)| cell.store(figure));
        self.average.round_trip.store(learner.round_trip);
        self.uncached.store(learner.mean_uncached);
        let [tokens, events] = learner.events;
        self.tokens_per_event.store((tokens / events).max(1.0));
        self.counted_events.store(events);
    }

    fn publish_fresh(&self, survival: &Survival) {
        let mut curve = Curve::default();
        // Without a step of its own: how much slack a token brings is for the reader to say.
        let fresh = Running { tokens: 1.0, elapsed: 0.0, bound: FRESH_SPARE as f32, step: 0.0 };
        curve.add(&fresh, survival);
        for (cell, figure) in [(&self.output, survival.mean), (&self.goes_on, survival.at(2.0))] {
            cell.store(f64::from(figure));
        }
        for (cell, point) in self.fresh.iter().zip(curve.0) {
            cell.store(point.to_bits(), Ordering::Relaxed);
        }
    }
}

/// Sums are exact to 1e-16.
const LEAST_WEIGHT: f64 = 1e-9;
