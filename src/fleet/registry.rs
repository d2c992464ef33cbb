//! All pools and their replicas, across reloads.
//!
//! A reload keeps a replica with the same pool, URL, name and revision together with everything learned about it, adds
//! new ones, and drains those no longer configured: their streams run to the end, their tasks stop.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::HeaderValue;
use parking_lot::Mutex;
use tokio_util::task::TaskTracker;

use super::pool::PoolState;
use super::probe::Prober;
use super::replica::{Replica, ReplicaParts};
use super::scrape::Scraper;
use super::status::{PoolCalibration, ReplicaStatus};
use crate::clock::Clock;
use crate::config::{Config, MAX_REPLICAS, Pool, ReplicaSpec};
use crate::listener::tls::TlsError;
use crate::record::Served;
use crate::routing::SlotSet;
use crate::upstream::connect::Connector;
use crate::upstream::pool::ConnectionPool;

/// All pools.
#[derive(Debug)]
pub struct Fleet {
    connector: Connector,
    clock: Clock,
    tracker: TaskTracker,
    tasks: tokio::runtime::Handle,
    pools: ArcSwap<Vec<Arc<PoolState>>>,
    /// By pool: each has TLS settings of its own.
    connectors: Mutex<HashMap<Arc<str>, Connector>>,
}

impl Fleet {
    /// A fleet without pools. Probes and scrapes run on `tasks`, not on the data path's runtime, so that they get
    /// through while it is saturated.
    pub fn new(
        connector: Connector,
        clock: Clock,
        tracker: TaskTracker,
        tasks: tokio::runtime::Handle,
    ) -> Self {
        Self { connector, clock, tracker, tasks, pools: ArcSwap::default(), connectors: Mutex::default() }
    }

    /// Reads the TLS files of every pool and secures connections from now on with them. Before [`Fleet::apply`].
    ///
    /// # Errors
    /// When a file cannot be used: then nothing changes.
    pub fn secure(&self, config: &Config) -> Result<(), TlsError> {
        let read = |pool: &Pool| Ok((Arc::clone(&pool.name), self.connector.read(pool.tls.as_ref())?));
        let all: Vec<_> = config.pools.iter().map(read).collect::<Result<_, TlsError>>()?;
        for (pool, tls) in all {
            self.connector_of(&pool).secure(tls);
        }
        // Connections in use go on; idle ones would keep the old certificate in use.
        let pools = self.pools();
        let is_tls = |replica: &&Arc<Replica>| replica.endpoint.is_tls;
        for pool in pools.iter() {
            pool.replicas().iter().filter(is_tls).for_each(|replica| replica.connections.drain());
        }
        Ok(())
    }

    fn connector_of(&self, pool: &Arc<str>) -> Connector {
        let mut connectors = self.connectors.lock();
        connectors.entry(Arc::clone(pool)).or_insert_with(|| self.connector.separate()).clone()
    }

    /// The pools, in the order of the configuration that was applied last.
    pub fn pools(&self) -> Arc<Vec<Arc<PoolState>>> {
        self.pools.load_full()
    }

    /// Opens, changes and retires pools until they match a configuration; returns them in its order.
    pub fn apply(&self, config: &Config) -> Arc<Vec<Arc<PoolState>>> {
        let before = self.pools.load_full();
        let after: Vec<Arc<PoolState>> = config
            .pools
            .iter()
            .map(|pool| {
                let state = before.iter().find(|p| p.name == pool.name).cloned();
                let state = state.unwrap_or_else(|| self.open(pool));
                self.apply_pool(&state, pool);
                state.queue.share(config.queues(pool));
                state
            })
            .collect();
        for gone in before.iter().filter(|p| !after.iter().any(|a| Arc::ptr_eq(a, p))) {
            gone.retire();
        }
        let after = Arc::new(after);
        self.pools.store(Arc::clone(&after));
        after
    }

    /// Ends every task of the fleet.
    pub fn retire(&self) {
        for pool in self.pools.load().iter() {
            pool.retire();
        }
    }

    fn open(&self, config: &Pool) -> Arc<PoolState> {
        let pool = PoolState::new(config, SLOTS);
        self.tracker.spawn_on(Arc::clone(&pool).refresh(self.clock), &self.tasks);
        pool
    }

    /// Status of every replica.
    pub fn statuses(&self) -> Vec<ReplicaStatus> {
        let now = self.clock.now();
        let mut all = Vec::new();
        for pool in self.pools.load().iter() {
            let limits = pool.engine_limits();
            all.extend(pool.replicas.load().iter().map(|replica| replica.status(now, &limits)));
        }
        all
    }

    /// How well each pool's TTFT is predicted. Sorts the samples of every replica: for the admin API, not for loops.
    pub fn calibrations(&self) -> Vec<PoolCalibration> {
        let of_pool = |pool: &Arc<PoolState>| PoolCalibration {
            pool: Arc::clone(&pool.name),
            whole: pool.dispatcher.model.calibration(None),
            replicas: (pool.replicas.load().iter())
                .map(|replica| {
                    (
                        Arc::clone(&replica.served.replica),
                        pool.dispatcher.model.calibration(Some(replica.slot())),
                    )
                })
                .collect(),
        };
        self.pools.load().iter().map(of_pool).collect()
    }

    fn apply_pool(&self, state: &Arc<PoolState>, config: &Pool) {
        state.config.store(Arc::new(config.clone()));
        let before = state.replicas.load_full();
        let kept = |spec: &ReplicaSpec| {
            let same = |r: &&Arc<Replica>| r.endpoint == spec.endpoint && r.served.replica == spec.name;
            before.iter().find(same).filter(|r| r.served.revision == config.revision).cloned()
        };
        let mut after: Vec<_> = config.replicas.iter().filter_map(kept).collect();
        for gone in before.iter().filter(|r| !after.iter().any(|a| Arc::ptr_eq(a, r))) {
            gone.retire();
        }
        for spec in config.replicas.iter().filter(|spec| kept(spec).is_none()) {
            let used: SlotSet = before.iter().chain(&after).map(|r| r.slot()).collect();
            let slot = (0..SLOTS).find(|slot| !used.contains(*slot));
            let slot = slot.expect("invariant: config::check bounds a pool to half of its slots");
            state.dispatcher.forget(slot);
            after.push(self.start(state, config, spec, slot));
        }
        state.replicas.store(Arc::new(after));
    }

    fn start(&self, pool: &Arc<PoolState>, config: &Pool, spec: &ReplicaSpec, slot: usize) -> Arc<Replica> {
        let endpoint = spec.endpoint.clone();
        let host = HeaderValue::from_str(&endpoint.authority());
        let (connector, clock) = (self.connector_of(&pool.name), self.clock);
        let replica = Replica::new(ReplicaParts {
            slot,
            served: Served {
                pool: Arc::clone(&pool.name),
                revision: Arc::clone(&config.revision),
                replica: Arc::clone(&spec.name),
                engine: config.engine.as_str().into(),
                host: Arc::clone(&endpoint.host),
                port: endpoint.port,
            },
            // `config::check` lets only hosts through that are valid authorities.
            host: host.unwrap_or_else(|_| HeaderValue::from_static("replica")),
            connections: ConnectionPool::new(
                endpoint.clone(),
                connector.clone(),
                clock,
                config.max_connections.get(),
            ),
            endpoint,
        });
        let prober = Prober {
            pool: Arc::clone(pool),
            replica: Arc::clone(&replica),
            connector: connector.clone(),
            clock,
        };
        let scraper = Scraper { pool: Arc::clone(pool), replica: Arc::clone(&replica), connector, clock };
        self.tracker.spawn_on(prober.run(), &self.tasks);
        self.tracker.spawn_on(scraper.run(), &self.tasks);
        replica
    }
}

/// Replicas of one configuration, and of the one before it.
const SLOTS: usize = 2 * MAX_REPLICAS;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check::check_str;

    #[tokio::test]
    async fn a_reload_may_replace_every_replica_of_the_largest_pool() {
        let (tracker, tasks) = (TaskTracker::new(), tokio::runtime::Handle::current());
        let fleet = Fleet::new(Connector::new(tracker.clone()).unwrap(), Clock::start(), tracker, tasks);
        for host in ["127.0.0.1", "127.0.0.2", "127.0.0.3"] {
            let urls: Vec<_> = (1..=MAX_REPLICAS).map(|port| format!("\"http://{host}:{port}\"")).collect();
            let text = format!("[[pool]]\nname = \"p\"\nreplicas = [{}]\n", urls.join(", "));
            let pools = fleet.apply(&check_str("f.toml", &text, &|_| None).unwrap());
            assert_eq!(pools[0].replicas().len(), MAX_REPLICAS);
        }
        fleet.retire();
    }
}
