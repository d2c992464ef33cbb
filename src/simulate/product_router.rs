//! The product's routing and waiting room as a [`Router`] of the simulator.
//!
//! It does what the gateway's picker and record do live: makes candidates from loads, scrapes and the model, asks
//! [`judge`], reserves load and prefix at once, and reports first tokens and ends. It never reads the engines' true state.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokenway_sim::engine::{EngineConfig, Gauges};
use tokenway_sim::replay::{Arrival, Ended, Fleet, RequestId, Router};
use tokenway_sim::time::Stamp as SimStamp;

use crate::admission::{Outlook, Rules, Ruling, Standing, rule};
use crate::clock::Stamp;
use crate::config::{PolicyName, Slo};
use crate::fleet::status::EngineSignals;
use crate::record::SloBounds;
use crate::routing::prefix_index::capacity_of;
use crate::routing::{
    self, Aim, Candidate, Decision, LoadGuard, LoadView, Policy, PoolModel, PrefixIndex, Prompt, Query,
    ReplicaLoad, SlotSet, Verdict, Waiting, judge, policies, rendezvous,
};
use crate::units::Tokens;

use super::held::{Admission, Held, Waiter};

/// One gateway in front of one pool.
pub struct ProductRouter {
    policy: Box<dyn Policy>,
    index: PrefixIndex,
    model: PoolModel,
    loads: Vec<Arc<ReplicaLoad>>,
    identities: Vec<u64>,
    scrapes: Vec<Option<Scrape>>,
    streams: HashMap<RequestId, Stream>,
    untried: SlotSet,
    /// TTFT bound of an empty prompt.
    quick: Duration,
    admission: Option<Admission>,
    last_answer: Option<Stamp>,
    held: Held,
    /// The requests of `held`.
    waiting: HashMap<RequestId, Arrival>,
    decisions: u64,
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

impl ProductRouter {
    /// A gateway that has learned nothing yet, with a route's policy, SLO and queue.
    #[must_use]
    pub fn new(
        policy: PolicyName,
        slo: &Slo,
        admission: Option<Admission>,
        replicas: usize,
        engine: &EngineConfig,
    ) -> Self {
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
            quick: slo.ttft.map_or(Duration::ZERO, |bound| bound.base),
            admission,
            last_answer: None,
            held: Held::new(admission),
            waiting: HashMap::new(),
            decisions: 0,
        }
    }

    /// Judges a request and does what comes of it: it is sent, it waits, or it is refused.
    fn place(&mut self, request: Arrival, fleet: &mut dyn Fleet) {
        let now = live(fleet.now());
        let waiter = Waiter {
            id: request.id,
            prompt: Tokens(request.prompt),
            deadline: request.ttft_bound.map(|bound| live(request.at).after(bound)),
        };
        self.decisions += 1;
        let waits = match self.decide(&request, self.held.is_behind_others(&waiter), now) {
            Next::Send(decision) => {
                self.reserve(&request, &decision, now);
                fleet.send(request.id, decision.slot, decision.predicted_ttft);
                false
            }
            Next::Hold { until } => self.held.hold(&waiter, now, until),
            Next::Queue(outlook) => self.held.queue(&waiter, now, outlook),
            Next::Refuse => false,
        };
        if waits {
            self.waiting.insert(request.id, request);
        } else {
            self.held.release(request.id);
        }
    }

    /// Judges those again whom the round calls.
    fn place_called(&mut self, fleet: &mut dyn Fleet) {
        while let Some(called) = self.held.next_called() {
            if let Some(request) = self.waiting.remove(&called) {
                self.place(request, fleet);
            }
        }
    }

    fn decide(&mut self, request: &Arrival, is_behind_others: bool, now: Stamp) -> Next {
        for (slot, load) in self.loads.iter().enumerate() {
            if let Some(generated) = self.model.refresh(slot, load, now) {
                self.index.set_pinned(slot, capacity_of(generated.0, 1, BYTES_PER_TOKEN as f64));
            }
        }
        let mut candidates = self.candidates(now);
        let backlog = |candidate: &Candidate<'_>| Waiting::at(&candidate.load.view(), &candidate.foreign);
        self.model.note_backlog(now, candidates.iter().map(backlog));
        let block_end = |block: usize| request.ends.get(block).map_or(0, |end| end * BYTES_PER_TOKEN);
        let query = Query {
            prompt: prompt(request, &block_end),
            session: None,
            aim: Aim {
                now,
                waited: now.since(live(request.at)),
                slo: bounds(request),
                patience: routing::PATIENCE,
                queues_late: self.admission.is_some(),
            },
            model: &self.model,
            index: &self.index,
            excluded: &self.untried,
        };
        let Some(verdict) = judge(&*self.policy, &query, &mut candidates) else { return Next::Refuse };
        let rules = Rules {
            queue: self.admission.map(|admission| admission.queue),
            degrade: None,
            quick: self.quick,
        };
        let standing = Standing {
            is_behind_others,
            is_let_in: !self.model.is_taught(),
            silence: self.last_answer.map(|last| now.since(last)),
        };
        if let Ruling::Wait(outlook) = rule(&rules, standing, &query.aim, &verdict, &candidates) {
            return Next::Queue(outlook);
        }
        match verdict {
            Verdict::Hold { until } => Next::Hold { until },
            Verdict::Hopeless { decision, .. } | Verdict::Place(decision) => Next::Send(decision),
        }
    }

    /// Notes the placement at once, so that the next decision sees it.
    fn reserve(&mut self, request: &Arrival, decision: &Decision, now: Stamp) {
        let placement = routing::Placement {
            at: now,
            work: decision.terms.work,
            prompt: Tokens(request.prompt),
            tpot: request.tpot_bound,
            is_stream: true,
        };
        let load = LoadGuard::reserve(&self.loads[decision.slot], placement);
        let block_end = |block: usize| request.ends.get(block).map_or(0, |end| end * BYTES_PER_TOKEN);
        self.index.insert(decision.slot, &prompt(request, &block_end));
        let stream = Stream {
            replica: decision.slot,
            load,
            predicted: decision.predicted_ttft,
            chosen: now,
            first_token: None,
            tokens: 0,
            hit: decision.hit,
        };
        self.streams.insert(request.id, stream);
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

/// What comes of a request.
enum Next {
    Send(Decision),
    Hold { until: Stamp },
    Queue(Outlook),
    Refuse,
}

impl Router for ProductRouter {
    fn arrive(&mut self, request: Arrival, fleet: &mut dyn Fleet) {
        self.place(request, fleet);
    }

    fn first_token(&mut self, request: RequestId, at: SimStamp) {
        let at = live(at);
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

    fn token(&mut self, request: RequestId, at: SimStamp) {
        let Some(stream) = self.streams.get_mut(&request) else { return };
        stream.tokens += 1;
        stream.load.progress(stream.tokens, live(at));
    }

    fn ended(&mut self, request: RequestId, end: &Ended) {
        let Some(stream) = self.streams.remove(&request) else { return };
        if end.output > 0 {
            self.index.reported(stream.replica, stream.hit, Tokens(end.cached));
        }
        if let Some(first) = stream.first_token {
            let at = live(end.at);
            self.model.observe_service(stream.replica, at, at.since(first), Some(Tokens(end.output)));
        }
    }

    fn scraped(&mut self, replica: usize, at: SimStamp, gauges: &Gauges) {
        let signals = EngineSignals {
            age: Duration::ZERO,
            running: gauges.running as f64,
            waiting: gauges.waiting as f64,
            kv_cache_usage: gauges.kv_cache_usage,
            batch_limit: Some(gauges.batch_limit as u64),
            block_tokens: Some(gauges.block_size),
            total_blocks: Some(gauges.num_blocks),
        };
        self.scrapes[replica] = Some(Scrape { at: live(at), signals, own: self.loads[replica].view() });
    }

    fn reconsider(&mut self, fleet: &mut dyn Fleet) {
        self.held.changed();
        self.place_called(fleet);
    }

    fn next_tick(&self) -> Option<SimStamp> {
        self.held.next_turn().map(|at| SimStamp::from_nanos(at.as_nanos()))
    }

    fn tick(&mut self, fleet: &mut dyn Fleet) {
        for over in self.held.turn(live(fleet.now())) {
            self.waiting.remove(&over);
        }
        self.place_called(fleet);
    }

    fn decisions(&self) -> Option<u64> {
        Some(self.decisions)
    }
}

fn live(at: SimStamp) -> Stamp {
    Stamp::from_nanos(at.as_nanos())
}

fn bounds(request: &Arrival) -> SloBounds {
    SloBounds { ttft: request.ttft_bound, tpot: request.tpot_bound, ..SloBounds::default() }
}

fn prompt<'a>(request: &'a Arrival, block_end: &'a dyn Fn(usize) -> u64) -> Prompt<'a> {
    Prompt {
        chain: &request.chain,
        block_end,
        bytes: request.prompt * BYTES_PER_TOKEN,
        tokens: Tokens(request.prompt),
    }
}

fn identity(slot: usize) -> u64 {
    rendezvous::identity(0, format!("replica-{slot}").as_bytes())
}

/// Of English text; any figure would do, since prompts are given in tokens.
const BYTES_PER_TOKEN: u64 = 4;

#[cfg(test)]
mod tests {
    use tokenway_sim::engine::CostModel;
    use tokenway_sim::replay::{Bounds, Demand, Figures, Scenario, Trace, qwen_32b_on_two_h100, run};

    use super::*;
    use crate::config::{Queue, TtftBound};

    /// Runs a trace on replicas that compute a prompt token a millisecond and decode a token in ten, under bounds of two
    /// seconds and 50 ms.
    fn ran(trace: &Trace, policy: PolicyName, admission: Option<Admission>, replicas: usize) -> Figures {
        let engine = EngineConfig {
            cost: CostModel {
                step: Duration::from_millis(10),
                step_per_seq: Duration::ZERO,
                prefill_tokens_per_second: 1_000.0,
                attention_seconds: 0.0,
                context_seconds: 0.0,
                jitter: 0.0,
            },
            ..qwen_32b_on_two_h100()
        };
        let (ttft, tpot) = (Duration::from_secs(2), Some(Duration::from_millis(50)));
        let scenario = Scenario {
            engine,
            // At this load a fleet of any size gets the trace at its own pace, once.
            demand: Demand { replicas, load: 4.0 / replicas as f64, seed: 1 },
            slow: Vec::new(),
            scrape_interval: Duration::from_millis(50),
            bounds: Bounds { ttft: Some(ttft), tpot, ..Bounds::default() },
        };
        let bound = TtftBound { base: ttft, per_prompt_token: Duration::ZERO };
        let slo = Slo { ttft: Some(bound), tpot, ..Slo::default() };
        run(trace, &scenario, &mut ProductRouter::new(policy, &slo, admission, replicas, &scenario.engine))
    }

    /// Requests of `prompt` and `output` tokens at `ms`.
    fn trace(requests: impl Iterator<Item = (u64, u64, u64)>) -> Trace {
        let line = |(ms, prompt, output)| {
            format!("{{\"timestamp\": {ms}, \"input_length\": {prompt}, \"output_length\": {output}}}\n")
        };
        Trace::read(&requests.map(line).collect::<String>()).unwrap()
    }

    #[test]
    fn the_products_policies_serve_a_trace_and_learn_from_it() {
        let trace = trace((0..60).map(|n| (n * 60_000, 300 + 40 * (n % 7), 5)));
        for policy in PolicyName::ALL {
            let figures = ran(&trace, policy, None, 2);
            assert_eq!((figures.requests, figures.refused), (60, 0.0), "{policy:?}");
            assert_eq!(figures.prediction.is_some(), policy == PolicyName::Latency, "{policy:?}");
        }
    }

    #[test]
    fn a_queue_refuses_what_is_beyond_the_fleet_and_the_rest_is_in_time() {
        // Prompts of a second each, two in a second, on one replica: twice what it can do. The bound is two seconds.
        let trace = trace((0..120).map(|n| (n * 500, 1_001, 1)));
        let queue = |max_requests, max_wait| Queue {
            max_requests,
            max_bytes: 1 << 30,
            max_wait: Duration::from_secs(max_wait),
            isolate_long: true,
        };
        let with = |queue: Option<Queue>| {
            let admission = queue.map(|queue| Admission { queue, medium: Tokens(8192) });
            ran(&trace, PolicyName::Latency, admission, 1)
        };
        let open = with(None);
        assert_eq!(open.refused, 0.0, "without a queue nobody is refused");
        for queue in [queue(0, 5), queue(100, 1), queue(2, 60)] {
            let closed = with(Some(queue));
            assert!(closed.refused > 0.2, "{queue:?}: {closed:?}");
            assert!(
                closed.goodput > open.goodput + 0.2,
                "{queue:?}: {} and {}",
                closed.goodput,
                open.goodput
            );
            assert_eq!(closed.failed, 0.0);
        }
    }
}
