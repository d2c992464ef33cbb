//! The product's routing in simulated time: the one file that couples the replay to `crate::routing`.
//!
//! It does what the gateway's picker and journal do live: makes candidates from loads, scrapes and the model, asks
//! [`judge`], reserves load and prefix at once, and reports first tokens and ends. Time is the caller's; what is true
//! inside the engines is never looked at.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::admission::{Rules, Ruling, rule};
use crate::clock::Stamp;
use crate::config::PolicyName;
use crate::record::SloBounds;
use crate::routing::prefix_index::capacity_of;
use crate::routing::{
    Ask, Assignment, Dispatcher as Routing, EngineLimits, EnginePage, EngineSignals, Policy, Prompt, SlotSet,
    Target, policies, rendezvous,
};
use crate::simulate::engine::EngineConfig;
use crate::units::Tokens;

use super::dispatch::{Admission, Dispatcher, Ended, Incoming, Placement, RequestId, Truth, Verdict};

/// One gateway in front of one pool.
pub struct Gateway {
    policy: Box<dyn Policy>,
    routing: Arc<Routing>,
    targets: Vec<Target>,
    streams: HashMap<RequestId, Stream>,
    untried: SlotSet,
    admission: Option<Admission>,
    limits: EngineLimits,
}

struct Stream {
    assignment: Assignment,
    first_token: Option<Stamp>,
    tokens: u64,
}

impl Gateway {
    /// A gateway that knows nothing yet, with a route's policy.
    #[must_use]
    pub fn new(policy: PolicyName, replicas: usize, engine: &EngineConfig) -> Self {
        let routing = Routing::new(replicas);
        // As scraped from `vllm:cache_config_info`.
        let capacity = capacity_of(engine.num_blocks, engine.block_size, BYTES_PER_TOKEN as f64);
        (0..replicas).for_each(|slot| routing.index.set_capacity(slot, capacity));
        Self {
            policy: policies::named(policy),
            routing,
            targets: (0..replicas).map(|slot| Target::new(slot, identity(slot))).collect(),
            streams: HashMap::new(),
            untried: SlotSet::new(),
            admission: None,
            limits: EngineLimits { scrape_interval: Duration::from_secs(1), batch_limit: None },
        }
    }

    /// With the route's `[route.queue]`, where it has one.
    #[must_use]
    pub fn with_admission(self, admission: Option<Admission>) -> Self {
        Self { admission, ..self }
    }
}

impl Dispatcher for Gateway {
    fn place(&mut self, request: &Incoming<'_>, now: Stamp, _: &Truth<'_>) -> Verdict {
        self.routing.refresh(
            self.targets.iter(),
            self.targets.iter(),
            &self.limits,
            BYTES_PER_TOKEN as f64,
            now,
        );
        let block_end = |block: usize| request.ends.get(block).map_or(0, |end| end * BYTES_PER_TOKEN);
        let ask = Ask {
            prompt: Prompt {
                chain: request.chain,
                block_end: &block_end,
                bytes: request.prompt.0 * BYTES_PER_TOKEN,
                tokens: request.prompt,
            },
            session: None,
            slo: SloBounds { ttft: request.ttft_bound(), tpot: request.slo.tpot, ..SloBounds::default() },
            waited: now.since(request.arrived),
            queues_late: self.admission.is_some(),
            shows_first_token: true,
            tried: &self.untried,
        };
        let judged = self.routing.judge(&*self.policy, &ask, &self.limits, now, self.targets.iter());
        let Some(judged) = judged else { return Verdict::Refuse };
        let rules = Rules {
            queue: self.admission.map(|admission| admission.queue),
            degrade: None,
            quick: request.slo.ttft.map_or(Duration::ZERO, |bound| bound.base),
        };
        match rule(&rules, &judged, || request.is_behind_others) {
            Ruling::Hold => return Verdict::Hold { until: now.after(crate::routing::REFRESH_EVERY) },
            Ruling::Queue(outlook) => return Verdict::Queue(outlook),
            Ruling::Degrade | Ruling::Place => {}
        }
        let Some(assignment) = judged.assign() else { return Verdict::Refuse };
        let (replica, predicted_ttft) = (assignment.decision.slot, assignment.decision.predicted_ttft);
        self.streams.insert(request.id, Stream { assignment, first_token: None, tokens: 0 });
        Verdict::Place(Placement { replica, predicted_ttft })
    }

    fn first_token(&mut self, request: RequestId, at: Stamp) {
        let Some(stream) = self.streams.get_mut(&request) else { return };
        stream.assignment.first_token(at);
        (stream.first_token, stream.tokens) = (Some(at), 1);
    }

    fn token(&mut self, request: RequestId, at: Stamp) {
        let Some(stream) = self.streams.get_mut(&request) else { return };
        stream.tokens += 1;
        stream.assignment.progress(stream.tokens, at);
    }

    fn ended(&mut self, request: RequestId, end: &Ended) {
        let Some(stream) = self.streams.remove(&request) else { return };
        if end.output > 0 {
            stream.assignment.cache_reported(end.cached);
        }
        if let Some(first) = stream.first_token {
            stream.assignment.served(first, end.at, Some(Tokens(end.output)));
        }
    }

    fn scraped(&mut self, replica: usize, at: Stamp, signals: &EngineSignals) {
        let page = EnginePage {
            running: signals.running,
            waiting: signals.waiting,
            kv_cache_usage: signals.kv_cache_usage,
            block_tokens: signals.block_tokens,
            total_blocks: signals.total_blocks,
        };
        if let Some(target) = self.targets.get(replica) {
            target.scraped(page, at);
        }
    }
}

fn identity(slot: usize) -> u64 {
    rendezvous::identity(0, format!("replica-{slot}").as_bytes())
}

/// Of English text; any figure would do, since prompts are given in tokens.
const BYTES_PER_TOKEN: u64 = 4;
