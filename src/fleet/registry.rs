//! Pools and their replicas, kept over reloads.
//!
//! A reload keeps a replica that is named again (same pool, URL and name) with everything learned of it, adds
//! what is new, and drains what is gone: its streams end in their own time, its tasks stop.

use std::num::NonZeroU64;
use std::sync::Arc;

use arc_swap::ArcSwap;
use dashmap::DashMap;
use http::HeaderValue;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::probe::Prober;
use super::replica::{Replica, ReplicaParts};
use super::scrape::Scraper;
use super::status::{PoolCalibration, ReplicaState, ReplicaStatus};
use crate::clock::{Clock, Stamp};
use crate::config::{Config, MAX_REPLICAS, Pool, ReplicaSpec};
use crate::error::ReplicaFailure;
use crate::record::Served;
use crate::request::ratio::TokenRatio;
use crate::routing::{Dispatcher, EngineLimits, SlotSet};
use crate::upstream::connect::Connector;
use crate::upstream::pool;

/// One pool in operation.
#[derive(Debug)]
pub struct PoolState {
    /// Its name.
    pub name: Arc<str>,
    /// Where its requests go, and what was learned from them.
    pub dispatcher: Arc<Dispatcher>,
    /// Learned bytes per token of its model.
    pub ratio: TokenRatio,
    /// Cancelled when the configuration drops it.
    pub(super) retired: CancellationToken,
    config: ArcSwap<Pool>,
    replicas: ArcSwap<Vec<Arc<Replica>>>,
    /// Prompts that were in flight when an attempt broke, until the replica proves alive or dead.
    suspects: Mutex<Vec<Suspect>>,
    deaths: DashMap<u64, Deaths>,
}

/// A prompt that was in flight when an attempt broke.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    prompt: u64,
    at: Stamp,
    life: Life,
}

/// One life of a replica: its slot and how often it had become ready.
type Life = (usize, u32);

/// The replica deaths that a prompt coincided with.
#[derive(Debug, Default)]
struct Deaths {
    of: SmallVec<[Life; 2]>,
    last: Stamp,
}

impl PoolState {
    fn new(config: &Pool) -> Arc<Self> {
        Arc::new(Self {
            name: Arc::clone(&config.name),
            dispatcher: Dispatcher::new(SLOTS),
            ratio: TokenRatio::default(),
            retired: CancellationToken::new(),
            config: ArcSwap::from_pointee(config.clone()),
            replicas: ArcSwap::default(),
            suspects: Mutex::default(),
            deaths: DashMap::new(),
        })
    }

    /// Ends all that runs for it.
    fn retire(&self) {
        self.retired.cancel();
        self.replicas.load().iter().for_each(|r| retire(r));
    }

    /// Its configuration now.
    #[must_use]
    pub fn config(&self) -> Arc<Pool> {
        self.config.load_full()
    }

    /// Its replicas, whatever their state.
    #[must_use]
    pub fn replicas(&self) -> Arc<Vec<Arc<Replica>>> {
        self.replicas.load_full()
    }

    /// Whether any replica takes requests.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.replicas.load().iter().any(|r| r.is_ready())
    }

    /// A request failed at a replica: it may be left, but never the last ready one for this alone, and never
    /// more than `pool.ejection.max_share` of the pool.
    pub fn failed(&self, replica: &Replica, failure: &ReplicaFailure, prompt: u64, now: Stamp) {
        // Our own limit and an engine's full queue say that it is busy, and busy is not down.
        let is_busy = matches!(
            failure,
            ReplicaFailure::NoFreeConnection { .. } | ReplicaFailure::Status { status: 503, .. }
        );
        if is_busy {
            return;
        }
        let in_a_row = replica.count_failure();
        let broke = matches!(
            failure,
            ReplicaFailure::ClosedBeforeHead { is_unsent: false, .. }
                | ReplicaFailure::Truncated { .. }
                | ReplicaFailure::EngineDown { .. }
                | ReplicaFailure::Silent { .. }
        );
        if broke {
            let mut suspects = self.suspects.lock();
            suspects.retain(|suspect| now.since(suspect.at) < SUSPECT_FOR);
            if suspects.len() < MAX_SUSPECTS {
                suspects.push(Suspect { prompt, at: now, life: (replica.slot(), replica.life()) });
            }
        }
        let is_gone = matches!(failure, ReplicaFailure::Refused { .. });
        if is_gone {
            replica.vitals.refused(now);
        }
        let leaves = is_gone || in_a_row >= IN_A_ROW || matches!(failure, ReplicaFailure::EngineDown { .. });
        if leaves && replica.is_ready() && self.may_eject() {
            replica.enter(ReplicaState::Ejected, &failure.to_string());
        }
        if leaves || broke {
            replica.vitals.check_now.notify_one();
        }
    }

    fn may_eject(&self) -> bool {
        let replicas = self.replicas.load();
        let ready = replicas.iter().filter(|r| r.is_ready()).count();
        let left = replicas.iter().filter(|r| r.state() == ReplicaState::Ejected).count();
        let share = (left + 1) as f64 / replicas.len().max(1) as f64;
        ready > 1 && share <= self.config.load().max_ejected_share.max(1.0 / replicas.len().max(1) as f64)
    }

    /// The prober found a replica dead: prompts that were in flight when it broke are suspected.
    pub fn died(&self, replica: &Replica, now: Stamp) {
        self.dispatcher.forget(replica.slot());
        let mut suspects = self.suspects.lock();
        suspects.retain(|suspect| {
            let is_confirmed = suspect.life.0 == replica.slot() && now.since(suspect.at) < SUSPECT_FOR;
            if is_confirmed {
                let mut deaths = self.deaths.entry(suspect.prompt).or_default();
                // One death is one death, however many streams of a prompt it took and whenever they broke.
                if !deaths.of.contains(&suspect.life) {
                    deaths.of.push(suspect.life);
                }
                deaths.last = now;
            }
            !is_confirmed
        });
        drop(suspects);
        self.deaths.retain(|_, deaths| now.since(deaths.last) < POISON_FOR);
    }

    /// For how much longer a prompt is refused, if it coincided with two replica deaths.
    #[must_use]
    pub fn is_poison(&self, prompt: u64, now: Stamp) -> Option<std::time::Duration> {
        if self.deaths.is_empty() {
            return None;
        }
        let deaths = self.deaths.get(&prompt)?;
        let left = POISON_FOR.checked_sub(now.since(deaths.last))?;
        (deaths.of.len() >= 2).then_some(left)
    }

    /// What its configuration says of its engines.
    #[must_use]
    pub fn engine_limits(&self) -> EngineLimits {
        let config = self.config.load();
        EngineLimits {
            scrape_interval: config.scrape_interval,
            batch_limit: config.max_num_seqs.map(NonZeroU64::get),
        }
    }
}

/// All pools.
#[derive(Debug)]
pub struct Fleet {
    connector: Connector,
    clock: Clock,
    tracker: TaskTracker,
    tasks: tokio::runtime::Handle,
    pools: ArcSwap<Vec<Arc<PoolState>>>,
}

impl Fleet {
    /// No pools yet. `tasks` is the runtime on which probes and scrapes run: not that of the data path, so that
    /// they answer while it is saturated.
    #[must_use]
    pub fn new(
        connector: Connector,
        clock: Clock,
        tracker: TaskTracker,
        tasks: tokio::runtime::Handle,
    ) -> Self {
        Self { connector, clock, tracker, tasks, pools: ArcSwap::default() }
    }

    /// The pools, in the order of the configuration that was applied last.
    #[must_use]
    pub fn pools(&self) -> Arc<Vec<Arc<PoolState>>> {
        self.pools.load_full()
    }

    /// Makes the fleet what a configuration says.
    pub fn apply(&self, config: &Config) -> Arc<Vec<Arc<PoolState>>> {
        let before = self.pools.load_full();
        let after: Vec<Arc<PoolState>> = config
            .pools
            .iter()
            .map(|pool| {
                let state = before.iter().find(|p| p.name == pool.name).cloned();
                let state = state.unwrap_or_else(|| self.open(pool));
                self.apply_pool(&state, pool);
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
        let pool = PoolState::new(config);
        self.tracker.spawn_on(super::pulse::run(Arc::clone(&pool), self.clock), &self.tasks);
        pool
    }

    /// Every replica, as seen from outside.
    #[must_use]
    pub fn statuses(&self) -> Vec<ReplicaStatus> {
        let now = self.clock.now();
        let mut all = Vec::new();
        for pool in self.pools.load().iter() {
            let limits = pool.engine_limits();
            let seen = |r: &Arc<Replica>| r.status(now, &limits);
            all.extend(pool.replicas.load().iter().map(seen));
        }
        all
    }

    /// How well each pool's times are predicted. Sorts what is remembered: for people who ask, not for loops.
    #[must_use]
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
            retire(gone);
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
        let replica = Replica::new(ReplicaParts {
            slot,
            served: Served {
                pool: Arc::clone(&pool.name),
                revision: Arc::clone(&config.revision),
                replica: Arc::clone(&spec.name),
                engine: Arc::clone(&config.engine),
                host: Arc::clone(&endpoint.host),
                port: endpoint.port,
            },
            // `config::check` lets only hosts through that are valid authorities.
            host: host.unwrap_or_else(|_| HeaderValue::from_static("replica")),
            connections: pool::Pool::new(
                endpoint.clone(),
                self.connector.clone(),
                self.clock,
                config.max_connections.get(),
            ),
            endpoint,
        });
        let (connector, clock) = (self.connector.clone(), self.clock);
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

fn retire(replica: &Replica) {
    replica.enter(ReplicaState::Draining, "no longer configured");
    replica.removed.cancel();
    replica.connections.drain();
}

const IN_A_ROW: u32 = 3;
const SUSPECT_FOR: std::time::Duration = std::time::Duration::from_secs(15);
const POISON_FOR: std::time::Duration = std::time::Duration::from_secs(600);
const MAX_SUSPECTS: usize = 10_000;
/// Those of one configuration, and of the one before it.
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
