//! The tick of a pool's dispatcher: every few milliseconds, beside the request path.
//!
//! It runs on the second runtime, with probes and scrapes.

use std::sync::Arc;

use super::registry::PoolState;
use crate::clock::Clock;
use crate::routing::REFRESH_EVERY;

/// Refreshes what the dispatcher knows of running streams until the configuration drops the pool.
pub(super) async fn run(pool: Arc<PoolState>, clock: Clock) {
    let mut ticks = tokio::time::interval(REFRESH_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = pool.retired.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let replicas = pool.replicas();
        let targets = replicas.iter().map(|replica| &replica.target);
        let ready = replicas.iter().filter(|replica| replica.is_ready()).map(|replica| &replica.target);
        let bytes_per_token = pool.ratio.bytes_per_token();
        pool.dispatcher.refresh(targets, ready, &pool.engine_limits(), bytes_per_token, clock.now());
    }
}
