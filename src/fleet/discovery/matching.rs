//! Makes a pool match its roster: starts the replicas that joined, keeps those that stay.
//!
//! A replica is its URL, and with data parallelism its rank there: whatever else changes about it, state, connections and
//! everything learned stay, unless the source says that it is another process. Each change publishes one new list; its cost is
//! linear in the size of the pool, with a small constant.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::membership::{Cause, Membership, SLOTS};
use super::roster::{Member, Roster};
use crate::config::{Endpoint, MAX_REPLICAS, Pool, ReplicaSpec};
use crate::fleet::gpu_scrape;
use crate::fleet::identity::{Identity, Rank};
use crate::fleet::life::Event;
use crate::fleet::pool::PoolState;
use crate::fleet::probe::Prober;
use crate::fleet::replica::Replica;
use crate::fleet::scrape::Scraper;
use crate::record::Served;
use crate::routing::SlotSet;
use crate::upstream::pool::ConnectionPool;

impl Membership {
    pub(super) fn match_roster(self: &Arc<Self>, roster: &mut Roster, cause: Cause<'_>) {
        let target_set = roster.target_set();
        self.note_left_out(target_set.left_out);
        self.note_other_role(target_set.of_other_role);
        let config = self.pool.config();
        let mut before = self.pool.replicas.load_full();
        let is_new = |member: &&Member| {
            !before.iter().any(|replica| replica.identity.endpoint == member.spec.endpoint)
        };
        if before.len() > MAX_REPLICAS && target_set.members.iter().any(|member| is_new(&member)) {
            before = self.without_leaving(&before);
        }
        let mut by_url: HashMap<&Endpoint, SmallVec<[&Arc<Replica>; 1]>> =
            HashMap::with_capacity(before.len());
        for replica in before.iter() {
            by_url.entry(&replica.identity.endpoint).or_default().push(replica);
        }
        let mut after: Vec<Arc<Replica>> = Vec::with_capacity(target_set.members.len());
        let mut slots = None;
        for member in &target_set.members {
            let at_url = by_url.get(&member.spec.endpoint).map(SmallVec::as_slice).unwrap_or_default();
            // Beside it another instance may still serve what it began.
            let own: SmallVec<[_; 1]> = at_url.iter().filter(|known| is_it(known, member)).collect();
            if own.len() == member.ranks as usize {
                for known in own {
                    self.keep(known, &config, member, matches!(cause, Cause::Configured { .. }));
                    after.push(Arc::clone(known));
                }
            } else {
                let slots = slots.get_or_insert_with(|| self.free_slots(&before));
                after.extend(self.start(&config, member, slots, &Known { cause, at_url }));
            }
        }
        if !is_same(&before, &after) {
            self.publish(&before, after, cause);
        } else if self.leaving.load().slots != SlotSet::default() {
            // Those that had left are named again.
            self.leaving.store(Arc::default());
        }
    }

    fn free_slots(&self, before: &[Arc<Replica>]) -> FreeSlots {
        let draining = self.pool.draining.load();
        FreeSlots {
            members: before.iter().map(|replica| replica.slot()).collect(),
            draining: draining.iter().map(|replica| replica.slot()).collect(),
        }
    }

    fn keep(&self, known: &Replica, config: &Pool, member: &Member, is_configured: bool) {
        let name = name_of(member, known.identity.rank);
        if is_configured || known.name() != name {
            known.identity.relabel(served(config, &member.spec, name));
        }
        if is_configured {
            known.connections.set_limit(config.max_connections.get());
        }
        *known.identity.zone.lock() = member.spec.zone.clone();
        known.hold(member.held);
    }

    /// Starts the targets of one URL.
    fn start(
        self: &Arc<Self>,
        config: &Pool,
        member: &Member,
        slots: &mut FreeSlots,
        known: &Known<'_>,
    ) -> Vec<Arc<Replica>> {
        let endpoint = &member.spec.endpoint;
        let connector = &self.deps.connector;
        let former = known.ready_before(&self.pool, member);
        let connections = known.same_process(member).map_or_else(
            || {
                let max = config.max_connections.get();
                ConnectionPool::new(endpoint.clone(), connector.clone(), self.deps.clock, max)
            },
            |old| Arc::clone(&old.connections),
        );
        let ranks =
            (0..member.ranks).map(|index| (member.ranks > 1).then_some(Rank { index, of: member.ranks }));
        let started: Vec<Arc<Replica>> = ranks
            .filter_map(|rank| {
                let slot = slots.take()?;
                self.pool.dispatcher.forget(slot);
                let served = served(config, &member.spec, name_of(member, rank));
                let identity = Identity::new(endpoint.clone(), rank, member.instance.clone(), served);
                *identity.zone.lock() = member.spec.zone.clone();
                let replica = Replica::new(slot, identity, Arc::clone(&connections), self.deps.clock);
                if let Some((old, reason)) = &former {
                    replica.engine.models.store(old.engine.models.load_full());
                    replica.engine.stream_defaults.store(old.engine.stream_defaults.load_full());
                    replica.health.warmth.adopted(self.deps.clock.now());
                    replica.apply(Event::Adopted, reason);
                }
                replica.hold(member.held);
                Some(replica)
            })
            .collect();
        for replica in &started {
            let prober = Prober {
                pool: Arc::clone(&self.pool),
                replica: Arc::clone(replica),
                connector: connector.clone(),
                clock: self.deps.clock,
            };
            self.deps.background.spawn(prober.run());
        }
        let (pool, targets) = (Arc::clone(&self.pool), started.clone());
        self.deps.background.spawn(gpu_scrape::run(pool, targets, self.deps.clone()));
        // One page tells of all engines of a URL.
        let (own, url) = (Arc::clone(self), endpoint.clone());
        let saw_ranks = Box::new(move |ranks| own.saw_ranks(&url, ranks));
        if let Some(scraper) = Scraper::new(saw_ranks, &self.pool, started.clone(), &self.deps) {
            self.deps.background.spawn(scraper.run());
        }
        started
    }
}

/// What is known of a URL that gets new targets.
struct Known<'a> {
    cause: Cause<'a>,
    at_url: &'a [&'a Arc<Replica>],
}

impl Known<'_> {
    /// A target of the same process: it was split into its engines, or is put together again.
    fn same_process(&self, member: &Member) -> Option<&Arc<Replica>> {
        self.at_url.iter().copied().find(|old| is_same_instance(old, member))
    }

    /// A replica of this URL that was proved well already, and why the new one counts as ready.
    fn ready_before(&self, own: &Arc<PoolState>, member: &Member) -> Option<(Arc<Replica>, &'static str)> {
        if let Some(old) = self.same_process(member).filter(|old| old.is_ready()) {
            return Some((Arc::clone(old), "was ready with other ranks"));
        }
        let Cause::Configured { former } = self.cause else { return None };
        let elsewhere = former.iter().filter(|pool| !Arc::ptr_eq(pool, own));
        let of_pool = |pool: &Arc<PoolState>| {
            let replicas = pool.replicas();
            replicas
                .iter()
                .find(|old| old.identity.endpoint == member.spec.endpoint && old.is_ready())
                .cloned()
        };
        elsewhere.filter_map(of_pool).next().map(|old| (old, "was ready in another pool"))
    }
}

/// Slots that new replicas may take: first those that no stream of a former one still uses.
struct FreeSlots {
    members: SlotSet,
    draining: SlotSet,
}

impl FreeSlots {
    fn take(&mut self) -> Option<usize> {
        let free = |slot: &usize| !self.members.contains(*slot);
        let slot = (0..SLOTS).filter(free).find(|slot| !self.draining.contains(*slot));
        let slot = slot.or_else(|| (0..SLOTS).find(free))?;
        self.members.insert(slot);
        Some(slot)
    }
}

fn is_it(known: &Replica, member: &Member) -> bool {
    known.identity.rank.map_or(1, |rank| rank.of) == member.ranks && is_same_instance(known, member)
}

/// Where either side does not tell, they are the same; scrapes notice a restarted process by themselves.
fn is_same_instance(known: &Replica, member: &Member) -> bool {
    match (&known.identity.instance, &member.instance) {
        (Some(known), Some(member)) => known == member,
        _ => true,
    }
}

fn name_of(member: &Member, rank: Option<Rank>) -> Arc<str> {
    match rank {
        Some(rank) => format!("{}#{}", member.spec.name, rank.index).into(),
        None => Arc::clone(&member.spec.name),
    }
}

fn served(config: &Pool, spec: &ReplicaSpec, name: Arc<str>) -> Served {
    Served {
        pool: Arc::clone(&config.name),
        revision: Arc::clone(&config.revision),
        replica: name,
        engine: config.engine.as_str().into(),
        host: Arc::clone(&spec.endpoint.host),
        port: spec.endpoint.port,
        is_outside: config.outside.is_some(),
        is_standby: config.standby,
    }
}

fn is_same(before: &[Arc<Replica>], after: &[Arc<Replica>]) -> bool {
    before.len() == after.len() && before.iter().zip(after).all(|(old, new)| Arc::ptr_eq(old, new))
}
