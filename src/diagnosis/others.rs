//! Whom a replica or a revision is compared with, so that what differs is its own; pure.
//!
//! Failures are compared with those of all others, times with those of requests that are like its own. [`super::peers`] compares.

use std::borrow::Cow;
use std::sync::Arc;

use super::table::MISSES;
use crate::fleet::status::ReplicaStatus;
use crate::observe::history::{Dimension, Part, Slot};
use crate::stats::Mean;

/// Whom one is compared with.
pub(super) struct Others<'a> {
    /// Beside whom what fails is its own.
    pub(super) all: Vec<&'a Part>,
    /// Of whose requests the times are like its own, and whose failures are those of its revision.
    pub(super) alike: Vec<&'a Part>,
    /// What a sentence calls those.
    pub(super) called: Cow<'static, str>,
    /// Seconds to their first tokens over the work that was in them.
    pub(super) over_work: fn(&Part) -> Mean,
}

impl<'a> Others<'a> {
    /// Of any pool: each learns its own speed, by which a slow one is as slow as expected.
    pub(super) fn beside(all: Vec<&'a Part>) -> Self {
        Self { alike: all.clone(), all, called: "the others".into(), over_work: |part| part.per_token }
    }

    /// Of a replica those of its pool and revision, where there are others: what all of a revision do is no fault of one.
    pub(super) fn of_replica(name: &Arc<str>, slot: &'a Slot, replicas: &[ReplicaStatus]) -> Self {
        let others = Self::beside(others_of(slot.parts_of(Dimension::Replica), name));
        let Some(own) = replicas.iter().find(|status| status.replica == *name) else { return others };
        let mut peers = peers_of(own, replicas).filter(|peer| peer.revision == own.revision).peekable();
        if peers.peek().is_none() {
            return others;
        }
        let alike = peers.filter_map(|peer| slot.of(Dimension::Replica, &peer.replica)).collect();
        Self { alike, over_work: |part| part.over_expected, ..others }
    }

    /// Of a revision those that serve beside it; of one that is new since all was calm, where hardly any do, those that it replaced.
    pub(super) fn of_revision(name: &Arc<str>, slot: &'a Slot, before: &'a Slot) -> Self {
        let beside = others_of(slot.parts_of(Dimension::Revision), name);
        let are_few = beside.iter().map(|other| other.judged).sum::<u32>() < MISSES;
        let mut replaced: Vec<_> = before.parts_of(Dimension::Revision).collect();
        if !are_few || replaced.is_empty() || before.of(Dimension::Revision, name).is_some() {
            return Self::beside(beside);
        }
        replaced.sort_by_key(|(name, _)| *name);
        let names: Vec<&str> = replaced.iter().map(|(name, _)| &***name).collect();
        let called = format!("{} before it", names.join(" and ")).into();
        Self { called, ..Self::beside(replaced.into_iter().map(|(_, part)| part).collect()) }
    }
}

/// The parts that are not of that name.
pub(super) fn others_of<'a>(
    parts: impl Iterator<Item = (&'a Arc<str>, &'a Part)>,
    name: &Arc<str>,
) -> Vec<&'a Part> {
    parts.filter(|(other, _)| *other != name).map(|(_, part)| part).collect()
}

/// The others of its pool.
pub(super) fn peers_of<'a>(
    status: &ReplicaStatus,
    all: &'a [ReplicaStatus],
) -> impl Iterator<Item = &'a ReplicaStatus> {
    all.iter().filter(|peer| peer.pool == status.pool && peer.replica != status.replica)
}
