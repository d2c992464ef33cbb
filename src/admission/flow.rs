//! Those that wait in one lane for one tenant, in order. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use super::aging::Aging;
use super::usage::UsageKey;
use super::waiter::{Lane, Share, WaitReason};
use crate::clock::Stamp;

/// A position in a queue; [`super::WaitQueue::leave`] frees it, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub(super) flow: u64,
    pub(super) key: FlowKey,
}

/// (latest start, arrival number): EDF, ties in order of arrival.
pub(super) type FlowKey = (Stamp, u64);

/// Requests of one tenant in one lane.
#[derive(Debug)]
pub(super) struct Flow<T> {
    pub(super) id: u64,
    pub(super) lane: Lane,
    pub(super) share: Share,
    pub(super) is_long: bool,
    pub(super) waiting: BTreeMap<FlowKey, QueueEntry<T>>,
    /// Of those that wait for room.
    pub(super) work: Duration,
    pub(super) late: usize,
}

#[derive(Debug)]
pub(super) struct QueueEntry<T> {
    pub(super) reason: WaitReason,
    pub(super) usage: Option<UsageKey>,
    pub(super) bytes: usize,
    pub(super) work: Duration,
    /// See [`super::Waiter::old_at`].
    pub(super) old_at: Option<Stamp>,
    /// It has not answered its last call: passed over until it does.
    pub(super) is_silent: bool,
    /// The round in which it is called next at the earliest.
    pub(super) due: u64,
    pub(super) call: T,
}

impl<T> Flow<T> {
    /// The last of those.
    pub(super) fn last(&self, is_its: impl Fn(&FlowKey, &QueueEntry<T>) -> bool) -> Option<(Lane, Position)> {
        let (key, _) = self.waiting.iter().rev().find(|(key, entry)| is_its(key, entry))?;
        Some((self.lane, Position { flow: self.id, key: *key }))
    }

    /// Its first, if that has grown old as best effort.
    pub(super) fn old(&self, aging: &Aging) -> Option<(&Self, FlowKey, &QueueEntry<T>)> {
        let (key, entry) = self.waiting.first_key_value().filter(|_| self.lane.is_best_effort)?;
        aging.is_old(entry.old_at.filter(|_| entry.reason == WaitReason::Late)).then_some((self, *key, entry))
    }

    pub(super) fn add(&mut self, key: FlowKey, entry: QueueEntry<T>) {
        if entry.reason == WaitReason::Late {
            (self.late, self.work) = (self.late + 1, self.work + entry.work);
        }
        self.waiting.insert(key, entry);
    }

    pub(super) fn take(&mut self, key: FlowKey) -> Option<QueueEntry<T>> {
        let gone = self.waiting.remove(&key)?;
        if gone.reason == WaitReason::Late {
            (self.late, self.work) = (self.late - 1, self.work.saturating_sub(gone.work));
        }
        Some(gone)
    }
}
