//! What gateways before the same replicas publish of their requests, so that each routes as if all were its own.
//!
//! A [`Dispatcher`](super::Dispatcher) with an [`Outbox`] puts one notice into it for every decision, first token and end. The
//! queue behind it is an array that was allocated once: what does not fit is dropped and counted, and no request waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use super::prefix_index::COARSE_WEIGHT;
use super::{Placement, Prompt};
use crate::clock::Stamp;
use crate::request::chain::FINE_BLOCKS;
use crate::units::Tokens;

/// What happened to one request, or to a replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Notice {
    /// Number of its decision, unique among those in flight at its gateway; 0 of a replica.
    pub id: u32,
    /// When.
    pub at: Stamp,
    /// What.
    pub event: Event,
}

/// One step of a request's life at a replica, or the end of a replica's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// It was sent to a replica.
    Placed(Placed),
    /// Its first token came.
    FirstToken,
    /// It ended, and the answer reported this.
    Ended(Usage),
    /// The gateway sends no more requests to a replica.
    Left(Left),
    /// A replica died while the gateway had a request there.
    Died(Died),
}

/// A replica that a gateway ejected, or found unreachable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Left {
    /// [`place`] of the replica.
    pub place: u64,
    /// Requests failed there; else a connect or a probe did.
    pub is_failing: bool,
}

/// A request that was in flight where a replica died.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Died {
    /// [`place`] of the replica.
    pub place: u64,
    /// Hash of tenant, prompt and parameters under `routing.seed`.
    pub request: u64,
}

/// A decision, as far as others need it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Placed {
    /// [`place`] of the replica.
    pub place: u64,
    /// Ends of the prompt in the prefix chain; zero for none.
    pub prefix: Prefix,
    /// All tokens of the prompt.
    pub prompt: Tokens,
    /// Those that the replica has to compute.
    pub uncached: Tokens,
    /// Bound on the time per token.
    pub tpot: Option<Duration>,
    /// Whether its first token will be seen.
    pub is_stream: bool,
    /// Whether another pool computes the prompt.
    pub is_elsewhere: bool,
}

/// Which blocks a prompt has, by the hashes of four of them: who holds a block holds all before it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prefix {
    /// Its last whole block.
    pub tail: u64,
    /// The last block that this replica held already.
    pub held: u64,
    /// The last block that any replica held: where prompts fork.
    pub fork: u64,
    /// The one of the blocks between `fork` and `tail` with the smallest hash. Every gateway chooses the same one of a part that prompts
    /// share (min-hash; Broder, "On the resemblance and containment of documents", 1997), so that a prompt which differs
    /// only at its end is known before one gateway has had two of them.
    pub landmark: u64,
    /// Weight of the blocks behind `held`, in fine blocks.
    pub added: u32,
}

impl Placed {
    /// Of a placement, without where and what.
    pub(super) fn of(placement: &Placement) -> Self {
        Self {
            prompt: placement.prompt,
            uncached: Tokens(placement.work.tokens).min(placement.prompt),
            tpot: placement.tpot,
            is_stream: placement.is_stream,
            is_elsewhere: placement.is_elsewhere,
            ..Self::default()
        }
    }
}

impl Prefix {
    /// Of a prompt of which the replica holds `held` leading blocks, and the one that holds most the `longest`.
    pub(super) fn of(prompt: &Prompt<'_>, held: usize, longest: &[u64]) -> Self {
        let blocks = prompt.chain.len();
        let coarse = blocks.saturating_sub(held.max(FINE_BLOCKS));
        let weight = blocks.saturating_sub(held) - coarse + coarse * COARSE_WEIGHT as usize;
        let fresh = prompt.chain.get(held.max(longest.len())..blocks.saturating_sub(1)).unwrap_or_default();
        Self {
            tail: prompt.chain.last().copied().unwrap_or_default(),
            held: held.checked_sub(1).and_then(|last| prompt.chain.get(last)).copied().unwrap_or_default(),
            fork: longest.last().copied().unwrap_or_default(),
            landmark: fresh.iter().min().copied().unwrap_or_default(),
            added: u32::try_from(weight).unwrap_or(u32::MAX),
        }
    }
}

/// What an answer reported.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt: Option<Tokens>,
    /// Those found cached.
    pub cached: Option<Tokens>,
}

/// Names a replica for all gateways: its pool, and its address.
pub fn place(pool: &str, identity: u64) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(pool.as_bytes(), identity)
}

/// The end of a queue of notices; see [`queue`].
#[derive(Debug)]
pub struct Outbox {
    notices: SyncSender<Notice>,
    /// Whether first tokens and ends are wanted, too.
    is_whole: bool,
    next: AtomicU32,
    dropped: AtomicU64,
}

/// A queue of at most `capacity` notices, of decisions alone unless `is_whole`.
pub fn queue(capacity: usize, is_whole: bool) -> (Arc<Outbox>, Receiver<Notice>) {
    let (notices, receiver) = sync_channel(capacity);
    (Arc::new(Outbox { notices, is_whole, next: AtomicU32::new(0), dropped: AtomicU64::new(0) }), receiver)
}

impl Outbox {
    /// Notices that did not fit so far.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Puts a notice into the queue, where there is room.
    pub fn publish(&self, notice: Notice) {
        let is_wanted = self.is_whole || matches!(notice.event, Event::Placed(_));
        if is_wanted && self.notices.try_send(notice).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A published request: its end is published when this is dropped.
#[derive(Debug)]
pub(super) struct Announced {
    outbox: Arc<Outbox>,
    id: u32,
    /// Of the newest event that has a time.
    at: Stamp,
    pub(super) usage: Usage,
}

impl Announced {
    pub(super) fn placed(outbox: &Arc<Outbox>, placed: Placed, at: Stamp) -> Self {
        let id = outbox.next.fetch_add(1, Ordering::Relaxed);
        outbox.publish(Notice { id, at, event: Event::Placed(placed) });
        Self { outbox: Arc::clone(outbox), id, at, usage: Usage::default() }
    }

    pub(super) fn first_token(&mut self, at: Stamp) {
        self.at = at;
        self.outbox.publish(Notice { id: self.id, at, event: Event::FirstToken });
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        self.outbox.publish(Notice { id: self.id, at: self.at, event: Event::Ended(self.usage) });
    }
}
