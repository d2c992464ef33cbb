//! The product's routing and admission queue as a [`Router`] of the simulator.
//!
//! It calls the same dispatcher, rules and queue as the gateway, with the same ticks; only simulated time and the ends of waits
//! are implemented here. It never reads the engines' true state.

mod prefill;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokenway_sim::engine::Gauges;
use tokenway_sim::replay::{Arrival, Ended, Fleet, Legs, RequestId, Router};
use tokenway_sim::time::Stamp as SimStamp;

pub use self::prefill::ReplayedPrefill;
use self::prefill::{Decoders, PrefillPool};
use super::standings::Standings;
use crate::admission::{
    Deferral, EndOfWait, Entered, Outlook, Position, ROUND_EVERY, Refusal, Rules, Ruling, Share, WaitQueue,
    WaitReason, Waiter, grows_old_after, rule,
};
use crate::clock::Stamp;
use crate::config::{PolicyName, QueueLimits, Slo, Timeouts};
use crate::fleet::arrivals::Arrivals;
use crate::record::SloBounds;
use crate::request::dialect::Computes;
use crate::routing::notice::{Outbox, Placed, place};
use crate::routing::{
    Ask, Assignment, Dispatcher, EngineLimits, EnginePage, Followed, Judged, Policy, Prompt, REFRESH_EVERY,
    SlotSet, Target, policies, rendezvous,
};
use crate::units::Tokens;

/// One gateway in front of one pool, or of one and its prefill pool.
pub struct ProductRouter {
    policy: Box<dyn Policy>,
    /// What it runs.
    pub route: ReplayedRoute,
    /// Its pool's.
    pub dispatcher: Arc<Dispatcher>,
    /// Every replica, by slot.
    pub targets: Vec<Target>,
    untried: SlotSet,
    streams: HashMap<RequestId, SimulatedStream>,
    /// Requests that wait.
    pub queue: WaitQueue<RequestId>,
    waiting: HashMap<RequestId, Wait>,
    /// When each wait ends at the latest.
    ends: BTreeSet<(Stamp, RequestId)>,
    called: VecDeque<RequestId>,
    next_refresh: Stamp,
    /// `None` while the queue is not driven: a round that finds it empty ends the series.
    next_round: Option<Stamp>,
    decisions: u64,
    /// Replicas of the fleet by the names that other gateways have for them.
    places: HashMap<u64, usize>,
    /// Which replicas are in use.
    pub standings: Standings,
    /// Requests so far, and their mean work.
    pub arrivals: Arrivals,
    /// Whose each request is.
    share: fn(&Arrival) -> Share,
    refusals: Vec<(RequestId, Stamp, Refusal)>,
    /// Every request that was sent, where and when.
    #[cfg(test)]
    pub(crate) sent: Vec<(RequestId, usize, Stamp)>,
    /// `[route.prefill]`
    prefill: Option<PrefillPool>,
}

/// A route as a replay runs it.
#[derive(Clone, Copy, Debug)]
pub struct ReplayedRoute {
    /// Routing policy.
    pub policy: PolicyName,
    /// Bounds of its requests.
    pub slo: Slo,
    /// `[route.queue]`; `None` orders requests and refuses none.
    pub queue: Option<QueueLimits>,
    /// `classes.medium`: longer prompts, in tokens, are of class `long`.
    pub medium: Tokens,
    /// Scrape interval and batch limit of its engines.
    pub limits: EngineLimits,
}

struct SimulatedStream {
    assignment: Assignment,
    tokens: u64,
}

struct Wait {
    request: Arrival,
    waiter: Waiter,
    position: Position,
    /// When it first waited for room; kept if it is held again.
    late_since: Option<Stamp>,
    /// When it is refused, and why.
    end: Stamp,
    why: EndOfWait,
}

impl ProductRouter {
    /// A gateway with an empty prefix index and an untrained predictor.
    pub fn new(route: &ReplayedRoute, replicas: usize) -> Self {
        Self {
            policy: policies::named(route.policy),
            route: *route,
            dispatcher: Dispatcher::new(replicas),
            targets: (0..replicas).map(|slot| Target::new(slot, identity(slot))).collect(),
            untried: SlotSet::new(),
            streams: HashMap::new(),
            queue: WaitQueue::default(),
            waiting: HashMap::new(),
            ends: BTreeSet::new(),
            share: |_| Share { tenant: "default".into(), weight: 1, priority: 0 },
            refusals: Vec::new(),
            #[cfg(test)]
            sent: Vec::new(),
            prefill: None,
            called: VecDeque::new(),
            next_refresh: Stamp::default(),
            next_round: None,
            decisions: 0,
            places: places(0..replicas).collect(),
            standings: Standings::new(replicas),
            arrivals: Arrivals::default(),
        }
    }

    /// The same with requests of several tenants.
    pub fn with_shares(self, share: fn(&Arrival) -> Share) -> Self {
        Self { share, ..self }
    }

    /// The same with `replicas` more, which compute prompts for those that decode.
    #[must_use]
    pub fn with_prefill(mut self, keys: ReplayedPrefill, replicas: usize) -> Self {
        let first = self.targets.len();
        self.prefill = Some(PrefillPool::new(keys, self.route.limits, first, replicas));
        self.places.extend(places(first..first + replicas));
        self
    }

    /// Publishes its decisions from now on.
    pub fn announce(&self, outbox: &Arc<Outbox>) {
        self.dispatcher.announce(outbox, POOL);
        if let Some(side) = &self.prefill {
            side.dispatcher.announce(outbox, POOL);
        }
    }

    /// Another gateway before the same replicas sent a request to one of them.
    pub fn follow(&self, placed: &Placed, at: Stamp) -> Option<Followed> {
        let (target, dispatcher) = self.at(*self.places.get(&placed.place)?)?;
        Some(dispatcher.follow(target, placed, at))
    }

    /// A replica, with the dispatcher of its pool.
    fn at(&self, replica: usize) -> Option<(&Target, &Arc<Dispatcher>)> {
        let side = self.prefill.as_ref();
        let of_side = || side.and_then(|side| Some((side.target(replica)?, &side.dispatcher)));
        self.targets.get(replica).map(|target| (target, &self.dispatcher)).or_else(of_side)
    }

    /// Requests that were refused, when and why.
    pub fn refusals(&self) -> &[(RequestId, Stamp, Refusal)] {
        &self.refusals
    }

    /// Where a request is served.
    pub fn slot_of(&self, request: RequestId) -> Option<usize> {
        Some(self.streams.get(&request)?.assignment.decision.slot)
    }

    /// Sends, queues or refuses a request; `before` is its wait so far.
    fn place(&mut self, request: Arrival, before: Option<Wait>, fleet: &mut dyn Fleet) {
        let now = live(fleet.now());
        let id = request.id;
        let is_late = before.as_ref().is_some_and(|wait| wait.waiter.reason == WaitReason::Late);
        self.decisions += 1;
        match self.judge(&request, is_late, now) {
            Some(SimulatedPlacement::Send { assignment, prefill }) => {
                let slot = assignment.decision.slot;
                if let Some(target) = self.targets.get(slot) {
                    self.standings.chosen(target, now);
                }
                self.arrivals.placed(&assignment.decision.terms.work, Computes::Answer);
                let predicted = assignment.decision.predicted_ttft;
                match (prefill, &mut self.prefill) {
                    (Some((leg, after)), Some(side)) => {
                        let prefill = side.begin(request, *leg, &assignment, now);
                        let predicted = predicted.map(|predicted| predicted + after);
                        fleet.send_apart(id, Legs { prefill, decode: slot }, predicted);
                    }
                    _ => {
                        #[cfg(test)]
                        self.sent.push((id, slot, now));
                        fleet.send(id, slot, predicted);
                    }
                }
                self.streams.insert(id, SimulatedStream { assignment: *assignment, tokens: 0 });
                if let Some(wait) = before {
                    self.called.extend(self.queue.placed(wait.position, now));
                    self.ends.remove(&(wait.end, id));
                }
            }
            Some(SimulatedPlacement::Wait(waiter, stay)) => self.wait(request, before, waiter, stay, now),
            // No replica is there.
            None => {
                if let Some(wait) = before {
                    self.leave(id, &wait);
                }
            }
        }
    }

    fn judge(&mut self, request: &Arrival, is_late: bool, now: Stamp) -> Option<SimulatedPlacement> {
        let (ttft, tpot, itl) = (request.ttft_bound, request.tpot_bound, self.route.slo.itl);
        let slo = SloBounds { ttft, tpot, itl, ..SloBounds::default() };
        let prompt = Prompt {
            chain: &request.chain,
            bytes: request.prompt * BYTES_PER_TOKEN,
            tokens: Tokens(request.prompt),
        };
        let ask = Ask {
            slo,
            waited: now.since(live(request.at)),
            queues_late: self.route.queue.is_some(),
            ..Ask::of(prompt, &self.untried)
        };
        let base_ttft = self.route.slo.ttft.filter(|_| slo.ttft.is_some()).map(|bound| bound.base);
        let base_ttft = base_ttft.unwrap_or_default();
        let rules = Rules { queue: self.route.queue, base_ttft, ..Rules::default() };
        let gate = Gate { rules: &rules, waiter: self.waiter(request), is_late };
        let Self {
            policy, dispatcher, targets, standings, route: ReplayedRoute { limits, .. }, queue, ..
        } = self;
        let decoders = Decoders { policy: &**policy, dispatcher, targets, standings, limits };
        let prefill = self
            .prefill
            .as_ref()
            .and_then(|side| Some((side, side.choose(request.id, &ask, &decoders, now)?)));
        let apart = prefill.and_then(|(side, quote)| {
            let first = || Some((Box::new(side.assign(&ask, now)?), quote.ttft));
            side.with_decoder(&quote, &ask, &decoders, now, |judged| gate.settle(judged, queue, Some(first)))
                .flatten()
        });
        let none = None::<fn() -> Option<FirstLeg>>;
        apart.or_else(|| gate.settle(decoders.judge(&ask, now)?, queue, none))
    }

    fn waiter(&self, request: &Arrival) -> Waiter {
        let patience = grows_old_after(request.ttft_bound, Timeouts::default().first_token);
        Waiter {
            reason: WaitReason::Late,
            route: "replayed".into(),
            share: (self.share)(request),
            limits: self.route.queue,
            is_long: Tokens(request.prompt) > self.route.medium,
            bytes: usize::try_from(request.prompt * BYTES_PER_TOKEN).unwrap_or(usize::MAX),
            old_at: Some(live(request.at).after(patience)),
            outlook: Outlook::default(),
        }
    }

    /// Queues a request or keeps it queued; drops it (a refusal) if a limit is exceeded.
    fn wait(&mut self, request: Arrival, before: Option<Wait>, waiter: Waiter, stay: Deferral, now: Stamp) {
        let id = request.id;
        let mut late_since = before.as_ref().and_then(|wait| wait.late_since);
        let suits = |wait: &Wait| (wait.waiter.reason, wait.waiter.lane()) == (waiter.reason, waiter.lane());
        let position = match before {
            Some(wait) if suits(&wait) => {
                self.ends.remove(&(wait.end, id));
                self.called.extend(self.queue.stays(wait.position, stay));
                wait.position
            }
            before => {
                if let Some(wait) = before {
                    self.leave(id, &wait);
                }
                match self.queue.enter(&waiter, id) {
                    Ok(Entered { position, evicted }) => {
                        self.next_round.get_or_insert_with(|| timer(now.after(ROUND_EVERY)));
                        for (gone, refusal) in evicted {
                            self.evict(gone, refusal, now);
                        }
                        position
                    }
                    Err(refusal) => return self.refuse(id, refusal, now),
                }
            }
        };
        if waiter.reason == WaitReason::Late {
            late_since = late_since.or(Some(now));
        }
        let limits = self.route.queue.as_ref();
        let end = EndOfWait::of(waiter.reason, limits, late_since.unwrap_or(now), &waiter.outlook);
        let (end, why) = end.unwrap_or((FAR, EndOfWait::Late));
        let wait = Wait { end, why, request, waiter, position, late_since };
        if timer(wait.end) <= now {
            return self.give_up(id, &wait, now);
        }
        if wait.end < FAR {
            self.ends.insert((wait.end, id));
        }
        self.waiting.insert(id, wait);
    }

    fn leave(&mut self, id: RequestId, wait: &Wait) {
        self.called.extend(self.queue.leave(wait.position));
        self.ends.remove(&(wait.end, id));
    }

    /// Refuses a request whose wait is over.
    fn give_up(&mut self, id: RequestId, wait: &Wait, now: Stamp) {
        let outlook = wait.waiter.outlook;
        let retry_after = self.queue.promise(&wait.waiter.share, &outlook, outlook.drain);
        self.refuse(id, wait.why.refusal(&outlook, retry_after), now);
        self.leave(id, wait);
    }

    fn evict(&mut self, id: RequestId, refusal: Refusal, now: Stamp) {
        if let Some(gone) = self.waiting.remove(&id) {
            self.ends.remove(&(gone.end, id));
        }
        self.refuse(id, refusal, now);
    }

    fn refuse(&mut self, id: RequestId, refusal: Refusal, now: Stamp) {
        self.refusals.push((id, now, refusal));
    }

    /// Refuses requests whose wait is over.
    fn expire(&mut self, now: Stamp) {
        while let Some((end, id)) = self.ends.first().copied().filter(|(end, _)| timer(*end) <= now) {
            self.ends.remove(&(end, id));
            if let Some(wait) = self.waiting.remove(&id) {
                self.give_up(id, &wait, now);
            }
        }
    }

    /// Begins a round; one that finds the queue empty ends the series.
    fn round(&mut self, now: Stamp) {
        if self.queue.is_empty() {
            self.next_round = None;
            return;
        }
        self.next_round = Some(timer(now.after(ROUND_EVERY)));
        self.called.clear();
        self.called.extend(self.queue.tick());
    }

    /// A first token or an end may have made room. Each counts, as at the gateway: several at once are several rounds.
    fn turn(&mut self) {
        if !self.queue.is_empty() {
            self.called.extend(self.queue.turn());
        }
    }

    /// Retries routing for every called request whose wait is not over.
    fn retry_called(&mut self, fleet: &mut dyn Fleet) {
        let now = live(fleet.now());
        while let Some(id) = self.called.pop_front() {
            match self.waiting.remove(&id) {
                Some(wait) if wait.end <= now => self.give_up(id, &wait, now),
                Some(wait) => self.place(wait.request.clone(), Some(wait), fleet),
                None => {}
            }
        }
    }
}

/// What a request meets on its way to a place that was judged.
struct Gate<'a> {
    rules: &'a Rules,
    waiter: Waiter,
    is_late: bool,
}

impl Gate<'_> {
    /// Rules; `first` reserves the leg that computes the prompt elsewhere. `None` where a place is gone.
    fn settle(
        &self,
        judged: Judged<'_>,
        queue: &mut WaitQueue<RequestId>,
        first: Option<impl FnOnce() -> Option<FirstLeg>>,
    ) -> Option<SimulatedPlacement> {
        let waiter = || self.waiter.clone();
        let arriving = |outlook| (!self.is_late).then(|| Waiter { outlook, ..waiter() });
        Some(match rule(self.rules, &judged, self.rules.queue.is_some(), queue, arriving) {
            Ruling::Wait(reason, outlook, stay) => {
                SimulatedPlacement::Wait(Waiter { reason, outlook, ..waiter() }, stay)
            }
            Ruling::Place | Ruling::Degrade => {
                let prefill = match first {
                    Some(first) => Some(first()?),
                    None => None,
                };
                SimulatedPlacement::Send { assignment: Box::new(judged.assign()?), prefill }
            }
        })
    }
}

/// The leg that computes a prompt, and when it will have.
type FirstLeg = (Box<Assignment>, Duration);

enum SimulatedPlacement {
    Send { assignment: Box<Assignment>, prefill: Option<FirstLeg> },
    Wait(Waiter, Deferral),
}

impl Router for ProductRouter {
    fn arrive(&mut self, request: Arrival, fleet: &mut dyn Fleet) {
        self.arrivals.note();
        self.place(request, None, fleet);
        self.retry_called(fleet);
    }

    fn first_token(&mut self, request: RequestId, at: SimStamp) {
        let Some(stream) = self.streams.get_mut(&request) else { return };
        if let Some(side) = &mut self.prefill {
            side.first_token(request, live(at));
        }
        stream.assignment.first_token(live(at));
        stream.tokens = 1;
        self.standings.first_token(stream.assignment.decision.slot, live(at));
        self.turn();
    }

    fn token(&mut self, request: RequestId, at: SimStamp) {
        let Some(stream) = self.streams.get_mut(&request) else { return };
        stream.tokens += 1;
        stream.assignment.progress(stream.tokens, live(at));
    }

    fn ended(&mut self, request: RequestId, end: &Ended) {
        let Some(mut stream) = self.streams.remove(&request) else { return };
        if end.output > 0 {
            self.dispatcher.answered(live(end.at));
            stream.assignment.prompt_reported(None, Some(Tokens(end.cached)));
        }
        if stream.tokens > 0 {
            stream.assignment.served(Tokens(end.output), stream.tokens);
        }
        drop(stream);
        self.turn();
    }

    fn prefilled(&mut self, request: RequestId, end: &Ended) {
        if let Some(side) = &mut self.prefill {
            side.computed(request, end);
        }
    }

    fn transfer_failed(&mut self, request: RequestId, fleet: &mut dyn Fleet) {
        drop(self.streams.remove(&request));
        let lost = self.prefill.as_mut().and_then(|side| side.lost(request, live(fleet.now())));
        if let Some(request) = lost {
            self.place(request, None, fleet);
        }
        self.retry_called(fleet);
    }

    fn scraped(&mut self, replica: usize, at: SimStamp, gauges: &Gauges) {
        if let Some((target, dispatcher)) = self.at(replica) {
            target.scraped(page(gauges), live(at));
            dispatcher.learn_cache(target, BYTES_PER_TOKEN as f64);
        }
    }

    fn next_tick(&self) -> Option<SimStamp> {
        let end = self.ends.first().map(|(end, _)| timer(*end));
        let other = self.next_round.into_iter().chain(end).chain(self.standings.next_look());
        let next = other.fold(self.next_refresh, Stamp::min);
        Some(SimStamp::from_nanos(next.as_nanos()))
    }

    fn tick(&mut self, fleet: &mut dyn Fleet) {
        let now = live(fleet.now());
        if self.next_refresh <= now {
            self.next_refresh = now.after(REFRESH_EVERY);
            let ready = self.targets.iter().filter(|target| self.standings.is_in(target.slot));
            self.dispatcher.refresh(self.targets.iter(), ready, &self.route.limits, now);
            if let Some(side) = &self.prefill {
                side.refresh(now);
            }
        }
        self.standings.look(&self.dispatcher, &self.targets, now);
        // Before waits end: at the gateway a round begins first where both are due at once.
        if self.next_round.is_some_and(|at| at <= now) {
            self.round(now);
        }
        self.expire(now);
        self.retry_called(fleet);
    }

    fn reconsider(&mut self, fleet: &mut dyn Fleet) {
        self.retry_called(fleet);
    }

    fn decisions(&self) -> Option<u64> {
        Some(self.decisions)
    }
}

/// What a scrape of the engine would read.
pub(crate) fn page(gauges: &Gauges) -> EnginePage {
    EnginePage {
        running: Some(gauges.running as f64),
        waiting: Some(gauges.waiting as f64),
        kv_cache_usage: Some(gauges.kv_cache_usage),
        block_tokens: Some(gauges.block_size),
        total_blocks: Some(gauges.num_blocks),
        ..EnginePage::default()
    }
}

/// When a tokio timer for `at` fires: at the next whole millisecond.
fn timer(at: Stamp) -> Stamp {
    Stamp::from_nanos(at.as_nanos().next_multiple_of(1_000_000))
}

/// The live gateway derives identities from the replicas' URLs.
fn identity(replica: usize) -> u64 {
    rendezvous::identity(0, format!("http://127.0.0.1:{}", replica + 1).as_bytes())
}

fn places(replicas: Range<usize>) -> impl Iterator<Item = (u64, usize)> {
    replicas.map(|replica| (place(POOL, identity(replica)), replica))
}

fn live(at: SimStamp) -> Stamp {
    Stamp::from_nanos(at.as_nanos())
}

/// Typical of English text; any value works, since trace prompts are given in tokens.
const BYTES_PER_TOKEN: u64 = 4;
/// The replicas' pool to other gateways.
const POOL: &str = "replayed";
/// Later than any run.
const FAR: Stamp = Stamp::from_nanos(u64::MAX / 2);

#[cfg(test)]
mod tests;
