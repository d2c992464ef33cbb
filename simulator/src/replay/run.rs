//! One run: arrivals, engines and a router in simulated time. Single-threaded and deterministic under a seed.
//!
//! Four things happen, at one moment in this order: an engine's step ends, the replicas are scraped, the router ticks, a
//! request arrives. The run ends when every request has ended. Between router and engine no time passes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use crate::engine::{Engine, EngineConfig, EngineEvent, JobId, Work};
use crate::time::Stamp;

use super::router::{Arrival, Bounds, Ended, Fleet, RequestId, Router};
use super::tally::{Figures, Tally};
use super::trace::Trace;
use super::workload::{Demand, Planned, plan};

/// Everything about a run but its router.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The engine of every replica.
    pub engine: EngineConfig,
    /// Traffic and fleet size.
    pub demand: Demand,
    /// Replicas with a factor on their step times, which no router is given.
    pub slow: Vec<(usize, f64)>,
    /// Between two scrapes of a replica; at least a millisecond.
    pub scrape_interval: Duration,
    /// What requests are judged by.
    pub bounds: Bounds,
}

/// Runs a trace to its end.
#[must_use]
pub fn run(trace: &Trace, scenario: &Scenario, router: &mut dyn Router) -> Figures {
    let plan = plan(trace, &scenario.demand);
    let mut run = Run::new(scenario, &plan);
    while let Some((at, event)) = run.next_event(router.next_tick()) {
        run.now = at;
        match event {
            Event::StepEnds => run.finish_step(router),
            Event::Scrape => run.scrape(router),
            Event::Tick => router.tick(&mut run),
            Event::Arrival => run.arrive(router),
        }
        run.report_unservable(router);
    }
    let decisions = router.decisions().unwrap_or(plan.len() as u64);
    run.tally.figures(&scenario.bounds, decisions)
}

/// In the order in which they happen at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    StepEnds,
    Scrape,
    Tick,
    Arrival,
}

struct Run<'a> {
    scenario: &'a Scenario,
    plan: &'a [Planned<'a>],
    now: Stamp,
    next_arrival: usize,
    engines: Vec<Engine>,
    /// The request of each engine's jobs: job ids count from zero.
    owners: Vec<Vec<RequestId>>,
    /// Ends of steps; an entry that its engine no longer has is skipped.
    steps: BinaryHeap<Reverse<(Stamp, usize)>>,
    next_scrape: Stamp,
    /// When an engine or a client last did something.
    last_work: Stamp,
    unservable: Vec<RequestId>,
    tally: Tally,
    events: Vec<EngineEvent>,
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario, plan: &'a [Planned<'a>]) -> Self {
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
            plan,
            now: Stamp::default(),
            next_arrival: 0,
            engines: (0..replicas).map(engine).collect(),
            owners: vec![Vec::new(); replicas],
            steps: BinaryHeap::new(),
            next_scrape: Stamp::default(),
            last_work: Stamp::default(),
            unservable: Vec::new(),
            tally: Tally::new(replicas, plan),
            events: Vec::new(),
        }
    }

    /// `None` when nothing is left to do, or only ticks of a router that sends nothing any more.
    fn next_event(&mut self, tick: Option<Stamp>) -> Option<(Stamp, Event)> {
        while let Some(Reverse((at, replica))) = self.steps.peek().copied() {
            if self.engines[replica].next_event_at() == Some(at) {
                break;
            }
            self.steps.pop();
        }
        let step = self.steps.peek().map(|Reverse((at, _))| (*at, Event::StepEnds));
        let arrival = self.plan.get(self.next_arrival).map(|next| (next.at, Event::Arrival));
        let work = step.into_iter().chain(arrival).min();
        let tick = tick.filter(|at| work.is_some() || at.since(self.last_work) <= MAX_IDLE);
        let next = work.into_iter().chain(tick.map(|at| (at, Event::Tick))).min()?;
        Some(next.min((self.next_scrape, Event::Scrape)))
    }

    fn finish_step(&mut self, router: &mut dyn Router) {
        let Some(Reverse((_, replica))) = self.steps.pop() else { return };
        let mut events = std::mem::take(&mut self.events);
        self.engines[replica].advance(self.now, &mut events);
        self.last_work = self.now;
        self.expect_step(replica);
        let mut gives_room = false;
        for event in events.drain(..) {
            gives_room |= event.is_last || event.index == 0;
            self.report(replica, &event, router);
        }
        self.events = events;
        if gives_room {
            router.reconsider(self);
        }
    }

    fn report(&mut self, replica: usize, event: &EngineEvent, router: &mut dyn Router) {
        let Some(&request) = self.owners[replica].get(index(event.job)) else { return };
        let measured = self.tally.request(request);
        measured.token(event.at);
        if event.index == 0 {
            measured.cached = event.cached;
            router.first_token(request, event.at);
        } else {
            router.token(request, event.at);
        }
        if event.is_last {
            router.ended(request, &Ended { at: event.at, output: event.index + 1, cached: event.cached });
            let prompt = self.plan[request.index()].request.prompt;
            let uncached = prompt.saturating_sub(event.cached);
            let work = self.scenario.engine.cost.prefill_seconds(event.cached, uncached);
            self.tally.served(replica, prompt + event.index + 1, work);
        }
    }

    fn scrape(&mut self, router: &mut dyn Router) {
        self.next_scrape = self.now.after(self.scenario.scrape_interval.max(MIN_SCRAPE_INTERVAL));
        for (replica, engine) in self.engines.iter().enumerate() {
            router.scraped(replica, self.now, &engine.gauges());
        }
    }

    fn arrive(&mut self, router: &mut dyn Router) {
        let planned = &self.plan[self.next_arrival];
        let (chain, ends) = planned.gateway_chain();
        let arrival = Arrival {
            id: RequestId(u32::try_from(self.next_arrival).unwrap_or(u32::MAX)),
            at: planned.at,
            prompt: planned.request.prompt,
            chain,
            ends,
            engine_chain: planned.engine_chain(),
            output: planned.request.output,
            ttft_bound: self.scenario.bounds.ttft_of(planned.request.prompt),
            tpot_bound: self.scenario.bounds.tpot,
        };
        self.next_arrival += 1;
        self.last_work = self.now;
        router.arrive(arrival, self);
    }

    /// Outside of `send`, where the router is at work.
    fn report_unservable(&mut self, router: &mut dyn Router) {
        for request in std::mem::take(&mut self.unservable) {
            router.ended(request, &Ended { at: self.now, output: 0, cached: 0 });
        }
    }

    fn expect_step(&mut self, replica: usize) {
        if let Some(at) = self.engines[replica].next_event_at() {
            self.steps.push(Reverse((at, replica)));
        }
    }
}

impl Fleet for Run<'_> {
    fn now(&self) -> Stamp {
        self.now
    }

    fn send(&mut self, request: RequestId, replica: usize, predicted_ttft: Option<Duration>) {
        self.tally.request(request).send(self.now, predicted_ttft);
        let planned = &self.plan[request.index()];
        let (prompt, output) = (planned.request.prompt, planned.request.output);
        let work = Work { chain: planned.engine_chain(), prompt, output };
        let Ok(job) = self.engines[replica].submit_work(self.now, work) else {
            self.tally.request(request).fail();
            self.unservable.push(request);
            return;
        };
        debug_assert_eq!(index(job), self.owners[replica].len(), "job ids count from zero");
        self.owners[replica].push(request);
        self.expect_step(replica);
    }

    fn engines(&self) -> &[Engine] {
        &self.engines
    }

    fn engine(&mut self, replica: usize) -> Option<&mut Engine> {
        self.engines.get_mut(replica)
    }
}

fn index(job: JobId) -> usize {
    usize::try_from(job.0).unwrap_or(usize::MAX)
}

/// How long a router may go on ticking when engines and clients have nothing left to do.
const MAX_IDLE: Duration = Duration::from_secs(600);
const MIN_SCRAPE_INTERVAL: Duration = Duration::from_millis(1);
