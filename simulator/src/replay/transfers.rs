//! KV on its way from the replicas that computed prompts to those that decode them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::time::Duration;

use crate::kv_transfer::KvTransfer;
use crate::time::Stamp;

use super::router::{Legs, RequestId};

/// How KV moves between the replicas of a fleet.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KvNetwork {
    /// How long it takes.
    pub times: KvTransfer,
    /// Share of transfers that are lost.
    pub lost: f64,
}

/// All transfers of a run.
pub(super) struct Transfers {
    network: KvNetwork,
    random: fastrand::Rng,
    /// Pairs of replicas that have shaken hands.
    met: HashSet<(usize, usize)>,
    moving: BinaryHeap<Reverse<Arriving>>,
}

/// KV that comes, or is known to be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Arriving {
    pub(super) at: Stamp,
    pub(super) request: RequestId,
    /// Where it is decoded.
    pub(super) decode: usize,
    pub(super) is_lost: bool,
}

impl Transfers {
    pub(super) fn new(network: KvNetwork, seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self { network, random, met: HashSet::new(), moving: BinaryHeap::new() }
    }

    pub(super) fn begin(&mut self, request: RequestId, legs: Legs, tokens: u64, now: Stamp) {
        let KvNetwork { times, lost } = self.network;
        let is_lost = lost > 0.0 && self.random.f64() < lost;
        let takes = if is_lost {
            times.lost_after
        } else {
            let is_new = self.met.insert((legs.prefill, legs.decode));
            let handshake = if is_new { times.handshake } else { Duration::ZERO };
            handshake + times.of(tokens)
        };
        let arriving = Arriving { at: now.after(takes), request, decode: legs.decode, is_lost };
        self.moving.push(Reverse(arriving));
    }

    /// When the next one is there.
    pub(super) fn next_at(&self) -> Option<Stamp> {
        self.moving.peek().map(|Reverse(next)| next.at)
    }

    /// The next one.
    pub(super) fn pop(&mut self) -> Option<Arriving> {
        self.moving.pop().map(|Reverse(next)| next)
    }
}
