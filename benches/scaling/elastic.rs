//! A simulated fleet whose replicas come and go: the product's routing in front of it, and somebody who says how many there should be.
//!
//! A replica that is started loads for its cold start, is ready with an empty cache, may be slow for its first answers, and
//! joins through the product's slow start. One that is stopped gets no more requests, and ends with its last stream.

use std::collections::HashMap;
use std::time::Duration;

use tokenway_sim::engine::Gauges;
use tokenway_sim::replay::{Arrival, Ended, Fleet, RequestId, Router};
use tokenway_sim::time::Stamp as SimStamp;

use tokenway::admission::Line;
use tokenway::clock::Stamp;
use tokenway::fleet::demand::{EngineLoad, PoolLoad, predicted_ttft};
use tokenway::fleet::status::{ColdStarts, ReplicaState};
use tokenway::routing::{Expected, Target};
use tokenway::simulate::{ProductRouter, ReplayedRoute};

/// Says how many replicas there should be.
pub(crate) trait Conductor {
    /// The number from here on, asked for once a second; `replicas` were asked for before.
    fn wanted(&mut self, seconds: f64, load: &PoolLoad, replicas: usize) -> usize;
}

/// What every replica of the fleet is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ElasticFleet {
    /// Replicas that are ready from the start.
    pub(crate) ready: usize,
    /// Replicas at most.
    pub(crate) most: usize,
    /// From the start of a replica until it is ready; each takes up to a fifth more or less.
    pub(crate) cold_start: Duration,
    /// First answers of a new replica that are slow, ...
    pub(crate) slow_answers: u32,
    /// ... and how many times as long everything takes until then.
    pub(crate) slowness: f64,
    /// `pool.warmup.slow_start`
    pub(crate) slow_start: Duration,
    /// Of the cold starts.
    pub(crate) seed: u64,
}

/// State of one replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Life {
    /// It does not exist.
    Off,
    /// It loads until then.
    Starting(Stamp),
    /// It serves.
    Ready,
    /// It finishes its streams.
    Draining,
}

/// What became of one request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Judged {
    /// When it came.
    pub(crate) arrived: Duration,
    /// Replica that answered, and its TTFT; `None` without a first token.
    pub(crate) answered: Option<(usize, Duration)>,
}

struct Slot {
    life: Life,
    started: Stamp,
    cold_starts: ColdStarts,
    slow_answers: u32,
}

/// A gateway in front of such a fleet.
pub(crate) struct Elastic<C> {
    router: ProductRouter,
    fleet: ElasticFleet,
    conductor: C,
    slots: Vec<Slot>,
    random: fastrand::Rng,
    next_turn: Stamp,
    requests: HashMap<RequestId, Judged>,
    /// Replicas that existed, times seconds.
    replica_seconds: f64,
    quick_again: Vec<usize>,
    /// Ready replicas at each turn.
    ready: Vec<usize>,
}

impl<C: Conductor> Elastic<C> {
    /// A fleet before its first request.
    pub(crate) fn new(route: &ReplayedRoute, fleet: ElasticFleet, conductor: C) -> Self {
        let mut router = ProductRouter::new(route, fleet.most);
        let slot = |at: usize| {
            let life = if at < fleet.ready { Life::Ready } else { Life::Off };
            Slot { life, started: Stamp::default(), cold_starts: ColdStarts::default(), slow_answers: 0 }
        };
        (fleet.ready..fleet.most).for_each(|at| router.standings.leaves(at));
        Self {
            router,
            fleet,
            conductor,
            slots: (0..fleet.most).map(slot).collect(),
            random: fastrand::Rng::with_seed(fleet.seed),
            next_turn: Stamp::default(),
            requests: HashMap::new(),
            replica_seconds: 0.0,
            quick_again: Vec::new(),
            ready: Vec::new(),
        }
    }

    /// What became of the requests, in no order.
    pub(crate) fn requests(&self) -> impl Iterator<Item = &Judged> {
        self.requests.values()
    }

    /// Hours of replicas: they cost from their start to their end.
    pub(crate) fn replica_hours(&self) -> f64 {
        self.replica_seconds / 3600.0
    }

    /// Ready replicas in each second.
    pub(crate) fn ready(&self) -> &[usize] {
        &self.ready
    }

    fn count(&self, is_it: impl Fn(Life) -> bool) -> usize {
        self.slots.iter().filter(|slot| is_it(slot.life)).count()
    }

    /// Once a second: replicas become ready and end, and the wanted number is asked for.
    fn turn(&mut self, fleet: &mut dyn Fleet) {
        let now = live(fleet.now());
        self.replica_seconds += self.count(|life| life != Life::Off) as f64;
        for at in 0..self.slots.len() {
            let Some(slot) = self.slots.get_mut(at) else { continue };
            let Some(target) = self.router.targets.get(at) else { continue };
            match slot.life {
                Life::Starting(ready) if ready <= now => {
                    (slot.life, slot.slow_answers) = (Life::Ready, self.fleet.slow_answers);
                    slot.cold_starts.note(now.since(slot.started));
                    self.router.dispatcher.forget(at);
                    self.router.standings.joins(target, self.fleet.slow_start, now);
                    if let Some(engine) = fleet.engine(at) {
                        engine.reset();
                        engine.set_slowdown(if slot.slow_answers > 0 { self.fleet.slowness } else { 1.0 });
                    }
                }
                Life::Draining if target.load.view().inflight == 0 => slot.life = Life::Off,
                _ => {}
            }
        }
        self.ready.push(self.count(|life| life == Life::Ready));
        let there = self.count(|life| matches!(life, Life::Starting(_) | Life::Ready));
        let seconds = now.since(Stamp::default()).as_secs_f64();
        let load = self.load(now);
        let wanted = self.conductor.wanted(seconds, &load, there).clamp(1, self.fleet.most);
        (there..wanted).for_each(|_| self.start(now));
        (wanted..there).for_each(|_| self.stop());
    }

    fn start(&mut self, now: Stamp) {
        let vary = 0.8 + 0.4 * self.random.f64();
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.life == Life::Off) {
            slot.started = now;
            slot.life = Life::Starting(now.after(self.fleet.cold_start.mul_f64(vary)));
        }
    }

    /// As a Deployment does: those that are not ready first, then the newest.
    fn stop(&mut self) {
        let order = |slot: &Slot| match slot.life {
            Life::Starting(_) => Some((1, slot.started)),
            Life::Ready => Some((0, slot.started)),
            Life::Off | Life::Draining => None,
        };
        let last = self.slots.iter().enumerate().filter_map(|(at, slot)| Some((order(slot)?, at))).max();
        let Some((_, at)) = last else { return };
        if let Some(slot) = self.slots.get_mut(at) {
            slot.life = if slot.life == Life::Ready { Life::Draining } else { Life::Off };
        }
        self.router.standings.leaves(at);
    }

    /// What the gateway knows of the pool, as its scaler gets it.
    fn load(&self, now: Stamp) -> PoolLoad {
        let router = &self.router;
        let with = self.slots.iter().zip(&router.targets).filter(|(slot, _)| slot.life != Life::Off);
        let engines: Vec<(usize, EngineLoad)> =
            with.map(|(slot, target)| (target.slot, self.engine(slot, target, now))).collect();
        let ready = || {
            let all = self.slots.iter().zip(&router.targets);
            all.filter(|(slot, _)| slot.life == Life::Ready).map(|(_, target)| target)
        };
        let contexts = engines
            .iter()
            .filter(|(_, engine)| engine.is_ready())
            .map(|(slot, engine)| (*slot, engine.context));
        let typical = router.dispatcher.model.typical(&router.arrivals.mean(), contexts, now);
        let ahead = |last: &tokenway::admission::Waiter| Line::ahead(&router.queue, last);
        let ttft = |typical| {
            let expected = Expected::at(&router.dispatcher, &router.route.limits, ready(), typical, now)?;
            Some(predicted_ttft(&expected, ahead, now))
        };
        PoolLoad {
            is_unseen: false,
            pool: "p".into(),
            is_for_canary: false,
            arrivals: router.arrivals.count(),
            queued: router.queue.len() as u64,
            engines_per_replica: 1,
            predicted_ttft: typical.as_ref().and_then(ttft),
            engines: engines.into_iter().map(|(_, engine)| engine).collect(),
            typical,
            is_starved: false,
        }
    }

    fn engine(&self, slot: &Slot, target: &Target, now: Stamp) -> EngineLoad {
        let limits = &self.router.route.limits;
        let name = format!("r{}-{}", target.slot, slot.started.as_nanos()).into();
        let state = match slot.life {
            Life::Ready => ReplicaState::Ready,
            Life::Draining => ReplicaState::Draining,
            Life::Starting(_) | Life::Off => ReplicaState::Starting,
        };
        EngineLoad::of(name, state, target, now, limits, slot.cold_starts.clone())
    }

    /// Replicas whose slow first answers are over are as quick as others.
    fn quicken(&mut self, fleet: &mut dyn Fleet) {
        for at in self.quick_again.drain(..) {
            if let Some(engine) = fleet.engine(at) {
                engine.set_slowdown(1.0);
            }
        }
    }
}

impl<C: Conductor> Router for Elastic<C> {
    fn arrive(&mut self, request: Arrival, fleet: &mut dyn Fleet) {
        let arrived = live(request.at).since(Stamp::default());
        self.requests.insert(request.id, Judged { arrived, answered: None });
        self.router.arrive(request, fleet);
    }

    fn first_token(&mut self, request: RequestId, at: SimStamp) {
        self.router.first_token(request, at);
        let Some(slot) = self.router.slot_of(request) else { return };
        if let Some(judged) = self.requests.get_mut(&request) {
            let ttft = live(at).since(Stamp::default()).saturating_sub(judged.arrived);
            judged.answered = Some((slot, ttft));
        }
        if let Some(one) = self.slots.get_mut(slot).filter(|one| one.slow_answers > 0) {
            one.slow_answers -= 1;
            if one.slow_answers == 0 {
                self.quick_again.push(slot);
            }
        }
    }

    fn token(&mut self, request: RequestId, at: SimStamp) {
        self.router.token(request, at);
    }

    fn ended(&mut self, request: RequestId, end: &Ended) {
        self.router.ended(request, end);
    }

    fn scraped(&mut self, replica: usize, at: SimStamp, gauges: &Gauges) {
        self.router.scraped(replica, at, gauges);
    }

    fn reconsider(&mut self, fleet: &mut dyn Fleet) {
        self.quicken(fleet);
        self.router.reconsider(fleet);
    }

    fn next_tick(&self) -> Option<SimStamp> {
        let own = SimStamp::from_nanos(self.next_turn.as_nanos());
        Some(self.router.next_tick().map_or(own, |next| next.min(own)))
    }

    fn tick(&mut self, fleet: &mut dyn Fleet) {
        let now = live(fleet.now());
        if self.next_turn <= now {
            self.next_turn = now.after(Duration::from_secs(1));
            self.turn(fleet);
        }
        if self.router.next_tick().is_some_and(|at| at <= fleet.now()) {
            self.router.tick(fleet);
        }
    }
}

fn live(at: SimStamp) -> Stamp {
    Stamp::from_nanos(at.as_nanos())
}
