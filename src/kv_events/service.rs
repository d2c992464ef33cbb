//! Keeps a follower for each pool that has `[pool.kv_events]`, over reloads.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::DropGuard;

use super::follower::Follower;
use crate::cluster::Deps;
use crate::config::KvEvents;
use crate::fleet::pool::PoolState;

/// Begins to look for pools whose engines are to be followed.
pub fn start(deps: Deps) {
    let (background, stopped) = (deps.background.clone(), deps.stopped.clone());
    background.spawn_until(&stopped, watch(Arc::new(deps)));
}

struct Followed {
    pool: Arc<PoolState>,
    config: KvEvents,
    _stop: DropGuard,
}

async fn watch(deps: Arc<Deps>) {
    let mut followed: HashMap<Arc<str>, Followed> = HashMap::new();
    loop {
        let pools = deps.fleet.pools();
        followed.retain(|_, one| {
            pools.iter().any(|pool| {
                Arc::ptr_eq(pool, &one.pool) && pool.config().kv_events.as_ref() == Some(&one.config)
            })
        });
        for pool in pools.iter().filter(|pool| !followed.contains_key(&pool.name)).collect::<Vec<_>>() {
            let Some(config) = pool.config().kv_events.clone() else { continue };
            let stopped = deps.stopped.child_token();
            let following =
                Follower::run(Arc::clone(pool), config.clone(), Arc::clone(&deps), stopped.clone());
            deps.background.spawn(following);
            let (pool, _stop) = (Arc::clone(pool), stopped.drop_guard());
            followed.insert(Arc::clone(&pool.name), Followed { pool, config, _stop });
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Between two looks at the configuration.
const LOOK_EVERY: Duration = Duration::from_millis(200);
