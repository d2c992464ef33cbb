//! What a typical request costs a typical replica: what capacity is planned by.

use super::PoolModel;
use crate::clock::Stamp;
use crate::routing::work::Work;

/// Costs of one mean request, in seconds, as the pool's replicas have shown them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Typical {
    /// Uncached prompt tokens.
    pub uncached: f64,
    /// Tokens of the answer.
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
    /// The mean over replicas for a prompt of `mean` work. Each replica is given as its slot and the tokens in the context of one
    /// of its running sequences, where that is known. `None` before any answer.
    pub fn typical(
        &self,
        mean: &Work,
        replicas: impl Iterator<Item = (usize, Option<f64>)>,
        now: Stamp,
    ) -> Option<Typical> {
        // Where no prompt is ever computed, none has taught what that takes.
        let computes = self.pool.is_taught();
        if !computes && !self.pool.has_paces() {
            return None;
        }
        let view = self.pool.view();
        let (mut sum, mut count) = (Typical::default(), 0.0);
        for (slot, context) in replicas {
            let own = self.estimate(slot, now);
            let context = context.unwrap_or(mean.tokens as f64 + view.answers.output / 2.0);
            sum.prefill += if computes { own.slowness * view.work(mean) } else { 0.0 };
            sum.step += own.step(0);
            sum.per_sequence += own.sequence(&view, context);
            sum.round_trip += own.round_trip;
            count += 1.0;
        }
        let of = |sum: f64| if count > 0.0 { (sum / count).max(0.0) } else { 0.0 };
        let typical = Typical {
            uncached: mean.tokens as f64,
            output: view.answers.output.max(1.0),
            prefill: of(sum.prefill),
            step: of(sum.step),
            per_sequence: of(sum.per_sequence),
            round_trip: of(sum.round_trip),
        };
        let all = [typical.prefill, typical.step, typical.per_sequence, typical.output];
        (count > 0.0 && all.iter().all(|figure| figure.is_finite())).then_some(typical)
    }
}
