//! The product's routing in simulated time: the one file that couples the replay to `crate::routing`.
//!
//! It does what the gateway's picker and journal do live: makes candidates from loads, scrapes and the model, asks
//! [`decide`], reserves load and prefix at once, and reports first tokens and ends. Time is the caller's; what is true
//! inside the engines is never looked at.

use std::collections::HashMap;
use std::sync::Arc;

use crate::clock::Stamp;
use crate::config::PolicyName;
use crate::fleet::status::EngineSignals;
use crate::routing::prefix_index::capacity_of;
use crate::routing::{
    Candidate, LoadGuard, LoadView, Observation, Policy, PoolModel, PrefixIndex, Prompt, Query, ReplicaLoad,
    SlotSet, Terms, decide, policies, rendezvous,
};
use crate::simulate::engine::EngineConfig;

use super::dispatch::{Dispatcher, Ended, Incoming, Placement, RequestId, Truth, Verdict};

/// One gateway in front of one pool.
pub struct Gateway {
    policy: Box<dyn Policy>,
    index: PrefixIndex,
    model: PoolModel,
    loads: Vec<Arc<ReplicaLoad>>,
    identities: Vec<u64>,
    scrapes: Vec<Option<Scrape>>,
    streams: HashMap<RequestId, Stream>,
    untried: SlotSet,
}

struct Scrape {
    at: Stamp,
    signals: EngineSignals,
    own: LoadView,
}

struct Stream {
    replica: usize,
    load: LoadGuard,
    terms: Terms,
    chosen: Stamp,
    first_token: Option<Stamp>,
}

impl Gateway {
    /// A gateway that knows nothing yet, with a route's policy.
    #[must_use]
    pub fn new(policy: PolicyName, replicas: usize, engine: &EngineConfig) -> Self {
        let index = PrefixIndex::new(replicas);
        // As scraped from `vllm:cache_config_info`.
        let capacity = capacity_of(engine.num_blocks, engine.block_size, BYTES_PER_TOKEN as f64);
        (0..replicas).for_each(|slot| index.set_capacity(slot, capacity));
        Self {
            policy: policies::named(policy),
            index,
            model: PoolModel::new(replicas),
            loads: (0..replicas).map(|_| ReplicaLoad::new()).collect(),
            identities: (0..replicas).map(|slot| identity(slot)).collect(),
            scrapes: (0..replicas).map(|_| None).collect(),
            streams: HashMap::new(),
            untried: SlotSet::new(),
        }
    }

    fn candidates(&self, now: Stamp) -> Vec<Candidate> {
        let candidate = |(slot, load): (usize, &Arc<ReplicaLoad>)| {
            let estimate = self.model.estimate(slot, now);
            let candidate = Candidate::new(slot, self.identities[slot], load.view(), estimate);
            match &self.scrapes[slot] {
                Some(Scrape { at, signals, own }) => {
                    candidate.with_signals(&EngineSignals { age: now.since(*at), ..*signals }, own)
                }
                None => candidate,
            }
        };
        self.loads.iter().enumerate().map(candidate).collect()
    }
}

impl Dispatcher for Gateway {
    fn place(&mut self, request: &Incoming<'_>, now: Stamp, _: &Truth<'_>) -> Verdict {
        let mut candidates = self.candidates(now);
        let block_end = |block: usize| request.ends.get(block).map_or(0, |end| end * BYTES_PER_TOKEN);
        let query = Query {
            prompt: Prompt {
                chain: request.chain,
                block_end: &block_end,
                bytes: request.prompt.0 * BYTES_PER_TOKEN,
                tokens: request.prompt,
            },
            session: None,
            index: &self.index,
            excluded: &self.untried,
        };
        let Some(decision) = decide(&*self.policy, &query, &mut candidates) else { return Verdict::Refuse };
        let load = LoadGuard::reserve(&self.loads[decision.slot], decision.terms.uncached);
        self.index.insert(decision.slot, request.chain);
        let stream =
            Stream { replica: decision.slot, load, terms: decision.terms, chosen: now, first_token: None };
        self.streams.insert(request.id, stream);
        Verdict::Place(Placement { replica: decision.slot, predicted_ttft: decision.predicted_ttft })
    }

    fn first_token(&mut self, request: RequestId, at: Stamp) {
        let Some(stream) = self.streams.get_mut(&request) else { return };
        stream.load.first_token();
        stream.first_token = Some(at);
        let observation = Observation { at, terms: stream.terms, ttft: at.since(stream.chosen) };
        self.model.observe(stream.replica, &observation);
    }

    fn ended(&mut self, request: RequestId, end: &Ended) {
        let Some(stream) = self.streams.remove(&request) else { return };
        if let Some(first) = stream.first_token {
            self.model.observe_service(stream.replica, end.at, end.at.since(first));
        }
    }

    fn scraped(&mut self, replica: usize, at: Stamp, signals: &EngineSignals) {
        self.scrapes[replica] = Some(Scrape { at, signals: *signals, own: self.loads[replica].view() });
    }
}

fn identity(slot: usize) -> u64 {
    rendezvous::identity(0, format!("replica-{slot}").as_bytes())
}

/// Of English text; any figure would do, since prompts are given in tokens.
const BYTES_PER_TOKEN: u64 = 4;
