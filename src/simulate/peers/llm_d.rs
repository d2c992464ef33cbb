//! llm-d's default profile: prefix 3, queue 2, KV utilisation 2, the highest sum wins, equals at random.
//!
//! From llm-d/llm-d-router (ebab68792): `prefix = matched / prompt`, `queue = (max - w) / (max - min)` over the scraped
//! `num_requests_waiting` (1 where all are alike), `kv = 1 - usage` as scraped. It has no count of its own, so what it
//! sees is as old as the scrape. The index is its approximate one, with the engines' capacity.

use crate::clock::Stamp;
use crate::routing::EngineSignals;
use crate::simulate::engine::EngineConfig;
use crate::simulate::replay::{Dispatcher, Incoming, Placement, Truth, Verdict};

use super::history::History;

/// The policy.
#[derive(Debug)]
pub(super) struct LlmD {
    history: History,
    /// Waiting requests and KV usage, as scraped.
    scraped: Vec<(f64, f64)>,
    random: fastrand::Rng,
}

impl LlmD {
    pub(super) fn new(replicas: usize, engine: &EngineConfig, seed: u64) -> Self {
        Self {
            history: History::new(replicas, engine),
            scraped: vec![(0.0, 0.0); replicas],
            random: fastrand::Rng::with_seed(seed),
        }
    }
}

impl Dispatcher for LlmD {
    fn place(&mut self, request: &Incoming<'_>, _: Stamp, _: &Truth<'_>) -> Verdict {
        let hits = self.history.hits(request);
        let waiting = || self.scraped.iter().map(|(waiting, _)| *waiting);
        let (most, least) = (waiting().fold(0.0, f64::max), waiting().fold(f64::INFINITY, f64::min));
        let scores: Vec<f64> = (hits.iter().zip(&self.scraped))
            .map(|(hit, (waiting, usage))| {
                let queue = if most > least { (most - waiting) / (most - least) } else { 1.0 };
                let prefix = *hit as f64 / request.prompt.0.max(1) as f64;
                PREFIX * prefix + QUEUE * queue + KV * (1.0 - usage)
            })
            .collect();
        let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let equal: Vec<usize> = (0..scores.len()).filter(|replica| scores[*replica] >= best).collect();
        let Some(replica) = self.random.choice(equal) else { return Verdict::Refuse };
        self.history.note(replica, request);
        Placement::on(replica)
    }

    fn scraped(&mut self, replica: usize, _: Stamp, signals: &EngineSignals) {
        self.scraped[replica] = (signals.waiting, signals.kv_cache_usage);
    }
}

const PREFIX: f64 = 3.0;
const QUEUE: f64 = 2.0;
const KV: f64 = 2.0;
