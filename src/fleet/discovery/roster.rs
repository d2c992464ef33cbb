//! Who belongs to a pool: the answers of its sources, and what operators said, merged into one list. Pure.
//!
//! Sources are asked in the order of [`SourceKind::ALL`]; the first that names a URL describes it, so a replica that two of
//! them name is one. A failure changes nothing but what is said about its source. An empty answer counts where the source
//! knows what it says (a file, the Kubernetes API); the absence of a DNS name is believed only once it has lasted for
//! [`ABSENT_FOR`] and no replica that it had is ready: resolvers lose names more often than fleets lose all their replicas.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::naming::uniquely_named;
use crate::clock::Stamp;
use crate::config::{DataParallel, Endpoint, MAX_REPLICAS, ReplicaSpec, Role};
use crate::fleet::life::Hold;
use crate::labels::labels;

labels! {
    /// A source of replicas.
    pub enum SourceKind {
        /// `pool.replicas`
        Static = "static",
        /// `POST /api/replicas`
        Admin = "admin",
        /// `pool.file`
        File = "file",
        /// `pool.dns`
        Dns = "dns",
        /// `pool.kubernetes`
        Kubernetes = "kubernetes",
    }
}

impl SourceKind {
    /// Whether it is the gateway's own word, which has no age.
    pub(super) fn is_ours(self) -> bool {
        matches!(self, Self::Static | Self::Admin)
    }
}

/// A replica as a source describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Name and URL.
    pub spec: ReplicaSpec,
    /// What tells this process from an earlier one at the same URL, such as the id of a pod.
    pub instance: Option<Arc<str>>,
    /// Whether its orchestrator lets it have traffic.
    pub is_serving: bool,
    /// What it is for, by its labels: a pool of another role leaves it out.
    pub role: Option<Role>,
}

impl From<ReplicaSpec> for Found {
    fn from(spec: ReplicaSpec) -> Self {
        Self { spec, instance: None, is_serving: true, role: None }
    }
}

/// One URL that belongs to the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// Name and URL.
    pub(crate) spec: ReplicaSpec,
    /// As [`Found::instance`].
    pub(crate) instance: Option<Arc<str>>,
    /// Why it gets no new requests, whatever its probes say.
    pub(crate) held: Option<Hold>,
    /// Engines behind the URL that are targets of their own; 1 where the URL is one target.
    pub(crate) ranks: u32,
}

/// What is known of one source.
#[derive(Clone, Debug, Default)]
pub struct SourceState {
    /// Of its last good answer.
    pub targets: Arc<[Found]>,
    /// When that was.
    pub answered: Option<Stamp>,
    /// Since when it has failed without a good answer in between, and how, for people.
    pub failing: Option<(Stamp, Arc<str>)>,
    /// Failures so far.
    pub failures: u64,
}

impl SourceState {
    /// URLs that it named last, each counted once.
    pub(super) fn urls(&self) -> usize {
        self.targets.iter().map(|found| &found.spec.endpoint).collect::<HashSet<_>>().len()
    }
}

/// What operators made of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Override {
    Drained,
    Removed,
}

/// What they made of a URL, which holds for the process that was there then, where its source tells processes apart.
#[derive(Clone, Debug)]
struct Order {
    order: Override,
    instance: Option<Arc<str>>,
}

impl Order {
    fn holds_for(&self, instance: Option<&str>) -> bool {
        self.instance.is_none() || self.instance.as_deref() == instance
    }
}

/// The sources of one pool and what they said.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    sources: HashMap<SourceKind, SourceState>,
    /// What the sources of the configuration before named: part of the pool until those that took their place have answered.
    former: Arc<[Found]>,
    /// What operators made of URLs, whatever sources name.
    orders: HashMap<Endpoint, Order>,
    /// Names that were given last.
    given: HashMap<Endpoint, Arc<str>>,
    /// Engines that metrics pages show.
    seen_ranks: HashMap<Endpoint, u32>,
    data_parallel: DataParallel,
    /// Of the pool.
    pub(crate) role: Role,
}

/// The pool's replicas by all of its sources.
#[derive(Debug, Default)]
pub(crate) struct TargetSet {
    pub(crate) members: Vec<Member>,
    /// Replicas that the pool has no room for.
    pub(crate) left_out: usize,
    /// Targets whose labels give another role than the pool's.
    pub(crate) of_other_role: usize,
}

impl Roster {
    /// Takes over a configuration: its list, and how ranks are told.
    pub(crate) fn configure(&mut self, replicas: &[ReplicaSpec], data_parallel: DataParallel, now: Stamp) {
        self.data_parallel = data_parallel;
        let named = self.sources.values().flat_map(|state| state.targets.iter());
        self.former = named.chain(&*self.former).cloned().collect();
        let targets: Arc<[Found]> = replicas.iter().cloned().map(Found::from).collect();
        // Whoever writes the file means it: what leaves it and comes back takes part.
        let was_dropped = |endpoint: &Endpoint| {
            let before = self.sources.get(&SourceKind::Static);
            before.is_some_and(|before| names(&before.targets, endpoint)) && !names(&targets, endpoint)
        };
        self.orders.retain(|endpoint, _| !was_dropped(endpoint));
        let state = SourceState { targets, answered: Some(now), ..SourceState::default() };
        self.sources.insert(SourceKind::Static, state);
    }

    /// Takes over what operators ordered at URLs of a pool that is gone: what this one has known before keeps its own.
    pub(crate) fn inherit(&mut self, gone: &Self, is_wanted: impl Fn(&Endpoint) -> bool) {
        let is_known =
            |endpoint: &Endpoint| self.sources.values().any(|state| names(&state.targets, endpoint));
        for (endpoint, order) in &gone.orders {
            if is_wanted(endpoint) && !is_known(endpoint) {
                self.orders.entry(endpoint.clone()).or_insert_with(|| order.clone());
            }
        }
    }

    /// A source is no longer configured: its replicas leave.
    pub(crate) fn forget(&mut self, kind: SourceKind) {
        self.sources.remove(&kind);
    }

    /// A source is configured; until it answers, replicas of those that stood in its place stay.
    pub(crate) fn open(&mut self, kind: SourceKind) {
        self.sources.entry(kind).or_default();
    }

    /// Whether a source is to answer for the first time. One that fails is waited for only where no other names a replica.
    fn awaits(&self) -> bool {
        let names_none = self.sources.values().all(|state| state.targets.is_empty());
        let is_awaited = |state: &SourceState| {
            state.answered.is_none() && state.targets.is_empty() && (state.failing.is_none() || names_none)
        };
        self.sources.values().any(is_awaited)
    }

    /// Whether what the sources before named is a part of the pool no more.
    pub(crate) fn has_settled(&self) -> bool {
        !self.former.is_empty() && !self.awaits()
    }

    /// A good answer. Returns whether it differs from the one before.
    pub(crate) fn answered(&mut self, kind: SourceKind, targets: Vec<Found>, now: Stamp) -> bool {
        self.recovered(kind, now);
        self.named(kind, targets)
    }

    /// All of a source can be read.
    pub(crate) fn recovered(&mut self, kind: SourceKind, now: Stamp) {
        if let Some(state) = self.sources.get_mut(&kind) {
            state.answered = Some(now);
            state.failing = None;
        }
    }

    /// What a source names, part of which may still fail. Returns whether it differs from what it named before.
    pub(crate) fn named(&mut self, kind: SourceKind, targets: Vec<Found>) -> bool {
        let Some(state) = self.sources.get_mut(&kind) else { return false };
        let is_new = *state.targets != *targets;
        if is_new {
            state.targets = targets.into();
        }
        is_new
    }

    /// A failure: what the source said last stays in force. Returns whether it is the first since its last good answer.
    pub(crate) fn failed(&mut self, kind: SourceKind, error: &str, now: Stamp) -> bool {
        let Some(state) = self.sources.get_mut(&kind) else { return false };
        state.failures += 1;
        let since = state.failing.as_ref().map(|(since, _)| *since);
        state.failing = Some((since.unwrap_or(now), error.into()));
        since.is_none()
    }

    /// Whether a source that says nothing but "there is none" may be believed by now.
    pub(crate) fn believes_absence(&self, kind: SourceKind, is_any_ready: bool, now: Stamp) -> bool {
        let Some(state) = self.sources.get(&kind) else { return false };
        let lasted = state.failing.as_ref().is_some_and(|(since, _)| now.since(*since) >= ABSENT_FOR);
        !state.targets.is_empty() && lasted && !is_any_ready
    }

    /// What a source named last.
    pub(crate) fn targets(&self, kind: SourceKind) -> Arc<[Found]> {
        self.sources.get(&kind).map(|state| Arc::clone(&state.targets)).unwrap_or_default()
    }

    /// Every source, in order.
    pub(crate) fn sources(&self) -> impl Iterator<Item = (SourceKind, &SourceState)> {
        SourceKind::ALL.into_iter().filter_map(|kind| Some((kind, self.sources.get(&kind)?)))
    }

    /// A metrics page shows this many engines. Returns whether that is news.
    pub(crate) fn saw_ranks(&mut self, endpoint: &Endpoint, ranks: u32) -> bool {
        if self.data_parallel != DataParallel::Auto {
            return false;
        }
        self.seen_ranks.insert(endpoint.clone(), ranks).unwrap_or(1) != ranks
    }

    /// An operator adds a replica, or lets one that is drained or removed take part again.
    pub(crate) fn add(&mut self, spec: ReplicaSpec, now: Stamp) {
        self.orders.remove(&spec.endpoint);
        let is_known = self.sources.values().any(|state| names(&state.targets, &spec.endpoint));
        if !is_known {
            let mut added = self.targets(SourceKind::Admin).to_vec();
            added.push(spec.into());
            self.publish_added(added, now);
        }
    }

    /// An operator takes a replica's new requests away; it stays listed.
    pub(crate) fn drain(&mut self, endpoint: &Endpoint) {
        self.order(endpoint, Override::Drained);
    }

    fn order(&mut self, endpoint: &Endpoint, order: Override) {
        let sources = SourceKind::ALL.into_iter().filter_map(|kind| self.sources.get(&kind));
        let mut found = sources.flat_map(|state| state.targets.iter());
        let found = found.find(|found| found.spec.endpoint == *endpoint);
        let instance = found.and_then(|found| found.instance.clone());
        self.orders.insert(endpoint.clone(), Order { order, instance });
    }

    /// An operator takes a replica out, also where another source still names it, or does so later.
    pub(crate) fn remove(&mut self, endpoint: &Endpoint, now: Stamp) {
        let mut added = self.targets(SourceKind::Admin).to_vec();
        added.retain(|found| found.spec.endpoint != *endpoint);
        self.publish_added(added, now);
        self.order(endpoint, Override::Removed);
    }

    fn publish_added(&mut self, added: Vec<Found>, now: Stamp) {
        self.open(SourceKind::Admin);
        self.answered(SourceKind::Admin, added, now);
    }

    /// The replicas of the pool.
    pub(crate) fn target_set(&mut self) -> TargetSet {
        let mut seen: HashSet<&Endpoint> = HashSet::new();
        let mut target_set = TargetSet::default();
        let mut targets = 0;
        if self.has_settled() {
            self.former = Arc::default();
        }
        let named = SourceKind::ALL.iter().filter_map(|kind| Some(&self.sources.get(kind)?.targets));
        for list in named.chain([&self.former]) {
            let takes = |found: &Found| found.role.is_none_or(|role| self.role.takes(role));
            let order = |found: &Found| {
                let given = self.orders.get(&found.spec.endpoint)?;
                given.holds_for(found.instance.as_deref()).then_some(given.order)
            };
            // Where none of the pool's own serves, by their orchestrator, our probes decide: under overload all of its fail at once.
            let any_serves =
                list.iter().any(|found| found.is_serving && takes(found) && order(found).is_none());
            for found in list.iter() {
                let order = order(found);
                if !seen.insert(&found.spec.endpoint) || order == Some(Override::Removed) {
                    continue;
                }
                if !takes(found) {
                    target_set.of_other_role += 1;
                    continue;
                }
                let ranks = ranks_of(self.data_parallel, &self.seen_ranks, &found.spec.endpoint);
                targets += ranks as usize;
                if targets > MAX_REPLICAS {
                    target_set.left_out += 1;
                    continue;
                }
                let held = match order {
                    Some(_) => Some(Hold::Drained),
                    None if any_serves && !found.is_serving => Some(Hold::NotServing),
                    None => None,
                };
                let spec = found.spec.clone();
                target_set.members.push(Member { spec, instance: found.instance.clone(), held, ranks });
            }
        }
        let specs = target_set.members.iter_mut().map(|member| &mut member.spec);
        self.given = uniquely_named(&mut specs.collect::<Vec<_>>(), &self.given);
        let seen: HashSet<Endpoint> = seen.into_iter().cloned().collect();
        self.seen_ranks.retain(|endpoint, _| seen.contains(endpoint));
        // Sources that fail and come back change no order; where URLs come and go for ever, those of now are enough.
        if self.orders.len() > MAX_REPLICAS {
            self.orders.retain(|endpoint, _| seen.contains(endpoint));
        }
        target_set
    }
}

fn names(targets: &[Found], endpoint: &Endpoint) -> bool {
    targets.iter().any(|found| found.spec.endpoint == *endpoint)
}

fn ranks_of(configured: DataParallel, seen: &HashMap<Endpoint, u32>, endpoint: &Endpoint) -> u32 {
    match configured {
        DataParallel::Ranks(count) => count.get(),
        DataParallel::Auto => seen.get(endpoint).map_or(1, |ranks| (*ranks).max(1)),
    }
}

/// How long a name has to be gone before that is believed.
pub(super) const ABSENT_FOR: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::clock::seconds as at;

    fn spec(name: &str, host: &str) -> ReplicaSpec {
        let endpoint = Endpoint { is_tls: false, host: host.into(), port: 8000, base_path: "".into() };
        ReplicaSpec { name: name.into(), endpoint, zone: None }
    }

    fn found(name: &str, host: &str) -> Found {
        spec(name, host).into()
    }

    fn roster(kinds: &[SourceKind]) -> Roster {
        let mut roster = Roster::default();
        kinds.iter().for_each(|kind| roster.open(*kind));
        roster
    }

    fn shown(roster: &mut Roster) -> Vec<String> {
        let member =
            |m: &Member| format!("{}@{}{}", m.spec.name, m.spec.endpoint.host, m.held.map_or("", |_| "!"));
        roster.target_set().members.iter().map(member).collect()
    }

    #[test]
    fn a_replica_that_two_sources_name_is_one_and_names_stay_unique() {
        let mut roster = roster(&[SourceKind::Dns, SourceKind::File]);
        roster.configure(&[spec("a", "h1")], DataParallel::Auto, at(0));
        roster.answered(SourceKind::Dns, vec![found("h1:8000", "h1"), found("a", "h2")], at(1));
        roster.answered(SourceKind::File, vec![found("b", "h3"), found("c", "h2")], at(1));
        assert_eq!(shown(&mut roster), ["a@h1", "b@h3", "c@h2"]);
        roster.answered(SourceKind::File, vec![found("a", "h3")], at(2));
        assert_eq!(shown(&mut roster), ["a@h1", "http://h3:8000@h3", "http://h2:8000@h2"]);
        roster.open(SourceKind::Admin);
        roster.answered(SourceKind::File, vec![found("gpu", "h3")], at(3));
        assert_eq!(shown(&mut roster), ["a@h1", "gpu@h3", "http://h2:8000@h2"]);
        roster.add(spec("gpu", "h4"), at(3));
        assert_eq!(
            shown(&mut roster),
            ["a@h1", "http://h4:8000@h4", "gpu@h3", "http://h2:8000@h2"],
            "one that serves keeps its name"
        );
    }

    #[test]
    fn one_url_under_two_names_counts_once() {
        let mut roster = roster(&[SourceKind::Dns]);
        roster.answered(SourceKind::Dns, vec![found("a", "h1"), found("b", "h1"), found("c", "h2")], at(0));
        assert_eq!(roster.sources().next().unwrap().1.urls(), 2);
    }

    #[test]
    fn a_failure_keeps_the_last_answer_and_an_absence_has_to_last() {
        let mut roster = roster(&[SourceKind::Dns]);
        assert!(roster.answered(SourceKind::Dns, vec![found("a", "h1")], at(0)));
        assert!(!roster.answered(SourceKind::Dns, vec![found("a", "h1")], at(5)), "nothing new");
        assert!(roster.failed(SourceKind::Dns, "timed out", at(10)), "the first one is said");
        assert!(!roster.failed(SourceKind::Dns, "no such name", at(20)));
        assert_eq!(shown(&mut roster), ["a@h1"]);
        let state = roster.sources().next().unwrap().1.clone();
        assert_eq!((state.failures, state.failing.unwrap().0, state.answered), (2, at(10), Some(at(5))));
        for (is_ready, seconds, believed) in [(false, 69, false), (true, 200, false), (false, 70, true)] {
            assert_eq!(
                roster.believes_absence(SourceKind::Dns, is_ready, at(seconds)),
                believed,
                "{seconds}"
            );
        }
        assert!(roster.answered(SourceKind::Dns, vec![], at(80)));
        assert!(shown(&mut roster).is_empty());
    }

    #[test]
    fn what_sources_named_stays_until_those_in_their_place_have_answered() {
        let replicas = [spec("a", "h1"), spec("b", "h2")];
        let moved = |kept: &[ReplicaSpec]| {
            let mut roster = Roster::default();
            roster.configure(&replicas, DataParallel::Auto, at(0));
            roster.configure(kept, DataParallel::Auto, at(1));
            roster.open(SourceKind::Dns);
            roster
        };
        let mut roster = moved(&[]);
        assert_eq!(shown(&mut roster), ["a@h1", "b@h2"]);
        roster.failed(SourceKind::Dns, "no such name", at(2));
        assert_eq!(shown(&mut roster), ["a@h1", "b@h2"], "nothing else is named");
        roster.answered(SourceKind::Dns, vec![found("b", "h2")], at(3));
        assert_eq!(shown(&mut roster), ["b@h2"]);
        roster.forget(SourceKind::Dns);
        assert!(shown(&mut roster).is_empty(), "what was settled does not come back");

        let mut roster = moved(&replicas[..1]);
        assert_eq!(shown(&mut roster), ["a@h1", "b@h2"], "it may be named in a moment");
        roster.failed(SourceKind::Dns, "no such name", at(2));
        assert_eq!(shown(&mut roster), ["a@h1"]);
    }

    #[test]
    fn targets_of_another_role_are_left_out_of_a_pool_that_has_one() {
        let labelled = |host: &str, role| Found { role, ..found(host, host) };
        let all = || {
            vec![
                labelled("p", Some(Role::Prefill)),
                labelled("d", Some(Role::Decode)),
                labelled("b", Some(Role::Both)),
                labelled("n", None),
            ]
        };
        let mut roster = roster(&[SourceKind::File]);
        roster.answered(SourceKind::File, all(), at(1));
        for (role, expected) in [
            (Role::Prefill, vec!["p@p", "b@b", "n@n"]),
            (Role::Decode, vec!["d@d", "b@b", "n@n"]),
            (Role::Both, vec!["p@p", "d@d", "b@b", "n@n"]),
        ] {
            roster.role = role;
            assert_eq!(shown(&mut roster), expected, "{role:?}");
            assert_eq!(roster.target_set().of_other_role, 4 - expected.len());
        }
    }

    #[test]
    fn operators_add_drain_remove_and_bring_back() {
        let mut roster = roster(&[]);
        roster.configure(&[spec("a", "h1"), spec("b", "h2")], DataParallel::Auto, at(0));
        roster.add(spec("c", "h3"), at(1));
        roster.add(spec("twice", "h3"), at(1));
        roster.drain(&spec("", "h1").endpoint);
        roster.remove(&spec("", "h2").endpoint, at(1));
        assert_eq!(shown(&mut roster), ["a@h1!", "c@h3"]);
        roster.add(spec("x", "h2"), at(2));
        roster.add(spec("x", "h1"), at(2));
        roster.remove(&spec("", "h3").endpoint, at(2));
        assert_eq!(shown(&mut roster), ["a@h1", "b@h2"], "under the names that the file gives");
        roster.drain(&spec("", "h1").endpoint);
        roster.configure(&[spec("b", "h2")], DataParallel::Auto, at(3));
        assert_eq!(shown(&mut roster), ["b@h2"]);
        roster.configure(&[spec("a", "h1")], DataParallel::Auto, at(4));
        assert_eq!(shown(&mut roster), ["a@h1"], "what left the file is drained no more");
        // A source that names it later, and one that lost it for a while, know nothing of that.
        roster.open(SourceKind::File);
        for targets in
            [vec![found("c", "h3"), found("d", "h4")], vec![], vec![found("c", "h3"), found("d", "h4")]]
        {
            roster.answered(SourceKind::File, targets, at(5));
            roster.drain(&spec("", "h4").endpoint);
            let all = shown(&mut roster);
            assert!(all == ["a@h1", "d@h4!"] || all == ["a@h1"], "{all:?}");
        }
        assert_eq!(shown(&mut roster), ["a@h1", "d@h4!"]);
        // Another pod at the same address is another replica.
        let pod = |uid: &str| Found { instance: Some(uid.into()), ..found("p", "h5") };
        roster.open(SourceKind::Kubernetes);
        roster.answered(SourceKind::Kubernetes, vec![pod("u1")], at(6));
        roster.drain(&spec("", "h5").endpoint);
        assert_eq!(shown(&mut roster).pop().unwrap(), "p@h5!");
        roster.answered(SourceKind::Kubernetes, vec![pod("u2")], at(7));
        assert_eq!(shown(&mut roster).pop().unwrap(), "p@h5");
    }

    #[test]
    fn one_that_does_not_serve_is_held_unless_none_does() {
        let mut roster = roster(&[SourceKind::Kubernetes]);
        let idle = |host| Found { is_serving: false, ..found(host, host) };
        roster.answered(SourceKind::Kubernetes, vec![found("a", "a"), idle("b")], at(0));
        assert_eq!(shown(&mut roster), ["a@a", "b@b!"]);
        roster.answered(SourceKind::Kubernetes, vec![idle("a"), idle("b")], at(0));
        assert_eq!(shown(&mut roster), ["a@a", "b@b"]);
    }

    #[test]
    fn only_targets_that_the_pool_may_use_count_as_serving() {
        let mut roster = roster(&[SourceKind::Kubernetes]);
        roster.role = Role::Decode;
        let labelled = |host, role, is_serving| Found { role: Some(role), is_serving, ..found(host, host) };
        let (prefill, idle) = (labelled("p", Role::Prefill, true), labelled("d", Role::Decode, false));
        roster.answered(SourceKind::Kubernetes, vec![prefill, idle.clone()], at(0));
        assert_eq!(shown(&mut roster), ["d@d"], "one of another role serves");
        let serving = labelled("e", Role::Decode, true);
        roster.answered(SourceKind::Kubernetes, vec![idle, serving.clone()], at(1));
        assert_eq!(shown(&mut roster), ["d@d!", "e@e"]);
        roster.drain(&serving.spec.endpoint);
        assert_eq!(shown(&mut roster), ["d@d", "e@e!"]);
        roster.remove(&serving.spec.endpoint, at(2));
        assert_eq!(shown(&mut roster), ["d@d"]);
        roster.add(serving.spec, at(3));
        assert_eq!(shown(&mut roster), ["d@d!", "e@e"]);
    }

    #[test]
    fn ranks_come_from_the_file_or_the_page_and_count_against_the_pool_s_room() {
        let mut roster = roster(&[]);
        let many: Vec<_> =
            (0..MAX_REPLICAS + 3).map(|at| spec(&format!("r{at}"), &format!("h{at}"))).collect();
        roster.configure(&many, DataParallel::Auto, at(0));
        let target_set = roster.target_set();
        assert_eq!((target_set.members.len(), target_set.left_out), (MAX_REPLICAS, 3));
        let first = &many[0].endpoint;
        assert!(!roster.saw_ranks(first, 1), "one engine is what a URL has anyway");
        assert!(roster.saw_ranks(first, 2) && !roster.saw_ranks(first, 2));
        let target_set = roster.target_set();
        assert_eq!(
            (target_set.members[0].ranks, target_set.members[1].ranks, target_set.left_out),
            (2, 1, 4)
        );
        roster.configure(&many[..1], DataParallel::Ranks(NonZeroU32::MIN), at(1));
        assert!(!roster.saw_ranks(first, 4));
        assert_eq!(roster.target_set().members[0].ranks, 1);
    }
}
