//! Makes a pool match its roster: starts the replicas that joined, drains those that left.
//!
//! A replica is its URL, and with data parallelism its rank there: whatever else changes about it, state, connections and
//! everything learned stay, unless the source says that it is another process. Those that left drain: their streams run to the
//! end. A source never takes the last replicas that answer: they serve until a new one is ready, until they answer no more, or
//! until an operator says so. Each change publishes one new list; its cost is linear in the size of the pool, with a small
//! constant.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::HeaderValue;
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::means::Means;
use super::report::Roll;
use super::roster::{Member, Roster, SourceKind, SourceState};
use super::sources::{Running, Source};
use super::{ChangeError, ReplicaAction, ReplicaChange, SourceStatus};
use crate::config::{Endpoint, MAX_REPLICAS, Pool, ReplicaSpec, parse_endpoint, parse_name};
use crate::fleet::discovery::roster::Found;
use crate::fleet::gpu_scrape::GpuScraper;
use crate::fleet::life::Event;
use crate::fleet::pool::PoolState;
use crate::fleet::probe::Prober;
use crate::fleet::replica::{Rank, Replica, ReplicaParts};
use crate::fleet::scrape::Scraper;
use crate::record::Served;
use crate::routing::SlotSet;
use crate::upstream::pool::ConnectionPool;

/// The members of one pool.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(in crate::fleet) pool: Arc<PoolState>,
    means: Means,
    roster: Mutex<Roster>,
    running: Mutex<Vec<Running>>,
    leaving: ArcSwap<Leaving>,
    is_handing_over: AtomicBool,
    /// As the log said last.
    left_out: AtomicUsize,
}

/// Replicas that left and serve until a new one is ready.
#[derive(Debug, Default)]
struct Leaving {
    slots: SlotSet,
    /// The configuration dropped them: they go after [`HAND_OVER`], whether they answer or not.
    is_configured: bool,
}

/// Why the list is made anew.
#[derive(Clone, Copy)]
enum Cause<'a> {
    /// A configuration; `former` are the pools of the one before.
    Configured { former: &'a [Arc<PoolState>] },
    /// A source or a metrics page.
    Changed,
    /// An operator; what was taken out goes at once.
    Ordered { taken_out: Option<&'a Endpoint> },
    /// Those that left have waited long enough for their successors.
    HandedOver,
}

impl Membership {
    pub(in crate::fleet) fn new(pool: Arc<PoolState>, means: Means) -> Arc<Self> {
        Arc::new(Self {
            pool,
            means,
            roster: Mutex::default(),
            running: Mutex::default(),
            leaving: ArcSwap::default(),
            is_handing_over: AtomicBool::new(false),
            left_out: AtomicUsize::new(0),
        })
    }

    /// Takes a configuration over; `former` are the pools of the one before.
    pub(in crate::fleet) fn configure(self: &Arc<Self>, config: &Pool, former: &[Arc<PoolState>]) {
        self.pool.config.store(Arc::new(config.clone()));
        {
            let mut roster = self.roster.lock();
            roster.configure(&config.replicas, config.data_parallel, self.means.clock.now());
            let kinds: SmallVec<[SourceKind; 3]> =
                Source::all(&config.discovery).map(|source| source.kind()).collect();
            for kind in [SourceKind::File, SourceKind::Dns, SourceKind::Kubernetes] {
                if kinds.contains(&kind) {
                    roster.open(kind);
                } else {
                    roster.forget(kind);
                }
            }
            self.match_roster(&mut roster, Cause::Configured { former });
        }
        let mut running = self.running.lock();
        let wanted: Vec<Source> = Source::all(&config.discovery).collect();
        running.retain(|running| wanted.contains(&running.source));
        for source in wanted {
            if !running.iter().any(|running| running.source == source) {
                let started = source.start(Arc::clone(self) as Arc<dyn Roll>, &self.means);
                running.push(started);
            }
        }
    }

    /// Ends sources, replicas and the pool's tasks.
    pub(in crate::fleet) fn retire(&self) {
        self.running.lock().clear();
        self.pool.retire();
    }

    /// An operator changes the pool; returns name and URL of the replica.
    ///
    /// # Errors
    /// [`ChangeError`]; nothing has changed then.
    pub(in crate::fleet) fn change(
        self: &Arc<Self>,
        change: &ReplicaChange,
    ) -> Result<ReplicaSpec, ChangeError> {
        let url = change.url.as_deref().map(parse_endpoint).transpose().map_err(ChangeError::Invalid)?;
        let name = change.name.as_deref().map(parse_name).transpose().map_err(ChangeError::Invalid)?;
        let now = self.means.clock.now();
        let mut roster = self.roster.lock();
        let known = roster.sources().flat_map(|(_, state)| state.targets.iter()).find(|found| match &url {
            Some(url) => found.spec.endpoint == *url,
            None => name.as_ref().is_some_and(|name| found.spec.name == *name),
        });
        let known = known
            .map(|found| found.spec.clone())
            .or_else(|| self.leaving_spec(url.as_ref(), name.as_deref()));
        let unknown = || ChangeError::UnknownReplica {
            pool: self.pool.name.to_string(),
            replica: change.url.clone().or_else(|| change.name.clone()).unwrap_or_default(),
        };
        let spec = match (change.action, known, url) {
            (_, Some(known), _) => known,
            (ReplicaAction::Add, None, Some(endpoint)) => {
                let name = name.unwrap_or_else(|| endpoint.authority().into());
                let zone = change.zone.as_deref().map(Into::into);
                ReplicaSpec { name, endpoint, zone }
            }
            _ => return Err(unknown()),
        };
        match change.action {
            ReplicaAction::Add => {
                let before = self.pool.replicas().len();
                if before >= MAX_REPLICAS {
                    return Err(ChangeError::Invalid(format!(
                        "the pool has {before} replicas, as many as it may"
                    )));
                }
                let members = roster.lineup().members;
                let has_name =
                    |member: &&Member| member.spec.name == spec.name && member.spec.endpoint != spec.endpoint;
                if let Some(holder) = members.iter().find(has_name) {
                    return Err(ChangeError::NameTaken {
                        pool: self.pool.name.to_string(),
                        name: spec.name.to_string(),
                        url: holder.spec.endpoint.to_string(),
                    });
                }
                roster.add(spec.clone(), now);
            }
            ReplicaAction::Drain => roster.drain(&spec.endpoint),
            ReplicaAction::Remove => roster.remove(&spec.endpoint, now),
        }
        let (pool, replica) = (&*self.pool.name, &*spec.name);
        tracing::info!(pool, replica, action = ?change.action, "replica changed on the admin port");
        let taken_out = (change.action != ReplicaAction::Add).then_some(&spec.endpoint);
        self.match_roster(&mut roster, Cause::Ordered { taken_out });
        Ok(spec)
    }

    /// A replica that no source names any more and that serves on.
    fn leaving_spec(&self, url: Option<&Endpoint>, name: Option<&str>) -> Option<ReplicaSpec> {
        let leaving = self.leaving.load();
        let replicas = self.pool.replicas.load();
        let is_it = |replica: &&Arc<Replica>| {
            leaving.slots.contains(replica.slot())
                && url.map_or_else(|| Some(&*replica.name()) == name, |url| replica.endpoint == *url)
        };
        let found = replicas.iter().find(is_it)?;
        Some(ReplicaSpec { name: found.name(), endpoint: found.endpoint.clone(), zone: None })
    }

    /// Replicas that serve on although the sources name them no more.
    fn kept(&self) -> usize {
        let leaving = self.leaving.load();
        if leaving.is_configured {
            return 0;
        }
        self.pool.replicas.load().iter().filter(|replica| leaving.slots.contains(replica.slot())).count()
    }

    /// State of every source.
    pub(in crate::fleet) fn sources(&self) -> Vec<SourceStatus> {
        let (now, kept) = (self.means.clock.now(), self.kept());
        let roster = self.roster.lock();
        let of = |(kind, state): (SourceKind, &SourceState)| SourceStatus {
            pool: Arc::clone(&self.pool.name),
            source: kind.as_str(),
            targets: state.targets.len(),
            age: state.answered.map(|at| if kind.is_ours() { Duration::ZERO } else { now.since(at) }),
            failing: state.failing.as_ref().map(|(since, error)| (now.since(*since), Arc::clone(error))),
            failures: state.failures,
            kept: if kind.is_ours() { 0 } else { kept },
        };
        roster.sources().map(of).collect()
    }

    fn match_roster(self: &Arc<Self>, roster: &mut Roster, cause: Cause<'_>) {
        let lineup = roster.lineup();
        self.note_left_out(lineup.left_out);
        let config = self.pool.config();
        let mut before = self.pool.replicas.load_full();
        let is_new =
            |member: &&Member| !before.iter().any(|replica| replica.endpoint == member.spec.endpoint);
        if before.len() > MAX_REPLICAS && lineup.members.iter().any(|member| is_new(&member)) {
            before = self.without_leaving(&before);
        }
        let mut by_url: HashMap<&Endpoint, SmallVec<[&Arc<Replica>; 1]>> =
            HashMap::with_capacity(before.len());
        for replica in before.iter() {
            by_url.entry(&replica.endpoint).or_default().push(replica);
        }
        let mut after: Vec<Arc<Replica>> = Vec::with_capacity(lineup.members.len());
        let mut slots = None;
        for member in &lineup.members {
            let at_url = by_url.get(&member.spec.endpoint).map(SmallVec::as_slice).unwrap_or_default();
            let is_kept =
                at_url.len() == member.ranks as usize && at_url.iter().all(|known| is_it(known, member));
            if is_kept {
                for known in at_url {
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
        }
    }

    /// Stores the new list; those that left drain, at once or when one of the others is ready.
    fn publish(self: &Arc<Self>, before: &[Arc<Replica>], mut after: Vec<Arc<Replica>>, cause: Cause<'_>) {
        let stays: SlotSet = after.iter().map(|replica| replica.slot()).collect();
        let gone: Vec<_> = before.iter().filter(|old| !stays.contains(old.slot())).cloned().collect();
        let (mut at_once, gone): (Vec<_>, Vec<_>) = gone.into_iter().partition(|old| match cause {
            Cause::Ordered { taken_out } => taken_out == Some(&old.endpoint),
            _ => false,
        });
        let leaving = self.leaving.load();
        let may_serve = |old: &Arc<Replica>| old.is_ready() || leaving.slots.contains(old.slot());
        // What a reload does not touch goes on as it was: the source that named them no more is still there.
        let is_kept = leaving.slots != SlotSet::default()
            && !leaving.is_configured
            && Source::all(&self.pool.config().discovery).next().is_some();
        let is_bridged = gone.iter().any(may_serve)
            && !has_ready(&after)
            && match cause {
                Cause::HandedOver => false,
                Cause::Configured { .. } => !after.is_empty() || is_kept,
                Cause::Changed | Cause::Ordered { .. } => true,
            };
        if is_bridged {
            let slots: SlotSet = gone.iter().map(|replica| replica.slot()).collect();
            let is_configured = match cause {
                Cause::Configured { .. } => !is_kept,
                _ => leaving.is_configured,
            };
            let is_news = leaving.slots != slots;
            self.leaving.store(Arc::new(Leaving { slots, is_configured }));
            if is_news && !is_configured {
                let (pool, kept, named) = (&*self.pool.name, gone.len(), after.len());
                tracing::warn!(
                    pool,
                    kept,
                    named,
                    "the sources of a pool name no replica that is ready: those that are serve on"
                );
            }
            after.extend(gone);
        } else {
            self.leaving.store(Arc::default());
            at_once.extend(gone);
        }
        self.pool.replicas.store(Arc::new(after));
        self.pool.drain(at_once);
        if is_bridged && !self.is_handing_over.swap(true, Ordering::AcqRel) {
            let task = Arc::clone(self).hand_over();
            self.means.tracker.spawn_on(task, &self.means.tasks);
        }
    }

    /// Lets those that left go once one of the others is ready; after [`HAND_OVER`] also when they answer no more, or if the
    /// configuration dropped them.
    async fn hand_over(self: Arc<Self>) {
        let began = self.means.clock.now();
        let is_over = || {
            let leaving = self.leaving.load();
            let replicas = self.pool.replicas.load();
            let is_old = |replica: &&Arc<Replica>| leaving.slots.contains(replica.slot());
            let mut old = replicas.iter().filter(is_old).peekable();
            let mut new = replicas.iter().filter(|replica| !is_old(replica));
            let has_time = self.means.clock.now().since(began) < HAND_OVER;
            old.peek().is_none()
                || new.any(|replica| replica.is_ready())
                || !has_time && (leaving.is_configured || !old.any(|replica| replica.is_ready()))
        };
        loop {
            {
                let mut roster = self.roster.lock();
                if is_over() {
                    self.is_handing_over.store(false, Ordering::Release);
                    return self.match_roster(&mut roster, Cause::HandedOver);
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// There is no room for a third generation: the first goes, ready successors or not.
    fn without_leaving(&self, before: &[Arc<Replica>]) -> Arc<Vec<Arc<Replica>>> {
        let leaving = self.leaving.swap(Arc::default());
        let (gone, stay): (Vec<_>, Vec<_>) =
            before.iter().cloned().partition(|replica| leaving.slots.contains(replica.slot()));
        let stay = Arc::new(stay);
        self.pool.replicas.store(Arc::clone(&stay));
        self.pool.drain(gone);
        stay
    }

    fn free_slots(&self, before: &[Arc<Replica>]) -> FreeSlots {
        let draining = self.pool.draining.load();
        FreeSlots {
            members: before.iter().map(|replica| replica.slot()).collect(),
            draining: draining.iter().map(|replica| replica.slot()).collect(),
        }
    }

    fn keep(&self, known: &Replica, config: &Pool, member: &Member, is_configured: bool) {
        let name = name_of(member, known.rank);
        if is_configured || known.name() != name {
            known.relabel(served(config, &member.spec, name));
        }
        if is_configured {
            known.connections.set_limit(config.max_connections.get());
        }
        known.set_zone(member.spec.zone.clone());
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
        let connector = &self.means.connector;
        let former = known.ready_before(&self.pool, member);
        let connections = known.same_process(member).map_or_else(
            || {
                let max = config.max_connections.get();
                ConnectionPool::new(endpoint.clone(), connector.clone(), self.means.clock, max)
            },
            |old| Arc::clone(&old.connections),
        );
        let host = HeaderValue::from_str(&endpoint.authority());
        // `parse_endpoint` lets only hosts through that are valid authorities.
        let host = host.unwrap_or_else(|_| HeaderValue::from_static("replica"));
        let ranks =
            (0..member.ranks).map(|index| (member.ranks > 1).then_some(Rank { index, of: member.ranks }));
        let started: Vec<Arc<Replica>> = ranks
            .filter_map(|rank| {
                let slot = slots.take()?;
                self.pool.dispatcher.forget(slot);
                let replica = Replica::new(ReplicaParts {
                    slot,
                    served: served(config, &member.spec, name_of(member, rank)),
                    host: host.clone(),
                    connections: Arc::clone(&connections),
                    endpoint: endpoint.clone(),
                    rank,
                    instance: member.instance.clone(),
                    zone: member.spec.zone.clone(),
                    clock: self.means.clock,
                });
                if let Some((old, reason)) = &former {
                    replica.models.store(old.models.load_full());
                    replica.warmth.adopted(self.means.clock.now());
                    replica.happened(Event::Adopted, reason);
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
                clock: self.means.clock,
            };
            self.means.tracker.spawn_on(prober.run(), &self.means.tasks);
        }
        let gpus = GpuScraper {
            pool: Arc::clone(&self.pool),
            targets: started.clone(),
            connector: self.means.connector.clone(),
            clock: self.means.clock,
        };
        self.means.tracker.spawn_on(gpus.run(), &self.means.tasks);
        // One page tells of all engines of a URL.
        if let Some(scraper) =
            Scraper::new(Arc::clone(self) as Arc<dyn Roll>, &self.pool, started.clone(), &self.means)
        {
            self.means.tracker.spawn_on(scraper.run(), &self.means.tasks);
        }
        started
    }

    /// What clients are told where the pool has no replica.
    fn note_trouble(&self, roster: &Roster) {
        let failing = |(kind, state): (SourceKind, &SourceState)| {
            state.failing.as_ref().map(|(_, error)| format!("{}: {error}", kind.as_str()))
        };
        let trouble: Vec<String> = roster.sources().filter_map(failing).collect();
        self.pool.trouble.store((!trouble.is_empty()).then(|| Arc::new(trouble.join("; "))));
    }

    fn note_left_out(&self, left_out: usize) {
        if self.left_out.swap(left_out, Ordering::Relaxed) != left_out && left_out > 0 {
            let pool = &*self.pool.name;
            tracing::warn!(
                pool,
                left_out,
                "a pool has at most {MAX_REPLICAS} replicas: use several pools for one route"
            );
        }
    }
}

impl Roll for Membership {
    fn answered(self: Arc<Self>, kind: SourceKind, targets: Vec<Found>) {
        let mut roster = self.roster.lock();
        let failing = roster.sources().find(|(known, _)| *known == kind).and_then(|(_, s)| s.failing.clone());
        let now = self.means.clock.now();
        if let Some((since, error)) = failing {
            let (pool, source, seconds) = (&*self.pool.name, kind.as_str(), now.since(since).as_secs());
            tracing::info!(pool, source, seconds, %error, "replicas are discovered again");
        }
        let is_new = roster.answered(kind, targets, now);
        self.note_trouble(&roster);
        if is_new {
            let targets = roster.targets(kind).len();
            tracing::debug!(pool = &*self.pool.name, source = kind.as_str(), targets, "discovered replicas");
            self.match_roster(&mut roster, Cause::Changed);
        }
    }

    fn failed(&self, kind: SourceKind, error: &str) {
        let mut roster = self.roster.lock();
        if roster.failed(kind, error, self.means.clock.now()) {
            let (pool, source, kept) = (&*self.pool.name, kind.as_str(), roster.targets(kind).len());
            tracing::warn!(pool, source, error, kept, "cannot discover replicas: the last known ones stay");
        }
        self.note_trouble(&roster);
    }

    fn absent(self: Arc<Self>, kind: SourceKind, error: &str) {
        self.failed(kind, error);
        let mut roster = self.roster.lock();
        let targets = roster.targets(kind);
        let replicas = self.pool.replicas();
        let is_its = |replica: &Replica| targets.iter().any(|found| found.spec.endpoint == replica.endpoint);
        let is_any_ready = replicas.iter().any(|replica| replica.is_ready() && is_its(replica));
        let now = self.means.clock.now();
        if roster.believes_absence(kind, is_any_ready, now) && roster.answered(kind, Vec::new(), now) {
            let (pool, source) = (&*self.pool.name, kind.as_str());
            tracing::warn!(
                pool,
                source,
                "no replicas for a minute, and none of the last known ones is ready: they leave"
            );
            self.match_roster(&mut roster, Cause::Changed);
        }
    }

    fn saw_ranks(self: Arc<Self>, endpoint: &Endpoint, ranks: u32) {
        let mut roster = self.roster.lock();
        if roster.saw_ranks(endpoint, ranks) {
            let (pool, url) = (&*self.pool.name, endpoint.to_string());
            tracing::info!(pool, url, ranks, "engines behind one URL: each is a target of its own");
            self.match_roster(&mut roster, Cause::Changed);
        }
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
            replicas.iter().find(|old| old.endpoint == member.spec.endpoint && old.is_ready()).cloned()
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

fn has_ready(replicas: &[Arc<Replica>]) -> bool {
    replicas.iter().any(|replica| replica.is_ready())
}

fn is_it(known: &Replica, member: &Member) -> bool {
    known.rank.map_or(1, |rank| rank.of) == member.ranks && is_same_instance(known, member)
}

/// Where either side does not tell, they are the same; scrapes notice a restarted process by themselves.
fn is_same_instance(known: &Replica, member: &Member) -> bool {
    match (&known.instance, &member.instance) {
        (Some(known), Some(member)) => known == member,
        _ => true,
    }
}

fn is_same(before: &[Arc<Replica>], after: &[Arc<Replica>]) -> bool {
    before.len() == after.len() && before.iter().zip(after).all(|(old, new)| Arc::ptr_eq(old, new))
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
    }
}

/// How long replicas serve on at least that are named no more, where none of their successors is ready.
const HAND_OVER: Duration = Duration::from_secs(60);
pub(in crate::fleet) const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Replicas of one configuration, and of the one before it.
pub(in crate::fleet) const SLOTS: usize = 2 * MAX_REPLICAS;
