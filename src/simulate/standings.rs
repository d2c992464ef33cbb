//! Which replicas of a simulated fleet are in use, and how much of its share each gets: the health of the product's replicas.
//!
//! Replicas that were there from the start have all of their share until another one joins: replays of fleets that do not change
//! are not touched by any of it.

use std::time::Duration;

use crate::clock::Stamp;
use crate::fleet::health::{COMPARE_EVERY, Health, Member, compare};
use crate::fleet::status::ReplicaState;
use crate::routing::{Dispatcher, Target};

/// Standing of every replica.
#[derive(Debug, Default)]
pub struct Standings {
    /// `None` where it gets no requests.
    each: Vec<Option<Health>>,
    /// `None` until a replica joined.
    next_look: Option<Stamp>,
}

impl Standings {
    /// All are in.
    pub(super) fn new(replicas: usize) -> Self {
        let health = |_| Some(Health::new(Stamp::default()));
        Self { each: (0..replicas).map(health).collect(), next_look: None }
    }

    fn health(&self, slot: usize) -> Option<&Health> {
        self.each.get(slot)?.as_ref()
    }

    fn member<'r>(&'r self, target: &'r Target) -> Option<Member<'r>> {
        let health = self.health(target.slot)?;
        Some(Member { health, target, state: ReplicaState::Ready, is_held: false })
    }

    pub(super) fn is_in(&self, slot: usize) -> bool {
        self.health(slot).is_some()
    }

    /// A replica becomes ready beside others, or among nobody where `span` is zero.
    pub fn joins(&mut self, target: &Target, span: Duration, now: Stamp) {
        let Some(one) = self.each.get_mut(target.slot) else { return };
        one.insert(Health::new(now)).warmth.warmed(now, true, span);
        self.next_look.get_or_insert(now);
        if let Some(member) = self.member(target) {
            member.publish(now);
        }
    }

    /// A replica gets no more requests.
    pub fn leaves(&mut self, slot: usize) {
        if let Some(one) = self.each.get_mut(slot) {
            *one = None;
        }
    }

    pub(super) fn chosen(&self, target: &Target, now: Stamp) {
        if let Some(member) = self.member(target) {
            member.chosen(now);
        }
    }

    pub(super) fn first_token(&self, slot: usize, now: Stamp) {
        if let Some(health) = self.health(slot) {
            health.succeeded(true, now);
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
        self.next_look = Some(now.after(COMPARE_EVERY));
        let members: Vec<Member<'_>> = targets.iter().filter_map(|target| self.member(target)).collect();
        compare(&members, &dispatcher.model, now, |_| {});
    }
}
