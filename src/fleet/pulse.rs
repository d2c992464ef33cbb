//! Asks, every few milliseconds, the streams of a pool how far they are.
//!
//! What a stall would do to running streams is worked out here, beside the request path, so that a decision only reads it;
//! what the streams have brought takes its share of the cache, and how many prompts wait sets the prices of a decision.
//! A replica without requests is not asked. It runs on the second runtime, with probes and scrapes.

use std::sync::Arc;

use super::registry::PoolState;
use crate::clock::Clock;
use crate::routing::REFRESH_EVERY;
use crate::routing::prefix_index::capacity_of;

/// Refreshes the load of every replica of a pool until the pool is dropped by the configuration.
pub(super) async fn run(pool: Arc<PoolState>, clock: Clock) {
    let mut turns = tokio::time::interval(REFRESH_EVERY);
    turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = pool.retired.cancelled() => return,
            _ = turns.tick() => {}
        }
        let now = clock.now();
        let (replicas, interval) = (pool.replicas(), pool.config().scrape_interval);
        let ready = replicas.iter().filter(|replica| replica.is_ready());
        pool.model.note_backlog(now, ready.map(|replica| replica.waiting(now, interval)));
        for replica in replicas.iter() {
            if let Some(generated) = pool.model.refresh(replica.slot, &replica.load, now) {
                let blocks = capacity_of(generated.0, 1, pool.ratio.bytes_per_token());
                pool.index.set_pinned(replica.slot, blocks);
            }
        }
    }
}
