//! The task around the scalers: looks at every pool once a second and publishes what to ask for.
//!
//! A pool without replicas is looked at four times a second, so that a request that waits for one is seen at once.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::scaler::{Recommendation, Scaler, Target};
use crate::clock::{Clock, Stamp, ticks};
use crate::config::Config;
use crate::fleet::demand::PoolLoad;
use crate::observe::Surroundings;
use crate::observe::metrics::Metrics;

/// What each pool should have.
#[derive(Default)]
pub struct Board {
    pools: Mutex<Wanted>,
    /// Ends the task.
    pub ended: CancellationToken,
}

/// By pool.
type Wanted = BTreeMap<Arc<str>, Recommendation>;

/// Reads demand on every pool, and what serves it.
pub type Loads = Box<dyn Fn() -> Vec<PoolLoad> + Send + Sync>;

impl Board {
    /// What a pool should have; `None` where there is no such pool, or nobody has looked at it yet.
    pub fn of(&self, pool: &str) -> Option<Recommendation> {
        self.pools.lock().get(pool).cloned()
    }
}

/// Starts the task.
pub fn start(
    configs: watch::Receiver<Arc<Config>>,
    around: &Surroundings,
    metrics: &Arc<Metrics>,
    loads: Loads,
) -> Arc<Board> {
    let board = Arc::<Board>::default();
    let service = ScaleService {
        configs,
        loads,
        board: Arc::clone(&board),
        metrics: Arc::clone(metrics),
        scalers: HashMap::new(),
        clock: around.clock,
        began: around.clock.now(),
        looks: 0,
    };
    around.background.spawn(service.run());
    board
}

/// The task that owns the scalers.
struct ScaleService {
    configs: watch::Receiver<Arc<Config>>,
    loads: Loads,
    board: Arc<Board>,
    metrics: Arc<Metrics>,
    scalers: HashMap<Arc<str>, Scaler>,
    clock: Clock,
    began: Stamp,
    looks: u64,
}

impl ScaleService {
    async fn run(mut self) {
        let mut tick = ticks(LOOK_EVERY / LOOKS_AT_ZERO);
        // A fleet that was there before this gateway has answered its probes by then.
        tick.reset_after(LOOK_EVERY);
        let ended = self.board.ended.clone();
        // Cancel-safe: a tick is taken whole or not at all.
        while ended.run_until_cancelled(tick.tick()).await.is_some() {
            self.look();
        }
    }

    fn look(&mut self) {
        let is_due = self.looks.is_multiple_of(u64::from(LOOKS_AT_ZERO));
        self.looks += 1;
        let has_empty = || self.board.pools.lock().values().any(|wanted| wanted.scale.ready_replicas == 0);
        if !is_due && !has_empty() {
            return;
        }
        let now = self.clock.now();
        let (seconds, wall) = (now.since(self.began).as_secs_f64(), self.clock.wall(now));
        let targets = targets(&self.configs.borrow());
        let mut wanted = Wanted::new();
        let is_starved = self.metrics.lag.of_minute(now).is_starved();
        for mut load in (self.loads)() {
            load.is_starved = is_starved;
            let Some(target) = targets.get(&load.pool) else { continue };
            // What is there is not known: a small number would stop it. Requests wait for a pool that may be at zero.
            let is_at_zero = load.queued > 0 && target.scale.min_replicas == 0;
            if load.is_unseen && !is_at_zero && !self.scalers.contains_key(&load.pool) {
                continue;
            }
            let scaler = self.scalers.entry(Arc::clone(&load.pool)).or_default();
            wanted.insert(Arc::clone(&load.pool), scaler.look(seconds, wall, &load, target));
        }
        self.scalers.retain(|pool, _| wanted.contains_key(pool));
        let before = std::mem::replace(&mut *self.board.pools.lock(), wanted.clone());
        self.publish(&before, &wanted);
    }

    fn publish(&self, before: &Wanted, wanted: &Wanted) {
        let families = &self.metrics.families.pools;
        for (pool, Recommendation { scale }) in wanted {
            let (replicas, reason) = (scale.desired_replicas, &*scale.reason);
            if let Some(was) = before.get(pool).map(Recommendation::replicas).filter(|was| *was != replicas) {
                tracing::info!(%pool, replicas, was, reason, "wanted number of replicas changed");
            }
            families.desired.set([pool], Some(replicas as f64));
            families.predicted_ttft.set([pool], scale.predicted_ttft);
            families.waiting.set([pool], Some(scale.waiting_per_replica));
        }
        for gone in before.keys().filter(|pool| !wanted.contains_key(*pool)) {
            for family in [&families.desired, &families.predicted_ttft, &families.waiting] {
                family.remove([gone]);
            }
        }
    }
}

/// What the pools of a configuration are held to. The requests that degrade come from routes whose bounds count there.
fn targets(config: &Config) -> HashMap<Arc<str>, Target> {
    let of = |(at, pool): (usize, &crate::config::Pool)| {
        let leads_here = |route: &&crate::config::Route| route.uses(at);
        let classes =
            || config.routes.iter().filter(leads_here).filter_map(|route| config.slo.get(&route.slo));
        let target = Target {
            scale: pool.scale.clone(),
            ttft: classes().filter_map(|slo| slo.ttft).collect(),
            tpot: classes().filter_map(|slo| slo.tpot).min(),
        };
        (Arc::clone(&pool.name), target)
    };
    config.pools.iter().enumerate().map(of).collect()
}

const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOKS_AT_ZERO: u32 = 4;
