//! The product's routing in simulated time: the one file that couples the replay to `crate::routing`.
//!
//! It does what the gateway's picker and journal do live: makes candidates from loads, scrapes and the model, asks
//! [`judge`], reserves load and prefix at once, and reports first tokens and ends. Time is the caller's; what is true
//! inside the engines is never looked at.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::admission::{Rules, Ruling, Standing, rule};
use crate::clock::Stamp;
use crate::config::PolicyName;
use crate::record::SloBounds;
use crate::routing::EngineSignals;
use crate::routing::prefix_index::capacity_of;
use crate::routing::{
    self, Aim, Candidate, LoadGuard, LoadView, Policy, PoolModel, PrefixIndex, Prompt, Query, ReplicaLoad,
    SlotSet, Waiting, judge, policies, rendezvous,
};
use crate::simulate::engine::EngineConfig;
use crate::units::Tokens;

use super::dispatch::{Admission, Dispatcher, Ended, Incoming, Placement, RequestId, Truth, Verdict};

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
    admission: Option<Admission>,
    last_answer: Option<Stamp>,
}

struct Scrape {
    at: Stamp,
    signals: EngineSignals,
    own: LoadView,
}

struct Stream {
    replica: usize,
    load: LoadGuard,
    predicted: Option<Duration>,
    chosen: Stamp,
    first_token: Option<Stamp>,
    tokens: u64,
    hit: Tokens,
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
            identities: (0..replicas).map(identity).collect(),
            scrapes: (0..replicas).map(|_| None).collect(),
            streams: HashMap::new(),
            untried: SlotSet::new(),
            admission: None,
            last_answer: None,
        }
    }

    /// With the route's `[route.queue]`, where it has one.
    #[must_use]
    pub fn with_admission(self, admission: Option<Admission>) -> Self {
        Self { admission, ..self }
    }

    /// What the route wants done with a request that cannot be answered in time.
    fn ruling(
        &self,
        request: &Incoming<'_>,
        aim: &Aim,
        verdict: &routing::Verdict,
        candidates: &[Candidate<'_>],
    ) -> Ruling {
        let rules = Rules {
            queue: self.admission.map(|admission| admission.queue),
            degrade: None,
            quick: request.slo.ttft.map_or(Duration::ZERO, |bound| bound.base),
        };
        let standing = Standing {
            is_behind_others: request.is_behind_others,
            is_let_in: !self.model.is_taught(),
            silence: self.last_answer.map(|last| aim.now.since(last)),
        };
        rule(&rules, standing, aim, verdict, candidates)
    }

    fn candidates(&self, now: Stamp) -> Vec<Candidate<'_>> {
        let replicas = self.loads.iter().zip(&self.identities).zip(&self.scrapes).enumerate();
        let candidates = replicas.map(|(slot, ((load, identity), scrape))| {
            let candidate = Candidate::new(slot, *identity, load);
            match scrape {
                Some(Scrape { at, signals, own }) => {
                    candidate.with_signals(&EngineSignals { age: now.since(*at), ..*signals }, own)
                }
                None => candidate,
            }
        });
        candidates.collect()
    }
}

impl Dispatcher for Gateway {
    fn place(&mut self, request: &Incoming<'_>, now: Stamp, _: &Truth<'_>) -> Verdict {
        for (slot, load) in self.loads.iter().enumerate() {
            if let Some(generated) = self.model.refresh(slot, load, now) {
                self.index.set_pinned(slot, capacity_of(generated.0, 1, BYTES_PER_TOKEN as f64));
            }
        }
        let mut candidates = self.candidates(now);
        let waiting = |candidate: &Candidate<'_>| Waiting::at(&candidate.load.view(), &candidate.foreign);
        self.model.note_backlog(now, candidates.iter().map(waiting));
        let block_end = |block: usize| request.ends.get(block).map_or(0, |end| end * BYTES_PER_TOKEN);
        let slo = SloBounds { ttft: request.ttft_bound(), tpot: request.slo.tpot, ..SloBounds::default() };
        let query = Query {
            prompt: Prompt {
                chain: request.chain,
                block_end: &block_end,
                bytes: request.prompt.0 * BYTES_PER_TOKEN,
                tokens: request.prompt,
            },
            session: None,
            aim: Aim {
                now,
                waited: now.since(request.arrived),
                slo,
                patience: routing::PATIENCE,
                queues_late: self.admission.is_some(),
            },
            model: &self.model,
            index: &self.index,
            excluded: &self.untried,
        };
        let Some(verdict) = judge(&*self.policy, &query, &mut candidates) else { return Verdict::Refuse };
        if let Ruling::Wait(outlook) = self.ruling(request, &query.aim, &verdict, &candidates) {
            return Verdict::Queue(outlook);
        }
        let decision = match verdict {
            routing::Verdict::Hold { until } => return Verdict::Hold { until },
            routing::Verdict::Hopeless { decision, .. } | routing::Verdict::Place(decision) => decision,
        };
        let placement = routing::Placement {
            at: now,
            work: decision.terms.work,
            prompt: request.prompt,
            tpot: slo.tpot,
            is_stream: true,
        };
        let load = LoadGuard::reserve(&self.loads[decision.slot], placement);
        self.index.insert(decision.slot, &query.prompt);
        let predicted = decision.predicted_ttft;
        let stream = Stream {
            replica: decision.slot,
            load,
            predicted,
            chosen: now,
            first_token: None,
            tokens: 0,
            hit: decision.hit,
        };
        self.streams.insert(request.id, stream);
        Verdict::Place(Placement { replica: decision.slot, predicted_ttft: predicted })
    }

    fn first_token(&mut self, request: RequestId, at: Stamp) {
        self.last_answer = Some(at);
        let Some(stream) = self.streams.get_mut(&request) else { return };
        if let Some(lesson) = stream.load.first_token(at) {
            self.model.observe(stream.replica, &lesson);
        }
        (stream.first_token, stream.tokens) = (Some(at), 1);
        if let Some(predicted) = stream.predicted {
            self.model.compare(stream.replica, predicted, at.since(stream.chosen));
        }
    }

    fn token(&mut self, request: RequestId, at: Stamp) {
        let Some(stream) = self.streams.get_mut(&request) else { return };
        stream.tokens += 1;
        stream.load.progress(stream.tokens, at);
    }

    fn ended(&mut self, request: RequestId, end: &Ended) {
        let Some(stream) = self.streams.remove(&request) else { return };
        if end.output > 0 {
            self.index.reported(stream.replica, stream.hit, end.cached);
        }
        if let Some(first) = stream.first_token {
            let held = end.at.since(first);
            self.model.observe_service(stream.replica, end.at, held, Some(Tokens(end.output)));
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
