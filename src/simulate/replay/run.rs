//! One run: arrivals, engines and a dispatcher in simulated time, one thread, the same under the same seed.
//!
//! Four things happen: an engine's step ends, the replicas are scraped, held requests get their turn, a request comes;
//! at one moment in this order. The run ends when every answer has ended. The way between gateway and engine takes no
//! time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use crate::clock::Stamp;
use crate::config::Slo;
use crate::routing::EngineSignals;
use crate::simulate::engine::{Engine, EngineConfig, EngineEvent, JobId, Work};
use crate::units::Tokens;

use super::dispatch::{Admission, Dispatcher, Ended, Incoming, Placement, RequestId, Truth, Verdict};
use super::held::Held;
use super::tally::{Figures, Flight, Tally};
use super::trace::Trace;
use super::workload::{Arrival, Demand, arrivals};

/// Everything about a run but its dispatcher.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Every replica's engine.
    pub engine: EngineConfig,
    /// The traffic.
    pub demand: Demand,
    /// Replicas whose steps take so many times as long; nobody tells the dispatcher.
    pub slow: Vec<(usize, f64)>,
    /// Between two scrapes of a replica.
    pub scrape_interval: Duration,
    /// What requests are held to.
    pub slo: Slo,
    /// The route's queue, where it has one.
    pub admission: Option<Admission>,
}

/// Runs a trace to its end.
#[must_use]
pub fn run(trace: &Trace, scenario: &Scenario, dispatcher: &mut dyn Dispatcher) -> Figures {
    let arrivals = arrivals(trace, &scenario.demand);
    let mut fleet = Fleet::new(scenario, &arrivals);
    loop {
        let next = fleet.next_event();
        match next {
            None => break,
            Some((at, Happening::StepEnds)) => fleet.finish_steps(at, dispatcher),
            Some((at, Happening::Scrape)) => fleet.scrape(at, dispatcher),
            Some((at, Happening::HeldTurn)) => fleet.held_turn(at, dispatcher),
            Some((at, Happening::Arrival)) => fleet.arrival(at, dispatcher),
        }
    }
    let span = arrivals.last().map_or(Duration::ZERO, |last| last.at.since(Stamp::default()));
    fleet.tally.figures(&arrivals, &scenario.slo, span)
}

/// In the order in which they happen at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    StepEnds,
    Scrape,
    HeldTurn,
    Arrival,
}

struct Fleet<'a> {
    scenario: &'a Scenario,
    arrivals: &'a [Arrival<'a>],
    next_arrival: usize,
    engines: Vec<Engine>,
    /// The requests of each engine's jobs: job ids count from zero.
    owners: Vec<Vec<RequestId>>,
    /// Ends of steps; an entry that its engine no longer has is passed over.
    steps: BinaryHeap<Reverse<(Stamp, usize)>>,
    next_scrape: Stamp,
    held: Held,
    tally: Tally,
    events: Vec<EngineEvent>,
    chain: Vec<u64>,
    ends: Vec<u64>,
}

impl<'a> Fleet<'a> {
    fn new(scenario: &'a Scenario, arrivals: &'a [Arrival<'a>]) -> Self {
        let replicas = scenario.demand.replicas;
        let engine = |replica: usize| {
            let seed = scenario.demand.seed.wrapping_mul(1_000).wrapping_add(replica as u64);
            let mut engine = Engine::new(scenario.engine.clone(), seed);
            let slow = scenario.slow.iter().find(|(slow, _)| *slow == replica);
            engine.set_slowdown(slow.map_or(1.0, |(_, factor)| *factor));
            engine
        };
        Self {
            scenario,
            arrivals,
            next_arrival: 0,
            engines: (0..replicas).map(engine).collect(),
            owners: vec![Vec::new(); replicas],
            steps: BinaryHeap::new(),
            next_scrape: Stamp::default(),
            held: Held::new(scenario.admission),
            tally: Tally::new(replicas, arrivals.iter().map(|arrival| Flight::new(arrival.at))),
            events: Vec::new(),
            chain: Vec::new(),
            ends: Vec::new(),
        }
    }

    fn next_event(&mut self) -> Option<(Stamp, Happening)> {
        while let Some(Reverse((at, replica))) = self.steps.peek().copied() {
            if self.engines[replica].next_event_at() == Some(at) {
                break;
            }
            self.steps.pop();
        }
        let step = self.steps.peek().map(|Reverse((at, _))| (*at, Happening::StepEnds));
        let turn = self.held.next_turn().map(|at| (at, Happening::HeldTurn));
        let arrival = self.arrivals.get(self.next_arrival).map(|next| (next.at, Happening::Arrival));
        let work = [step, turn, arrival].into_iter().flatten().min()?;
        Some(work.min((self.next_scrape, Happening::Scrape)))
    }

    fn finish_steps(&mut self, at: Stamp, dispatcher: &mut dyn Dispatcher) {
        let Some(Reverse((_, replica))) = self.steps.pop() else { return };
        let mut events = std::mem::take(&mut self.events);
        self.engines[replica].advance(at, &mut events);
        self.expect_step(replica);
        let mut has_changed = false;
        for event in events.drain(..) {
            has_changed |= event.is_last || event.index == 0;
            self.tell(replica, &event, dispatcher);
        }
        self.events = events;
        if has_changed {
            self.held.changed();
            self.ask_again(at, dispatcher);
        }
    }

    fn tell(&mut self, replica: usize, event: &EngineEvent, dispatcher: &mut dyn Dispatcher) {
        let Some(&request) = self.owners[replica].get(place(event.job)) else { return };
        let flight = self.tally.flight(request);
        flight.token(event.at);
        if event.index == 0 {
            flight.cached = event.cached;
            dispatcher.first_token(request, event.at);
        } else {
            dispatcher.token(request, event.at);
        }
        if event.is_last {
            let ended = Ended { at: event.at, output: event.index + 1, cached: event.cached };
            dispatcher.ended(request, &ended);
            let prompt = self.arrivals[request.index()].request.prompt;
            let uncached = prompt.saturating_sub(event.cached.0);
            let work = self.scenario.engine.cost.prefill_seconds(event.cached.0, uncached);
            self.tally.worked(replica, work);
        }
    }

    fn scrape(&mut self, at: Stamp, dispatcher: &mut dyn Dispatcher) {
        self.next_scrape = at.after(self.scenario.scrape_interval.max(LEAST_INTERVAL));
        let config = &self.scenario.engine;
        for (replica, engine) in self.engines.iter().enumerate() {
            let gauges = engine.gauges();
            let signals = EngineSignals {
                age: Duration::ZERO,
                running: gauges.running as f64,
                waiting: gauges.waiting as f64,
                kv_cache_usage: gauges.kv_cache_usage,
                batch_limit: Some(config.max_num_seqs as u64),
                block_tokens: Some(config.block_size),
                total_blocks: Some(config.num_blocks),
            };
            dispatcher.scraped(replica, at, &signals);
        }
    }

    fn held_turn(&mut self, at: Stamp, dispatcher: &mut dyn Dispatcher) {
        for request in self.held.turn(at) {
            self.tally.flight(request).refuse();
        }
        self.ask_again(at, dispatcher);
    }

    fn ask_again(&mut self, now: Stamp, dispatcher: &mut dyn Dispatcher) {
        while let Some(request) = self.held.next_called() {
            self.place(request, now, dispatcher);
        }
    }

    fn arrival(&mut self, at: Stamp, dispatcher: &mut dyn Dispatcher) {
        let request = RequestId(u32::try_from(self.next_arrival).unwrap_or(u32::MAX));
        self.next_arrival += 1;
        self.place(request, at, dispatcher);
    }

    fn place(&mut self, id: RequestId, now: Stamp, dispatcher: &mut dyn Dispatcher) {
        let arrival = &self.arrivals[id.index()];
        arrival.gateway_chain(&mut self.chain, &mut self.ends);
        let engine_chain = arrival.engine_chain();
        let mut request = Incoming {
            id,
            arrived: arrival.at,
            prompt: Tokens(arrival.request.prompt),
            chain: &self.chain,
            ends: &self.ends,
            slo: &self.scenario.slo,
            engine_chain: &engine_chain,
            output: arrival.request.output,
            is_behind_others: false,
        };
        request.is_behind_others = self.held.is_behind_others(&request);
        let verdict = dispatcher.place(&request, now, &Truth { engines: &self.engines });
        self.tally.decisions += 1;
        let is_in = match verdict {
            Verdict::Hold { .. } if now.since(arrival.at) > LONGEST_HOLD => false,
            Verdict::Hold { until } => self.held.hold(&request, now, until),
            Verdict::Queue(outlook) => self.held.queue(&request, now, outlook),
            Verdict::Refuse => false,
            Verdict::Place(placement) => {
                let asked = arrival.request;
                let work = Work { chain: engine_chain, prompt: asked.prompt, output: asked.output };
                self.send(id, now, (placement, work), dispatcher);
                self.held.release(id);
                true
            }
        };
        if !is_in {
            self.held.release(id);
            self.tally.flight(id).refuse();
        }
    }

    fn send(
        &mut self,
        id: RequestId,
        now: Stamp,
        (placement, work): (Placement, Work),
        dispatcher: &mut dyn Dispatcher,
    ) {
        self.tally.flight(id).placed(now, placement.predicted_ttft);
        if !self.submit(placement.replica, id, now, work) {
            self.tally.flight(id).fail();
            dispatcher.ended(id, &Ended { at: now, output: 0, cached: Tokens(0) });
        }
    }

    /// Whether the engine takes the work.
    fn submit(&mut self, replica: usize, id: RequestId, now: Stamp, work: Work) -> bool {
        let Ok(job) = self.engines[replica].submit_work(now, work) else { return false };
        debug_assert_eq!(place(job), self.owners[replica].len(), "job ids count from zero");
        self.owners[replica].push(id);
        self.expect_step(replica);
        true
    }

    fn expect_step(&mut self, replica: usize) {
        if let Some(at) = self.engines[replica].next_event_at() {
            self.steps.push(Reverse((at, replica)));
        }
    }
}

fn place(job: JobId) -> usize {
    usize::try_from(job.0).unwrap_or(usize::MAX)
}

/// A dispatcher that never decides loses the request.
const LONGEST_HOLD: Duration = Duration::from_secs(600);
const LEAST_INTERVAL: Duration = Duration::from_millis(1);
