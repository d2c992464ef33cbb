//! NVIDIA Dynamo's KV router: prefill plus decode in blocks, the least wins.
//!
//! From `lib/kv-router/src/scheduling/selector` of ai-dynamo/dynamo: `scale x max(0, (active prefill tokens + prompt) /
//! block - overlap) + decode blocks`, where active prefill tokens are uncached ones without a first token yet, overlap
//! is what the replica has cached, and decode blocks are the distinct blocks of requests in flight there with this
//! request's added. Defaults: overlap credit 1, no decay, no weight on requests, temperature 0, scale 1; the second
//! form has the scale 4, the only setting here that was tried for its result. KV events are on by default: it sees the
//! true caches. Its queue (from sixteen full batches of waiting prompts at every replica) is left out.

use std::collections::HashMap;

use crate::replay::{Arrival, BLOCK_TOKENS, Ended, Fleet, RequestId, Router};
use crate::time::Stamp;

use super::least_in_turn;
use super::ledger::Ledger;

#[derive(Debug)]
pub(super) struct Dynamo {
    ledger: Ledger,
    /// Requests in flight that have a block, by replica.
    active: Vec<HashMap<u64, u32>>,
    /// The blocks of each request in flight.
    requests: HashMap<RequestId, (usize, Vec<u64>)>,
    prefill_load_scale: f64,
    turn: usize,
}

impl Dynamo {
    pub(super) fn new(replicas: usize, prefill_load_scale: f64) -> Self {
        Self {
            ledger: Ledger::new(replicas),
            active: vec![HashMap::new(); replicas],
            requests: HashMap::new(),
            prefill_load_scale,
            turn: 0,
        }
    }

    fn cost(&self, replica: usize, cached: u64, request: &Arrival, blocks: &[u64]) -> f64 {
        let pending = self.ledger.accounts()[replica].pending;
        let prefill = (pending + request.prompt as f64) / BLOCK_TOKENS as f64;
        let overlap = cached as f64 / BLOCK_TOKENS as f64;
        let active = &self.active[replica];
        let new = blocks.iter().filter(|block| !active.contains_key(*block)).count();
        self.prefill_load_scale * (prefill - overlap).max(0.0) + (active.len() + new) as f64
    }
}

impl Router for Dynamo {
    fn arrive(&mut self, request: Arrival, fleet: &mut dyn Fleet) {
        let prompt_blocks = usize::try_from(request.prompt / BLOCK_TOKENS).unwrap_or(usize::MAX);
        let blocks = &request.engine_chain[..prompt_blocks.min(request.engine_chain.len())];
        let cached: Vec<u64> = fleet.engines().iter().map(|engine| request.cached_in(engine)).collect();
        let costs: Vec<f64> = cached
            .iter()
            .enumerate()
            .map(|(replica, hit)| self.cost(replica, *hit, &request, blocks))
            .collect();
        let Some(replica) = least_in_turn(&costs, self.turn) else { return };
        self.turn += 1;
        for block in blocks {
            *self.active[replica].entry(*block).or_insert(0) += 1;
        }
        self.requests.insert(request.id, (replica, blocks.to_vec()));
        let uncached = request.prompt.saturating_sub(cached[replica]);
        self.ledger.note(request.id, replica, fleet.now(), uncached as f64);
        fleet.send(request.id, replica, None);
    }

    fn first_token(&mut self, request: RequestId, _: Stamp) {
        self.ledger.first_token(request);
    }

    fn ended(&mut self, request: RequestId, _: &Ended) {
        self.ledger.end(request);
        let Some((replica, blocks)) = self.requests.remove(&request) else { return };
        let active = &mut self.active[replica];
        for block in blocks {
            if let Some(holders) = active.get_mut(&block) {
                *holders -= 1;
                if *holders == 0 {
                    active.remove(&block);
                }
            }
        }
    }
}
