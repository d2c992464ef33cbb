//! The replicas of this gateway by the names that all gateways have for them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::clock::Stamp;
use crate::fleet::pool::PoolState;
use crate::fleet::replica::Replica;
use crate::routing::Followed;
use crate::routing::notice::{Outbox, Placed, place};

/// Replicas by [`place`].
#[derive(Debug, Default)]
pub(super) struct Places(HashMap<u64, (Arc<PoolState>, Arc<Replica>)>);

impl Places {
    /// Those of the fleet now; decisions of every pool are published from now on.
    pub(super) fn of(pools: &[Arc<PoolState>], outbox: &Arc<Outbox>) -> Self {
        let mut places = HashMap::new();
        for pool in pools {
            pool.dispatcher.announce(outbox, &pool.name);
            for replica in pool.replicas().iter() {
                let at = (Arc::clone(pool), Arc::clone(replica));
                places.insert(place(&pool.name, replica.target.identity), at);
            }
        }
        Self(places)
    }

    /// Another gateway sent a request to a replica.
    pub(super) fn follow(&self, placed: &Placed, at: Stamp) -> Option<Followed> {
        let (pool, replica) = self.0.get(&placed.place)?;
        Some(pool.dispatcher.follow(&replica.target, placed, at))
    }
}
