//! The prefill pool of a route with `[route.prefill]`, and what is known of it from one table to the next.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::{AtomicStamp, Stamp};
use crate::config::{Config, PolicyName, Prefill, Route};
use crate::fleet::pool::PoolState;
use crate::fleet::replica::Replica;
use crate::routing::{Pair, Policy, SlotSet, Transfers, policies};

/// The prefill pool of a route.
#[derive(Debug)]
pub struct PrefillSide {
    /// `[route.prefill]`
    pub keys: Prefill,
    /// Computes prompts.
    pub pool: Arc<PoolState>,
    pub(super) policy: Box<dyn Policy>,
    /// What is known of the transfers from its replicas; carried over.
    pub transfers: Arc<Transfers>,
    pub(super) gate: Arc<Gate>,
}

/// Whether the pool and its replicas are of use; each change is logged once.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// The end of the last of `closed`, which few requests have to look at.
    closed_until: AtomicStamp,
    closed: Mutex<Vec<Closed>>,
    is_unready: AtomicBool,
}

/// A replica whose last answer was without the object.
#[derive(Clone, Copy, Debug)]
struct Closed {
    /// [`crate::routing::rendezvous::identity`]
    identity: u64,
    until: Stamp,
}

impl PrefillSide {
    /// Of a route; `former` is that of the table before.
    pub(super) fn of(
        route: &Route,
        config: &Config,
        pools: &[Arc<PoolState>],
        former: Option<&Self>,
    ) -> Option<Self> {
        let prefill = route.prefill.as_ref()?;
        let pool = Arc::clone(pools.get(prefill.pool)?);
        let same = former
            .filter(|known| config.pools.get(prefill.pool).is_some_and(|one| one.name == known.pool.name));
        Some(Self {
            keys: prefill.clone(),
            pool,
            policy: policies::named(PolicyName::Latency),
            transfers: same.map(|known| Arc::clone(&known.transfers)).unwrap_or_default(),
            gate: same.map(|known| Arc::clone(&known.gate)).unwrap_or_default(),
        })
    }

    /// Whether KV of its replicas is of use in this pool: the house's own, of the same model on the same image.
    pub(super) fn reaches(&self, pool: &PoolState) -> bool {
        !pool.is_outside() && pool.config().revision == self.pool.config().revision
    }

    /// A replica answers without the object: no request goes there for a while.
    pub(super) fn close(&self, route: &str, replica: &Replica, now: Stamp) {
        let own = Closed { identity: replica.target.identity, until: now.after(CLOSED_FOR) };
        let is_known = {
            let mut closed = self.gate.closed.lock();
            let is_known = closed.iter().any(|one| one.identity == own.identity);
            let replicas = self.pool.replicas();
            let is_there = |one: &Closed| replicas.iter().any(|r| r.target.identity == one.identity);
            closed.retain(|one| one.identity != own.identity && is_there(one));
            closed.push(own);
            is_known
        };
        self.gate.closed_until.store(own.until);
        if !is_known {
            let (pool, replica) = (&*self.pool.name, &*replica.name());
            tracing::warn!(
                route,
                pool,
                replica,
                "prefill replica answers without kv_transfer_params: it computes no prompts for others; \
                 is its engine started with --kv-transfer-config?"
            );
        }
    }

    /// An answer of this replica had the object.
    pub(super) fn opened(&self, identity: u64) {
        if self.gate.closed_until.get().is_some() {
            self.gate.closed.lock().retain(|one| one.identity != identity);
        }
    }

    /// KV did not come from the one to the other: the pair is avoided for a while.
    pub(super) fn avoid(&self, route: &str, pair: Pair, [prefill, decode]: &[Arc<str>; 2], now: Stamp) {
        if self.transfers.failed(pair, now) {
            tracing::warn!(
                route,
                prefill = &**prefill,
                decode = &**decode,
                "KV did not come from this prefill replica to this decoding replica: the pair is avoided for 10 s, \
                 for longer with each further failure"
            );
        }
    }

    /// Those that were tried, and the replicas that answered without the object a short while ago.
    pub(super) fn excluded(&self, mut tried: SlotSet, now: Stamp) -> SlotSet {
        if self.may_be_closed(now) {
            let closed = self.gate.closed.lock();
            let replicas = self.pool.replicas();
            replicas.iter().filter(|r| is_closed(&closed, r, now)).for_each(|r| tried.insert(r.slot()));
        }
        tried
    }

    /// Whether all of its ready replicas answered without the object a short while ago.
    pub(super) fn is_closed(&self, now: Stamp) -> bool {
        if !self.may_be_closed(now) {
            return false;
        }
        let closed = self.gate.closed.lock();
        let replicas = self.pool.replicas();
        let mut ready = replicas.iter().filter(|replica| replica.is_ready()).peekable();
        ready.peek().is_some() && ready.all(|replica| is_closed(&closed, replica, now))
    }

    fn may_be_closed(&self, now: Stamp) -> bool {
        now < self.gate.closed_until.load()
    }

    /// Logs each change between no ready replica and one.
    pub(super) fn note_ready(&self, route: &str, is_ready: bool) {
        let gate = &self.gate.is_unready;
        if gate.load(Ordering::Relaxed) == is_ready && gate.swap(!is_ready, Ordering::Relaxed) == is_ready {
            let pool = &*self.pool.name;
            if is_ready {
                tracing::info!(route, pool, "prefill pool has a ready replica again");
            } else {
                let why = self.pool.why_unready(|_| true);
                tracing::warn!(route, pool, %why, "prefill pool has no ready replica: the route works without it");
            }
        }
    }
}

fn is_closed(closed: &[Closed], replica: &Replica, now: Stamp) -> bool {
    closed.iter().any(|one| one.identity == replica.target.identity && now < one.until)
}

/// After an answer without the object.
const CLOSED_FOR: Duration = Duration::from_secs(60);
