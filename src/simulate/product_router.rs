//! The product's routing and admission queue as a [`Router`] of the simulator.
//!
//! It calls the same dispatcher, rules and queue as the gateway, with the same ticks; only simulated time and the expiry of
//! `max_wait` are implemented here. It never reads the engines' true state.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokenway_sim::engine::Gauges;
use tokenway_sim::replay::{Arrival, Ended, Fleet, RequestId, Router};
use tokenway_sim::time::Stamp as SimStamp;

use crate::admission::{
    MAX_STAYS, Outlook, Position, ROUND_EVERY, Rules, Ruling, WaitQueue, WaitReason, Waiter, rule,
};
use crate::clock::Stamp;
use crate::config::{PolicyName, QueueLimits, Slo};
use crate::record::SloBounds;
use crate::routing::{
    Ask, Assignment, Dispatcher, EngineLimits, EnginePage, Policy, Prompt, REFRESH_EVERY, SlotSet, Target,
    policies, rendezvous,
};
use crate::units::Tokens;

/// One gateway in front of one pool.
pub struct ProductRouter {
    policy: Box<dyn Policy>,
    rules: Rules,
    /// Longer prompts, in tokens, are of class `long`.
    medium: Tokens,
    limits: EngineLimits,
    dispatcher: Arc<Dispatcher>,
    targets: Vec<Target>,
    untried: SlotSet,
    streams: HashMap<RequestId, SimulatedStream>,
    queue: WaitQueue<RequestId>,
    waiting: HashMap<RequestId, Wait>,
    /// When each late request exceeds `max_wait`.
    expiries: BTreeSet<(Stamp, RequestId)>,
    called: VecDeque<RequestId>,
    next_refresh: Stamp,
    /// `None` while the queue is not driven: a round that finds it empty ends the series.
    next_round: Option<Stamp>,
    decisions: u64,
}

/// A route as a replay runs it.
#[derive(Clone, Copy, Debug)]
pub struct ReplayedRoute {
    /// Routing policy.
    pub policy: PolicyName,
    /// Bounds of its requests.
    pub slo: Slo,
    /// `[route.queue]`; `None` places late requests as well.
    pub queue: Option<QueueLimits>,
    /// `classes.medium`: longer prompts, in tokens, are of class `long`.
    pub medium: Tokens,
    /// Scrape interval and batch limit of its engines.
    pub limits: EngineLimits,
}

struct SimulatedStream {
    assignment: Assignment,
    first_token: Option<Stamp>,
    tokens: u64,
}

/// A waiting request.
struct Wait {
    request: Arrival,
    reason: WaitReason,
    position: Position,
    /// When it first became late; kept if it is held again.
    late_since: Option<Stamp>,
}

impl ProductRouter {
    /// A gateway with an empty prefix index and an untrained predictor.
    #[must_use]
    pub fn new(route: &ReplayedRoute, replicas: usize) -> Self {
        // The live gateway derives identities from the replicas' URLs.
        let identity =
            |slot: usize| rendezvous::identity(0, format!("http://127.0.0.1:{}", slot + 1).as_bytes());
        Self {
            policy: policies::named(route.policy),
            rules: Rules {
                queue: route.queue,
                degrade: None,
                base_ttft: route.slo.ttft.map_or(Duration::ZERO, |bound| bound.base),
            },
            medium: route.medium,
            limits: route.limits,
            dispatcher: Dispatcher::new(replicas),
            targets: (0..replicas).map(|slot| Target::new(slot, identity(slot))).collect(),
            untried: SlotSet::new(),
            streams: HashMap::new(),
            queue: WaitQueue::new(route.queue),
            waiting: HashMap::new(),
            expiries: BTreeSet::new(),
            called: VecDeque::new(),
            next_refresh: Stamp::default(),
            next_round: None,
            decisions: 0,
        }
    }

    /// Sends, queues or refuses a request; `before` is its wait so far.
    fn place(&mut self, request: Arrival, before: Option<Wait>, fleet: &mut dyn Fleet) {
        let now = live(fleet.now());
        let (id, is_late) = (request.id, before.as_ref().is_some_and(|wait| wait.reason == WaitReason::Late));
        self.decisions += 1;
        let held_back = match self.judge(&request, is_late, now) {
            SimulatedPlacement::Send(assignment) => {
                fleet.send(id, assignment.decision.slot, assignment.decision.predicted_ttft);
                self.streams.insert(id, SimulatedStream { assignment, first_token: None, tokens: 0 });
                None
            }
            SimulatedPlacement::Wait(reason, outlook) => Some((reason, outlook)),
            SimulatedPlacement::Refuse => None,
        };
        match (held_back, before) {
            (Some((reason, outlook)), before) => self.wait(request, before, reason, outlook, now),
            (None, Some(wait)) => self.leave(id, &wait),
            (None, None) => {}
        }
    }

    fn judge(&self, request: &Arrival, is_late: bool, now: Stamp) -> SimulatedPlacement {
        let block_end = |block: usize| request.ends.get(block).map_or(0, |end| end * BYTES_PER_TOKEN);
        let ask = Ask {
            prompt: Prompt {
                chain: &request.chain,
                block_end: &block_end,
                bytes: request.prompt * BYTES_PER_TOKEN,
                tokens: Tokens(request.prompt),
            },
            session: None,
            slo: SloBounds { ttft: request.ttft_bound, tpot: request.tpot_bound, ..SloBounds::default() },
            waited: now.since(live(request.at)),
            queues_late: self.rules.queue.is_some(),
            shows_first_token: true,
            tried: &self.untried,
        };
        let targets = self.targets.iter();
        let Some(judged) = self.dispatcher.judge(&*self.policy, &ask, &self.limits, now, targets) else {
            return SimulatedPlacement::Refuse;
        };
        let is_behind_others =
            || !is_late && self.queue.has_late_before(self.is_long(request), deadline(request));
        match rule(&self.rules, &judged, is_behind_others) {
            Ruling::Hold => SimulatedPlacement::Wait(WaitReason::Held, Outlook::default()),
            Ruling::Queue(outlook) => SimulatedPlacement::Wait(WaitReason::Late, outlook),
            Ruling::Place | Ruling::Degrade => {
                judged.assign().map_or(SimulatedPlacement::Refuse, SimulatedPlacement::Send)
            }
        }
    }

    /// Queues a request or keeps it queued; drops it (a refusal) if a limit is exceeded.
    fn wait(
        &mut self,
        request: Arrival,
        before: Option<Wait>,
        reason: WaitReason,
        outlook: Outlook,
        now: Stamp,
    ) {
        let id = request.id;
        let mut late_since = before.as_ref().and_then(|wait| wait.late_since);
        let position = match before {
            Some(wait) if wait.reason == reason => {
                self.called.extend(self.queue.stays(wait.position));
                wait.position
            }
            before => {
                if let Some(wait) = before {
                    self.leave(id, &wait);
                }
                self.next_round.get_or_insert_with(|| timer(now.after(ROUND_EVERY)));
                let bytes = usize::try_from(request.prompt * BYTES_PER_TOKEN).unwrap_or(usize::MAX);
                let is_long = self.is_long(&request);
                let waiter = Waiter { reason, deadline: deadline(&request), is_long, bytes, outlook };
                let Ok(position) = self.queue.enter(&waiter, id) else { return };
                position
            }
        };
        if reason == WaitReason::Late {
            late_since = late_since.or(Some(now));
            self.expiries.extend(late_since.map(|since| (self.expiry(since), id)));
        }
        self.waiting.insert(id, Wait { request, reason, position, late_since });
    }

    fn leave(&mut self, id: RequestId, wait: &Wait) {
        self.called.extend(self.queue.leave(wait.position));
        if let Some(since) = wait.late_since {
            self.expiries.remove(&(self.expiry(since), id));
        }
    }

    /// When a request that became late at `since` exceeds `max_wait`.
    fn expiry(&self, since: Stamp) -> Stamp {
        since.after(self.rules.queue.map_or(Duration::ZERO, |queue| queue.max_wait))
    }

    fn is_long(&self, request: &Arrival) -> bool {
        Tokens(request.prompt) > self.medium
    }

    /// Refuses requests whose `max_wait` has passed and begins a round.
    fn round(&mut self, fleet: &mut dyn Fleet) {
        let now = live(fleet.now());
        self.next_round = Some(timer(now.after(ROUND_EVERY)));
        while let Some((expiry, id)) = self.expiries.first().copied().filter(|(expiry, _)| *expiry <= now) {
            self.expiries.remove(&(expiry, id));
            if let Some(wait) = self.waiting.remove(&id) {
                self.leave(id, &wait);
            }
        }
        self.called.clear();
        self.queue.round(MAX_STAYS, |id| self.called.push_back(*id));
        self.retry_called(fleet);
    }

    /// Retries routing for every called request.
    fn retry_called(&mut self, fleet: &mut dyn Fleet) {
        while let Some(id) = self.called.pop_front() {
            if let Some(wait) = self.waiting.remove(&id) {
                self.place(wait.request.clone(), Some(wait), fleet);
            }
        }
    }
}

/// Decision on one request.
enum SimulatedPlacement {
    Send(Assignment),
    Wait(WaitReason, Outlook),
    Refuse,
}

impl Router for ProductRouter {
    fn arrive(&mut self, request: Arrival, fleet: &mut dyn Fleet) {
        self.place(request, None, fleet);
    }

    fn first_token(&mut self, request: RequestId, at: SimStamp) {
        let Some(stream) = self.streams.get_mut(&request) else { return };
        stream.assignment.first_token(live(at));
        (stream.first_token, stream.tokens) = (Some(live(at)), 1);
    }

    fn token(&mut self, request: RequestId, at: SimStamp) {
        let Some(stream) = self.streams.get_mut(&request) else { return };
        stream.tokens += 1;
        stream.assignment.progress(stream.tokens, live(at));
    }

    fn ended(&mut self, request: RequestId, end: &Ended) {
        let Some(stream) = self.streams.remove(&request) else { return };
        if end.output > 0 {
            self.dispatcher.answered(live(end.at));
            stream.assignment.cache_reported(Tokens(end.cached));
        }
        if let Some(first) = stream.first_token {
            stream.assignment.served(first, live(end.at), Some(Tokens(end.output)));
        }
    }

    fn scraped(&mut self, replica: usize, at: SimStamp, gauges: &Gauges) {
        let page = EnginePage {
            running: Some(gauges.running as f64),
            waiting: Some(gauges.waiting as f64),
            kv_cache_usage: Some(gauges.kv_cache_usage),
            block_tokens: Some(gauges.block_size),
            total_blocks: Some(gauges.num_blocks),
            batch_limit: None,
        };
        if let Some(target) = self.targets.get(replica) {
            target.scraped(page, live(at));
            self.dispatcher.learn_capacity(target, BYTES_PER_TOKEN as f64);
        }
    }

    fn next_tick(&self) -> Option<SimStamp> {
        let next = self.next_round.map_or(self.next_refresh, |round| round.min(self.next_refresh));
        Some(SimStamp::from_nanos(next.as_nanos()))
    }

    fn tick(&mut self, fleet: &mut dyn Fleet) {
        let now = live(fleet.now());
        if self.next_refresh <= now {
            self.next_refresh = now.after(REFRESH_EVERY);
            let (all, ready) = (self.targets.iter(), self.targets.iter());
            self.dispatcher.refresh(all, ready, &self.limits, BYTES_PER_TOKEN as f64, now);
        }
        if self.next_round.is_some_and(|at| at <= now) {
            if self.queue.is_empty() {
                self.next_round = None;
            } else {
                self.round(fleet);
            }
        }
    }

    fn decisions(&self) -> Option<u64> {
        Some(self.decisions)
    }
}

/// When a tokio timer for `at` fires: at the next whole millisecond.
fn timer(at: Stamp) -> Stamp {
    Stamp::from_nanos(at.as_nanos().next_multiple_of(1_000_000))
}

fn live(at: SimStamp) -> Stamp {
    Stamp::from_nanos(at.as_nanos())
}

fn deadline(request: &Arrival) -> Stamp {
    request.ttft_bound.map_or(FAR, |bound| live(request.at).after(bound))
}

/// Typical of English text; any value works, since trace prompts are given in tokens.
const BYTES_PER_TOKEN: u64 = 4;
/// Deadline of requests without a TTFT bound: later than any run.
const FAR: Stamp = Stamp::from_nanos(u64::MAX / 2);

#[cfg(test)]
mod tests {
    use tokenway_sim::engine::{CostModel, EngineConfig};
    use tokenway_sim::replay::{Bounds, Demand, Figures, Scenario, Trace, qwen_32b_on_two_h100, run};

    use super::*;
    use crate::config::TtftBound;

    /// Runs a trace at 1 ms per prompt token and 10 ms per step, with bounds TTFT 2 s and TPOT 50 ms.
    fn ran(trace: &Trace, policy: PolicyName, queue: Option<QueueLimits>, replicas: usize) -> Figures {
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
        let limits = EngineLimits { scrape_interval: scenario.scrape_interval, batch_limit: None };
        let route = ReplayedRoute { policy, slo, queue, medium: Tokens(8192), limits };
        run(trace, &scenario, &mut ProductRouter::new(&route, replicas))
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
        // 1 s prompts at 2/s on one replica: an offered load of twice its capacity. TTFT bound 2 s.
        let trace = trace((0..120).map(|n| (n * 500, 1_001, 1)));
        let queue = |max_requests, max_wait| QueueLimits {
            max_requests,
            max_bytes: 1 << 30,
            max_wait: Duration::from_secs(max_wait),
            isolate_long: true,
        };
        let with = |queue: Option<QueueLimits>| ran(&trace, PolicyName::Latency, queue, 1);
        let open = with(None);
        assert_eq!(open.refused, 0.0, "without a queue no request is refused");
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
