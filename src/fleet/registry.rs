//! All pools and their replicas, across reloads.
//!
//! A reload opens and drops pools and hands each its configuration; who belongs to a pool, and how replicas join and leave it, is
//! [`super::discovery`]'s affair. Under another pool a replica starts ready where it was ready before.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::discovery::deps::Deps;
use super::discovery::hand_over::HAND_OVER;
use super::discovery::membership::{LOOK_EVERY, Membership, SLOTS};
use super::discovery::{ChangeError, ReplicaChange, SourceStatus};
use super::pool::PoolState;
use super::promise::Promised;
use super::replica::Replica;
use super::status::{PoolCalibration, ReplicaStatus};
use crate::background::Background;
use crate::clock::Clock;
use crate::config::{Config, Pool, ReplicaSpec};
use crate::listener::tls::TlsError;
use crate::routing::{ByCanary, CanaryShare};
use crate::upstream::connect::Connector;

/// All pools.
#[derive(Debug)]
pub struct Fleet {
    connector: Connector,
    clock: Clock,
    background: Background,
    canaries: Arc<ByCanary<CanaryShare>>,
    pools: ArcSwap<Vec<Arc<PoolState>>>,
    /// Of the same pools, in the same order.
    memberships: ArcSwap<Vec<Arc<Membership>>>,
    /// Pools that the last configuration dropped, until requests see the new one.
    dropped: Mutex<Vec<Arc<Membership>>>,
    /// Those before, for as long as requests have the configuration before, or their replicas have streams.
    former: Mutex<Vec<Arc<Membership>>>,
    /// By pool: each has TLS settings of its own.
    connectors: Mutex<HashMap<Arc<str>, Connector>>,
}

impl Fleet {
    /// A fleet without pools, beside the shares of its routes' canaries.
    pub fn new(
        connector: Connector,
        clock: Clock,
        background: Background,
        canaries: Arc<ByCanary<CanaryShare>>,
    ) -> Self {
        Self {
            connector,
            clock,
            background,
            canaries,
            pools: ArcSwap::default(),
            memberships: ArcSwap::default(),
            dropped: Mutex::default(),
            former: Mutex::default(),
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
        let is_tls = |replica: &&Arc<Replica>| replica.identity.endpoint.is_tls;
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
        let former = self.pools.load_full();
        let before = self.memberships.load_full();
        let is_gone = |known: &&Arc<Membership>| config.pools.iter().all(|pool| pool.name != known.pool.name);
        let gone: Vec<_> = before.iter().filter(is_gone).cloned().collect();
        let after: Vec<Arc<Membership>> = config
            .pools
            .iter()
            .map(|pool| {
                let state = before.iter().find(|known| known.pool.name == pool.name).cloned();
                let state = state.unwrap_or_else(|| self.open(pool));
                let before = state.pool.promised.load_full();
                let promised = Promised::of(config, pool).after(&before);
                let is_new = !promised.is_the_same(&before);
                state.pool.promised.store(Arc::new(promised));
                gone.iter().for_each(|gone| state.inherit(pool, gone));
                state.configure(pool, config.is_canary(pool), &former);
                state.pool.settle_names();
                if is_new {
                    // To be proved at once, where it is not.
                    let replicas = state.pool.replicas();
                    replicas.iter().for_each(|replica| replica.health.vitals.check_now.notify_one());
                }
                state.pool.queue.set_strict(config.queues(pool));
                state.pool.migrates.store(config.migrates(pool), Ordering::Relaxed);
                state
            })
            .collect();
        for (membership, pool) in after.iter().zip(&config.pools) {
            let known = |other: &Pool| after.iter().find(|known| known.pool.name == other.name);
            let baselines = config.baselines(pool).filter_map(|other| Some(Arc::clone(&known(other)?.pool)));
            membership.baselines.store(Arc::new(baselines.collect()));
            let beside = config.beside(pool).filter_map(|other| Some(Arc::downgrade(&known(other)?.pool)));
            membership.pool.beside.store(Arc::new(beside.collect()));
        }
        self.dropped.lock().extend(gone);
        let pools: Arc<Vec<_>> = Arc::new(after.iter().map(|known| Arc::clone(&known.pool)).collect());
        self.memberships.store(Arc::new(after));
        self.pools.store(Arc::clone(&pools));
        pools
    }

    /// Retires the pools that the last configuration dropped as soon as no request can choose them any more: `is_in_use` says whether
    /// one has the configuration before. After [`HAND_OVER`] they go all the same.
    pub fn retire_dropped(self: &Arc<Self>, is_in_use: impl Fn() -> bool + Send + 'static) {
        let gone = std::mem::take(&mut *self.dropped.lock());
        {
            let mut former = self.former.lock();
            former.retain(|known| !known.pool.has_ended());
            former.extend(gone.iter().cloned());
        }
        if gone.is_empty() || !is_in_use() {
            return part_with(&gone);
        }
        let (fleet, since) = (Arc::clone(self), self.clock.now());
        self.background.spawn(async move {
            while is_in_use() && fleet.clock.now().since(since) < HAND_OVER {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            part_with(&gone);
        });
    }

    /// Calls `end` when what a configuration replaced has had its time, unless `stop` comes first.
    pub fn after_hand_over(&self, stop: CancellationToken, end: impl FnOnce() + Send + 'static) {
        self.background.spawn(async move {
            if stop.run_until_cancelled(tokio::time::sleep(HAND_OVER)).await.is_some() {
                end();
            }
        });
    }

    /// Ends every task of the fleet.
    pub fn retire(&self) {
        self.memberships.load().iter().chain(self.former.lock().iter()).for_each(|known| known.retire());
    }

    fn open(&self, config: &Pool) -> Arc<Membership> {
        let pool = PoolState::new(config, SLOTS);
        self.background.spawn(Arc::clone(&pool).refresh(self.clock));
        let deps = Deps {
            connector: self.connector_of(&pool.name),
            clock: self.clock,
            background: self.background.clone(),
            canaries: Arc::clone(&self.canaries),
        };
        Membership::new(pool, deps)
    }

    /// State of every source of replicas.
    pub fn sources(&self) -> Vec<SourceStatus> {
        self.memberships.load().iter().flat_map(|membership| membership.sources()).collect()
    }

    /// An operator changes a pool; returns the pool's name and the replica.
    ///
    /// # Errors
    /// [`ChangeError`]; nothing has changed then.
    pub fn change(&self, change: &ReplicaChange) -> Result<(Arc<str>, ReplicaSpec), ChangeError> {
        let memberships = self.memberships.load();
        let membership = match (&change.pool, memberships.as_slice()) {
            (None, [only]) => Some(only),
            (None, _) => None,
            (Some(name), all) => all.iter().find(|known| *known.pool.name == **name),
        };
        let names = || memberships.iter().map(|known| &*known.pool.name).collect::<Vec<_>>().join(", ");
        let unknown = || ChangeError::UnknownPool(change.pool.clone().unwrap_or_default(), names());
        let membership = membership.ok_or_else(unknown)?;
        Ok((Arc::clone(&membership.pool.name), membership.change(change)?))
    }

    /// Status of every replica, also of those that left and have streams.
    pub fn statuses(&self) -> Vec<ReplicaStatus> {
        let now = self.clock.now();
        let of = |pool: &PoolState| {
            let limits = pool.engine_limits();
            pool.listed().iter().map(|replica| replica.status(now, &limits)).collect::<Vec<_>>()
        };
        let mut all: Vec<_> = self.pools.load().iter().flat_map(|pool| of(pool)).collect();
        let mut former = self.former.lock();
        former.retain(|known| !known.pool.has_ended());
        for status in former.iter().flat_map(|known| of(&known.pool)) {
            // Of two with one name, the one that did not leave.
            if !all.iter().any(|known| (&known.pool, &known.replica) == (&status.pool, &status.replica)) {
                all.push(status);
            }
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
}

fn part_with(gone: &[Arc<Membership>]) {
    for membership in gone {
        membership.pool.drain_all();
        membership.retire();
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::task::TaskTracker;

    use super::super::discovery::ReplicaAction;
    use super::super::life::Event;
    use super::*;
    use crate::config::MAX_REPLICAS;
    use crate::config::check::check_str;
    use crate::fleet::status::ReplicaState;

    #[tokio::test]
    async fn a_reload_may_replace_every_replica_of_the_largest_pool() {
        let fleet = fleet();
        for host in ["127.0.0.1", "127.0.0.2", "127.0.0.3"] {
            let urls: Vec<_> = (1..=MAX_REPLICAS).map(|port| format!("\"http://{host}:{port}\"")).collect();
            let text = format!("[[pool]]\nname = \"p\"\nreplicas = [{}]\n", urls.join(", "));
            let pools = fleet.apply(&check_str("f.toml", &text, &|_| None).unwrap());
            assert_eq!(pools[0].replicas().len(), MAX_REPLICAS);
        }
        fleet.retire();
    }

    fn fleet() -> Arc<Fleet> {
        let background = Background { runtime: tokio::runtime::Handle::current(), tasks: TaskTracker::new() };
        let connector = Connector::new(background.tasks.clone()).unwrap();
        Arc::new(Fleet::new(connector, Clock::start(), background, Arc::default()))
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
        one.apply(Event::Adopted, "answered");
        let named = format!("{{ url = \"{url}\", name = \"gpu\" }}");
        let pool = apply(&fleet, "p", "revision = \"r2\"\nmax_connections = 7", &named);
        assert!(Arc::ptr_eq(&one, &pool.replicas()[0]));
        assert_eq!((&*one.name(), &*one.served().revision, one.state()), ("gpu", "r2", ReplicaState::Ready));

        let other = apply(&fleet, "q", "", &named);
        assert_eq!(other.replicas()[0].state(), ReplicaState::Ready, "it was ready in the pool before");
        assert_eq!(one.state(), ReplicaState::Ready, "requests may still have the old configuration");
        fleet.retire_dropped(|| false);
        assert_eq!(one.state(), ReplicaState::Draining);
        fleet.retire();
    }

    #[tokio::test]
    async fn a_replica_that_comes_back_is_not_routed_by_what_it_was_ejected_for() {
        let fleet = fleet();
        let one = apply(&fleet, "p", "", "\"http://127.0.0.9:1\"").replicas()[0].clone();
        one.apply(Event::Adopted, "answered");
        let now = Clock::start().now();
        for prompt in 0..4 {
            one.health.answers.failed(prompt, now);
        }
        one.member().publish(now);
        assert!(one.target.share() < 0.5, "{}", one.target.share());
        one.eject("500");
        one.apply(Event::Proved, "answered");
        assert_eq!((one.is_on_trial(), one.target.share(), one.target.success()), (true, 1.0, 1.0));
        fleet.retire();
    }

    #[tokio::test]
    async fn replaced_replicas_serve_until_a_new_one_is_ready() {
        let fleet = fleet();
        let pool = apply(&fleet, "p", "", "\"http://127.0.0.9:1\"");
        let old = pool.replicas()[0].clone();
        old.apply(Event::Adopted, "answered");
        apply(&fleet, "p", "", "\"http://127.0.0.9:2\"");
        assert!(pool.is_ready() && pool.replicas().len() == 2);
        let new = pool.replicas()[0].clone();
        new.apply(Event::Adopted, "answered");
        while pool.replicas().len() == 2 {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        assert_eq!(old.state(), ReplicaState::Draining);
        fleet.retire();
    }

    fn order(action: ReplicaAction, url: Option<&str>, name: Option<&str>) -> ReplicaChange {
        let text = |text: &str| text.to_owned();
        ReplicaChange { action, pool: None, url: url.map(text), name: name.map(text), zone: None }
    }

    #[tokio::test]
    async fn a_drain_holds_for_the_url_whatever_its_pool_is_called() {
        let fleet = fleet();
        let (one, other) = ("http://127.0.0.9:1", "http://127.0.0.9:2");
        let both = format!("\"{one}\", \"{other}\"");
        let held = |pool: &PoolState| {
            let replicas = pool.replicas();
            replicas.iter().map(|replica| replica.member().is_held).collect::<Vec<_>>()
        };
        apply(&fleet, "p", "", &both);
        fleet.change(&order(ReplicaAction::Drain, Some(one), None)).unwrap();
        assert_eq!(held(&apply(&fleet, "p", "", &both)), [true, false]);
        assert_eq!(held(&apply(&fleet, "q", "", &both)), [true, false], "under another name");
        apply(&fleet, "r", "", &format!("\"{other}\""));
        assert_eq!(
            held(&apply(&fleet, "r", "", &both)),
            [false, false],
            "what left the file is drained no more"
        );
        fleet.retire();
    }

    #[tokio::test]
    async fn a_url_and_a_name_of_two_replicas_change_neither() {
        let fleet = fleet();
        let both =
            "{ url = \"http://127.0.0.9:1\", name = \"a\" }, { url = \"http://127.0.0.9:2\", name = \"b\" }";
        let pool = apply(&fleet, "p", "", both);
        for action in [ReplicaAction::Drain, ReplicaAction::Remove, ReplicaAction::Add] {
            let refused = fleet.change(&order(action, Some("http://127.0.0.9:1"), Some("b"))).unwrap_err();
            let ChangeError::Invalid(why) = refused else { panic!("{refused}") };
            assert!(why.contains("\"a\"") && why.contains("\"b\""), "{why}");
        }
        let held = || pool.replicas().iter().filter(|replica| replica.member().is_held).count();
        assert_eq!((pool.replicas().len(), held()), (2, 0));
        fleet.change(&order(ReplicaAction::Drain, Some("http://127.0.0.9:1"), Some("a"))).unwrap();
        assert_eq!(held(), 1);
        fleet.retire();
    }

    #[tokio::test]
    async fn a_zone_that_no_file_may_have_is_refused() {
        let fleet = fleet();
        let pool = apply(&fleet, "p", "", "\"http://127.0.0.9:1\"");
        let add = |zone: &str| {
            let change = order(ReplicaAction::Add, Some("http://127.0.0.9:2"), None);
            fleet.change(&ReplicaChange { zone: Some(zone.to_owned()), ..change })
        };
        for zone in ["a\nb", "a\u{1b}[2J", ""] {
            let refused = add(zone).unwrap_err();
            assert!(matches!(&refused, ChangeError::Invalid(why) if why.starts_with("zone: ")), "{refused}");
        }
        assert_eq!(pool.replicas().len(), 1);
        assert_eq!(add("eu-1a").unwrap().1.zone.as_deref(), Some("eu-1a"));
        fleet.retire();
    }
}
