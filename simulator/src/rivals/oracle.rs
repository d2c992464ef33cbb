//! An oracle: knows every engine's prices, queue, cache and speed, and how long every answer will be.
//!
//! Greedy: it takes the replica where the request's own TTFT, the prompt work it adds and the answers it would push over
//! their bounds cost least, and it holds the request back while that placement would break an answer and its own bound
//! leaves room. It does not know what comes next, so it measures what knowing the present is worth and bounds nothing.
//! The cost has the form of a latency-aware router's, with truth in the place of estimates.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::engine::{Engine, EngineConfig, StepLoad};
use crate::replay::{Arrival, Ended, Fleet, RequestId, Router};
use crate::time::Stamp;

#[derive(Debug)]
pub(super) struct Oracle {
    engine: EngineConfig,
    streams: Vec<HashMap<RequestId, Stream>>,
    replica_of: HashMap<RequestId, usize>,
    /// Held back, earliest deadline first.
    held: BTreeMap<(Stamp, RequestId), Arrival>,
    next_tick: Stamp,
    decisions: u64,
}

/// An answer that is not finished.
#[derive(Clone, Copy, Debug)]
struct Stream {
    output: u64,
    tokens: u64,
    first_token: Option<Stamp>,
    /// Seconds.
    tpot_bound: Option<f64>,
}

/// What a placement would do, in seconds.
#[derive(Clone, Copy, Debug)]
struct Forecast {
    /// From the request's arrival.
    ttft: f64,
    /// Answers pushed over their bounds.
    broken: f64,
    cost: f64,
}

impl Oracle {
    pub(super) fn new(replicas: usize, engine: &EngineConfig) -> Self {
        Self {
            engine: engine.clone(),
            streams: vec![HashMap::new(); replicas],
            replica_of: HashMap::new(),
            held: BTreeMap::new(),
            next_tick: Stamp::default(),
            decisions: 0,
        }
    }

    /// Sends the request to the cheapest replica; false where it should rather wait.
    fn place(&mut self, request: &Arrival, fleet: &mut dyn Fleet) -> bool {
        self.decisions += 1;
        let now = fleet.now();
        let forecasts = fleet.engines().iter().enumerate();
        let forecasts =
            forecasts.map(|(replica, engine)| (replica, self.forecast(replica, request, now, engine)));
        let Some((replica, best)) = forecasts.min_by(|(_, a), (_, b)| a.cost.total_cmp(&b.cost)) else {
            return false;
        };
        let bound = request.ttft_bound.map_or(0.0, |bound| bound.as_secs_f64());
        if best.broken > HOLD_FROM && best.ttft < HOLD_UP_TO * bound {
            return false;
        }
        let tpot_bound = request.tpot_bound.map(|bound| bound.as_secs_f64());
        let stream = Stream { output: request.output, tokens: 0, first_token: None, tpot_bound };
        self.streams[replica].insert(request.id, stream);
        self.replica_of.insert(request.id, replica);
        let from_now = (best.ttft - now.since(request.at).as_secs_f64()).max(0.0);
        fleet.send(request.id, replica, Duration::try_from_secs_f64(from_now).ok());
        true
    }

    /// Tries held requests in order until `max` of them had to stay.
    fn retry_held(&mut self, max: usize, fleet: &mut dyn Fleet) {
        let mut stayed = 0;
        for (key, request) in std::mem::take(&mut self.held) {
            if stayed == max || !self.place(&request, fleet) {
                stayed = max.min(stayed + 1);
                self.held.insert(key, request);
            }
        }
    }

    fn forecast(&self, replica: usize, request: &Arrival, now: Stamp, engine: &Engine) -> Forecast {
        let cost = &self.engine.cost;
        let slowdown = engine.slowdown();
        let step = self.step_seconds(engine) * slowdown;
        let chunk = self.engine.max_batched_tokens as f64;
        // A chunk pays for a step of its own, in which the others decode one token.
        let work = |cached: u64, uncached: u64| {
            cost.prefill_seconds(cached, uncached) * slowdown + (uncached as f64 / chunk).floor() * step
        };
        let waiting: f64 = engine.pending().map(|p| work(p.computed, p.uncomputed())).sum();
        let cached = request.cached_in(engine);
        let own = work(cached, request.prompt.saturating_sub(cached));
        let streams = self.streams[replica].values();
        let stall = Stall { step, waiting, own };
        let broken: f64 = streams.map(|stream| stream.broken_by(now, &stall)).sum();
        let ttft = now.since(request.at).as_secs_f64() + waiting + own + step;
        let bound = request.ttft_bound.map_or(f64::INFINITY, |bound| bound.as_secs_f64());
        let late = ramp(ttft / bound, LATE_FROM, 1.0);
        let crowding = CROWDING * self.streams[replica].len() as f64 * (own + step);
        Forecast { ttft, broken, cost: waiting + 2.0 * own + crowding + BROKEN * (broken + late) }
    }

    fn step_seconds(&self, engine: &Engine) -> f64 {
        let decoding = || engine.pending().filter(|pending| pending.is_running && pending.emitted > 0);
        let sequences = decoding().count() as u64 + 1;
        let context = decoding().map(|pending| pending.computed).sum();
        self.engine.cost.step_seconds(&StepLoad { sequences, tokens: sequences, pairs: 0.0, context })
    }

    fn stream(&mut self, request: RequestId) -> Option<&mut Stream> {
        let replica = self.replica_of.get(&request)?;
        self.streams[*replica].get_mut(&request)
    }
}

/// What an answer meets at a replica, in seconds.
#[derive(Clone, Copy, Debug)]
struct Stall {
    /// One decode step.
    step: f64,
    /// Prompt work that is there already.
    waiting: f64,
    /// Prompt work of the request to be placed.
    own: f64,
}

impl Stream {
    /// How much nearer the request's own prompt work brings the answer to missing its TPOT bound, 0 to 1.
    fn broken_by(&self, now: Stamp, stall: &Stall) -> f64 {
        let (Some(bound), Some(gaps)) =
            (self.tpot_bound, self.output.checked_sub(1).filter(|gaps| *gaps > 0))
        else {
            return 0.0;
        };
        let (elapsed, waiting) = match self.first_token {
            Some(first) => (now.since(first).as_secs_f64(), stall.waiting),
            // Prompts ahead of it delay its first token, not the later ones.
            None => (0.0, 0.0),
        };
        let ends = elapsed + self.output.saturating_sub(self.tokens) as f64 * stall.step;
        let missed = |stall: f64| ramp((ends + stall) / (gaps as f64 * bound), BROKEN_FROM, 1.0);
        missed(waiting + stall.own) - missed(waiting)
    }
}

impl Router for Oracle {
    fn arrive(&mut self, request: Arrival, fleet: &mut dyn Fleet) {
        if !self.place(&request, fleet) {
            if self.held.is_empty() {
                self.next_tick = fleet.now().after(TICK);
            }
            let deadline = request.at.after(request.ttft_bound.unwrap_or_default());
            self.held.insert((deadline, request.id), request);
        }
    }

    fn first_token(&mut self, request: RequestId, at: Stamp) {
        if let Some(stream) = self.stream(request) {
            stream.first_token = Some(at);
            stream.tokens = 1;
        }
    }

    fn token(&mut self, request: RequestId, _: Stamp) {
        if let Some(stream) = self.stream(request) {
            stream.tokens += 1;
        }
    }

    fn ended(&mut self, request: RequestId, _: &Ended) {
        if let Some(replica) = self.replica_of.remove(&request) {
            self.streams[replica].remove(&request);
        }
    }

    fn reconsider(&mut self, fleet: &mut dyn Fleet) {
        self.retry_held(MAX_STAYS_A_STEP, fleet);
    }

    fn next_tick(&self) -> Option<Stamp> {
        (!self.held.is_empty()).then_some(self.next_tick)
    }

    fn tick(&mut self, fleet: &mut dyn Fleet) {
        self.next_tick = fleet.now().after(TICK);
        self.retry_held(MAX_STAYS_A_TICK, fleet);
    }

    fn decisions(&self) -> Option<u64> {
        Some(self.decisions)
    }
}

/// 0 up to `from`, 1 from `to` on, linear in between: work still to come may tip the scales before a bound is reached.
fn ramp(value: f64, from: f64, to: f64) -> f64 {
    ((value - from) / (to - from)).clamp(0.0, 1.0)
}

/// Seconds that a broken answer costs.
const BROKEN: f64 = 10.0;
/// Per answer in flight, as a share of prefill and step.
const CROWDING: f64 = 0.02;
/// Shares of a bound from which it counts as endangered.
const LATE_FROM: f64 = 0.8;
const BROKEN_FROM: f64 = 0.7;
/// Holds a request that would break more than this share of an answer...
const HOLD_FROM: f64 = 0.05;
/// ... while its own TTFT is below this share of its bound.
const HOLD_UP_TO: f64 = 0.8;
const TICK: Duration = Duration::from_millis(10);
/// Held requests that may prove unplaceable before a round ends.
const MAX_STAYS_A_TICK: usize = 16;
const MAX_STAYS_A_STEP: usize = 4;
