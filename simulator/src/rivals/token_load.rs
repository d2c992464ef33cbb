//! llm-d's optimised baseline of 2026: sticky until saturated, then by token load.
//!
//! From llm-d/llm-d-router (`prefix-cache-affinity-filter` and `token-load-scorer`): replicas that hold at least 0.8 of
//! the prompt are kept alone, unless the best of them is more than 18 s behind the best of the others: uncached tokens
//! in flight over 15,928 tokens a second. Of those kept the fewest tokens in flight win, the request's own uncached ones
//! included; equals in turn. Tokens are in flight until the first token.

use crate::engine::EngineConfig;
use crate::replay::{Arrival, Ended, Fleet, RequestId, Router};
use crate::time::Stamp;

use super::least_in_turn;
use super::ledger::Ledger;
use super::prefix_record::PrefixRecord;

#[derive(Debug)]
pub(super) struct TokenLoad {
    ledger: Ledger,
    record: PrefixRecord,
    block_tokens: u64,
    turn: usize,
}

impl TokenLoad {
    pub(super) fn new(replicas: usize, engine: &EngineConfig) -> Self {
        Self {
            ledger: Ledger::new(replicas),
            record: PrefixRecord::new(replicas, engine),
            block_tokens: engine.block_size,
            turn: 0,
        }
    }
}

impl Router for TokenLoad {
    fn arrive(&mut self, request: Arrival, fleet: &mut dyn Fleet) {
        let hits = self.record.hits(&request);
        let tokens: Vec<f64> = self.ledger.accounts().iter().map(|account| account.pending).collect();
        // Caches hold whole blocks.
        let whole = (request.prompt - request.prompt % self.block_tokens) as f64;
        let is_sticky = |replica: usize| whole > 0.0 && hits[replica] as f64 >= AFFINITY * whole;
        let best = |sticky: bool| {
            let group = (0..hits.len()).filter(|replica| is_sticky(*replica) == sticky);
            group.map(|replica| tokens[replica] / PEAK_PREFILL).min_by(f64::total_cmp)
        };
        let keeps = match (best(true), best(false)) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(sticky), Some(other)) => sticky - other <= MAX_PENALTY,
        };
        let uncached = |replica: usize| request.prompt.saturating_sub(hits[replica]) as f64;
        let load: Vec<f64> = (0..hits.len())
            .map(|replica| match keeps && !is_sticky(replica) {
                true => f64::INFINITY,
                false => (tokens[replica] + uncached(replica)).min(QUEUE_THRESHOLD),
            })
            .collect();
        let Some(replica) = least_in_turn(&load, self.turn) else { return };
        self.turn += 1;
        let work = uncached(replica);
        self.record.insert(replica, &request);
        self.ledger.note(request.id, replica, fleet.now(), work);
        fleet.send(request.id, replica, None);
    }

    fn first_token(&mut self, request: RequestId, _: Stamp) {
        self.ledger.first_token(request);
    }

    fn ended(&mut self, request: RequestId, _: &Ended) {
        self.ledger.end(request);
    }
}

const AFFINITY: f64 = 0.8;
/// Tokens a second: Qwen3-32B on two H100, which the replay's engine is.
const PEAK_PREFILL: f64 = 15_928.0;
/// Seconds.
const MAX_PENALTY: f64 = 18.0;
const QUEUE_THRESHOLD: f64 = 4_194_304.0;
