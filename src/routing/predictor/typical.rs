//! What a typical request costs a typical replica: what capacity is planned by.

use super::PoolModel;
use crate::clock::Stamp;
use crate::routing::work::Work;

/// The mean of the requests that a pool gets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MeanRequest {
    /// What is to be computed of its prompt.
    pub work: Work,
    /// Share of requests whose response ends their prefill: embeddings, scores, legs of `[route.prefill]`. No answer is decoded.
    pub prompts: f64,
}

/// Costs of one mean request, in seconds, as the pool's replicas have shown them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Typical {
    /// Uncached prompt tokens.
    pub uncached: f64,
    /// Tokens of the answer: 1 where none is decoded.
    pub output: f64,
    /// Seconds that its prompt keeps an engine busy.
    pub prefill: f64,
    /// Seconds of a decoding step without any sequence, ...
    pub step: f64,
    /// ... and what each running sequence adds to it.
    pub per_sequence: f64,
    /// Seconds to an idle replica and back, beyond computing.
    pub round_trip: f64,
}

impl PoolModel {
    /// The mean over replicas for such a request, of each as much as it serves: speeds add up, and one that is many times slower takes hardly
    /// any of the work. Each replica is given as its slot and the tokens in the context of one
    /// of its running sequences, where that is known. `None` before any answer.
    pub fn typical(
        &self,
        mean: &MeanRequest,
        replicas: impl Iterator<Item = (usize, Option<f64>)>,
        now: Stamp,
    ) -> Option<Typical> {
        // Where no prompt is ever computed, none has taught what that takes.
        let computes = self.pool.is_taught();
        if !computes && !self.pool.has_paces() {
            return None;
        }
        let view = self.pool.view();
        let MeanRequest { work, prompts } = mean;
        // Lengths are learned of answers that are decoded.
        let output = 1.0 + (1.0 - prompts) * (view.answers.output - 1.0).max(0.0);
        let (mut sum, mut count, mut speed, mut pace) = (Typical::default(), 0.0, 0.0, 0.0);
        for (slot, context) in replicas {
            let own = self.estimate(slot, now);
            let context = context.unwrap_or(work.tokens as f64 + output / 2.0);
            let of_steps = 1.0 / own.step(0);
            (speed, pace) = (speed + 1.0 / own.slowness, pace + of_steps);
            sum.per_sequence += of_steps * own.sequence(&view, context);
            sum.round_trip += own.round_trip;
            count += 1.0;
        }
        let of = |sum: f64, weight: f64| if weight > 0.0 { (sum / weight).max(0.0) } else { 0.0 };
        let typical = Typical {
            uncached: work.tokens as f64,
            output,
            prefill: if computes { of(count * view.work(work), speed) } else { 0.0 },
            step: of(count, pace),
            per_sequence: of(sum.per_sequence, pace),
            round_trip: of(sum.round_trip, count),
        };
        let all = [typical.prefill, typical.step, typical.per_sequence, typical.output];
        (count > 0.0 && all.iter().all(|figure| figure.is_finite())).then_some(typical)
    }
}
