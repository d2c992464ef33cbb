//! All pools and their replicas, across reloads.
//!
//! A replica is its URL: a reload that changes its name, its pool's revision or limits leaves state, connections and everything
//! learned as they are; under another pool it starts ready where it was ready before. Those no longer configured drain: their
//! streams run to the end, their tasks stop. Where all of a pool are replaced, the old ones serve until a new one is ready.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::HeaderValue;
use parking_lot::Mutex;
use tokio_util::task::TaskTracker;

use super::life::Event;
use super::pool::PoolState;
use super::probe::Prober;
use super::promise::Promised;
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
    /// Pools that the last configuration dropped, until requests see the new one.
    dropped: Mutex<Vec<Arc<PoolState>>>,
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
        Self {
            connector,
            clock,
            tracker,
            tasks,
            pools: ArcSwap::default(),
            dropped: Mutex::default(),
            connectors: Mutex::default(),
        }
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

    /// Opens and changes pools until they match a configuration; returns them in its order. Those that it drops serve until
    /// [`Fleet::retire_dropped`].
    pub fn apply(&self, config: &Config) -> Arc<Vec<Arc<PoolState>>> {
        let before = self.pools.load_full();
        let after: Vec<Arc<PoolState>> = config
            .pools
            .iter()
            .map(|pool| {
                let state = before.iter().find(|p| p.name == pool.name).cloned();
                let state = state.unwrap_or_else(|| self.open(pool));
                state.promised.store(Arc::new(Promised::of(config, pool)));
                self.apply_pool(&state, pool, &before);
                state.queue.share(config.queues(pool));
                state
            })
            .collect();
        let gone = before.iter().filter(|p| !after.iter().any(|a| Arc::ptr_eq(a, p)));
        self.dropped.lock().extend(gone.cloned());
        let after = Arc::new(after);
        self.pools.store(Arc::clone(&after));
        after
    }

    /// Retires the pools that the last configuration dropped: no request can choose them any more.
    pub fn retire_dropped(&self) {
        for pool in self.dropped.lock().drain(..) {
            pool.retire();
        }
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

    /// Has replicas of a pool warmed up again, one of them or all; returns the names of those that it concerns.
    pub fn warm_up(&self, pool: &str, replica: Option<&str>) -> Vec<Arc<str>> {
        let pools = self.pools.load();
        let replicas = pools
            .iter()
            .filter(|state| &*state.name == pool)
            .flat_map(|state| state.replicas().iter().map(Arc::clone).collect::<Vec<_>>());
        let chosen = replicas.filter(|one| replica.is_none_or(|name| &*one.name() == name));
        let warmed = chosen.map(|one| {
            one.warm_again();
            one.name()
        });
        warmed.collect()
    }

    /// How well each pool's TTFT is predicted. Sorts the samples of every replica: for the admin API, not for loops.
    pub fn calibrations(&self) -> Vec<PoolCalibration> {
        let of_pool = |pool: &Arc<PoolState>| PoolCalibration {
            pool: Arc::clone(&pool.name),
            whole: pool.dispatcher.model.calibration(None),
            replicas: (pool.replicas.load().iter())
                .map(|replica| (replica.name(), pool.dispatcher.model.calibration(Some(replica.slot()))))
                .collect(),
        };
        self.pools.load().iter().map(of_pool).collect()
    }

    fn apply_pool(&self, state: &Arc<PoolState>, config: &Pool, former: &[Arc<PoolState>]) {
        state.config.store(Arc::new(config.clone()));
        let before = state.replicas.load_full();
        let mut after: Vec<Arc<Replica>> = Vec::with_capacity(config.replicas.len());
        for spec in &config.replicas {
            if let Some(kept) = before.iter().find(|replica| replica.endpoint == spec.endpoint) {
                kept.relabel(served(config, spec));
                kept.set_zone(spec.zone.clone());
                kept.connections.set_limit(config.max_connections.get());
                after.push(Arc::clone(kept));
                continue;
            }
            let used: SlotSet = before.iter().chain(&after).map(|r| r.slot()).collect();
            let slot = (0..SLOTS).find(|slot| !used.contains(*slot));
            let slot = slot.expect("invariant: config::check bounds a pool to half of its slots");
            state.dispatcher.forget(slot);
            let replica = self.start(state, config, spec, slot);
            let elsewhere = former.iter().filter(|pool| !Arc::ptr_eq(pool, state));
            if let Some(old) = elsewhere.flat_map(|pool| ready_at(pool, spec)).next() {
                replica.models.store(old.models.load_full());
                replica.warmth.adopted(self.clock.now());
                replica.happened(Event::Adopted, "was ready in another pool");
            }
            after.push(replica);
        }
        let is_gone = |replica: &&Arc<Replica>| !after.iter().any(|a| Arc::ptr_eq(a, replica));
        let gone: Vec<_> = before.iter().filter(is_gone).cloned().collect();
        let is_bridged = gone.iter().any(|old| old.is_ready()) && !after.iter().any(|new| new.is_ready());
        if is_bridged {
            after.extend(gone);
            state.replicas.store(Arc::new(after));
            self.tracker.spawn_on(hand_over(Arc::clone(state)), &self.tasks);
        } else {
            state.replicas.store(Arc::new(after));
            gone.iter().for_each(|replica| replica.retire());
        }
    }

    fn start(&self, pool: &Arc<PoolState>, config: &Pool, spec: &ReplicaSpec, slot: usize) -> Arc<Replica> {
        let endpoint = spec.endpoint.clone();
        let host = HeaderValue::from_str(&endpoint.authority());
        let (connector, clock) = (self.connector_of(&pool.name), self.clock);
        let replica = Replica::new(ReplicaParts {
            slot,
            served: served(config, spec),
            // `config::check` lets only hosts through that are valid authorities.
            host: host.unwrap_or_else(|_| HeaderValue::from_static("replica")),
            connections: ConnectionPool::new(
                endpoint.clone(),
                connector.clone(),
                clock,
                config.max_connections.get(),
            ),
            endpoint,
            zone: spec.zone.clone(),
            clock,
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

fn served(config: &Pool, spec: &ReplicaSpec) -> Served {
    Served {
        pool: Arc::clone(&config.name),
        revision: Arc::clone(&config.revision),
        replica: Arc::clone(&spec.name),
        engine: config.engine.as_str().into(),
        host: Arc::clone(&spec.endpoint.host),
        port: spec.endpoint.port,
    }
}

fn ready_at(pool: &PoolState, spec: &ReplicaSpec) -> Option<Arc<Replica>> {
    pool.replicas().iter().find(|old| old.endpoint == spec.endpoint && old.is_ready()).cloned()
}

/// Retires the replicas that the configuration dropped once one that it has is ready, or after [`HAND_OVER`].
async fn hand_over(pool: Arc<PoolState>) {
    let is_configured =
        |replica: &Replica| pool.config.load().replicas.iter().any(|spec| spec.endpoint == replica.endpoint);
    let has_successor =
        || pool.replicas.load().iter().any(|replica| is_configured(replica) && replica.is_ready());
    let waits = async {
        while !has_successor() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    let _ = tokio::time::timeout(HAND_OVER, waits).await;
    let all = pool.replicas();
    let (stay, gone): (Vec<_>, Vec<_>) = all.iter().cloned().partition(|replica| is_configured(replica));
    pool.replicas.store(Arc::new(stay));
    gone.iter().for_each(|replica| replica.retire());
}

/// How long replicas serve on that no configuration has any more, where none of their successors is ready.
const HAND_OVER: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Replicas of one configuration, and of the one before it.
const SLOTS: usize = 2 * MAX_REPLICAS;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check::check_str;
    use crate::fleet::status::ReplicaState;

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

    fn fleet() -> Fleet {
        let (tracker, tasks) = (TaskTracker::new(), tokio::runtime::Handle::current());
        Fleet::new(Connector::new(tracker.clone()).unwrap(), Clock::start(), tracker, tasks)
    }

    fn apply(fleet: &Fleet, pool: &str, more: &str, replica: &str) -> Arc<PoolState> {
        let text = format!("[[pool]]\nname = \"{pool}\"\n{more}\nreplicas = [{replica}]\n");
        let pools = fleet.apply(&check_str("f.toml", &text, &|_| None).unwrap());
        Arc::clone(&pools[0])
    }

    #[tokio::test]
    async fn a_replica_is_its_url_whatever_it_is_called() {
        let fleet = fleet();
        let url = "http://127.0.0.9:1";
        let one = apply(&fleet, "p", "", &format!("\"{url}\"")).replicas()[0].clone();
        one.happened(Event::Adopted, "answered");
        let named = format!("{{ url = \"{url}\", name = \"gpu\" }}");
        let pool = apply(&fleet, "p", "revision = \"r2\"\nmax_connections = 7", &named);
        assert!(Arc::ptr_eq(&one, &pool.replicas()[0]));
        assert_eq!((&*one.name(), &*one.served().revision, one.state()), ("gpu", "r2", ReplicaState::Ready));

        let other = apply(&fleet, "q", "", &named);
        assert_eq!(other.replicas()[0].state(), ReplicaState::Ready, "it was ready in the pool before");
        assert_eq!(one.state(), ReplicaState::Ready, "requests may still have the old configuration");
        fleet.retire_dropped();
        assert_eq!(one.state(), ReplicaState::Draining);
        fleet.retire();
    }

    #[tokio::test]
    async fn replaced_replicas_serve_until_a_new_one_is_ready() {
        let fleet = fleet();
        let pool = apply(&fleet, "p", "", "\"http://127.0.0.9:1\"");
        let old = pool.replicas()[0].clone();
        old.happened(Event::Adopted, "answered");
        apply(&fleet, "p", "", "\"http://127.0.0.9:2\"");
        assert!(pool.is_ready() && pool.replicas().len() == 2);
        let new = pool.replicas()[0].clone();
        new.happened(Event::Adopted, "answered");
        while pool.replicas().len() == 2 {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        assert_eq!(old.state(), ReplicaState::Draining);
        fleet.retire();
    }
}
