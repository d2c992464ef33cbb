//! The other gateways: what each has in flight, by its notices.
//!
//! A gateway that skips a number has lost notices, ends among them: what it has in flight is forgotten, and the engines' own
//! figures show it until it has ended. The same holds for one that falls silent.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::places::Places;
use super::wire::{self, Unreadable};
use crate::clock::Stamp;
use crate::routing::FollowedRequests;
use crate::routing::notice::{Event, Placed, Prefix};

/// The other gateways.
#[derive(Debug)]
pub(super) struct Peers {
    own: u64,
    seed: u32,
    peers: HashMap<u64, Peer>,
    warned: HashSet<Warning>,
}

#[derive(Debug)]
struct Peer {
    next: u32,
    heard: Stamp,
    requests: FollowedRequests,
}

/// What came of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Folded {
    /// Notices taken in.
    pub(super) taken: u64,
    /// Notices about replicas that this gateway does not have.
    pub(super) unknown: u64,
    /// Messages that cannot be read.
    pub(super) unreadable: u64,
    /// Notices of kinds that only newer gateways know.
    pub(super) skipped: u64,
    /// Batches that never came.
    pub(super) lost: u64,
    /// It is from a gateway that was not followed.
    pub(super) is_new: bool,
    /// The number of a batch of this gateway's own.
    pub(super) own: Option<u32>,
}

/// Logged once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub(super) enum Warning {
    /// A message cannot be read.
    #[error("ignored: {0}")]
    Unreadable(Unreadable),
    /// Hashes of two gateways cannot be compared.
    #[error("a gateway has another routing.seed: its prompts are unknown here, only its load counts")]
    OtherSeed,
    /// More gateways than are followed.
    #[error("more than {MAX_PEERS} gateways: the rest is not followed")]
    TooMany,
}

impl Peers {
    pub(super) fn new(own: u64, seed: u32) -> Self {
        Self { own, seed, peers: HashMap::new(), warned: HashSet::new() }
    }

    /// Takes in a message: reserves the load of requests, doubts replicas that were left, and suspects requests that engines died of.
    pub(super) fn fold(&mut self, message: &[u8], places: &Places, now: Stamp) -> Folded {
        let mut folded = Folded::default();
        let mut batch = match wire::open(message, now) {
            Ok(batch) => batch,
            Err(fault) => {
                self.warn_once(Warning::Unreadable(fault));
                return Folded { unreadable: 1, ..folded };
            }
        };
        let head = batch.head;
        if head.sender == self.own {
            return Folded { own: Some(head.sequence), ..folded };
        }
        if self.peers.len() >= MAX_PEERS && !self.peers.contains_key(&head.sender) {
            self.warn_once(Warning::TooMany);
            return folded;
        }
        folded.is_new = !self.peers.contains_key(&head.sender);
        let is_alike = head.seed == self.seed;
        if !is_alike {
            self.warn_once(Warning::OtherSeed);
        }
        let new = || Peer { next: head.sequence, heard: now, requests: FollowedRequests::default() };
        let peer = self.peers.entry(head.sender).or_insert_with(new);
        if head.sequence != peer.next {
            folded.lost = u64::from(head.sequence.wrapping_sub(peer.next)).min(MAX_LOST);
            peer.requests.clear();
        }
        (peer.next, peer.heard) = (head.sequence.wrapping_add(1), now);
        loop {
            let notice = match batch.next() {
                Ok(Some(notice)) => notice,
                Ok(None) => break,
                Err(fault) => {
                    self.warn_once(Warning::Unreadable(fault));
                    folded.unreadable += 1;
                    break;
                }
            };
            let is_taken = match &notice.event {
                Event::Left(left) => places.doubt(left, now),
                Event::Died(died) => is_alike && places.died(died, now),
                _ => peer.requests.take(&notice, |placed| {
                    let prefix = if is_alike { placed.prefix } else { Prefix::default() };
                    places.follow(&Placed { prefix, ..*placed }, notice.at)
                }),
            };
            if is_taken { folded.taken += 1 } else { folded.unknown += 1 }
        }
        folded.skipped = batch.skipped;
        folded
    }

    fn warn_once(&mut self, warning: Warning) {
        if self.warned.len() < MAX_WARNINGS && self.warned.insert(warning) {
            tracing::warn!("cluster: {warning}");
        }
    }

    /// Gateways that were heard of a moment ago; the others are forgotten.
    pub(super) fn alive(&mut self, now: Stamp) -> usize {
        self.peers.retain(|_, peer| now.since(peer.heard) < SILENT);
        self.peers.len()
    }

    /// Nothing is known of what they do now.
    pub(super) fn forget(&mut self) {
        self.peers.clear();
        self.warned.clear();
    }
}

/// Gateways that are followed.
const MAX_PEERS: usize = 256;
const MAX_WARNINGS: usize = 16;
/// Batches of a gap that count.
const MAX_LOST: u64 = 1000;
/// A gateway that publishes nothing for so long is gone: each publishes every [`super::HEARTBEAT`].
pub(super) const SILENT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::notice::queue;

    #[test]
    fn a_gateway_is_new_with_its_first_message() {
        let (outbox, _notices) = queue(1, true);
        let (places, now) = (Places::of(&[], &outbox), Stamp::default());
        let mut peers = Peers::new(1, 7);
        let mut is_new = |sender, sequence| {
            let mut message = Vec::new();
            wire::begin(&wire::Head { sender, sequence, seed: 7 }, &mut message);
            peers.fold(&message, &places, now).is_new
        };
        assert_eq!([is_new(2, 0), is_new(2, 1), is_new(1, 0), is_new(3, 9)], [true, false, false, true]);
    }
}
