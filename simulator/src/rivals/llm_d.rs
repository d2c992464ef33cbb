//! llm-d's default profile: prefix 3, queue 2, KV utilisation 2, the highest sum wins, equals at random.
//!
//! From llm-d/llm-d-router (ebab68792): `prefix = matched / prompt`, `queue = (max - w) / (max - min)` over the scraped
//! `num_requests_waiting` (1 where all are alike), `kv = 1 - usage` as scraped. It has no count of its own, so what it
//! sees is as old as the scrape. The index is its approximate one, with the engines' capacity.

use crate::engine::{EngineConfig, Gauges};
use crate::replay::{Arrival, Fleet, Router};
use crate::time::Stamp;

use super::prefix_record::PrefixRecord;

#[derive(Debug)]
pub(super) struct LlmD {
    record: PrefixRecord,
    scraped: Vec<Gauges>,
    random: fastrand::Rng,
}

impl LlmD {
    pub(super) fn new(replicas: usize, engine: &EngineConfig, seed: u64) -> Self {
        Self {
            record: PrefixRecord::new(replicas, engine),
            scraped: vec![Gauges::default(); replicas],
            random: fastrand::Rng::with_seed(seed),
        }
    }
}

impl Router for LlmD {
    fn arrive(&mut self, request: Arrival, fleet: &mut dyn Fleet) {
        let hits = self.record.hits(&request);
        let waiting = || self.scraped.iter().map(|gauges| gauges.waiting as f64);
        let (max, min) = (waiting().fold(0.0, f64::max), waiting().fold(f64::INFINITY, f64::min));
        let scores: Vec<f64> = (hits.iter().zip(&self.scraped))
            .map(|(hit, gauges)| {
                let queue = if max > min { (max - gauges.waiting as f64) / (max - min) } else { 1.0 };
                let prefix = *hit as f64 / request.prompt.max(1) as f64;
                PREFIX * prefix + QUEUE * queue + KV * (1.0 - gauges.kv_cache_usage)
            })
            .collect();
        let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let equal: Vec<usize> = (0..scores.len()).filter(|replica| scores[*replica] >= best).collect();
        let Some(replica) = self.random.choice(equal) else { return };
        self.record.insert(replica, &request);
        fleet.send(request.id, replica, None);
    }

    fn scraped(&mut self, replica: usize, _: Stamp, gauges: &Gauges) {
        self.scraped[replica] = *gauges;
    }
}

const PREFIX: f64 = 3.0;
const QUEUE: f64 = 2.0;
const KV: f64 = 2.0;
