//! SGLang's `cache_aware`: the longest match unless the fleet is out of balance, then the shortest queue.
//!
//! From `model_gateway/src/policies/cache_aware.rs` of lightseekorg/smg (73da68ca9). Out of balance is
//! `max - min > 32 && max > 1.1 min` over its own requests in flight: then the fewest requests win and caches are
//! ignored. Else the longest match wins when it covers more than half of the prompt, and the fewest requests if not.
//! Its record of prompts is given the engines' true capacity, which the real one does not know.

use crate::engine::EngineConfig;
use crate::replay::{Arrival, Ended, Fleet, RequestId, Router};

use super::ledger::Ledger;
use super::prefix_record::PrefixRecord;

#[derive(Debug)]
pub(super) struct CacheAware {
    ledger: Ledger,
    record: PrefixRecord,
    random: fastrand::Rng,
}

impl CacheAware {
    pub(super) fn new(replicas: usize, engine: &EngineConfig, seed: u64) -> Self {
        Self {
            ledger: Ledger::new(replicas),
            record: PrefixRecord::new(replicas, engine),
            random: fastrand::Rng::with_seed(seed),
        }
    }

    fn is_out_of_balance(&self) -> bool {
        let loads = self.ledger.accounts().iter().map(|account| account.inflight);
        let (max, min) = (loads.clone().max().unwrap_or(0), loads.min().unwrap_or(0));
        max - min > ABSOLUTE_THRESHOLD && max as f64 > RELATIVE_THRESHOLD * min as f64
    }

    fn holder(&mut self, request: &Arrival) -> Option<usize> {
        let hits = self.record.hits(request);
        let longest = hits.iter().copied().max()?;
        let holders: Vec<usize> = (0..hits.len()).filter(|replica| hits[*replica] == longest).collect();
        let is_match = longest as f64 > CACHE_THRESHOLD * request.prompt as f64;
        is_match.then(|| self.random.choice(holders)).flatten()
    }
}

impl Router for CacheAware {
    fn arrive(&mut self, request: Arrival, fleet: &mut dyn Fleet) {
        let holder = if self.is_out_of_balance() { None } else { self.holder(&request) };
        let replica = holder.unwrap_or_else(|| self.ledger.fewest());
        self.record.insert(replica, &request);
        self.ledger.note(request.id, replica, fleet.now(), 0.0);
        fleet.send(request.id, replica, None);
    }

    fn ended(&mut self, request: RequestId, _: &Ended) {
        self.ledger.end(request);
    }
}

const CACHE_THRESHOLD: f64 = 0.5;
const ABSOLUTE_THRESHOLD: usize = 32;
const RELATIVE_THRESHOLD: f64 = 1.1;
