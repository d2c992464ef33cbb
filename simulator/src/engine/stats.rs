//! Counters and histograms behind the simulated `/metrics`.

use std::time::Duration;

use super::inspect::Gauges;

/// Upper bounds of vLLM's `time_to_first_token_seconds`.
pub const TTFT_BOUNDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];

/// Upper bounds of vLLM's `inter_token_latency_seconds`.
pub const ITL_BOUNDS: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];

/// A histogram with fixed bounds.
#[derive(Clone, Debug, Default)]
pub struct Buckets {
    /// Upper bounds, ascending, without infinity.
    pub bounds: &'static [f64],
    /// Observations at or below each bound (cumulative).
    pub counts: Vec<u64>,
    /// Observations, those above every bound included.
    pub count: u64,
    /// Sum of the observations in seconds.
    pub sum: f64,
}

impl Buckets {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len()], count: 0, sum: 0.0 }
    }

    pub(super) fn observe(&mut self, value: Duration) {
        let seconds = value.as_secs_f64();
        self.count += 1;
        self.sum += seconds;
        for (bound, count) in self.bounds.iter().zip(&mut self.counts) {
            *count += u64::from(seconds <= *bound);
        }
    }
}

/// The engine's counters and gauges at one moment.
#[derive(Clone, Debug, Default)]
pub struct EngineStats {
    /// What was true at that moment.
    pub gauges: Gauges,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Prompt tokens found in the prefix cache.
    pub prefix_hits: u64,
    /// Prompt tokens of sequences that gave their first token.
    pub prompt_tokens: u64,
    /// Output tokens emitted.
    pub generation_tokens: u64,
    /// Sequences whose blocks were taken by others, to be recomputed.
    pub preemptions: u64,
    /// Sequences that ended by themselves.
    pub finished: u64,
    /// Sequences that were canceled.
    pub canceled: u64,
    /// Time to first token, from submission.
    pub ttft: Buckets,
    /// Inter-token latency.
    pub itl: Buckets,
}

impl EngineStats {
    pub(super) fn new() -> Self {
        Self { ttft: Buckets::new(TTFT_BOUNDS), itl: Buckets::new(ITL_BOUNDS), ..Self::default() }
    }
}
