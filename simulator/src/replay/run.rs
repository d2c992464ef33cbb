//! One run: arrivals, engines and a router in simulated time. Single-threaded and deterministic under a seed.
//!
//! Five things happen, at one moment in this order: an engine's step ends, KV arrives, the replicas are scraped, the router ticks,
//! a request arrives. The run ends when every request has ended. Between router and engine no time passes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use crate::engine::{Engine, EngineConfig, EngineEvent, JobId, Unservable, Work};
use crate::time::Stamp;

use super::router::{Arrival, Bounds, Ended, Fleet, Legs, RequestId, Router};
use super::tally::{Figures, Tally};
use super::trace::Trace;
use super::transfers::{KvNetwork, Transfers};
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
    /// Between its replicas, where the router has prompts computed elsewhere.
    pub network: KvNetwork,
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
            Event::KvArrives => run.receive(router),
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
    KvArrives,
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
    /// Of each engine's jobs: job ids count from zero.
    owners: Vec<Vec<Owner>>,
    transfers: Transfers,
    /// Ends of steps; an entry that its engine no longer has is skipped.
    steps: BinaryHeap<Reverse<(Stamp, usize)>>,
    next_scrape: Stamp,
    /// When an engine or a client last did something.
    last_work: Stamp,
    unservable: Vec<RequestId>,
    tally: Tally,
    events: Vec<EngineEvent>,
}

/// Whose a job is.
#[derive(Clone, Copy)]
struct Owner {
    request: RequestId,
    /// Where it is decoded, if this job only computes its prompt.
    decode: Option<usize>,
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
            transfers: Transfers::new(scenario.network, scenario.demand.seed),
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
        let kv = self.transfers.next_at().map(|at| (at, Event::KvArrives));
        let work = step.into_iter().chain(kv).chain(arrival).min();
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
        let Some(&Owner { request, decode }) = self.owners[replica].get(index(event.job)) else { return };
        let ended = Ended { at: event.at, output: event.index + 1, cached: event.cached };
        if let Some(decode) = decode {
            self.tally.request(request).cached = Some(event.cached);
            self.did_prompt(replica, request, event.cached, 0);
            self.hand_over(request, Legs { prefill: replica, decode });
            return router.prefilled(request, &ended);
        }
        let measured = self.tally.request(request);
        measured.token(event.at, self.scenario.bounds.itl_p99);
        let is_apart = measured.is_apart;
        if event.index == 0 {
            measured.cached = measured.cached.filter(|_| is_apart).or(Some(event.cached));
            router.first_token(request, event.at);
        } else {
            router.token(request, event.at);
        }
        if event.is_last {
            router.ended(request, &ended);
            if is_apart {
                self.tally.served(replica, event.index + 1, 0.0);
            } else {
                self.did_prompt(replica, request, event.cached, event.index + 1);
            }
        }
    }

    /// A replica computed a prompt, and decoded so many tokens behind it.
    fn did_prompt(&mut self, replica: usize, request: RequestId, cached: u64, output: u64) {
        let prompt = self.plan[request.index()].request.prompt;
        let work = self.scenario.engine.cost.prefill_seconds(cached, prompt.saturating_sub(cached));
        self.tally.served(replica, prompt + output, work);
    }

    /// The KV of a prompt begins to move, as far as it is not there already.
    fn hand_over(&mut self, request: RequestId, legs: Legs) {
        let planned = &self.plan[request.index()];
        let prompt = planned.request.prompt;
        let cached = self.engines[legs.decode].cached_prefix(&planned.engine_chain(), prompt);
        self.transfers.begin(request, legs, prompt.saturating_sub(cached), self.now);
    }

    fn receive(&mut self, router: &mut dyn Router) {
        let Some(came) = self.transfers.pop() else { return };
        self.last_work = self.now;
        if came.is_lost {
            return router.transfer_failed(came.request, self);
        }
        let work = self.work_of(came.request);
        let submitted = self.engines[came.decode].submit_fetched(self.now, work);
        self.own(submitted, came.decode, Owner { request: came.request, decode: None });
    }

    fn work_of(&self, request: RequestId) -> Work {
        let planned = &self.plan[request.index()];
        Work { chain: planned.engine_chain(), prompt: planned.request.prompt, output: planned.request.output }
    }

    fn own(&mut self, submitted: Result<JobId, Unservable>, replica: usize, owner: Owner) {
        let Ok(job) = submitted else {
            self.tally.request(owner.request).fail();
            self.unservable.push(owner.request);
            return;
        };
        debug_assert_eq!(index(job), self.owners[replica].len(), "job ids count from zero");
        self.owners[replica].push(owner);
        self.expect_step(replica);
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
        let measured = self.tally.request(request);
        measured.send(self.now, predicted_ttft);
        measured.is_apart = false;
        let work = self.work_of(request);
        let submitted = self.engines[replica].submit(self.now, work);
        self.own(submitted, replica, Owner { request, decode: None });
    }

    fn send_apart(&mut self, request: RequestId, legs: Legs, predicted_ttft: Option<Duration>) {
        let measured = self.tally.request(request);
        measured.send(self.now, predicted_ttft);
        measured.is_apart = true;
        let work = Work { output: 1, ..self.work_of(request) };
        let submitted = self.engines[legs.prefill].submit(self.now, work);
        self.own(submitted, legs.prefill, Owner { request, decode: Some(legs.decode) });
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
