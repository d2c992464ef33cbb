//! Which replicas of a simulated fleet are in use, and how much of its share each gets: slow start as in the product's pools.
//!
//! Replicas that were there from the start have all of their share until another one joins: replays of fleets that do not change
//! are not touched by any of it.

use std::time::Duration;

use crate::clock::Stamp;
use crate::fleet::outliers::{LOOK_EVERY, Speeds, slowness};
use crate::fleet::slow_start::SlowStart;
use crate::routing::{Dispatcher, Target};
use crate::stats::Peers;

/// Standing of every replica.
#[derive(Debug, Default)]
pub(super) struct Standings {
    each: Vec<One>,
    /// `None` until a replica joined.
    next_look: Option<Stamp>,
}

#[derive(Debug)]
struct One {
    is_in: bool,
    slow_start: Option<SlowStart>,
}

impl Standings {
    /// All are in.
    pub(super) fn new(replicas: usize) -> Self {
        let one = |_| One { is_in: true, slow_start: None };
        Self { each: (0..replicas).map(one).collect(), next_look: None }
    }

    pub(super) fn is_in(&self, slot: usize) -> bool {
        self.each.get(slot).is_some_and(|one| one.is_in)
    }

    /// A replica becomes ready beside others, or among nobody where `span` is zero.
    pub(super) fn joins(&mut self, target: &Target, span: Duration, now: Stamp) {
        let Some(one) = self.each.get_mut(target.slot) else { return };
        *one = One { is_in: true, slow_start: SlowStart::begin(now, span) };
        target.set_standing(1.0, one.slow_start.map_or(1.0, |slow| slow.share(now)));
        self.next_look.get_or_insert(now);
    }

    /// A replica gets no more requests.
    pub(super) fn leaves(&mut self, slot: usize) {
        if let Some(one) = self.each.get_mut(slot) {
            (one.is_in, one.slow_start) = (false, None);
        }
    }

    pub(super) fn chosen(&mut self, target: &Target, now: Stamp) {
        if let Some(slow) = self.each.get_mut(target.slot).and_then(|one| one.slow_start.as_mut()) {
            slow.chosen(now);
            target.set_standing(1.0, slow.share(now));
        }
    }

    pub(super) fn first_token(&mut self, slot: usize) {
        if let Some(slow) = self.each.get_mut(slot).and_then(|one| one.slow_start.as_mut()) {
            slow.answered();
        }
    }

    pub(super) fn next_look(&self) -> Option<Stamp> {
        self.next_look
    }

    /// Compares the replicas, as a pool does five times a second.
    pub(super) fn look(&mut self, dispatcher: &Dispatcher, targets: &[Target], now: Stamp) {
        if self.next_look.is_none_or(|at| at > now) {
            return;
        }
        self.next_look = Some(now.after(LOOK_EVERY));
        let speeds = |(slot, one): (usize, &One)| match one.is_in {
            true => Speeds::of(&dispatcher.model, slot, now),
            false => Speeds::default(),
        };
        let speeds: Vec<Speeds> = self.each.iter().enumerate().map(speeds).collect();
        let ttfts = Peers::of(speeds.iter().filter_map(|speeds| speeds.ttft));
        let itls = Peers::of(speeds.iter().filter_map(|speeds| speeds.itl));
        for ((one, speeds), target) in self.each.iter_mut().zip(&speeds).zip(targets) {
            if !one.is_in {
                continue;
            }
            let slowness = slowness(speeds, &ttfts, &itls);
            one.slow_start = one.slow_start.and_then(|slow| slow.looked(slowness, now));
            if one.slow_start.is_some_and(|slow| slow.is_retrial_due(now)) {
                dispatcher.model.forget(target.slot);
            }
            target.set_standing(1.0, one.slow_start.map_or(1.0, |slow| slow.share(now)));
        }
    }
}
