//! Work of ours that a replica has: counted at decision time, released by a guard inside the response body.
//!
//! A request counts from the moment it was decided, not from when it was sent or when the head came: a burst
//! would see an idle replica otherwise and herd. Its uncached prompt counts until its first token, the request itself
//! until the end; every end drops the guard. Decisions read published sums without a lock; the lock of the [`ledger`] is
//! taken three times in a request's life and by [`ReplicaLoad::refresh`]. Work of others is [`super::foreign`].

mod concurrency;
mod inflight;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use self::concurrency::Concurrency;
pub(super) use self::concurrency::Shown;
pub(super) use self::inflight::Known;
use self::inflight::{InflightLedger, Progress};
pub use self::inflight::{Pace, Refreshed, TimingSample};
use super::cache_counters::CacheCounters;
use super::hazard::{self, POINTS};
use super::work::Work;
use crate::clock::Stamp;
use crate::units::Tokens;

/// What one replica has to do for us.
#[derive(Debug, Default)]
#[repr(C, align(64))] // what a decision reads is two cache lines, and two replicas never share one
pub struct ReplicaLoad {
    inflight: AtomicU32,
    awaiting: AtomicU32,
    /// Those of the awaiting whose time per token is bounded.
    bounded: AtomicU32,
    /// Those whose time per token is bounded and whose first token came after the last refresh.
    fresh: AtomicU32,
    head_tokens: AtomicU32,
    /// Requests that are answered without the engine: no decision counts them as its work.
    past_engine: AtomicU32,
    tokens: AtomicU64,
    attention: AtomicU64,
    head_attention: AtomicU64,
    head_since: AtomicU64,
    context: AtomicU32,
    held: AtomicU32,
    harm: [AtomicU32; POINTS],
    refreshed: AtomicU64,
    /// Those in flight that other gateways sent, those of them that are among the awaiting, and the prompts of these.
    followed: AtomicU32,
    followed_awaiting: AtomicU32,
    followed_tokens: AtomicU64,
    followed_attention: AtomicU64,
    /// Sequences that the engine was seen to run at once at most: zero while that is not known.
    limit: AtomicU32,
    /// Sequences that ran at once so far.
    peak: AtomicU32,
    /// Those of the awaiting that the engine's page does not show.
    unseen: AtomicU32,
    unread: AtomicU32,
    elsewhere: AtomicU32,
    ledger: Mutex<InflightLedger>,
    /// Hits that its requests were promised, for the comparison with the engine's counters.
    pub(super) promises: CacheCounters,
}

/// A [`ReplicaLoad`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadView {
    /// Requests in flight, but for those that the engine has finished and slow clients have yet to read.
    pub inflight: u64,
    /// Those of them that have no first token yet.
    pub awaiting: u64,
    /// Those of the awaiting that are not in the engine's queue, by its page.
    pub unseen: u64,
    /// Those of the awaiting whose prompts another pool computes: they wait for KV, and not for what this one computes.
    pub elsewhere: u64,
    /// Those whose time per token is bounded and that the harm of a stall does not count yet: they await their first token,
    /// or got it a moment ago.
    pub bounded: u64,
    /// Prompts of the awaiting.
    pub waiting: Work,
    /// Those of the awaiting that other gateways sent, ...
    pub followed: u64,
    /// ... and their prompts.
    pub followed_waiting: Work,
    /// The first of them, which are being computed, ...
    pub head: Work,
    /// ... since then.
    pub head_since: Stamp,
    /// Tokens in the context of running streams.
    pub context: u64,
    /// Those of them that no other request had in the cache before: they take memory of their own.
    pub held: u64,
}

impl LoadView {
    /// Requests that have their first token: sequences being decoded.
    pub fn decoding(&self) -> u64 {
        self.inflight.saturating_sub(self.awaiting)
    }

    /// Seconds since the head is computed; 0 where nothing is. Counts and head are published one after the other: a request that was
    /// counted a moment ago may not be at the head yet.
    #[inline]
    pub(crate) fn head_age(&self, now: Stamp) -> f64 {
        let since = self.head_since.as_nanos();
        if since == 0 { 0.0 } else { now.as_nanos().saturating_sub(since) as f64 * 1e-9 }
    }
}

/// What a decision puts on a replica.
#[derive(Clone, Copy, Debug, Default)]
pub struct Placement {
    /// When.
    pub at: Stamp,
    /// What is to be computed.
    pub work: Work,
    /// The whole prompt, cached or not.
    pub prompt: Tokens,
    /// Bound on the mean time per token of the answer.
    pub tpot: Option<Duration>,
    /// Whether its first token will be seen.
    pub is_stream: bool,
    /// Whether it has images, sounds or files: how many tokens they are, the answer tells.
    pub has_media: bool,
    /// Whether another pool computes the prompt: it waits for its KV, and is no part of the queue.
    pub is_elsewhere: bool,
    /// Whether another gateway sent it: what is known of it comes late.
    pub is_followed: bool,
    /// Whether it was sent at a time that is not known, or is answered for more than a prompt: how long it waits teaches nothing.
    pub is_untimed: bool,
    /// Whether it is answered without the engine.
    pub is_past_engine: bool,
}

impl ReplicaLoad {
    /// A replica with nothing to do.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The load now. The figures are read one by one: a decision may see a request half counted, which moves it
    /// by one request at most.
    #[inline]
    pub fn view(&self) -> LoadView {
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let count = |cell: &AtomicU32| u64::from(cell.load(Ordering::Relaxed));
        LoadView {
            inflight: self.unfinished(),
            awaiting: count(&self.awaiting),
            unseen: count(&self.unseen),
            elsewhere: count(&self.elsewhere),
            bounded: count(&self.bounded) + count(&self.fresh),
            waiting: Work { tokens: read(&self.tokens), attention: read(&self.attention) },
            followed: count(&self.followed_awaiting),
            followed_waiting: Work {
                tokens: read(&self.followed_tokens),
                attention: read(&self.followed_attention),
            },
            head: Work { tokens: count(&self.head_tokens), attention: read(&self.head_attention) },
            head_since: Stamp::from_nanos(read(&self.head_since)),
            context: count(&self.context),
            held: count(&self.held),
        }
    }

    /// Requests in flight at the engine, those of gateways that are followed included.
    #[inline]
    pub fn inflight(&self) -> u64 {
        u64::from(self.inflight.load(Ordering::Relaxed))
    }

    /// Requests that were sent there so far, those of gateways that are followed included.
    pub fn sent(&self) -> u64 {
        self.ledger.lock().entered()
    }

    /// Those of them that its engine has not finished, by its page.
    #[inline]
    pub(super) fn unfinished(&self) -> u64 {
        self.inflight().saturating_sub(u64::from(self.unread.load(Ordering::Relaxed)))
    }

    /// Requests in flight that are answered without the engine.
    #[inline]
    pub fn past_engine(&self) -> u64 {
        u64::from(self.past_engine.load(Ordering::Relaxed))
    }

    /// Those in flight at the engine that other gateways sent.
    pub fn followed(&self) -> u64 {
        u64::from(self.followed.load(Ordering::Relaxed))
    }

    /// Requests of this gateway in flight.
    pub fn own(&self) -> u64 {
        self.past_engine() + self.inflight().saturating_sub(self.followed())
    }

    /// How long the request of this gateway that is longest without a token has been so; zero without any.
    pub fn quiet(&self, now: Stamp) -> Duration {
        self.ledger.lock().quiet_since().map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Sequences that the engine runs at once, as far as our own streams have shown it.
    #[inline]
    pub fn batch_limit(&self) -> Option<u64> {
        Some(u64::from(self.limit.load(Ordering::Relaxed))).filter(|limit| *limit > 0)
    }

    /// Most sequences that ran at once.
    #[inline]
    pub fn peak(&self) -> u64 {
        u64::from(self.peak.load(Ordering::Relaxed))
    }

    /// The engine is another process: how many it runs at once is not known.
    pub(super) fn restarted(&self) {
        let mut ledger = self.ledger.lock();
        ledger.concurrency = Concurrency::default();
        self.publish(&ledger);
        self.promises.restarted();
    }

    /// The engine's page, read `now`, shows these requests; the one before it was read at `since`.
    pub(super) fn counted(&self, shown: Shown, since: Stamp, now: Stamp) {
        let mut ledger = self.ledger.lock();
        ledger.counted(shown, since, now);
        self.publish(&ledger);
    }

    /// Running streams that a stall of `more` seconds would push over their bound, on top of one that comes `anyway`.
    #[inline]
    pub(super) fn harm(&self, anyway: f32, more: f32) -> f32 {
        let point = |at: usize| self.harm.get(at).map(|bits| f32::from_bits(bits.load(Ordering::Relaxed)));
        (hazard::read(point, anyway + more) - hazard::read(point, anyway)).max(0.0)
    }

    /// Tokens in the context of running streams.
    pub(super) fn context(&self) -> u64 {
        u64::from(self.context.load(Ordering::Relaxed))
    }

    /// Whether a refresh is due: something runs or ran, and it was not asked a moment ago.
    pub fn is_stale(&self, now: Stamp) -> bool {
        let last = self.refreshed.load(Ordering::Relaxed);
        let has_work = self.inflight.load(Ordering::Relaxed) > 0;
        let is_due = now.since(Stamp::from_nanos(last)) >= REFRESH_EVERY;
        is_due && (has_work || last != 0)
    }

    /// Asks the streams how far they are, publishes the harm that stalls would do, and returns what was learned
    /// meanwhile. Not for the request path.
    pub(super) fn refresh(&self, now: Stamp, known: &Known<'_>) -> Refreshed {
        let mut ledger = self.ledger.lock();
        let (curve, found) = ledger.refresh(now, known);
        self.publish(&ledger);
        found.computed.iter().for_each(|placement| self.release(placement));
        for (cell, point) in self.harm.iter().zip(curve.0) {
            cell.store(point.to_bits(), Ordering::Relaxed);
        }
        // An idle replica needs to be asked no more.
        let has_work = self.inflight.load(Ordering::Relaxed) > 0;
        self.refreshed.store(if has_work { now.as_nanos().max(1) } else { 0 }, Ordering::Relaxed);
        found
    }

    /// A prompt is computed, or will not be.
    fn release(&self, placement: &Placement) {
        self.awaiting.fetch_sub(1, Ordering::Relaxed);
        // To add nothing locks a cache line as well.
        if placement.is_elsewhere {
            self.elsewhere.fetch_sub(1, Ordering::Relaxed);
        }
        if placement.tpot.is_some() {
            self.bounded.fetch_sub(1, Ordering::Relaxed);
        }
        self.tokens.fetch_sub(placement.work.tokens, Ordering::Relaxed);
        self.attention.fetch_sub(placement.work.attention, Ordering::Relaxed);
        if placement.is_followed {
            self.followed_awaiting.fetch_sub(1, Ordering::Relaxed);
            self.followed_tokens.fetch_sub(placement.work.tokens, Ordering::Relaxed);
            self.followed_attention.fetch_sub(placement.work.attention, Ordering::Relaxed);
        }
    }

    fn publish(&self, ledger: &InflightLedger) {
        let head = ledger.head();
        let count = |cell: &AtomicU32, tokens| {
            cell.store(u32::try_from(tokens).unwrap_or(u32::MAX), Ordering::Relaxed);
        };
        count(&self.head_tokens, head.work.tokens);
        count(&self.context, ledger.context);
        count(&self.held, ledger.held());
        self.head_attention.store(head.work.attention, Ordering::Relaxed);
        self.head_since.store(head.since.as_nanos(), Ordering::Relaxed);
        self.fresh.store(ledger.fresh, Ordering::Relaxed);
        self.limit.store(ledger.concurrency.limit(), Ordering::Relaxed);
        self.peak.store(ledger.concurrency.peak, Ordering::Relaxed);
        count(&self.unseen, ledger.unseen());
        self.unread.store(ledger.unread, Ordering::Relaxed);
    }
}

/// One request's share of a replica's load; dropping it releases what is left of it, exactly once.
#[derive(Debug)]
#[must_use = "dropping the guard releases the load at once"]
pub struct LoadGuard {
    pub(super) load: Arc<ReplicaLoad>,
    id: u64,
    progress: Arc<Progress>,
    is_awaiting: bool,
    /// Nothing else was in flight there when it was decided.
    began_alone: bool,
    /// As it was decided.
    pub(super) placement: Placement,
}

impl LoadGuard {
    /// Counts a request that was just decided.
    pub fn reserve(load: &Arc<ReplicaLoad>, placement: Placement) -> Self {
        let (load_of, progress) = (Arc::clone(load), Arc::default());
        let mut guard =
            Self { load: load_of, id: 0, progress, is_awaiting: false, began_alone: false, placement };
        if placement.is_past_engine {
            load.past_engine.fetch_add(1, Ordering::Relaxed);
            return guard;
        }
        guard.began_alone = load.inflight.fetch_add(1, Ordering::Relaxed) == 0;
        load.awaiting.fetch_add(1, Ordering::Relaxed);
        if placement.tpot.is_some() {
            load.bounded.fetch_add(1, Ordering::Relaxed);
        }
        load.tokens.fetch_add(placement.work.tokens, Ordering::Relaxed);
        load.attention.fetch_add(placement.work.attention, Ordering::Relaxed);
        if placement.is_followed {
            load.followed.fetch_add(1, Ordering::Relaxed);
            load.followed_awaiting.fetch_add(1, Ordering::Relaxed);
            load.followed_tokens.fetch_add(placement.work.tokens, Ordering::Relaxed);
            load.followed_attention.fetch_add(placement.work.attention, Ordering::Relaxed);
        }
        if placement.is_elsewhere {
            load.elsewhere.fetch_add(1, Ordering::Relaxed);
        } else {
            let promised = placement.prompt.saturating_sub(Tokens(placement.work.tokens));
            load.promises.sent(placement.prompt, promised);
        }
        let mut ledger = load.ledger.lock();
        (guard.id, guard.is_awaiting) = (ledger.enter(&placement), true);
        load.publish(&ledger);
        guard
    }

    /// The first token came: the prompt is computed. Further calls do nothing, and return false.
    pub fn first_token(&mut self, now: Stamp) -> bool {
        if !std::mem::take(&mut self.is_awaiting) {
            return false;
        }
        let mut ledger = self.load.ledger.lock();
        let computed = ledger.first_token(self.id, now, &self.progress);
        self.load.publish(&ledger);
        drop(ledger);
        computed.iter().for_each(|placement| self.load.release(placement));
        true
    }

    /// Whether nothing else was in flight there since it was decided.
    pub(super) fn is_alone(&self) -> bool {
        self.began_alone && self.load.ledger.lock().is_last(self.id)
    }

    /// The engine told what it computed of the prompt.
    pub(super) fn computed(&self, work: Work) {
        if !self.placement.is_past_engine {
            self.load.ledger.lock().computed(self.id, work);
        }
    }

    /// The stream has brought so many content events of each choice by now. Two plain stores: fit for every event.
    #[inline]
    pub fn progress(&self, events: u64, now: Stamp) {
        self.progress.update(events, now);
    }

    /// It gave up without a token: how long the engine had been at it, if it was its turn.
    pub fn overdue(&self, now: Stamp) -> Option<TimingSample> {
        if self.is_awaiting { self.load.ledger.lock().overdue(self.id, now) } else { None }
    }
}

impl Drop for LoadGuard {
    fn drop(&mut self) {
        if self.placement.is_past_engine {
            self.load.past_engine.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let mut ledger = self.load.ledger.lock();
        let waited = if self.is_awaiting { ledger.leave(self.id) } else { None };
        if !self.is_awaiting {
            ledger.end(self.id);
        }
        self.load.publish(&ledger);
        drop(ledger);
        if let Some(placement) = waited {
            self.load.release(&placement);
        }
        if self.placement.is_followed {
            self.load.followed.fetch_sub(1, Ordering::Relaxed);
        }
        self.load.inflight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One step of an engine under load. Traces cannot tell it from every 10 ms, which takes five times the time.
pub const REFRESH_EVERY: Duration = Duration::from_millis(50);

#[cfg(test)]
mod queued;
#[cfg(test)]
mod tests;
