//! The prefill pool of a route with `[route.prefill]`, and what is known of it from one table to the next.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Stamp;
use crate::config::{Config, PolicyName, Prefill, Route};
use crate::fleet::pool::PoolState;
use crate::routing::{Policy, Transfers, policies};

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

/// Whether the pool is of use; each change is logged once.
#[derive(Debug, Default)]
pub(super) struct Gate {
    closed_until: AtomicU64,
    is_closed: AtomicBool,
    is_unready: AtomicBool,
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

    /// Its engines answer without the object: no request goes there for a while.
    pub(super) fn close(&self, route: &str, now: Stamp) {
        self.gate.closed_until.store(now.after(CLOSED_FOR).as_nanos(), Ordering::Relaxed);
        if !self.gate.is_closed.swap(true, Ordering::Relaxed) {
            let pool = &*self.pool.name;
            tracing::warn!(
                route,
                pool,
                "prefill pool answers without kv_transfer_params: prompts are computed where they are decoded; \
                 is its engine started with --kv-transfer-config?"
            );
        }
    }

    /// An answer had the object.
    pub(super) fn opened(&self) {
        if self.gate.is_closed.load(Ordering::Relaxed) {
            self.gate.is_closed.store(false, Ordering::Relaxed);
        }
    }

    /// Whether its engines answered without the object a short while ago.
    pub(super) fn is_closed(&self, now: Stamp) -> bool {
        now < Stamp::from_nanos(self.gate.closed_until.load(Ordering::Relaxed))
    }

    /// Logs each change between no ready replica and one.
    pub(super) fn note_ready(&self, route: &str, is_ready: bool) {
        let gate = &self.gate.is_unready;
        if gate.load(Ordering::Relaxed) == is_ready && gate.swap(!is_ready, Ordering::Relaxed) == is_ready {
            let pool = &*self.pool.name;
            if is_ready {
                tracing::info!(route, pool, "prefill pool has a ready replica again");
            } else {
                let why = self.pool.why_unready();
                tracing::warn!(route, pool, %why, "prefill pool has no ready replica: the route works without it");
            }
        }
    }
}

/// After an answer without the object.
const CLOSED_FOR: Duration = Duration::from_secs(60);
