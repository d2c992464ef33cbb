//! An oracle: knows every engine's prices, queue, cache and speed, and how long every answer will be.
//!
//! It is greedy: of all replicas it takes the one where the request's own time to first token, the prompt work it adds
//! and the answers that it would push over their bounds cost least, and it holds the request back while that placement
//! would break an answer and its own bound leaves room. It does not know what comes next, so it is a yardstick for
//! what knowing the present is worth, not a bound. The form of the cost is the product's, with truth in the place of
//! estimates; ten seconds for a broken answer are the product's price too.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::Stamp;
use crate::simulate::engine::{Engine, EngineConfig, StepLoad};
use crate::simulate::replay::{Dispatcher, Ended, Incoming, Placement, RequestId, Truth, Verdict};

/// The oracle.
#[derive(Debug)]
pub(super) struct Oracle {
    engine: EngineConfig,
    streams: Vec<HashMap<RequestId, Stream>>,
    replica_of: HashMap<RequestId, usize>,
}

/// An answer that is not finished.
#[derive(Clone, Copy, Debug)]
struct Stream {
    output: u64,
    tokens: u64,
    first_token: Option<Stamp>,
    tpot: Option<f64>,
}

/// What a placement costs.
#[derive(Clone, Copy, Debug)]
struct Outlook {
    ttft: f64,
    broken: f64,
    cost: f64,
}

impl Oracle {
    pub(super) fn new(replicas: usize, engine: &EngineConfig) -> Self {
        Self { engine: engine.clone(), streams: vec![HashMap::new(); replicas], replica_of: HashMap::new() }
    }

    fn outlook(&self, replica: usize, request: &Incoming<'_>, now: Stamp, engine: &Engine) -> Outlook {
        let cost = &self.engine.cost;
        let slowdown = engine.slowdown();
        let step = self.step_seconds(engine) * slowdown;
        let chunk = self.engine.max_batched_tokens as f64;
        // A chunk pays for a step of its own, in which the others decode one token.
        let work = |cached: u64, uncached: u64| {
            cost.prefill_seconds(cached, uncached) * slowdown + (uncached as f64 / chunk).floor() * step
        };
        let waiting: f64 = engine.pending().map(|p| work(p.computed, p.uncomputed())).sum();
        let cached = engine.cached_prefix(request.engine_chain, request.prompt).0;
        let own = work(cached, request.prompt.0.saturating_sub(cached));
        let streams = self.streams[replica].values();
        let broken: f64 = streams.map(|stream| stream.broken_by(now, step, (waiting, own))).sum();
        let ttft = now.since(request.arrived).as_secs_f64() + waiting + own + step;
        let bound = request.ttft_bound().map_or(f64::INFINITY, |bound| bound.as_secs_f64());
        let late = ramp(ttft / bound, LATE_FROM, 1.0);
        let crowding = CROWDING * self.streams[replica].len() as f64 * (own + step);
        Outlook { ttft, broken, cost: waiting + 2.0 * own + crowding + BROKEN * (broken + late) }
    }

    fn step_seconds(&self, engine: &Engine) -> f64 {
        let decoding = || engine.pending().filter(|pending| pending.is_running && pending.emitted > 0);
        let sequences = decoding().count() as u64 + 1;
        let context = decoding().map(|pending| pending.computed).sum();
        self.engine.cost.step_seconds(&StepLoad { sequences, tokens: sequences, pairs: 0.0, context })
    }
}

impl Stream {
    /// How much nearer to missing its TPOT bound an answer comes when `own` seconds of prompt are computed after the
    /// `waiting` ones that it is going to sit through in any case.
    fn broken_by(&self, now: Stamp, step: f64, (waiting, own): (f64, f64)) -> f64 {
        let (Some(bound), Some(gaps)) = (self.tpot, self.output.checked_sub(1).filter(|gaps| *gaps > 0))
        else {
            return 0.0;
        };
        let (elapsed, waiting) = match self.first_token {
            Some(first) => (now.since(first).as_secs_f64(), waiting),
            // It will have sat through its elders' prompts before its own first token.
            None => (0.0, 0.0),
        };
        let ends = elapsed + self.output.saturating_sub(self.tokens) as f64 * step;
        let missed = |stall: f64| ramp((ends + stall) / (gaps as f64 * bound), BROKEN_FROM, 1.0);
        missed(waiting + own) - missed(waiting)
    }
}

impl Dispatcher for Oracle {
    fn place(&mut self, request: &Incoming<'_>, now: Stamp, truth: &Truth<'_>) -> Verdict {
        let outlooks = truth.engines.iter().enumerate();
        let outlooks =
            outlooks.map(|(replica, engine)| (replica, self.outlook(replica, request, now, engine)));
        let Some((replica, best)) = outlooks.min_by(|(_, a), (_, b)| a.cost.total_cmp(&b.cost)) else {
            return Verdict::Refuse;
        };
        let bound = request.ttft_bound().map_or(0.0, |bound| bound.as_secs_f64());
        if best.broken > HOLD_FROM && best.ttft < HOLD_UP_TO * bound {
            return Verdict::Hold { until: now.after(Duration::from_millis(10)) };
        }
        let tpot = request.slo.tpot.map(|tpot| tpot.as_secs_f64());
        let stream = Stream { output: request.output, tokens: 0, first_token: None, tpot };
        self.streams[replica].insert(request.id, stream);
        self.replica_of.insert(request.id, replica);
        let from_now = (best.ttft - now.since(request.arrived).as_secs_f64()).max(0.0);
        let predicted_ttft = Duration::try_from_secs_f64(from_now).ok();
        Verdict::Place(Placement { replica, predicted_ttft })
    }

    fn first_token(&mut self, request: RequestId, at: Stamp) {
        let Some(replica) = self.replica_of.get(&request) else { return };
        if let Some(stream) = self.streams[*replica].get_mut(&request) {
            stream.first_token = Some(at);
            stream.tokens = 1;
        }
    }

    fn token(&mut self, request: RequestId, _: Stamp) {
        let Some(replica) = self.replica_of.get(&request) else { return };
        if let Some(stream) = self.streams[*replica].get_mut(&request) {
            stream.tokens += 1;
        }
    }

    fn ended(&mut self, request: RequestId, _: &Ended) {
        if let Some(replica) = self.replica_of.remove(&request) {
            self.streams[replica].remove(&request);
        }
    }
}

/// Zero up to `from`, one from `to` on: what is still to come may tip the scales before the bound is reached.
fn ramp(value: f64, from: f64, to: f64) -> f64 {
    ((value - from) / (to - from)).clamp(0.0, 1.0)
}

/// Seconds that a broken answer is worth.
const BROKEN: f64 = 10.0;
const CROWDING: f64 = 0.02;
/// Shares of a bound from which it counts as endangered.
const LATE_FROM: f64 = 0.8;
const BROKEN_FROM: f64 = 0.7;
const HOLD_FROM: f64 = 0.05;
const HOLD_UP_TO: f64 = 0.8;
