//! The members of one pool: takes over what a configuration, its sources, metrics pages and operators say of them.
//!
//! [`super::matching`] makes the pool match, and [`super::hand_over`] lets those that left serve until others do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::deps::Deps;
use super::report::{News, Report};
use super::roster::{Found, Member, Roster, SourceKind, SourceState};
use super::sources::{Running, Source};
use super::{ChangeError, ReplicaAction, ReplicaChange, SourceStatus};
use crate::clock::Stamp;
use crate::config::{Endpoint, MAX_REPLICAS, NAME_FORM, Pool, ReplicaSpec, parse_endpoint, parse_name};
use crate::fleet::pool::PoolState;
use crate::fleet::replica::Replica;
use crate::routing::SlotSet;

/// The members of one pool.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(in crate::fleet) pool: Arc<PoolState>,
    pub(super) deps: Deps,
    pub(super) roster: Mutex<Roster>,
    running: Mutex<Vec<Running>>,
    pub(super) leaving: ArcSwap<Leaving>,
    pub(super) is_handing_over: AtomicBool,
    /// It is a route's canary: what serves in its name is of its revision.
    pub(super) is_canary: AtomicBool,
    /// Of a canary: the other pools of its routes.
    pub(in crate::fleet) baselines: ArcSwap<Vec<Arc<PoolState>>>,
    /// As the log said last.
    left_out: AtomicUsize,
    of_other_role: AtomicUsize,
}

/// Replicas that left and serve until new ones are ready.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    pub(super) slots: SlotSet,
    /// How many they were when they left.
    pub(super) count: usize,
    /// The configuration dropped them: they go after [`HAND_OVER`], whether they answer or not.
    pub(super) is_configured: bool,
    /// Since when they are these.
    pub(super) since: Stamp,
}

/// Why the list is made anew.
#[derive(Clone, Copy)]
pub(super) enum Cause<'a> {
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
    pub(in crate::fleet) fn new(pool: Arc<PoolState>, deps: Deps) -> Arc<Self> {
        Arc::new(Self {
            pool,
            deps,
            roster: Mutex::default(),
            running: Mutex::default(),
            leaving: ArcSwap::default(),
            is_handing_over: AtomicBool::new(false),
            is_canary: AtomicBool::new(false),
            baselines: ArcSwap::default(),
            left_out: AtomicUsize::new(0),
            of_other_role: AtomicUsize::new(0),
        })
    }

    /// Takes a configuration over; `former` are the pools of the one before.
    pub(in crate::fleet) fn configure(
        self: &Arc<Self>,
        config: &Pool,
        is_canary: bool,
        former: &[Arc<PoolState>],
    ) {
        self.is_canary.store(is_canary, Ordering::Relaxed);
        let has_adapters = self.pool.config().lora != config.lora;
        self.pool.config.store(Arc::new(config.clone()));
        let wanted: Vec<Source> = Source::all(&config.discovery).collect();
        {
            let mut roster = self.roster.lock();
            roster.role = config.role;
            roster.configure(&config.replicas, config.data_parallel, self.deps.clock.now());
            for kind in [SourceKind::File, SourceKind::Dns, SourceKind::Kubernetes] {
                if wanted.iter().any(|source| source.kind() == kind) {
                    roster.open(kind);
                } else {
                    roster.forget(kind);
                }
            }
            self.match_roster(&mut roster, Cause::Configured { former });
        }
        if has_adapters {
            self.pool.replicas().iter().for_each(|replica| replica.health.vitals.check_now.notify_one());
        }
        let mut running = self.running.lock();
        running.retain(|running| wanted.contains(&running.source));
        for source in wanted {
            if !running.iter().any(|running| running.source == source) {
                let (own, kind) = (Arc::clone(self), source.kind());
                let take = Box::new(move |news: News<'_>| own.learned(kind, news));
                let report = Report { take, connector: self.deps.connector.clone() };
                running.push(source.start(report, &self.deps.background));
            }
        }
    }

    /// Takes over the orders of a pool that a configuration drops: they hold for the URL, whatever its pool is called.
    pub(in crate::fleet) fn inherit(&self, config: &Pool, gone: &Self) {
        // What sources will name is not known yet.
        let has_sources = Source::all(&config.discovery).next().is_some();
        let is_listed = |url: &Endpoint| config.replicas.iter().any(|replica| replica.endpoint == *url);
        self.roster.lock().inherit(&gone.roster.lock(), |url| has_sources || is_listed(url));
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
        let named = |key: &str, text: Option<&String>| {
            let invalid = |error| ChangeError::Invalid(format!("{key}: {error}; {NAME_FORM}"));
            text.map(|text| parse_name(text).map_err(invalid)).transpose()
        };
        let (name, zone) = (named("name", change.name.as_ref())?, named("zone", change.zone.as_ref())?);
        let now = self.deps.clock.now();
        let mut roster = self.roster.lock();
        let known = known(&roster, url.as_ref(), name.as_deref())?;
        let known = known.or_else(|| self.leaving_spec(url.as_ref(), name.as_deref()));
        let unknown = || ChangeError::UnknownReplica {
            pool: self.pool.name.to_string(),
            replica: change.url.clone().or_else(|| change.name.clone()).unwrap_or_default(),
        };
        let spec = match (change.action, known, url) {
            (_, Some(known), Some(url)) if name.as_deref().is_some_and(|name| *name != *known.name) => {
                let why = format!("{url} is replica {:?} already: leave \"name\" out", known.name);
                return Err(ChangeError::Invalid(why));
            }
            (_, Some(known), _) => known,
            (ReplicaAction::Add, None, Some(endpoint)) => {
                let name = name.unwrap_or_else(|| endpoint.authority().into());
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
                let members = roster.target_set().members;
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

    /// State of every source.
    pub(in crate::fleet) fn sources(&self) -> Vec<SourceStatus> {
        let (now, kept) = (self.deps.clock.now(), self.kept());
        let roster = self.roster.lock();
        let of = |(kind, state): (SourceKind, &SourceState)| SourceStatus {
            pool: Arc::clone(&self.pool.name),
            source: kind.as_str(),
            targets: state.urls(),
            age: state.answered.map(|at| if kind.is_ours() { Duration::ZERO } else { now.since(at) }),
            failing: state.failing.as_ref().map(|(since, error)| (now.since(*since), Arc::clone(error))),
            failures: state.failures,
            kept: if kind.is_ours() { 0 } else { kept },
        };
        roster.sources().map(of).collect()
    }

    /// What clients are told where the pool has no replica.
    fn note_trouble(&self, roster: &Roster) {
        let failing = |(kind, state): (SourceKind, &SourceState)| {
            state.failing.as_ref().map(|(_, error)| format!("{}: {error}", kind.as_str()))
        };
        let trouble: Vec<String> = roster.sources().filter_map(failing).collect();
        self.pool.trouble.store((!trouble.is_empty()).then(|| Arc::new(trouble.join("; "))));
    }

    pub(super) fn note_left_out(&self, left_out: usize) {
        if self.left_out.swap(left_out, Ordering::Relaxed) != left_out && left_out > 0 {
            let pool = &*self.pool.name;
            tracing::warn!(
                pool,
                left_out,
                "a pool has at most {MAX_REPLICAS} replicas: use several pools for one route"
            );
        }
    }

    /// Each change is logged once.
    pub(super) fn note_other_role(&self, of_other_role: usize) {
        if self.of_other_role.swap(of_other_role, Ordering::Relaxed) != of_other_role {
            let (pool, role) = (&*self.pool.name, self.pool.config().role.as_str());
            tracing::info!(pool, role, of_other_role, "targets labelled with another role are left out");
        }
    }

    /// The task of a source learned something.
    fn learned(self: &Arc<Self>, kind: SourceKind, news: News<'_>) {
        match news {
            News::Named(targets) => self.named(kind, targets),
            News::Recovered => self.recovered(kind),
            News::Failed(error) => self.failed(kind, error),
            News::Absent(error) => self.absent(kind, error),
            News::Objectives(priorities) => self.pool.objectives.set(priorities),
        }
        let mut roster = self.roster.lock();
        if roster.has_settled() {
            self.match_roster(&mut roster, Cause::Changed);
        }
    }

    fn named(self: &Arc<Self>, kind: SourceKind, targets: Vec<Found>) {
        let mut roster = self.roster.lock();
        if roster.named(kind, targets) {
            let targets = roster.targets(kind).len();
            tracing::debug!(pool = &*self.pool.name, source = kind.as_str(), targets, "discovered replicas");
            self.match_roster(&mut roster, Cause::Changed);
        }
    }

    fn recovered(&self, kind: SourceKind) {
        let mut roster = self.roster.lock();
        let failing = roster.sources().find(|(known, _)| *known == kind).and_then(|(_, s)| s.failing.clone());
        let now = self.deps.clock.now();
        if let Some((since, error)) = failing {
            let (pool, source, seconds) = (&*self.pool.name, kind.as_str(), now.since(since).as_secs());
            tracing::info!(pool, source, seconds, %error, "replicas are discovered again");
        }
        roster.recovered(kind, now);
        self.note_trouble(&roster);
    }

    fn failed(&self, kind: SourceKind, error: &str) {
        let mut roster = self.roster.lock();
        if roster.failed(kind, error, self.deps.clock.now()) {
            let (pool, source, kept) = (&*self.pool.name, kind.as_str(), roster.targets(kind).len());
            let then = if kept > 0 { "the last known ones stay" } else { "none is known yet" };
            tracing::warn!(pool, source, error, kept, "cannot discover replicas: {then}");
        }
        self.note_trouble(&roster);
    }

    fn absent(self: &Arc<Self>, kind: SourceKind, error: &str) {
        self.failed(kind, error);
        let mut roster = self.roster.lock();
        let targets = roster.targets(kind);
        let replicas = self.pool.replicas();
        let is_its =
            |replica: &Replica| targets.iter().any(|found| found.spec.endpoint == replica.identity.endpoint);
        let is_any_ready = replicas.iter().any(|replica| replica.is_ready() && is_its(replica));
        let now = self.deps.clock.now();
        if roster.believes_absence(kind, is_any_ready, now) && roster.answered(kind, Vec::new(), now) {
            let (pool, source) = (&*self.pool.name, kind.as_str());
            tracing::warn!(pool, source, "removing replicas: name absent for 60 s and none is ready");
            self.match_roster(&mut roster, Cause::Changed);
        }
    }

    /// The metrics page of a URL shows so many engines.
    pub(super) fn saw_ranks(self: &Arc<Self>, endpoint: &Endpoint, ranks: u32) {
        let mut roster = self.roster.lock();
        if roster.saw_ranks(endpoint, ranks) {
            let (pool, url) = (&*self.pool.name, endpoint.to_string());
            tracing::info!(pool, url, ranks, "engines behind one URL: each is a target of its own");
            self.match_roster(&mut roster, Cause::Changed);
        }
    }
}

/// The replica with a URL, or else with a name: both must not mean two.
fn known(
    roster: &Roster,
    url: Option<&Endpoint>,
    name: Option<&str>,
) -> Result<Option<ReplicaSpec>, ChangeError> {
    let specs = || roster.sources().flat_map(|(_, state)| state.targets.iter()).map(|found| &found.spec);
    let has_url = |spec: &&ReplicaSpec| Some(&spec.endpoint) == url;
    let has_name = |spec: &&ReplicaSpec| Some(&*spec.name) == name;
    if let (Some(one), Some(other)) = (specs().find(has_url), specs().find(has_name))
        && !specs().any(|spec| has_url(&spec) && has_name(&spec))
    {
        return Err(ChangeError::Invalid(format!(
            "url is that of replica {:?}, and name that of {:?} ({}): send one of them",
            &*one.name, &*other.name, other.endpoint
        )));
    }
    Ok(specs().find(|spec| if url.is_some() { has_url(spec) } else { has_name(spec) }).cloned())
}

pub(in crate::fleet) const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Replicas of one configuration, and of the one before it.
pub(in crate::fleet) const SLOTS: usize = 2 * MAX_REPLICAS;
