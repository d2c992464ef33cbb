//! The time of a step: the only place where the engine model turns work into time.
//!
//! A step pays a base (weights are read once), something for each sequence, for each prompt token, for each pair of a
//! prompt token and a token before it (attention is quadratic), and for the context that each decoding sequence reads.
//! All terms add up, as they do in an engine that computes prompt chunks and decoding in one batch.

use std::time::Duration;

use super::job::Sequence;

/// The coefficients of a step's time.
#[derive(Clone, Debug, PartialEq)]
pub struct CostModel {
    /// Time of a step with nothing in it.
    pub step: Duration,
    /// Time that each sequence adds to a step.
    pub step_per_seq: Duration,
    /// Prompt tokens computed in a second, attention not counted.
    pub prefill_tokens_per_second: f64,
    /// Seconds for each pair of a prompt token and a token before it.
    pub attention_seconds: f64,
    /// Seconds for each token of context that a decoding sequence reads.
    pub context_seconds: f64,
    /// Step times vary by at most this share, up and down.
    pub jitter: f64,
}

impl Default for CostModel {
    /// About an 8B model on one data-centre GPU, with short contexts.
    fn default() -> Self {
        Self {
            step: Duration::from_millis(12),
            step_per_seq: Duration::from_micros(100),
            prefill_tokens_per_second: 8_000.0,
            attention_seconds: 0.0,
            context_seconds: 0.0,
            jitter: 0.05,
        }
    }
}

impl CostModel {
    /// Seconds to compute a prompt of which `cached` tokens are there and `uncached` are not, steps not counted.
    #[must_use]
    pub fn prefill_seconds(&self, cached: u64, uncached: u64) -> f64 {
        uncached as f64 / self.prefill_tokens_per_second.max(1.0)
            + self.attention_seconds * pairs(cached, uncached)
    }

    /// Seconds of a step, before jitter.
    #[must_use]
    pub fn step_seconds(&self, load: &StepLoad) -> f64 {
        let extra = load.tokens.saturating_sub(load.sequences) as f64;
        self.step.as_secs_f64()
            + self.step_per_seq.as_secs_f64() * load.sequences as f64
            + extra / self.prefill_tokens_per_second.max(1.0)
            + self.attention_seconds * load.pairs
            + self.context_seconds * load.context as f64
    }
}

/// What is computed in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepLoad {
    /// Sequences with at least one scheduled token.
    pub sequences: u64,
    /// Their tokens: one each is free, the rest is paid at the prefill rate.
    pub tokens: u64,
    /// Pairs of a prompt token and a token before it.
    pub pairs: f64,
    /// Context of the sequences that compute a single token.
    pub context: u64,
}

impl StepLoad {
    pub(super) fn add(&mut self, sequence: &Sequence) {
        match sequence.scheduled {
            0 => return,
            1 => self.context += sequence.computed + 1,
            chunk => self.pairs += pairs(sequence.computed, chunk),
        }
        self.sequences += 1;
        self.tokens += sequence.scheduled;
    }
}

/// Each of `new` tokens attends to the `before` and to those of `new` that precede it.
fn pairs(before: u64, new: u64) -> f64 {
    new as f64 * (before as f64 + new as f64 / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_term_has_its_price() {
        let cost = CostModel {
            step: Duration::from_millis(10),
            step_per_seq: Duration::from_millis(1),
            prefill_tokens_per_second: 1_000.0,
            attention_seconds: 1e-6,
            context_seconds: 1e-5,
            jitter: 0.0,
        };
        let cases = [
            ("nothing", StepLoad::default(), 0.010),
            ("a decoding sequence", StepLoad { sequences: 1, tokens: 1, pairs: 0.0, context: 100 }, 0.012),
            ("a chunk", StepLoad { sequences: 1, tokens: 101, pairs: 5_000.0, context: 0 }, 0.116),
        ];
        for (name, load, expected) in cases {
            assert!((cost.step_seconds(&load) - expected).abs() < 1e-9, "{name}");
        }
        assert!((cost.prefill_seconds(100, 100) - (0.1 + 1e-6 * 15_000.0)).abs() < 1e-9);
    }
}
