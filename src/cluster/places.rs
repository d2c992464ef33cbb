//! The replicas of this gateway by the names that all gateways have for them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::wire::{self, Head};
use crate::clock::Stamp;
use crate::fleet::pool::PoolState;
use crate::fleet::replica::Replica;
use crate::routing::Followed;
use crate::routing::notice::{Died, Event, Left, Outbox, Placed, place};

/// Replicas by [`place`].
#[derive(Debug, Default)]
pub(super) struct Places(HashMap<u64, (Arc<PoolState>, Arc<Replica>)>);

impl Places {
    /// Those of the fleet now; decisions of every pool are published from now on.
    pub(super) fn of(pools: &[Arc<PoolState>], outbox: &Arc<Outbox>) -> Self {
        Self::announce(pools, outbox);
        Self::known(pools)
    }

    /// Publishes the decisions of every pool from now on.
    pub(super) fn announce(pools: &[Arc<PoolState>], outbox: &Arc<Outbox>) {
        pools.iter().for_each(|pool| pool.dispatcher.announce(outbox, &pool.name));
    }

    /// Those of the fleet now.
    pub(super) fn known(pools: &[Arc<PoolState>]) -> Self {
        let mut places = HashMap::new();
        for pool in pools {
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

    /// Takes in a batch that was written at that time since 1970; returns how many of its decisions count here. `None` where it is the
    /// gateway's `own`, or of one whose hashes are others.
    pub(super) fn replay(&self, batch: &[u8], own: &Head, written: Duration, now: Stamp) -> Option<usize> {
        let is_known = |head: &Head| head.sender != own.sender && head.seed == own.seed;
        let mut batch = wire::open(batch, now).ok().filter(|batch| is_known(&batch.head))?;
        let mut count = 0;
        while let Ok(Some(notice)) = batch.next() {
            if let Event::Placed(placed) = notice.event
                && self.remember(&placed, written.saturating_sub(now.since(notice.at)), now)
            {
                count += 1;
            }
        }
        Some(count)
    }

    /// A prompt was sent to a replica at that time since 1970, and is cached there unless its process is younger; returns whether it
    /// is.
    fn remember(&self, placed: &Placed, sent: Duration, now: Stamp) -> bool {
        let known = self.0.get(&placed.place).filter(|(_, replica)| replica.has_run_since(sent));
        let Some((pool, replica)) = known else { return false };
        pool.dispatcher.remember(&replica.target, placed, now);
        true
    }

    /// Another gateway left a replica; returns whether this one has it.
    pub(super) fn doubt(&self, left: &Left, now: Stamp) -> bool {
        let Some((pool, replica)) = self.0.get(&left.place) else { return false };
        replica.doubt(left.is_failing, pool.config().probe.timeout, now);
        true
    }

    /// A request of another gateway was in flight where a replica died; returns whether this one has the replica.
    pub(super) fn died(&self, died: &Died, now: Stamp) -> bool {
        let Some((pool, replica)) = self.0.get(&died.place) else { return false };
        pool.poison.heard(died.request, replica.identity.of_url(), now);
        true
    }
}
