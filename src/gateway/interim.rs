//! A route that a reload gave other pools is served by those that it had until one of the new ones is ready.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::fleet::pool::PoolState;

/// Where the former pools stand behind a route's own, and whether they have served their time.
#[derive(Debug)]
pub(super) struct Interim {
    /// Place of the first one.
    pub(super) first: usize,
    is_over: AtomicBool,
}

impl Interim {
    /// Puts the former pools behind `pools` where one of them is ready and of `pools` none.
    pub(super) fn behind(pools: &mut Vec<Arc<PoolState>>, former: &[&Arc<PoolState>]) -> Self {
        let first = pools.len();
        if !pools.iter().any(|pool| pool.is_ready()) && former.iter().any(|pool| pool.is_ready()) {
            let is_left = |pool: &&&Arc<PoolState>| !pools.iter().any(|known| Arc::ptr_eq(known, pool));
            let left: Vec<_> = former.iter().filter(is_left).map(|pool| Arc::clone(pool)).collect();
            pools.extend(left);
        }
        Self { first, is_over: AtomicBool::new(pools.len() == first) }
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}
