//! The admission queue of a pool: requests of all its routes that wait, bounded and in order. Pure.
//!
//! The order is: lane (requests with a bound that can be met, then best effort; in each by priority), then the tenant that
//! starts first in virtual time (`virtual_time`), then the earliest of the latest starts (EDF); those that grow old as best effort have
//! a turn now and then before them (`aging`). Where `isolate_long` is set, long prompts of a tenant are a flow of their own. One waiter
//! at a time is called to retry routing, which keeps the order; a round ends when no replica has room, and who cannot be placed for
//! reasons of its own is passed over. The caller keeps time and wakes tasks.

use std::collections::BTreeMap;
use std::time::Duration;

use smallvec::SmallVec;

use super::MAX_STAYS;
use super::aging::Aging;
use super::flow::{Flow, FlowKey, Position, QueueEntry};
use super::outlook::{Deferral, Outlook};
use super::pace::Pace;
use super::refusal::{Exceeded, Refusal};
use super::usage::{Over, UsageKey, Usages};
use super::virtual_time::VirtualTime;
use super::waiter::{Lane, Share, WaitReason, Waiter};
use crate::clock::Stamp;
use crate::config::QueueLimits;

/// A position that was given, and those that lost theirs to it.
#[derive(Debug)]
pub struct Entered<T> {
    /// Of the request that entered.
    pub position: Position,
    /// Requests of tenants above their share of a full queue, with what to tell them. They have left.
    pub evicted: SmallVec<[(T, Refusal); 1]>,
}

/// Waiting requests; `T` is the handle by which the caller wakes one.
#[derive(Debug, Default)]
pub struct WaitQueue<T> {
    flows: Vec<Flow<T>>,
    usages: Usages,
    virtual_time: VirtualTime,
    next: u64,
    /// Called, no answer yet.
    called: Option<Position>,
    round: u64,
    /// Calls left in this round.
    left: usize,
    /// Another round is due when this one is over.
    is_due: bool,
    pace: Pace,
    aging: Aging,
}

/// What would be left of a queue without some of those that wait.
struct Rest {
    usages: Usages,
    /// Those, each with the limit that it takes.
    gone: SmallVec<[(Position, Over); 1]>,
}

impl Rest {
    fn has(&self, key: &FlowKey) -> bool {
        !self.gone.iter().any(|(gone, _)| gone.key == *key)
    }
}

impl<T: Clone> WaitQueue<T> {
    /// Adds a request.
    ///
    /// # Errors
    /// The limit that it would exceed: its wait would be too long, or the queue of its route is full and its tenant has its
    /// share of it.
    pub fn enter(&mut self, waiter: &Waiter, call: T) -> Result<Entered<T>, Refusal> {
        let mut evicted = SmallVec::new();
        let limits = waiter.limits.filter(|_| waiter.reason != WaitReason::Held);
        if let Some(limits) = limits {
            self.expect_in_time(waiter, &limits)?;
            self.make_room(waiter, &limits, &mut evicted)?;
        }
        let at = waiter.outlook.at;
        self.aging.note(at);
        self.pace.came(&waiter.share, &waiter.outlook);
        if self.is_empty() {
            self.virtual_time.resume(at);
        }
        let usage = limits.map(|_| waiter.usage());
        if let Some(usage) = &usage {
            self.usages.add(usage, waiter.bytes);
        }
        let flow = self.flow_of(waiter);
        let key = (waiter.outlook.latest, self.next);
        self.next += 1;
        let entry = QueueEntry {
            reason: waiter.reason,
            usage,
            bytes: waiter.bytes,
            work: waiter.outlook.work,
            old_at: waiter.old_at,
            is_silent: false,
            due: 0,
            call,
        };
        let position = self.flows.get_mut(flow).map(|flow| {
            flow.add(key, entry);
            Position { flow: flow.id, key }
        });
        let position = position.expect("invariant: the flow was found or made just before");
        if self.has_backlog() {
            self.pace.resume(at);
        }
        Ok(Entered { position, evicted })
    }

    /// `Retry-After` of a request like this one: when it would fit, behind those of its tenant that were refused before.
    pub fn promise(&mut self, share: &Share, outlook: &Outlook, until_it_fits: Duration) -> Duration {
        self.pace.promise(share, outlook, until_it_fits)
    }

    /// Whether refused requests are to come back: then those that arrive are compared with them, though none waits.
    pub fn has_promised(&self) -> bool {
        self.pace.has_promised()
    }

    /// Removes a request. If it was the called one, the next is called and returned.
    pub fn leave(&mut self, position: Position) -> Option<T> {
        self.remove(position)?;
        if self.called == Some(position) { self.call_next() } else { None }
    }

    /// As [`Self::leave`], for a request that was placed: its work counts as its tenant's.
    pub fn placed(&mut self, position: Position, now: Stamp) -> Option<T> {
        if let Some(flow) = self.flows.iter().find(|flow| flow.id == position.flow)
            && let Some(entry) = flow.waiting.get(&position.key)
        {
            let (share, is_long, work) = (flow.share.clone(), flow.is_long, entry.work);
            let is_old = flow.lane.is_best_effort && self.aging.is_old(entry.old_at);
            self.charge(&share, is_long, work, now);
            if is_old {
                self.aging.took_turn(work);
            }
        }
        self.leave(position)
    }

    /// A called request could not be placed: the next is called and returned, unless the round is over.
    pub fn stays(&mut self, position: Position, stay: Deferral) -> Option<T> {
        let (round, rounds) = (self.round, self.len() / MAX_STAYS);
        let is_called = self.called == Some(position);
        let entry = self.entry(position)?;
        entry.is_silent = false;
        if !is_called {
            return None;
        }
        // So that a round reaches everybody in turn where more wait than it can call.
        entry.due = round + 1 + if stay == Deferral::Request { rounds as u64 } else { 0 };
        if stay == Deferral::NoCapacity {
            self.left = 0;
        }
        self.call_next()
    }

    /// Something changed: calls the first in order. While a call is out, the round after it is due.
    pub fn turn(&mut self) -> Option<T> {
        if self.called.is_some() {
            self.is_due = true;
            return None;
        }
        self.begin_round()
    }

    /// Time has passed: calls the first in order. A waiter that did not respond to its last wake-up is skipped this round.
    pub fn tick(&mut self) -> Option<T> {
        if let Some(silent) = self.called.take().and_then(|called| self.entry(called)) {
            silent.is_silent = true;
        }
        self.begin_round()
    }

    /// Handles of the requests that a gateway which drains does not wait for: those that may be refused, and those without a replica.
    pub fn refusable(&self) -> impl Iterator<Item = &T> {
        let all = self.flows.iter().flat_map(|flow| flow.waiting.values());
        let is_refusable =
            |entry: &&QueueEntry<T>| entry.usage.is_some() || entry.reason == WaitReason::NoReplica;
        all.filter(is_refusable).map(|entry| &entry.call)
    }

    /// Whether no request waits, held ones included.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Number of waiting requests, held ones included.
    pub fn len(&self) -> usize {
        self.flows.iter().map(|flow| flow.waiting.len()).sum()
    }

    fn has_backlog(&self) -> bool {
        self.flows.iter().any(|flow| flow.late > 0)
    }

    fn expect_in_time(&mut self, waiter: &Waiter, limits: &QueueLimits) -> Result<(), Refusal> {
        if limits.max_requests == 0 || waiter.reason == WaitReason::NoReplica {
            return Ok(());
        }
        let outlook = &waiter.outlook;
        if outlook.is_held_back {
            return Ok(());
        }
        let wait = outlook.drain.saturating_add(self.ahead(waiter).unwrap_or_default());
        let most = outlook.slack.map_or(limits.max_wait, |slack| slack.min(limits.max_wait));
        if wait <= most {
            return Ok(());
        }
        let retry_after = self.promise(&waiter.share, outlook, wait.saturating_sub(most));
        let exceeded = if wait > limits.max_wait {
            Exceeded::TooLong { wait, max: limits.max_wait }
        } else {
            Exceeded::Late { wait, slack: most, bound: outlook.bound }
        };
        Err(Refusal { exceeded, retry_after })
    }

    /// Sees to it that the queue of its route is not over its limits with the request. Those of a priority below 0 and its own go
    /// first, the lowest before others; then those of the tenant that is furthest above its share, the ones with the latest start first.
    /// None goes where all that may go are too few.
    fn make_room(
        &mut self,
        waiter: &Waiter,
        limits: &QueueLimits,
        evicted: &mut SmallVec<[(T, Refusal); 1]>,
    ) -> Result<(), Refusal> {
        let key = waiter.usage();
        let Some(over) = self.usages.over(&key, waiter.bytes, limits) else { return Ok(()) };
        let victims = self.victims(waiter, limits);
        let refusal = |queue: &mut Self, share: &Share, over| {
            let until = queue.pace.time_for(waiter.outlook.work, &waiter.outlook);
            let retry_after = queue.promise(share, &waiter.outlook, until);
            Refusal { exceeded: queue.usages.exceeded(&key, over, waiter.bytes, limits), retry_after }
        };
        let Some(victims) = victims else { return Err(refusal(self, &waiter.share, over)) };
        for (position, over) in victims {
            let whose =
                self.flows.iter().find(|flow| flow.id == position.flow).map(|flow| flow.share.clone());
            let refusal = refusal(self, whose.as_ref().unwrap_or(&waiter.share), over);
            let Some(gone) = self.remove(position) else { continue };
            if self.called == Some(position) {
                self.called = None;
            }
            evicted.push((gone.call, refusal));
        }
        Ok(())
    }

    /// Those that have to go, each with the limit that it takes; `None` where that is not enough.
    fn victims(&self, waiter: &Waiter, limits: &QueueLimits) -> Option<SmallVec<[(Position, Over); 1]>> {
        let key = waiter.usage();
        let mut rest = Rest { usages: self.usages.clone(), gone: SmallVec::new() };
        while let Some(over) = rest.usages.over(&key, waiter.bytes, limits) {
            let last = self.sheddable(waiter, limits, &rest);
            let last = last.or_else(|| self.above_share(waiter, over, &rest))?;
            let entry = self.flows.iter().find(|flow| flow.id == last.flow)?.waiting.get(&last.key)?;
            rest.usages.remove(entry.usage.as_ref()?, entry.bytes);
            rest.gone.push((last, over));
        }
        Some(rest.gone)
    }

    fn weight_of(&self, tenant: &str, waiter: &Waiter) -> u32 {
        let known = self.flows.iter().map(|flow| &flow.share).chain([&waiter.share]);
        known.into_iter().find(|share| *share.tenant == *tenant).map_or(1, |share| share.weight.max(1))
    }

    /// Of the requests that may be shed for the sake of this one the last; `None` where they do not make room for it.
    fn sheddable(&self, waiter: &Waiter, limits: &QueueLimits, rest: &Rest) -> Option<Position> {
        let key = waiter.usage();
        let is_its = |place: &FlowKey, entry: &QueueEntry<T>| {
            entry.usage.as_ref().is_some_and(|usage| usage.is_beside(&key)) && rest.has(place)
        };
        let below = || self.flows.iter().filter(|flow| flow.share.priority < waiter.share.priority.min(0));
        let waiting = below().flat_map(|flow| &flow.waiting).filter(|(place, entry)| is_its(place, entry));
        let bytes = waiting.map(|(_, entry)| entry.bytes).sum();
        if !rest.usages.fits_without(&key, bytes, waiter.bytes, limits) {
            return None;
        }
        below()
            .filter_map(|flow| flow.last(is_its))
            .max_by_key(|(lane, position)| (lane.priority, *lane, position.key))
            .map(|(_, position)| position)
    }

    /// The last of the tenant that is furthest above its share, if that may go for the sake of this request.
    fn above_share(&self, waiter: &Waiter, over: Over, rest: &Rest) -> Option<Position> {
        let weight = |tenant: &str| self.weight_of(tenant, waiter);
        let victim = rest.usages.furthest_over(&waiter.usage(), over, waiter.bytes, weight)?;
        let (lane, last) = self.last_of(&victim, rest)?;
        // What may be shed takes the place of nothing that is above it.
        let may_take = waiter.share.priority >= 0 || lane.priority >= waiter.lane().priority;
        may_take.then_some(last)
    }

    /// The last in order of those that count as `usage`.
    fn last_of(&self, usage: &UsageKey, rest: &Rest) -> Option<(Lane, Position)> {
        let is_its =
            |place: &FlowKey, entry: &QueueEntry<T>| entry.usage.as_ref() == Some(usage) && rest.has(place);
        let of = |flow: &Flow<T>| flow.last(is_its);
        self.flows.iter().filter_map(of).max_by_key(|(lane, position)| (*lane, position.key))
    }

    fn begin_round(&mut self) -> Option<T> {
        self.round += 1;
        (self.left, self.is_due) = (MAX_STAYS, false);
        self.call_next()
    }

    /// Calls the first in order that was not called in this round.
    fn call_next(&mut self) -> Option<T> {
        self.called = None;
        if let Some(left) = self.left.checked_sub(1)
            && let Some((position, call)) = self.first()
        {
            (self.left, self.called) = (left, Some(position));
            return Some(call);
        }
        if std::mem::take(&mut self.is_due) { self.begin_round() } else { None }
    }

    fn first(&self) -> Option<(Position, T)> {
        let is_due = |entry: &QueueEntry<T>| !entry.is_silent && entry.due <= self.round;
        let of = |flow: &Flow<T>| {
            let (key, entry) = flow.waiting.iter().find(|(_, entry)| is_due(entry))?;
            let lane = self.lane_of(flow.lane, &flow.share, flow.is_long);
            let order = (lane, self.virtual_time.start(&flow.share.tenant, flow.is_long), *key);
            Some((order, (Position { flow: flow.id, key: *key }, entry.call.clone())))
        };
        let (order, first) = self.flows.iter().filter_map(of).min_by_key(|(order, _)| *order)?;
        match self.old_in_turn(order.0).filter(|(_, _, entry)| is_due(entry)) {
            Some((flow, key, entry)) => Some((Position { flow: flow.id, key }, entry.call.clone())),
            None => Some(first),
        }
    }

    /// The lane in which a tenant's requests wait now. Who is late is not put off for as long as another tenant has fresh ones: with less
    /// than its part of the work it waits among those that can be in time.
    fn lane_of(&self, lane: Lane, share: &Share, is_long: bool) -> Lane {
        let is_owed = || self.virtual_time.behind(&share.tenant, is_long) > MOST_BEHIND;
        Lane { is_best_effort: lane.is_best_effort && !is_owed(), ..lane }
    }

    /// The request that has waited longest as best effort where it is its turn before those of a lane.
    fn old_in_turn(&self, lane: Lane) -> Option<(&Flow<T>, FlowKey, &QueueEntry<T>)> {
        let old = self.flows.iter().filter_map(|flow| flow.old(&self.aging));
        let (flow, key, entry) = old.min_by_key(|(_, key, _)| *key)?;
        // Higher priorities go first, whatever waits.
        let may_go = flow.lane.priority <= lane.priority && self.aging.has_turn(entry.work);
        may_go.then_some((flow, key, entry))
    }

    fn charge(&mut self, share: &Share, is_long: bool, work: Duration, now: Stamp) {
        self.aging.note(now);
        let waits = self.flows.iter().any(|flow| flow.old(&self.aging).is_some());
        self.aging.placed(work, waits);
        self.pace.placed(work, now);
        self.virtual_time.charge(share, is_long, work, now);
    }

    /// The index of a waiter's flow, made if there is none.
    fn flow_of(&mut self, waiter: &Waiter) -> usize {
        let (lane, is_long) = (waiter.lane(), waiter.is_apart());
        let is_its = |flow: &Flow<T>| {
            (flow.lane, flow.is_long) == (lane, is_long) && flow.share.tenant == waiter.share.tenant
        };
        if let Some(known) = self.flows.iter().position(is_its) {
            // A reload may have changed the weight since.
            if let Some(flow) = self.flows.get_mut(known) {
                flow.share.weight = waiter.share.weight;
            }
            return known;
        }
        self.virtual_time.enter(&waiter.share.tenant, is_long);
        let id = self.next;
        self.next += 1;
        let (share, waiting) = (waiter.share.clone(), BTreeMap::new());
        self.flows.push(Flow { id, lane, share, is_long, waiting, work: Duration::ZERO, late: 0 });
        self.flows.len() - 1
    }

    fn entry(&mut self, position: Position) -> Option<&mut QueueEntry<T>> {
        self.flows.iter_mut().find(|flow| flow.id == position.flow)?.waiting.get_mut(&position.key)
    }

    fn remove(&mut self, position: Position) -> Option<QueueEntry<T>> {
        let at = self.flows.iter().position(|flow| flow.id == position.flow)?;
        let flow = self.flows.get_mut(at)?;
        let gone = flow.take(position.key)?;
        if flow.waiting.is_empty() {
            let flow = self.flows.swap_remove(at);
            self.virtual_time.leave(&flow.share.tenant, flow.is_long);
        }
        if let Some(usage) = &gone.usage {
            self.usages.remove(usage, gone.bytes);
        }
        if self.flows.is_empty() {
            self.is_due = false;
        }
        if !self.has_backlog() {
            self.pace.pause();
        }
        Some(gone)
    }
}

/// Work over weight that others may have before a tenant's late requests: about a bound on TTFT of one replica.
const MOST_BEHIND: Duration = Duration::from_secs(2);

/// A pool's queue, live or simulated.
pub trait Line {
    /// The predicted wait behind those that are before a request; `None` if none is.
    fn ahead(&self, waiter: &Waiter) -> Option<Duration>;
    /// A request went past those that wait, as it was before all of them.
    fn passed(&mut self, waiter: &Waiter, now: Stamp);
}

impl<T: Clone> Line for WaitQueue<T> {
    fn ahead(&self, waiter: &Waiter) -> Option<Duration> {
        let lane = self.lane_of(waiter.lane(), &waiter.share, waiter.is_apart());
        let lane_of = |flow: &Flow<T>| self.lane_of(flow.lane, &flow.share, flow.is_long);
        let old =
            self.old_in_turn(lane).filter(|(flow, ..)| lane_of(flow) > lane).map(|(_, _, entry)| entry.work);
        let before: Duration =
            self.flows.iter().filter(|flow| lane_of(flow) < lane).map(|flow| flow.work).sum();
        let before = before + old.unwrap_or_default();
        let (mut own, mut is_behind) = (Duration::ZERO, old.is_some());
        let others = || self.flows.iter().filter(|flow| lane_of(flow) == lane);
        let is_own =
            |flow: &Flow<T>| flow.share.tenant == waiter.share.tenant && flow.is_long == waiter.is_apart();
        for flow in others().filter(|flow| is_own(flow)) {
            let earlier = flow.waiting.range(..=(waiter.outlook.latest, u64::MAX));
            for (_, entry) in earlier.filter(|(_, entry)| entry.reason == WaitReason::Late) {
                (own, is_behind) = (own + entry.work, true);
            }
        }
        // Until this one's turn another flow is served as much as this one is, by their weights.
        let until = (own + waiter.outlook.work).as_secs_f64() / f64::from(waiter.share.weight.max(1));
        let mut beside = Duration::ZERO;
        for flow in others().filter(|flow| !is_own(flow) && flow.late > 0) {
            let share = Duration::try_from_secs_f64(until * f64::from(flow.share.weight.max(1)));
            (beside, is_behind) = (beside + flow.work.min(share.unwrap_or(Duration::MAX)), true);
        }
        let own_start = self.virtual_time.start(&waiter.share.tenant, waiter.is_apart());
        let is_before =
            |other: Lane, tenant: &str| (other, self.virtual_time.start(tenant, false)) < (lane, own_start);
        for (weight, work) in self.pace.kept(waiter, is_before) {
            let share = Duration::try_from_secs_f64(until * f64::from(weight));
            (beside, is_behind) = (beside + work.min(share.unwrap_or(Duration::MAX)), true);
        }
        let is_behind = is_behind || self.flows.iter().any(|flow| lane_of(flow) < lane && flow.late > 0);
        is_behind.then(|| self.pace.time_for(before + own + beside, &waiter.outlook))
    }

    fn passed(&mut self, waiter: &Waiter, now: Stamp) {
        if self.is_empty() {
            if !self.has_promised() {
                return;
            }
            self.virtual_time.resume(now);
        }
        self.pace.came(&waiter.share, &waiter.outlook);
        self.charge(&waiter.share, waiter.is_apart(), waiter.outlook.work, now);
    }
}
